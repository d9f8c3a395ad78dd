"""Broken engines for the races of schedules, in the shape of mutants.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from jobqueue.engine.database import Database, Rows
from jobqueue.engine.due_schedules import DueSchedule
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.engine.schedules import Schedules
from jobqueue.engine.tasks import Tasks
from jobqueue.engine.ticks import Ticks
from jobqueue.models import Schedule, ScheduleDeployment, ScheduleTick, TaskQuerySet
from jobqueue.models.clock import clock_to_compare
from jobqueue.schedules.planning import Plan, Skipped
from jobqueue.values.policies import SkipReason
from jobqueue.values.records import Enqueued, FiredSchedules, NewTask

NEXT_COLUMNS = ("next_at", "due_at", "waiting_at")


class InProgress(threading.local):
    """What this thread is doing, for the broken parts of an engine."""

    ignores_due_ticks = False
    advances: list[tuple[int, dict[str, Any]]] = []
    running: Collection[UUID] | None = None
    with_task: set[datetime] | None = None


in_progress = InProgress()


class FiresWithoutLocking(PostgresEngine):
    """Reads the due schedules without a lock."""

    class database_class(PostgresDatabase):
        def with_lock(self, rows: Rows, *, wait: bool = False, no_key: bool = True) -> Rows:
            return rows if rows.model is Schedule and not wait else super().with_lock(rows, wait=wait, no_key=no_key)


class PlansFromUnlockedRows(PostgresEngine):
    """Locks the due schedules, and plans with the values that it had read before."""

    class database_class(PostgresDatabase):
        def with_lock(self, rows: Rows, *, wait: bool = False, no_key: bool = True) -> Rows:
            if rows.model is not Schedule:
                return super().with_lock(rows, wait=wait, no_key=no_key)
            read: Any = list(rows)
            locked = super().with_lock(self.schedules.filter(pk__in=[row.pk for row in read]), wait=True)
            ids = {row.pk for row in locked}
            planned_rows: Any = ListOfRows(row for row in read if row.pk in ids)
            return planned_rows  # type: ignore[no-any-return]


class ListOfRows(list[Any]):
    """Rows in place of a query."""

    def first(self) -> Any:
        return self[0] if self else None


class AdvancesInSecondTransaction(PostgresEngine):
    """Enqueues the tasks in one transaction, and moves the next tick in another."""

    class ticks_class(Ticks):
        def _fire_due(self, limit: int, *, stop_if_refused: bool = False) -> FiredSchedules:
            in_progress.advances = []
            fired = super()._fire_due(limit, stop_if_refused=stop_if_refused)
            with self.db.transaction():
                for pk, columns in in_progress.advances:
                    self.db.schedules.filter(pk=pk).update(**columns)
            return fired

        def _account_for(self, rows: Sequence[Schedule], now: datetime, **options: Any) -> FiredSchedules:
            before = {row.pk: {name: getattr(row, name) for name in NEXT_COLUMNS} for row in rows}
            fired = super()._account_for(rows, now, **options)
            in_progress.advances = [(row.pk, {name: getattr(row, name) for name in NEXT_COLUMNS}) for row in rows]
            for pk, columns in before.items():
                self.db.schedules.filter(pk=pk).update(**columns)
            return fired


class UsesProcessClock(PostgresEngine):
    """Reads the clock of the process, which differs from that of the database."""

    class ticks_class(Ticks):
        def __init__(self, db: Database, inserts: Inserts, tasks: Tasks) -> None:
            super().__init__(PostgresDatabase(db.backend, db.options), inserts, tasks)

        @property
        def now(self) -> Callable[[], datetime]:
            return lambda: datetime.now(UTC)

        @now.setter
        def now(self, clock: Callable[[], datetime]) -> None:
            """Ignore the clock of the database."""


class ReadsRunningTasksBeforeLocking(PostgresEngine):
    """Reads which schedules have live tasks, and then locks the due schedules."""

    class ticks_class(Ticks):
        def _fire_due(self, limit: int, *, stop_if_refused: bool = False) -> FiredSchedules:
            live = self.db.tasks.live().filter(schedule_id__isnull=False)
            in_progress.running = [*live.values_list("pk", flat=True)]
            try:
                return super()._fire_due(limit, stop_if_refused=stop_if_refused)
            finally:
                in_progress.running = None

        def _live_tasks(self, rows: Any) -> TaskQuerySet:
            if in_progress.running is None:
                return super()._live_tasks(rows)
            return self.db.tasks.filter(pk__in=in_progress.running, schedule_id__in=[row.pk for row in rows])


class IgnoresRefusedKeys(PostgresEngine):
    """Does not record a tick whose task was refused because of its key."""

    class ticks_class(Ticks):
        def record_skipped(self, skipped: Sequence[tuple[Schedule, Skipped]]) -> None:
            super().record_skipped([(row, skip) for row, skip in skipped if skip.reason != SkipReason.KEY])


class RecordsTaskAndSkip(PostgresEngine):
    """Records a tick that became a task as skipped, too."""

    class ticks_class(Ticks):
        def enqueue(self, runs: Sequence[tuple[Schedule, datetime]], trigger: str) -> list[tuple[NewTask, Enqueued]]:
            if trigger == ScheduleTick.Trigger.SCHEDULE:
                self.record_skipped([(row, Skipped(tick, tick, 1, SkipReason.OVERLAP)) for row, tick in runs])
            return super().enqueue(runs, trigger)


class ForgetsLockedRunningTasks(PostgresEngine):
    """Enqueues the next task although it could not lock the running one to cancel it."""

    class ticks_class(Ticks):
        def _cancel_replaced(self, plans: Mapping[DueSchedule, Plan]) -> tuple[bool, set[int]]:
            return super()._cancel_replaced(plans)[0], set()


class PrunesNewestRecords(PostgresEngine):
    """Deletes old records, also the newest one of a schedule, which another session may extend."""

    class ticks_class(Ticks):
        def prune(self, limit: int = 1000) -> int:
            old = self.db.ticks.filter(
                schedule__backend=self.db.backend, recorded_at__lte=clock_to_compare(after=-86_400.0 * 90)
            )
            ids = list(old.values_list("pk", flat=True)[:limit])
            return self.db.ticks.filter(pk__in=ids)._raw_delete(self.db.using)


# --- changes that do not account for due ticks


class IgnoresDueTicks(Schedules):
    """Can change a schedule without an outcome of its due ticks."""

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Let due ticks have no outcome."""

        def account_or_stop(row: Schedule, now: datetime, *, with_jitter: bool = True) -> FiredSchedules:
            if not in_progress.ignores_due_ticks:
                return Ticks.account_or_stop(self._ticks, row, now, with_jitter=with_jitter)
            self.db.schedules.filter(pk=row.pk).update(next_at=None, due_at=None)
            in_progress.advances = [(row.pk, {name: getattr(row, name) for name in NEXT_COLUMNS})]
            return FiredSchedules()

        vars(self._ticks)["account_or_stop"] = account_or_stop
        in_progress.ignores_due_ticks = True
        try:
            yield
        finally:
            in_progress.ignores_due_ticks = False

    def give_back(self) -> None:
        for pk, columns in in_progress.advances:
            self.db.schedules.filter(pk=pk, retired_at__isnull=True, due_at__isnull=True).update(**columns)
        in_progress.advances = []


