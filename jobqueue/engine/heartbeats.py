"""The time of an executor's last heartbeat. Statements from files use sql/last_heartbeat.sql instead."""

from __future__ import annotations

from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, Greatest

from jobqueue.models import Executor, FallbackHeartbeat
from jobqueue.models.clock import AHEAD_SECONDS, clock_to_compare


def with_last_heartbeat(executors: QuerySet[Executor]) -> QuerySet[Any]:
    """
    Add `last_heartbeat` to executors: the heartbeat in the row, or a later one that found the row locked.

    A fallback heartbeat in the future does not count: it was written before the clock was set back.
    """
    fallback = FallbackHeartbeat.objects.filter(
        executor_id=OuterRef("pk"), at__lt=clock_to_compare(after=AHEAD_SECONDS)
    )
    newest = Subquery(fallback.order_by("-at").values("at")[:1])
    return executors.annotate(last_heartbeat=Greatest("heartbeat", Coalesce(newest, "heartbeat")))
