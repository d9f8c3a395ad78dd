"""Which executors are alive, silent or gone, by their heartbeats: conditions for queries, and for rows already read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from jobqueue.models import Executor, Task
from jobqueue.models.clock import clock_to_compare

GONE_SECONDS = 3600.0  # without a heartbeat, or the timeout if it is longer


def with_heartbeat(executors: QuerySet[Executor]) -> QuerySet[Any]:
    """Select executors with their `heartbeat`, in one query. It is written before the executor's row."""
    return executors.filter(heartbeat__isnull=False).select_related("heartbeat")


def silent(timeout_seconds: float, at: str = "heartbeat__at") -> Q:
    """Select executors without a heartbeat within the timeout: others rescue their tasks. at: the heartbeat's time."""
    return Q((f"{at}__lt", clock_to_compare(after=-timeout_seconds)))


def alive(timeout_seconds: float) -> Q:
    """Select executors that have not stopped, with a heartbeat within the timeout. Paused ones are alive, too."""
    return Q(heartbeat__at__gte=clock_to_compare(after=-timeout_seconds)) & ~Q(heartbeat__state=Executor.State.STOPPED)


def silent_seconds(executor: Executor, now: datetime) -> float:
    """Return how long ago the last heartbeat of an executor was. It may be ahead of a clock that was set back."""
    return max(0.0, (now - executor.heartbeat.at).total_seconds())


def is_silent(seconds: float, timeout_seconds: float) -> bool:
    """Return whether silent() selects an executor with a last heartbeat so long ago."""
    return seconds > timeout_seconds


def gone(timeout_seconds: float) -> Q:
    """Select executors that have stopped, or were killed a while ago and have no tasks left to rescue."""
    has_tasks = Q(Exists(Task.objects.running().filter(executor_id=OuterRef("pk"))))
    is_long_silent = silent(max(GONE_SECONDS, timeout_seconds))
    return Q(heartbeat__state=Executor.State.STOPPED) | (is_long_silent & ~has_tasks)


def is_gone(executor: Executor, seconds: float, timeout_seconds: float, *, has_tasks: bool) -> bool:
    """Return whether gone() selects an executor. seconds: since its last heartbeat."""
    is_long_silent = is_silent(seconds, max(GONE_SECONDS, timeout_seconds))
    return executor.heartbeat.state == Executor.State.STOPPED or (is_long_silent and not has_tasks)
