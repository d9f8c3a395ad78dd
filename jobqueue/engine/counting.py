"""
How many rows there are, for pages, commands and metrics.

A number is exact up to a bound. Above it, it reads "10,000+", or it is the planner's estimate: "about 340,000".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobqueue.values.text import number_text

CAP = 10_000  # rows that one number counts: of a list, a queue and status, a limit, or the children of a task
EXACT = 200_000  # entries of one index, counted in 30 ms, where a page has one such number
RUNNING_CAP = 50_000  # RUNNING tasks of all queues together, because no index has the queue first
KEYS_CAP = 50_000  # tasks of a limit whose keys a list counts in one round
LEVEL_CAP = 2_000  # children of a whole deeper level of a tree, because a page counts several levels


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tasks."""

    number: int = 0  # of tasks
    is_more: bool = False  # counting stopped at that number
    is_about: bool = False  # the planner's estimate

    @classmethod
    def capped(cls, number: int, cap: int = 0) -> Count:
        """Return a number that was counted up to a bound + 1. cap: the bound, by default CAP."""
        cap = cap or CAP
        return cls(min(number, cap), number > cap)

    def __str__(self) -> str:
        if self.is_about:
            return _("about %(number)s") % {"number": number_text(rounded(self.number))}
        if self.is_more:
            return f"{number_text(self.number)}+" if self.number else "?"
        return number_text(self.number)

    def __add__(self, other: Count) -> Count:
        return Count(
            self.number + other.number, self.is_more or other.is_more, is_about=self.is_about or other.is_about
        )

    def __bool__(self) -> bool:
        return self.number > 0 or self.is_more


def count(rows: QuerySet[Any]) -> Count:
    """Count rows up to CAP."""
    return Count.capped(rows[: CAP + 1].count())


def count_or_estimate(rows: QuerySet[Any], like: QuerySet[Any] | None = None, exact: int = 0) -> Count:
    """
    Count the rows of one index. If the planner expects more than `exact`, by default EXACT, return its estimate.

    like: the same rows in words that the planner estimates better. SQLite has no estimates and counts all.
    """
    number = count(rows)
    if not number.is_more:
        return number
    estimated = estimate(rows if like is None else like)
    if estimated > (exact or EXACT):
        return Count(estimated, is_about=True)
    return Count(rows.order_by().count())


def estimate(rows: QuerySet[Any]) -> int:
    """Return the planner's estimate of a number of rows; 0 if the database has none."""
    if connections[rows.db].vendor != "postgresql":
        return 0
    (plan,) = json.loads(rows.order_by().explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


def rounded(number: int) -> int:
    """Return a number with two digits before the zeros."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return round(number / unit) * unit
