"""Limits by key: the numbers that people set, and how many tasks wait for each limit."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Min, Q

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.counting import CAP
from jobqueue.engine.database import Part
from jobqueue.engine.limit_conditions import INDEXED, IS_WAITING, tasks_of_limit
from jobqueue.models import Limit
from jobqueue.values.counters import LimitGauges
from jobqueue.values.limit_keys import AFTER_SEPARATOR, SEPARATOR, split_key
from jobqueue.values.states import LimitKind

MAX_NAMES = 200  # of limits in lists and metrics


@dataclass(eq=False)
class Limits(Part):
    admissions: Admissions

    def set(self, kind: LimitKind, key: str, number: int | None, *, by: str = "", reason: str = "") -> None:
        """
        Set the number of a limit for one key, or for all its keys if `key` has no text after the colon.

        number: None removes the number that was set.

        Locks: the row of the limit. Raises LockTimeout.
        """
        with self.db.bounded(f"the limit {key!r}"):
            rows = Limit.objects.using(self.db.using)
            if number is None:
                rows.filter(backend=self.db.backend, kind=kind, key=key).delete()
            else:
                values = {"number": number, "changed_by": by, "reason": reason, "changed_at": self.db.now()}
                rows.update_or_create(backend=self.db.backend, kind=kind, key=key, defaults=values)
            # In the transaction, so that a crash leaves no task BLOCKED. A look before its commit does not see it.
            if split_key(key)[1]:
                self.admissions.insert_requests({(kind, key)})
            else:
                self.admissions.request_all(kind, key)
        # Again after the commit: a look before it may have left tasks BLOCKED that were enqueued in between.
        if not split_key(key)[1]:
            self.admissions.request_all(kind, key)

    def names(self, kind: LimitKind) -> list[str]:
        """Return the names of the limits that live tasks have, the first MAX_NAMES. One query each."""
        column = f"{kind}_key"
        rows = self.db.tasks.filter(INDEXED[kind]).order_by("backend", column)
        names: list[str] = []
        while len(names) < MAX_NAMES:
            after = Q(**{f"{column}__gte": f"{names[-1]}{AFTER_SEPARATOR}"}) if names else Q()
            key = rows.filter(after).values_list(column, flat=True).first()
            if key is None:
                break
            names.append(split_key(key)[0])
        return names

    def gauges(self) -> list[LimitGauges]:
        """Return how many tasks wait for each limit. It reads up to CAP index entries for each. Locks: none."""
        now = self.db.now()
        gauges = []
        for kind in INDEXED:
            for name in self.names(kind):
                rows = self.db.tasks.filter(
                    INDEXED[kind] & tasks_of_limit(kind, f"{name}{SEPARATOR}"), IS_WAITING[kind]
                )
                counted = rows.order_by("backend", f"{kind}_key")[:CAP]
                sums = counted.aggregate(blocked=Count("pk"), rank=Min("rank"))
                seconds = (now - sums["rank"]).total_seconds() if sums["rank"] else 0.0
                gauges.append(
                    LimitGauges(kind=kind, name=name, blocked=sums["blocked"], oldest_seconds=max(0.0, seconds))
                )
        return gauges