class EditIgnoresDueTicks(PostgresEngine):
    """Moves the next tick of an edited schedule past those that are due."""

    class schedules_class(IgnoresDueTicks):
        def save(self, name: str, columns: Mapping[str, Any]) -> tuple[Schedule, bool]:
            with self.ignoring():
                return super().save(name, columns)


class PauseIgnoresDueTicks(PostgresEngine):
    """Pauses a schedule at once, so that its due ticks are skipped."""

    class schedules_class(IgnoresDueTicks):
        def pause(self, ids: Collection[int], **columns: Any) -> None:
            with self.db.transaction(), self.ignoring():
                super().pause(ids, **columns)
                self.give_back()


class RunNowIgnoresDueTicks(PostgresEngine):
    """Enqueues the task of people first, so that the due tick overlaps with it."""

    class schedules_class(IgnoresDueTicks):
        def run_now(self, pk: int) -> Enqueued:
            with self.db.transaction(), self.ignoring():
                answer = super().run_now(pk)
                self.give_back()
                return answer


class RetireIgnoresDueTicks(PostgresEngine):
    """Removes a schedule without an outcome of its due ticks."""

    class schedules_class(IgnoresDueTicks):
        def retire(self, ids: Collection[int]) -> int:
            with self.ignoring():
                return super().retire(ids)


