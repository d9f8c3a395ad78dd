"""Schedules: make tasks of the ticks that are due, and record the ticks that become none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError
from django.db.models import Count, Exists, Min, OuterRef, Q, Subquery

from jobqueue.engine.clock import now_plus
from jobqueue.engine.commit import REFUSALS, is_refusal
from jobqueue.engine.database import Database, LockTimeout, Part
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.tasks import Tasks
from jobqueue.exceptions import DuplicateKey, ScheduleNotFound
from jobqueue.models import STOPPED_BY, Schedule, ScheduleQuerySet, ScheduleTick, TaskQuerySet
from jobqueue.schedules.planning import Plan, Policy, Skipped, first_tick, make_plan
from jobqueue.schedules.rows import aware, paused_until, policy_of, stored, task_of, ticks_of
from jobqueue.values.counters import ScheduleGauges
from jobqueue.values.failpoints import failpoint
from jobqueue.values.policies import MAX_COUNTED, Overlap, SkipReason
from jobqueue.values.records import CancelReport, Enqueued, FiredSchedules, NewTask, Status
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.text import printable

logger = safe_logger(__name__)

FIRE_BATCH = 500  # schedules in one transaction
KEY_WAIT, NO_WAIT = "500ms", "1ms"  # for a transaction that uses the key of a task; PostgreSQL only
RESOLUTION = timedelta(microseconds=1)  # of the database's times
UNUSABLE_SECONDS = 60.0  # after which this process tries again a schedule that it cannot evaluate
NO_PAUSE: Mapping[str, Any] = {"paused_at": None, "paused_by": "", "pause_reason": "", "resume_at": None}
# A change of one of these moves the next tick.
TIMING_COLUMNS = ("expression", "timezone", "anchor_at", "starts_at", "ends_at", "retired_at")


class Schedules(Part):
    def __init__(self, db: Database, inserts: Inserts, tasks: Tasks) -> None:
        super().__init__(db)
        self._inserts, self._tasks = inserts, tasks
        # By id of a schedule and time of its last change: when to try it again, monotonic.
        self._unusable: dict[tuple[int, datetime], float] = {}
        # Tests replace these two (jobqueue.testing.schedule_time).
        self.now: Callable[[], datetime] = db.now
        self.policy_of: Callable[[Schedule], Policy] = policy_of

    # --- ticks

    def fire(self, limit: int = FIRE_BATCH) -> FiredSchedules:
        """
        Enqueue the tasks of due ticks and record the ticks that are skipped, in one transaction.

        A schedule whose task the database refuses is paused, and the reason is stored and logged. A schedule whose
        times this process cannot evaluate stays due for executors that can: this host may lack its time zone, or run
        older code. Locks: the due schedules, without those that others have locked. Only the holder of the lock moves
        the next tick, and a unique constraint admits each tick once.
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
                fired = self._account_or_stop(rows[0], now)
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
        can_run = ~is_due & ~is_paused_at(now) & ~has_live_task & ~self._is_unusable()
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
        For locked schedules: enqueue, keep waiting, or record as skipped each tick that is due `now`.

        may_defer: leave a tick for later while another session has locked the task that it cancels.
        """
        if not rows:
            return FiredSchedules()
        running = set(self._live_tasks(rows).values_list("schedule_id", flat=True))
        plans: dict[Schedule, Plan] = {}
        for row in rows:
            try:
                policy, has_live_task = self.policy_of(row), row.pk in running
                plans[row] = plan_of(row, policy, aware(now), has_live_task=has_live_task, with_jitter=with_jitter)
            except (ValueError, LookupError, ArithmeticError) as error:
                self._leave_to_others(row, error)
        has_cancelled, busy = self._cancel_replaced(plans)
        if may_defer:
            plans = {row: plan for row, plan in plans.items() if row.pk not in busy}
        runs = [(row, tick) for row, plan in plans.items() for tick in plan.runs]
        tasks = self._enqueue(runs, ScheduleTick.Trigger.SCHEDULE)
        self._inserts.counters.add_enqueued_ticks(
            (task, lateness_of(row, tick, answer.enqueued_at))
            for (row, tick), (task, answer) in zip(runs, tasks, strict=True)
            if answer.created
        )
        for row, plan in plans.items():
            set_next(row, plan.next_at, plan.waiting_at)
        skipped = [(row, ticks) for row, plan in plans.items() for ticks in plan.skipped]
        skipped += [
            (row, Skipped(tick, tick, 1, SkipReason.KEY))
            for (row, tick), (_, answer) in zip(runs, tasks, strict=True)
            if not answer.created
        ]
        self._record_skipped(skipped)
        self._advance(plans)
        return FiredSchedules(
            count=len(plans),
            tasks=[(task, answer.enqueued_at) for task, answer in tasks if answer.created],
            skipped=sum(ticks.count for _, ticks in skipped),
            has_cancelled=has_cancelled,
        )

    def _cancel_replaced(self, plans: Mapping[Schedule, Plan]) -> tuple[bool, set[int]]:
        """
        Cancel the live tasks that due ticks replace.

        Return whether running ones are to be cancelled, and the schedules whose task another session has locked: an
        executor claims or commits it, or its body runs in a transaction.
        """
        rows = [row for row, plan in plans.items() if plan.runs and row.overlap == Overlap.CANCEL_RUNNING]
        live = dict(self._live_tasks(rows).values_list("pk", "schedule_id")) if rows else {}
        report = self._tasks.cancel(live, wait=False) if live else CancelReport()
        return report.requested > 0, {live[pk] for pk in report.busy}

    def _account_or_stop(self, row: Schedule, now: datetime, *, with_jitter: bool = True) -> FiredSchedules:
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

    def _enqueue(self, runs: Sequence[tuple[Schedule, datetime]], trigger: str) -> list[tuple[NewTask, Enqueued]]:
        """
        Insert one task and one ScheduleTick per tick. Return each task with its answer.

        A tick whose key another task has gets no ScheduleTick.
        """
        tasks = [task_of(row, tick) for row, tick in runs]
        answers = self._insert(tasks) if trigger == ScheduleTick.Trigger.SCHEDULE else self._inserts.insert(tasks)
        now = self.now()
        self.db.ticks.bulk_create(
            [
                ScheduleTick(
                    schedule=row,
                    trigger=trigger,
                    tick_at=stored(tick),
                    last_at=stored(tick),
                    task_id=answer.id,
                    recorded_at=now,
                )
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

    def _record_skipped(self, skipped: Sequence[tuple[Schedule, Skipped]]) -> None:
        """Insert a ScheduleTick per range. A range that follows the newest one, for the same reason, extends it."""
        now, ticks = self.now(), self.db.ticks
        newest = self.newest_ticks({row.pk for row, _ in skipped})
        added: list[ScheduleTick] = []
        extended: list[ScheduleTick] = []
        for row, skip in sorted(skipped, key=lambda item: item[1].first_at):
            last = newest.get(row.pk)
            if last is None or not follows(row, last, skip):
                last = ScheduleTick(schedule=row, tick_at=stored(skip.first_at), count=0, reason=skip.reason)
                newest[row.pk] = last
                added.append(last)
            elif last not in added:
                extended.append(last)
            last.last_at, last.recorded_at = stored(skip.last_at), now
            last.count = min(last.count + skip.count, MAX_COUNTED)
        ticks.bulk_create(added)
        ticks.bulk_update(extended, ["last_at", "count", "recorded_at"])
        self._inserts.counters.add_skipped_ticks(skipped)

    def newest_ticks(self, schedule_ids: Collection[int]) -> dict[int, ScheduleTick]:
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
        Pause a schedule whose task is refused. Its ticks are recorded as paused.

        If an error has stopped it before, it gets no next tick.
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
        old = self.db.ticks.filter(schedule__backend=self.db.backend, recorded_at__lte=now_plus(-kept_seconds))
        rows = old.filter(Exists(newer)).order_by("recorded_at").only("pk")
        with self.db.transaction():
            ids = [row.pk for row in self.db.with_lock(rows, no_key=False)[:limit]]
            return self.db.ticks.filter(pk__in=ids)._raw_delete(self.db.using) if ids else 0

    def gauges(self) -> ScheduleGauges:
        """Return the current figures of the schedules. Locks: none."""
        now = self.now()
        is_stopped = Q(paused_at__isnull=False, paused_by=STOPPED_BY)
        found = self.db.schedules.active().aggregate(
            active=Count("pk", filter=Q(next_at__isnull=False) & ~is_paused_at(now)),
            paused=Count("pk", filter=is_paused_at(now) & ~is_stopped),
            stopped=Count("pk", filter=is_stopped),
            due_at=Min("due_at"),
        )
        due_at = found.pop("due_at")
        return ScheduleGauges(**found, overdue_seconds=max(0.0, (now - due_at).total_seconds()) if due_at else 0.0)

    # --- changes by people and by code

    def save(self, name: str, columns: Mapping[str, Any]) -> tuple[Schedule, bool]:
        """
        Create a schedule or change one. Return it, and whether it is new.

        The due ticks of the earlier timing are accounted for first. A change of its timing moves the next tick: to the
        first one from now on, and not before `starts_at`. Raises ValueError if the columns cannot be used. Locks: the
        schedule's row; waits for it.
        """
        with self.db.transaction():
            created_at = self.db.now()
            new = Schedule(backend=self.db.backend, name=name, created_at=created_at, updated_at=created_at, **columns)
            while True:
                self.db.schedules.bulk_create([new], ignore_conflicts=True)
                with suppress(ScheduleNotFound):  # another session has deleted it since
                    row, now = self._lock_and_account(name=name, with_jitter=False)
                    break
            is_new = row.created_at == created_at
            before = [getattr(row, column) for column in TIMING_COLUMNS]
            for column, value in columns.items():
                setattr(row, column, value)
            next_at = aware(row.next_at)
            if is_new or before != [getattr(row, column) for column in TIMING_COLUMNS]:
                next_at = None if row.retired_at else self._first_tick(row, now)
            set_next(row, next_at, aware(row.waiting_at))
            row.updated_at = now
            self.db.schedules.bulk_update([row], [*columns, "next_at", "due_at", "updated_at"])
        return row, is_new

    def _first_tick(self, row: Schedule, now: datetime) -> datetime | None:
        """Return the first tick of a new timing, later than any tick so far: a clock may have been set back."""
        newest = self.newest_ticks([row.pk]).get(row.pk)
        after = [now, row.waiting_at, newest and newest.last_at, row.starts_at and row.starts_at - RESOLUTION]
        return first_tick(ticks_of(row), policy_of(row), aware(max(moment for moment in after if moment)))

    def pause(self, ids: Collection[int], **columns: Any) -> None:
        """Pause schedules. Ticks that are due before are accounted for first. Locks: the rows; waits for them."""
        with self.db.transaction():
            for pk in sorted(ids):
                self._lock_and_account(pk=pk)
            self.db.schedules.filter(pk__in=ids).update(**columns, updated_at=self.now())

    def resume(self, ids: Collection[int]) -> None:
        """
        End the pause of schedules. One that an error had stopped continues with its first tick from now on.

        Raises ValueError if a row cannot be used. Locks: the rows; waits for them.
        """
        with self.db.transaction():
            for pk in sorted(ids):
                row, now = self._lock_and_account(pk=pk)
                if row.next_at is None and row.retired_at is None:
                    set_next(row, self._first_tick(row, now), aware(row.waiting_at))
                    self.db.schedules.bulk_update([row], ["next_at", "due_at"])
            self.db.schedules.filter(pk__in=ids).update(**NO_PAUSE, updated_at=self.now())

    def retire(self, ids: Collection[int]) -> int:
        """Retire schedules: code no longer declares them. Their history stays. Return how many."""
        with self.db.transaction():
            rows: list[Schedule] = []
            for pk in sorted(ids):
                with suppress(ScheduleNotFound):
                    rows.append(self._lock_and_account(pk=pk, with_jitter=False)[0])
            waiting = [(row, aware(row.waiting_at)) for row in rows if row.waiting_at]
            self._record_skipped([(row, Skipped(tick, tick, 1, SkipReason.OVERLAP)) for row, tick in waiting])
            now = self.now()
            return self.db.schedules.filter(pk__in=ids, retired_at__isnull=True).update(
                retired_at=now, updated_at=now, next_at=None, due_at=None, waiting_at=None
            )

    def run_now(self, pk: int) -> Enqueued:
        """
        Enqueue a task of a schedule for the current time, in spite of overlaps and a pause.

        Locks: the schedule's row; waits for it.
        """
        with self.db.transaction():
            row, now = self._lock_and_account(pk=pk, retired_at__isnull=True)
            return self._enqueue([(row, aware(now))], ScheduleTick.Trigger.MANUAL)[0][1]

    def backfill(self, pk: int, ticks: Sequence[datetime]) -> list[Enqueued]:
        """
        Enqueue tasks for those of these ticks that have none, in spite of overlaps and a pause.

        Locks: the schedule's row; waits for it.
        """
        with self.db.transaction():
            row, _ = self._lock_and_account(pk=pk, retired_at__isnull=True)
            done = self.ticks_with_task(row, ticks)
            runs = [(row, tick) for tick in ticks if tick not in done]
            return [answer for _, answer in self._enqueue(runs, ScheduleTick.Trigger.BACKFILL)]

    def ticks_with_task(self, row: Schedule, ticks: Sequence[datetime]) -> set[datetime]:
        """Return those of these ticks, in order, that have a task, or wait for the running one to end."""
        if not ticks:
            return set()
        found = self.db.ticks.filter(schedule=row, tick_at__range=(stored(ticks[0]), stored(ticks[-1])))
        done = found.filter(task_id__isnull=False).exclude(trigger=ScheduleTick.Trigger.MANUAL)
        known = {*done.values_list("tick_at", flat=True), row.waiting_at}
        return {tick for tick in ticks if stored(tick) in known}

    def _lock_and_account(self, *, with_jitter: bool = True, **where: Any) -> tuple[Schedule, datetime]:
        """
        Lock a schedule and account for its due ticks. Return it, and the time up to which they were due.

        Without jitter, each tick is due at its moment. If this process cannot evaluate the schedule, its ticks stay
        due. Raises ScheduleNotFound.
        """
        row = self.db.with_lock(self.db.schedules.filter(**where), wait=True).first()
        if row is None:
            raise ScheduleNotFound
        now = self.now()  # read after the lock, which may have been waited for
        while (due_at := row.due_at if with_jitter else row.next_at) is not None and due_at <= now:
            fired = self._account_or_stop(row, now, with_jitter=with_jitter)
            row.refresh_from_db(using=self.db.using)
            if not fired.count:
                break
        return row, now


def is_paused_at(now: datetime) -> Q:
    return Q(paused_at__isnull=False) & (Q(resume_at__isnull=True) | Q(resume_at__gt=now))


def plan_of(row: Schedule, policy: Policy, now: datetime, *, has_live_task: bool, with_jitter: bool = True) -> Plan:
    """Return what to do with the due ticks of a row. Raises ValueError if the row cannot be used."""
    return make_plan(
        ticks_of(row),
        policy,
        now,
        next_at=aware(row.next_at),
        waiting_at=aware(row.waiting_at),
        paused_until=paused_until(row),
        has_live_task=has_live_task,
        with_jitter=with_jitter,
    )


def lateness_of(row: Schedule, tick: datetime, enqueued_at: datetime) -> float | None:
    """Return by how many seconds the task of a tick was late; None for a tick that waited for a running task."""
    if tick == aware(row.waiting_at):
        return None
    return max(0.0, (aware(enqueued_at) - tick - policy_of(row).delay).total_seconds())


def follows(row: Schedule, last: ScheduleTick, skip: Skipped) -> bool:
    """Return whether skipped ticks extend a range: same reason, later, and without the waiting tick between them."""
    last_at, waiting_at = aware(last.last_at), aware(row.waiting_at)
    has_gap = waiting_at is not None and last_at < waiting_at < skip.first_at
    return last.reason == skip.reason and last_at < skip.first_at and not has_gap


def set_next(row: Schedule, next_at: datetime | None, waiting_at: datetime | None) -> None:
    row.next_at, row.waiting_at = stored(next_at), stored(waiting_at)
    row.due_at = None if next_at is None else stored(next_at + policy_of(row).delay)
