"""Changes of schedules by people and by code, each of which accounts for the ticks that were due before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, QuerySet

from jobqueue.engine.database import Database, Part
from jobqueue.engine.due_schedules import DueSchedule, set_next
from jobqueue.engine.ticks import Ticks
from jobqueue.exceptions import ScheduleNotFound
from jobqueue.models import IS_STOPPED, NO_PAUSE, Schedule, ScheduleDeployment, ScheduleTick, is_paused
from jobqueue.schedules.planning import Skipped
from jobqueue.schedules.rows import from_row_time, to_row_time
from jobqueue.values.counters import ScheduleGauges
from jobqueue.values.policies import SkipReason
from jobqueue.values.records import Enqueued

RESOLUTION = timedelta(microseconds=1)  # of the database's times
# A change of one of these moves the next tick.
TIMING_COLUMNS = ("expression", "timezone", "anchor_at", "starts_at", "ends_at", "retired_at")


class Schedules(Part):
    def __init__(self, db: Database, ticks: Ticks) -> None:
        super().__init__(db)
        self._ticks = ticks

    def gauges(self) -> ScheduleGauges:
        """Return the current figures of the schedules. Locks: none."""
        now = self._ticks.now()
        sums = self.db.schedules.active().aggregate(
            active=Count("pk", filter=Q(next_at__isnull=False) & ~is_paused(now)),
            paused=Count("pk", filter=is_paused(now) & ~IS_STOPPED),
            stopped=Count("pk", filter=IS_STOPPED),
            due_at=Min("due_at"),
        )
        due_at = sums.pop("due_at")
        return ScheduleGauges(**sums, overdue_seconds=max(0.0, (now - due_at).total_seconds()) if due_at else 0.0)

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
            next_at = row.next_at
            if is_new or before != [getattr(row, column) for column in TIMING_COLUMNS]:
                next_at = None if row.retired_at else self._first_tick(row, now)
            set_next(row, next_at)
            row.updated_at = now
            self.db.schedules.bulk_update([row], [*columns, "next_at", "due_at", "updated_at"])
        return row, is_new

    def _first_tick(self, row: Schedule, now: datetime) -> datetime | None:
        """Return the first tick of a new timing, later than any tick so far: a clock may have been set back."""
        newest = self._ticks.newest([row.pk]).get(row.pk)
        after = [now, row.waiting_at, newest and newest.last_at, row.starts_at and row.starts_at - RESOLUTION]
        return DueSchedule.from_row(row).first_tick(max(moment for moment in after if moment))

    def delete(self, row: Schedule) -> None:
        """Delete a schedule that the caller has locked, and its records."""
        row.delete()

    # --- the sets of declarations that were applied

    def sets(self) -> QuerySet[ScheduleDeployment]:
        return ScheduleDeployment.objects.using(self.db.using).filter(backend=self.db.backend)

    def lock_sets(self) -> None:
        """Lock a row that is only there for this, so that sessions decide one after the other. Waits for it."""
        self.sets().bulk_create([ScheduleDeployment(backend=self.db.backend, digest="")], ignore_conflicts=True)
        list(self.db.with_lock(self.sets().filter(digest=""), wait=True))

    def apply_set(self, digest: str) -> None:
        """Note that a set of declarations was applied now. The row with the highest id is the newest."""
        self.sets().filter(digest=digest).delete()
        self.sets().create(backend=self.db.backend, digest=digest, applied_at=self.db.now())

    # --- pauses

    def pause(self, ids: Collection[int], **columns: Any) -> None:
        """Pause schedules. Ticks that are due before are accounted for first. Locks: the rows; waits for them."""
        with self.db.transaction():
            for pk in sorted(ids):
                self._lock_and_account(pk=pk)
            self.db.schedules.filter(pk__in=ids).update(**columns, updated_at=self._ticks.now())

    def resume(self, ids: Collection[int]) -> None:
        """
        End the pause of schedules. One that an error had stopped continues with its first tick from now on.

        Raises ValueError if a row cannot be used. Locks: the rows; waits for them.
        """
        with self.db.transaction():
            for pk in sorted(ids):
                row, now = self._lock_and_account(pk=pk)
                if row.next_at is None and row.retired_at is None:
                    set_next(row, self._first_tick(row, now))
                    self.db.schedules.bulk_update([row], ["next_at", "due_at"])
            self.db.schedules.filter(pk__in=ids).update(**NO_PAUSE, updated_at=self._ticks.now())

    def retire(self, ids: Collection[int]) -> int:
        """Retire schedules: code no longer declares them. Their history stays. Return how many."""
        with self.db.transaction():
            rows: list[Schedule] = []
            for pk in sorted(ids):
                with suppress(ScheduleNotFound):
                    rows.append(self._lock_and_account(pk=pk, with_jitter=False)[0])
            waiting = [(row, from_row_time(row.waiting_at)) for row in rows if row.waiting_at]
            self._ticks.record_skipped([(row, Skipped(tick, tick, 1, SkipReason.OVERLAP)) for row, tick in waiting])
            now = self._ticks.now()
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
            return self._ticks.enqueue([(row, from_row_time(now))], ScheduleTick.Trigger.MANUAL)[0][1]

    def backfill(self, pk: int, ticks: Sequence[datetime]) -> list[Enqueued]:
        """
        Enqueue tasks for those of these ticks that have none, in spite of overlaps and a pause.

        Locks: the schedule's row; waits for it.
        """
        with self.db.transaction():
            row, _ = self._lock_and_account(pk=pk, retired_at__isnull=True)
            done = self.ticks_with_task(row, ticks)
            runs = [(row, tick) for tick in ticks if tick not in done]
            return [answer for _, answer in self._ticks.enqueue(runs, ScheduleTick.Trigger.BACKFILL)]

    def ticks_with_task(self, row: Schedule, ticks: Sequence[datetime]) -> set[datetime]:
        """Return those of these ticks, in order, that have a task, or wait for the running one to end."""
        if not ticks:
            return set()
        stored = {to_row_time(tick): tick for tick in ticks}
        records = self.db.ticks.filter(schedule=row, tick_at__range=(min(stored), max(stored)))
        done = records.filter(task_id__isnull=False).exclude(trigger=ScheduleTick.Trigger.MANUAL)
        with_task = {*done.values_list("tick_at", flat=True), row.waiting_at}
        return {tick for at, tick in stored.items() if at in with_task}

    def _lock_and_account(self, *, with_jitter: bool = True, **where: Any) -> tuple[Schedule, datetime]:
        """
        Lock a schedule and account for its due ticks. Return it, and the time up to which they were due.

        Without jitter, each tick is due at its moment. If this process cannot evaluate the schedule, its ticks stay
        due. Raises ScheduleNotFound.
        """
        row = self.db.with_lock(self.db.schedules.filter(**where), wait=True).first()
        if row is None:
            raise ScheduleNotFound
        now = self._ticks.now()  # read after the lock, which may have been waited for
        while (due_at := row.due_at if with_jitter else row.next_at) is not None and due_at <= now:
            fired = self._ticks.account_or_stop(row, now, with_jitter=with_jitter)
            row.refresh_from_db(using=self.db.using)
            if not fired.count:
                break
        return row, now
