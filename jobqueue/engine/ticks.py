"""Make tasks of the ticks that are due, and record those that become none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import DatabaseError
from django.db.models import Exists, OuterRef, Q, Subquery

from jobqueue.engine.commit import REFUSALS, is_refusal
from jobqueue.engine.database import Database, LockTimeout, Part
from jobqueue.engine.due_schedules import DueSchedule
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.tasks import Tasks
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import STOPPED_BY, Schedule, ScheduleQuerySet, ScheduleTick, TaskQuerySet, is_paused
from jobqueue.models.clock import clock_to_compare
from jobqueue.schedules.planning import Plan, Skipped
from jobqueue.schedules.rows import make_task, to_row_time
from jobqueue.values.changes import CancelReport
from jobqueue.values.failpoints import failpoint
from jobqueue.values.policies import MAX_COUNTED, Overlap, SkipReason
from jobqueue.values.records import Enqueued, FiredSchedules, NewTask
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.states import Status
from jobqueue.values.text import printable

logger = safe_logger(__name__)

FIRE_BATCH = 500  # schedules in one transaction
KEY_WAIT, NO_WAIT = "500ms", "1ms"  # for a transaction that uses the key of a task; PostgreSQL only
UNUSABLE_SECONDS = 60.0  # after which this process tries again a schedule that it cannot evaluate


class Ticks(Part):
    def __init__(self, db: Database, inserts: Inserts, tasks: Tasks) -> None:
        super().__init__(db)
        self._inserts, self._tasks = inserts, tasks
        # By id of a schedule and time of its last change: when to try it again, monotonic.
        self._unusable: dict[tuple[int, datetime], float] = {}
        # Tests replace these two (jobqueue.testing.schedule_time).
        self.now: Callable[[], datetime] = db.now
        self.read: Callable[[Schedule], DueSchedule] = DueSchedule.from_row

    def fire(self, limit: int = FIRE_BATCH) -> FiredSchedules:
        """
        Enqueue the tasks of due ticks and record the ticks that are skipped, in one transaction.

        If the database refuses a schedule's task, the schedule is paused, and the reason is stored and logged. If this
        process cannot evaluate a schedule, because it lacks the time zone or runs older code, the schedule stays due
        for other executors. Locks: the due schedules, skipping locked ones. Only the holder of the lock moves the next
        tick, and a unique constraint admits each tick once.
        """
        try:
            return self._fire_due(limit)
        except (DatabaseError, *REFUSALS) as error:
            if not is_refusal(error):
                raise
        # The database refused the values of one schedule: find it, so that the others continue.
        fired = last = self._fire_due(1, stop_if_refused=True)
        while last.count and fired.count < limit:
            last = self._fire_due(1, stop_if_refused=True)
            fired += last
        return fired

    def _fire_due(self, limit: int, *, stop_if_refused: bool = False) -> FiredSchedules:
        with self.db.transaction():
            now = self.now()
            due = self.db.schedules.filter(due_at__lte=now).exclude(self._is_unusable()).order_by("due_at")
            rows = list(self.db.with_lock(due)[:limit])
            if len(rows) < limit:
                rows += self.db.with_lock(self._can_run_waiting_tick(now))[: limit - len(rows)]
            if rows and stop_if_refused:
                fired = self.account_or_stop(rows[0], now)
            else:
                fired = self._account_for(rows, now, may_defer=True)
            if rows:
                failpoint("schedule.before")
        if rows:
            failpoint("schedule.after")
        return fired

    def _can_run_waiting_tick(self, now: datetime) -> ScheduleQuerySet:
        has_live_task = Exists(self.db.tasks.live().filter(schedule_id=OuterRef("pk")))
        is_due = Q(due_at__isnull=False, due_at__lte=now)
        can_run = ~is_due & ~is_paused(now) & ~has_live_task & ~self._is_unusable()
        return self.db.schedules.filter(can_run, waiting_at__isnull=False).order_by("pk")

    def _is_unusable(self) -> Q:
        """Return the condition for schedules that this process could not evaluate a while ago, unchanged since."""
        now = time.monotonic()
        self._unusable = {row: retry_at for row, retry_at in self._unusable.items() if now < retry_at}
        return Q(
            pk__in=[pk for pk, _ in self._unusable], updated_at__in=[changed_at for _, changed_at in self._unusable]
        )

    def _account_for(
        self, rows: Sequence[Schedule], now: datetime, *, with_jitter: bool = True, may_defer: bool = False
    ) -> FiredSchedules:
        """
        Enqueue, keep waiting, or record as skipped each tick of the locked schedules that is due `now`.

        may_defer: leave a tick for later while another session has locked the task that it cancels.
        """
        if not rows:
            return FiredSchedules()
        running = set(self._live_tasks(rows).values_list("schedule_id", flat=True))
        plans: dict[DueSchedule, Plan] = {}
        for row in rows:
            try:
                due = self.read(row)
                plans[due] = due.plan(now, has_live_task=row.pk in running, with_jitter=with_jitter)
            except (ValueError, LookupError, ArithmeticError) as error:
                self._leave_to_others(row, error)
        has_cancelled, busy = self._cancel_replaced(plans)
        if may_defer:
            plans = {due: plan for due, plan in plans.items() if due.row.pk not in busy}
        runs = [(due, tick) for due, plan in plans.items() for tick in plan.runs]
        tasks = self.enqueue([(due.row, tick) for due, tick in runs], ScheduleTick.Trigger.SCHEDULE)
        self._inserts.counters.add_enqueued_ticks(
            (task, due.lateness(tick, answer.enqueued_at))
            for (due, tick), (task, answer) in zip(runs, tasks, strict=True)
            if answer.created
        )
        for due, plan in plans.items():
            due.write_next(plan)
        skipped = [(due.row, ticks) for due, plan in plans.items() for ticks in plan.skipped]
        skipped += [
            (due.row, Skipped(tick, tick, 1, SkipReason.KEY))
            for (due, tick), (_, answer) in zip(runs, tasks, strict=True)
            if not answer.created
        ]
        self.record_skipped(skipped)
        self._advance([due.row for due in plans])
        return FiredSchedules(
            count=len(plans),
            tasks=[(task, answer.enqueued_at) for task, answer in tasks if answer.created],
            skipped=sum(ticks.count for _, ticks in skipped),
            has_cancelled=has_cancelled,
        )

    def _cancel_replaced(self, plans: Mapping[DueSchedule, Plan]) -> tuple[bool, set[int]]:
        """
        Cancel the live tasks that due ticks replace.

        Return whether a running task was asked to stop, and the ids of the schedules with a locked task. Another
        session locks a task while an executor claims or commits it, or while an atomic body runs.
        """
        rows = [due.row for due, plan in plans.items() if plan.runs and due.policy.overlap == Overlap.CANCEL_RUNNING]
        live = dict(self._live_tasks(rows).values_list("pk", "schedule_id")) if rows else {}
        report = self._tasks.cancel(live, wait=False) if live else CancelReport()
        return report.requested > 0, {live[pk] for pk in report.busy}

    def account_or_stop(self, row: Schedule, now: datetime, *, with_jitter: bool = True) -> FiredSchedules:
        """Account for the due ticks of a locked schedule. Stop it if the database or a check refuses its values."""
        try:
            with self.db.transaction():
                return self._account_for([row], now, with_jitter=with_jitter)
        except (DatabaseError, *REFUSALS) as error:
            if not is_refusal(error):
                raise
            self._stop(row, error)
        return FiredSchedules(count=1)

    def _advance(self, rows: Collection[Schedule]) -> None:
        """Write the next, due and waiting ticks of locked schedules."""
        self.db.schedules.bulk_update(rows, ["next_at", "due_at", "waiting_at"])

    def _live_tasks(self, rows: Iterable[Schedule]) -> TaskQuerySet:
        return self.db.tasks.live().filter(schedule_id__in=[row.pk for row in rows])

    def enqueue(self, runs: Sequence[tuple[Schedule, datetime]], trigger: str) -> list[tuple[NewTask, Enqueued]]:
        """
        Insert one task and one ScheduleTick per tick. Return each task with its answer.

        A tick gets no ScheduleTick if another task has its key.
        """
        tasks = [make_task(row, tick) for row, tick in runs]
        answers = self._insert(tasks) if trigger == ScheduleTick.Trigger.SCHEDULE else self._inserts.insert(tasks)
        now = self.now()
        self.db.ticks.bulk_create(
            [
                tick_record(row, tick, tick, trigger=trigger, task_id=answer.id, recorded_at=now)
                for (row, tick), answer in zip(runs, answers, strict=True)
                if answer.created
            ]
        )
        return list(zip(tasks, answers, strict=True))

    def _insert(self, tasks: Sequence[NewTask], key_wait: str | None = None) -> list[Enqueued]:
        """
        Insert the tasks of due ticks. A key that an open transaction uses for longer than `key_wait` counts as taken.

        All other schedules and the executor itself would wait for that transaction.
        """
        if all(task.key is None for task in tasks):
            return self._inserts.insert(tasks)
        try:
            with self.db.transaction(), self.db.lock_timeout(key_wait or KEY_WAIT):
                return self._inserts.insert(tasks)
        except (LockTimeout, DuplicateKey):
            if len(tasks) > 1:
                return [answer for task in tasks for answer in self._insert([task], NO_WAIT)]
            return [Enqueued(tasks[0].id, self.now(), Status.READY, created=False)]

    def record_skipped(self, skipped: Sequence[tuple[Schedule, Skipped]]) -> None:
        """Insert a ScheduleTick per range. A range that follows the newest one, for the same reason, extends it."""
        now, ticks = self.now(), self.db.ticks
        newest = self.newest({row.pk for row, _ in skipped})
        added: list[ScheduleTick] = []
        extended: list[ScheduleTick] = []
        for row, skip in sorted(skipped, key=lambda item: item[1].first_at):
            new = tick_record(row, skip.first_at, skip.last_at, count=skip.count, reason=skip.reason, recorded_at=now)
            last = newest.get(row.pk)
            if last is None or not follows(row, last, new):
                newest[row.pk] = new
                added.append(new)
                continue
            if last not in added:
                extended.append(last)
            last.last_at, last.recorded_at = new.last_at, now
            last.count = min(last.count + new.count, MAX_COUNTED)
        ticks.bulk_create(added)
        ticks.bulk_update(extended, ["last_at", "count", "recorded_at"])
        self._inserts.counters.add_skipped_ticks(skipped)

    def newest(self, schedule_ids: Collection[int]) -> dict[int, ScheduleTick]:
        """Return the newest tick, or range of skipped ticks, of each schedule. Those that people ran do not count."""
        ticks = self.db.ticks.filter(trigger=ScheduleTick.Trigger.SCHEDULE)
        of_schedule = ticks.filter(schedule_id=OuterRef("pk")).order_by("-tick_at").values("pk")[:1]
        # By their primary keys alone, and in two steps: one statement reads all ticks if its statistics are old.
        schedules = Schedule.objects.using(self.db.using).filter(pk__in=schedule_ids)
        newest = schedules.annotate(newest=Subquery(of_schedule)).values_list("newest", flat=True)
        return {tick.schedule_id: tick for tick in ticks.filter(pk__in=[pk for pk in newest if pk is not None])}

    def _leave_to_others(self, row: Schedule, error: Exception) -> None:
        """Leave a schedule due that this process cannot evaluate, and do not lock it again for a while."""
        self._unusable[row.pk, row.updated_at] = time.monotonic() + UNUSABLE_SECONDS
        logger.error("schedule.deferred schedule=%s reason=%s", printable(row.name), printable(str(error)))

    def _stop(self, row: Schedule, error: Exception) -> None:
        """
        Pause a schedule after its task was refused, and record its ticks as paused.

        At the second refusal, also remove its next tick, so that recording it as paused cannot fail again.
        """
        logger.error(
            "schedule.stopped schedule=%s reason=%s", printable(row.name), printable(str(error)), exc_info=error
        )
        is_due = row.paused_by != STOPPED_BY
        self.db.schedules.filter(pk=row.pk).update(
            paused_at=self.now(),
            paused_by=STOPPED_BY,
            pause_reason=str(error)[:255],
            resume_at=None,
            **({} if is_due else {"next_at": None, "due_at": None}),
        )

    def prune(self, limit: int = 1000) -> int:
        """
        Delete ticks that were recorded before TICK_RETENTION, the oldest first. Return how many.

        The newest of each schedule stays. Locks: the rows FOR UPDATE, skipping locked ones.
        """
        kept_seconds = self.db.options.tick_retention
        if kept_seconds is None:
            return 0
        newer = self.db.ticks.filter(schedule_id=OuterRef("schedule_id"), tick_at__gt=OuterRef("tick_at"))
        old = self.db.ticks.filter(
            schedule__backend=self.db.backend, recorded_at__lte=clock_to_compare(after=-kept_seconds)
        )
        rows = old.filter(Exists(newer)).order_by("recorded_at").only("pk")
        with self.db.transaction():
            ids = [row.pk for row in self.db.with_lock(rows, no_key=False)[:limit]]
            return self.db.ticks.filter(pk__in=ids)._raw_delete(self.db.using) if ids else 0


def tick_record(row: Schedule, first: datetime, last: datetime, **columns: Any) -> ScheduleTick:
    return ScheduleTick(schedule=row, tick_at=to_row_time(first), last_at=to_row_time(last), **columns)


def follows(row: Schedule, last: ScheduleTick, new: ScheduleTick) -> bool:
    """Return whether skipped ticks extend a range: same reason, later, and without the waiting tick between them."""
    has_gap = row.waiting_at is not None and last.last_at < row.waiting_at < new.tick_at
    return last.reason == new.reason and last.last_at < new.tick_at and not has_gap
