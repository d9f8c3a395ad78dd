"""Queues as statements of PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from django.db import OperationalError

from jobqueue.engine.admissions import ADMITTED_AT_ONCE, REQUESTS_READ
from jobqueue.engine.counting import CAP, RUNNING_CAP
from jobqueue.engine.postgres.connection import CHANNEL, PostgresDatabase, short_statement
from jobqueue.engine.queues import QUEUES_READ, TASKS_READ, Queues
from jobqueue.values.counters import Depth
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.states import Status

logger = safe_logger(__name__)

NOTIFICATION_QUEUE_FULL = "54000"  # program_limit_exceeded
LOG_FULL_SECONDS = 300.0


class PostgresQueues(Queues):
    db: PostgresDatabase

    def _oldest_snapshot_seconds(self) -> float:
        return max((float(seconds) for *_, seconds in self.db.query("oldest_snapshot")), default=0.0)

    def _running(self) -> Iterable[tuple[str, UUID | None, int]]:
        rows = self.db.query("count_running_by_executor", running_limit=RUNNING_CAP)
        return [(queue_name, executor_id, number) for queue_name, executor_id, number in rows]

    def _waiting(self) -> Iterable[Depth]:
        rows = self.db.query(
            "queue_depths",
            queues=self.queues_in_use()[:QUEUES_READ],
            depth_limit=CAP + 1,
            queue_limit=QUEUES_READ,
        )
        return [Depth(name, Status(status), number) for name, status, number in rows]

    def _with_ready_tasks(self) -> Iterable[tuple[str, float, bool]]:
        return self.db.query("queue_latency", queues=self.queues_in_use()[:QUEUES_READ], task_limit=TASKS_READ)

    _logged_full_at = float("-inf")

    def notify(self, queues: Iterable[str]) -> None:
        is_alone = not self.db.has_caller()
        try:
            for payload in [f"{self.db.backend} {queue}" for queue in queues]:
                self.db.fetch_small(short_statement("notify"), channel=CHANNEL, payload=payload, is_alone=is_alone)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != NOTIFICATION_QUEUE_FULL:
                raise
            self._free_notification_queue()

    def _free_notification_queue(self) -> None:
        """Ask for the usage, which frees read notifications. Log now and then: executors find work by polling."""
        ((usage,),) = self.db.query("notification_queue_usage")
        if time.monotonic() - self._logged_full_at < LOG_FULL_SECONDS:
            return
        self._logged_full_at = time.monotonic()
        logger.warning(
            "notification.rejected backend=%s used_percent=%.0f poll_interval_s=%.1f "
            "hint=A session that executed LISTEN stays in a transaction. Find it in pg_stat_activity.",
            self.db.backend,
            100 * usage,
            self.db.options.poll_interval,
        )

    def lock_queues(self, names: Collection[str]) -> dict[str, int | None]:
        return dict(self.db.query_prepared("lock_queues", queues=list(names)))

    def count_running(self, limits: Mapping[str, int]) -> dict[str, int]:
        return dict(self.db.query_prepared("count_running", queues=list(limits), max_tasks=list(limits.values())))

    def queues_in_use(self) -> list[str]:
        return sorted(name for (name,) in self.db.query_prepared("queues_in_use"))

    def has_no_work_left(self, queues: Sequence[str] | None, within_seconds: float) -> bool:
        ((has_no_work_left,),) = self.db.query(
            "has_no_work_left",
            queues=self.queues_in_use() if queues is None else list(queues),
            only_these=queues is not None,
            within_seconds=float(within_seconds),
            requests_read=REQUESTS_READ,
            at_once=ADMITTED_AT_ONCE,
        )
        return bool(has_no_work_left)
