"""Wait for a condition. Each wait has a deadline that only a failing test reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from django.db import OperationalError, connection
from django.db.models import Count

from jobqueue.models import Task

T = TypeVar("T")

DEADLINE_SECONDS = 240.0  # far more than any test needs, even on a busy machine
REST = 10  # pause after a look, in durations of the look: looks use at most a tenth of a processor


def wait_until(condition: Callable[[], T | None], what: str = "the condition", seconds: float = DEADLINE_SECONDS) -> T:
    """Return the condition's value once it is true. Raises AssertionError after the given seconds."""
    deadline = (began := time.monotonic()) + seconds
    while not (value := _value_of(condition)):
        if (now := time.monotonic()) > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s; {states()}")
        time.sleep(max(0.005, min(REST * (now - began), 0.5)))
        began = time.monotonic()
    return value


def _value_of(condition: Callable[[], T]) -> T | None:
    try:
        return condition()
    except OperationalError:  # the test has stopped the server
        connection.close()
        return None


def states() -> dict[str, int]:
    """Count tasks by status; of a test without a database, none."""
    with suppress(Exception):
        rows = Task.objects.order_by().values("status").annotate(count=Count("pk"))
        return {row["status"]: row["count"] for row in rows}
    return {}