class RetireForgetsWaitingTick(PostgresEngine):
    """Removes a schedule whose tick waits for a task, and does not record this tick."""

    class schedules_class(Schedules):
        def retire(self, ids: Collection[int]) -> int:
            with self.db.transaction():
                self.db.with_lock(self.db.schedules.filter(pk__in=ids), wait=True).update(waiting_at=None)
                return super().retire(ids)


class RetireLeavesDueAt(PostgresEngine):
    """Removes a schedule, and leaves its next tick due."""

    class schedules_class(Schedules):
        def retire(self, ids: Collection[int]) -> int:
            with self.db.transaction():
                rows = list(self.db.with_lock(self.db.schedules.filter(pk__in=ids), wait=True))
                count = super().retire(ids)
                for row in rows:
                    self.db.schedules.filter(pk=row.pk).update(next_at=row.next_at, due_at=row.due_at)
            return count


class EditReadsClockBeforeLocking(PostgresEngine):
    """Computes the first tick of an edited schedule from a time read before it waited for the lock."""

    class schedules_class(Schedules):
        def save(self, name: str, columns: Mapping[str, Any]) -> tuple[Schedule, bool]:
            self.early = self._ticks.now()
            return super().save(name, columns)

        def _first_tick(self, row: Schedule, now: datetime) -> datetime | None:
            return super()._first_tick(row, min(now, self.early))

    class ticks_class(Ticks):
        def newest(self, schedule_ids: Collection[int]) -> dict[int, ScheduleTick]:
            return {}


class EditIgnoresJitter(PostgresEngine):
    """Loses a tick whose moment has passed and whose jitter has not."""

    class schedules_class(Schedules):
        def _lock_and_account(self, *, with_jitter: bool = True, **where: Any) -> tuple[Schedule, datetime]:
            return super()._lock_and_account(with_jitter=True, **where)


class SaveExpectsItsRow(PostgresEngine):
    """Fails if a schedule is deleted between the insert that found it and the lock."""

    class schedules_class(Schedules):
        def _lock_and_account(self, *, with_jitter: bool = True, **where: Any) -> tuple[Schedule, datetime]:
            self.db.schedules.get(**where)
            return super()._lock_and_account(with_jitter=with_jitter, **where)


# --- backfill and deployments


class RepeatsBackfill(PostgresEngine):
    """Enqueues each tick of a range, also those that have a task."""

    class schedules_class(Schedules):
        def ticks_with_task(self, row: Schedule, ticks: Sequence[datetime]) -> set[datetime]:
            return set()


class BackfillReadsBeforeLocking(PostgresEngine):
    """Enqueues the ticks that had no task before it waited for the lock."""

    class schedules_class(Schedules):
        def ticks_with_task(self, row: Schedule, ticks: Sequence[datetime]) -> set[datetime]:
            """Read for the preview, and return the same to the backfill."""
            before, in_progress.with_task = in_progress.with_task, None
            if before is None:
                before = in_progress.with_task = super().ticks_with_task(row, ticks)
            return before


class DeploysWithoutLocking(PostgresEngine):
    """Lets two versions of the code write their schedules at once."""

    class database_class(PostgresDatabase):
        def with_lock(self, rows: Rows, *, wait: bool = False, no_key: bool = True) -> Rows:
            return rows if rows.model is ScheduleDeployment else super().with_lock(rows, wait=wait, no_key=no_key)


class DeploysInAnyOrder(PostgresEngine):
    """Locks the schedules of a deploy in the order of their declarations."""

    class database_class(PostgresDatabase):
        def with_lock(self, rows: Rows, *, wait: bool = False, no_key: bool = True) -> Rows:
            is_first_lock = rows.model is Schedule and wait and rows.query.order_by == ("pk",)
            return rows if is_first_lock else super().with_lock(rows, wait=wait, no_key=no_key)
