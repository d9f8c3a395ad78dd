"""Counters: each transaction inserts its deltas; maintenance adds them to the counters later."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product, zip_longest
from typing import Any, NamedTuple

from django.db import IntegrityError

from jobqueue.engine.database import Part
from jobqueue.models import Counter, CounterDelta, CounterPeriod, Task
from jobqueue.models.clock import clock_to_compare
from jobqueue.schedules.planning import Skipped
from jobqueue.schedules.rows import ScheduleRow, queue_name_of
from jobqueue.values.counters import COUNTERS, EDGES, TICK_COUNTERS, CounterTotals, Length, Scope, bucket
from jobqueue.values.records import NewTask, Outcome
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.states import Status

logger = safe_logger(__name__)

AGGREGATE_BATCH = 2000  # deltas: if each has another name, they take half a second of the loop
KEPT_SECONDS = {Length.MINUTE: 86_400.0, Length.HOUR: 31 * 86_400.0}
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of counters."""

    model: type[Counter] | type[CounterPeriod]  # its model
    key: tuple[str, ...]  # the columns that identify a row
    sums: tuple[str, ...]  # the columns that are added up
    histograms: tuple[str, ...]  # the JSON columns with lists of counts

    def group_key(self, row: Counter | CounterPeriod) -> Key:
        return tuple(getattr(row, name) for name in self.key)

    def add(self, row: Any, other: Any, histograms: Mapping[str, Sequence[int]]) -> None:
        """Add the numbers of another row, or of deltas, to a row."""
        for name in self.sums:
            setattr(row, name, getattr(row, name) + getattr(other, name))
        for name in self.histograms:
            pairs = zip_longest(getattr(row, name), histograms[name], fillvalue=0)
            setattr(row, name, [sum(pair) for pair in pairs])


TOTALS = Table(
    model=Counter,
    key=("backend", "queue_name", "task_type"),
    sums=(*COUNTERS, *TICK_COUNTERS, "wait_seconds", "run_seconds", "lateness_seconds"),
    histograms=("waits", "runs", "lateness"),
)
PERIODS = Table(
    model=CounterPeriod,
    key=("backend", "scope", "name", "length", "start"),
    sums=("submitted", "attempts", "completed", "failed", "retries", "dead", "lost", "wait_seconds", "run_seconds"),
    histograms=("waits", "runs"),
)


class DeltaSum(NamedTuple):
    """
    The sum of similar deltas of one minute: the columns of take_counter_deltas.sql.

    It has more than 15 attributes because the statement has as many columns.
    """

    deltas: int  # how many rows it is the sum of
    backend: str  # of the tasks, as the two columns below
    queue_name: str  # of the tasks
    task_type: str  # of the tasks
    minute: datetime  # its start
    submitted: int  # tasks created
    completed: int  # tasks that ended SUCCESSFUL
    failed: int  # attempts that failed
    retries: int  # failed attempts that another attempt follows
    dead: int  # tasks that ended FAILED
    lost: int  # tasks rescued from a lost executor
    ticks_enqueued: int  # ticks of schedules that became a task
    ticks_overlap: int  # skipped: the task of the tick before had not ended
    ticks_paused: int  # skipped: the schedule was paused
    ticks_missed: int  # skipped: no executor ran in time
    ticks_key: int  # skipped: a live task had the unique key
    attempts: int  # that ended
    wait_bucket: int | None  # the bucket of wait_seconds; None: no attempt has started
    run_bucket: int | None  # the bucket of run_seconds; None: no attempt has run
    lateness_bucket: int | None  # the bucket of lateness_seconds; None: no tick
    wait_seconds: float  # the sum, from READY to the claim
    run_seconds: float  # the sum, of the bodies
    lateness_seconds: float  # the sum, from a tick to its task


class Counters(Part):
    def add(self, deltas: Sequence[CounterDelta]) -> None:
        """Insert counter deltas in the caller's transaction. Locks: only the new rows."""
        if deltas:
            now = self.db.now()
            for delta in deltas:
                delta.backend, delta.at = self.db.backend, now
            CounterDelta.objects.using(self.db.using).bulk_create(deltas)

    def add_attempts(self, changes: Iterable[tuple[Outcome, Status, Task]]) -> None:
        """Insert the deltas of a commit, as commit.sql does. The tasks are read before it."""
        sums: dict[tuple[Any, ...], collections.Counter[str]] = {}
        for outcome, entering, row in changes:
            is_attempt = outcome.worker_id is not None
            if not is_attempt and entering is not Status.FAILED:
                continue
            wait_seconds = run_seconds = None
            if is_attempt and row.claimed_at is not None:
                waited = (row.claimed_at - row.rank).total_seconds() - row.priority * self.db.options.aging
                wait_seconds, run_seconds = max(0.0, waited), outcome.run_seconds
            has_failed = outcome.attempts > row.attempts and outcome.status is not Status.CANCELLED
            buckets = [None if seconds is None else bucket(seconds) for seconds in (wait_seconds, run_seconds)]
            group = (row.queue_name, row.task_type, *buckets)
            numbers: Any = {
                "attempts": is_attempt,
                "completed": entering is Status.SUCCESSFUL,
                "failed": has_failed,
                "retries": has_failed and entering is Status.SCHEDULED,
                "dead": entering is Status.FAILED,
                "wait_seconds": wait_seconds or 0,
                "run_seconds": run_seconds or 0,
            }
            sums.setdefault(group, collections.Counter()).update(numbers)
        self.add(
            [
                CounterDelta(queue_name=queue_name, task_type=task_type, wait_bucket=wait, run_bucket=run, **numbers)
                for (queue_name, task_type, wait, run), numbers in sums.items()
            ]
        )

    def add_enqueued_ticks(self, ticks: Iterable[tuple[NewTask, float | None]]) -> None:
        """Insert the deltas of new tasks with their lateness in seconds, None for a tick that waited."""
        sums: dict[tuple[Any, ...], list[float]] = {}
        for task, late in ticks:
            group = (task.queue_name, task.task_type, None if late is None else bucket(late))
            sums.setdefault(group, []).append(late or 0.0)
        self.add(
            [
                CounterDelta(
                    queue_name=queue_name,
                    task_type=task_type,
                    lateness_bucket=at,
                    ticks_enqueued=len(seconds),
                    lateness_seconds=sum(seconds),
                )
                for (queue_name, task_type, at), seconds in sums.items()
            ]
        )

    def add_skipped_ticks(self, ticks: Iterable[tuple[ScheduleRow, Skipped]]) -> None:
        """Insert the deltas of skipped ticks."""
        sums: dict[tuple[str, str], collections.Counter[str]] = {}
        for row, skipped in ticks:
            group = (queue_name_of(row), row.task_type)
            sums.setdefault(group, collections.Counter())[f"ticks_{skipped.reason}"] += skipped.count
        self.add(
            [
                CounterDelta(queue_name=queue_name, task_type=task_type, **numbers)
                for (queue_name, task_type), numbers in sums.items()
            ]
        )

    def aggregate_counters(self, limit: int = AGGREGATE_BATCH) -> int:
        """
        Add the oldest deltas of all backends to the counters: of all time, and of their periods. Return how many.

        Does nothing while another session does this. Locks: the deltas, and the counters.
        """
        # Read first: SQLite has one lock for all writers. exists() would drop the order, which leads past dead rows.
        if CounterDelta.objects.using(self.db.using).order_by("pk").values_list("pk").first() is None:
            return 0
        try:
            with self.db.transaction():
                taken = self._take_deltas(limit)
                self._add_to(TOTALS, sum_totals(taken))
                self._add_to(PERIODS, sum_periods(taken))
        except IntegrityError as error:  # another session aggregated the same deltas first
            logger.info("counters.deferred error=%s", error)
            return 0
        return sum(summed.deltas for summed in taken)

    def _take_deltas(self, limit: int) -> list[DeltaSum]:
        deltas = list(CounterDelta.objects.using(self.db.using).select_for_update().order_by("pk")[:limit])
        ids = [delta.pk for delta in deltas]
        CounterDelta.objects.using(self.db.using).filter(pk__in=ids)._raw_delete(self.db.using)
        return [
            DeltaSum(
                deltas=1,
                minute=delta.at.replace(second=0, microsecond=0),
                backend=delta.backend,
                queue_name=delta.queue_name,
                task_type=delta.task_type,
                **{name: getattr(delta, name) or 0 for name in (*TOTALS.sums, "attempts")},
                wait_bucket=delta.wait_bucket,
                run_bucket=delta.run_bucket,
                lateness_bucket=delta.lateness_bucket,
            )
            for delta in deltas
        ]

    def _add_to(self, table: Table, added: Mapping[Key, Any]) -> None:
        """Replace stored counters by ones that include the added numbers."""
        if not added:
            return
        rows = table.model._default_manager.using(self.db.using)
        wanted = {f"{name}__in": {getattr(row, name) for row in added.values()} for name in table.key}
        candidates = rows.filter(**wanted).select_for_update().order_by("pk")
        stored = [row for row in candidates if table.group_key(row) in added]
        for row in stored:
            table.add(added[table.group_key(row)], row, {name: getattr(row, name) for name in table.histograms})
        rows.filter(pk__in=[row.pk for row in stored])._raw_delete(self.db.using)
        rows.bulk_create(added.values())

    def counter_totals(self) -> list[CounterTotals]:
        """Return the counters of this backend, of all time. Locks: none."""
        rows = Counter.objects.using(self.db.using).filter(backend=self.db.backend)
        return [
            CounterTotals(
                queue_name=row.queue_name,
                task_type=row.task_type,
                **{name: getattr(row, name) for name in (*TOTALS.sums, *TOTALS.histograms)},
            )
            for row in rows.order_by("queue_name", "task_type")
        ]

    def prune_periods(self, limit: int) -> bool:
        """
        Delete old minutes and hours. Return whether there may be more.

        limit: it deletes up to ten times as many, because each task type has one in each minute.
        """
        rows = CounterPeriod.objects.using(self.db.using)
        is_full = False
        for length, seconds in KEPT_SECONDS.items():
            old = rows.filter(length=length, start__lt=clock_to_compare(after=-seconds)).order_by("start")
            ids = list(old.values_list("pk", flat=True)[: 10 * limit])
            rows.filter(pk__in=ids)._raw_delete(self.db.using)
            is_full |= len(ids) >= 10 * limit
        return is_full


def sum_totals(taken: Iterable[DeltaSum]) -> dict[Key, Counter]:
    """Add up deltas by queue and task type."""
    counters: dict[Key, Counter] = {}
    for summed in taken:
        row = Counter(backend=summed.backend, queue_name=summed.queue_name, task_type=summed.task_type)
        TOTALS.add(counters.setdefault(TOTALS.group_key(row), row), summed, make_histograms(summed))
    return counters


def sum_periods(taken: Iterable[DeltaSum]) -> dict[Key, CounterPeriod]:
    """Add up deltas by minute and by hour, for each backend, queue and task type."""
    counters: dict[Key, CounterPeriod] = {}
    for summed in taken:
        histograms = make_histograms(summed)
        names = {Scope.BACKEND: "", Scope.QUEUE: summed.queue_name, Scope.TASK: summed.task_type}
        starts = {Length.MINUTE: summed.minute, Length.HOUR: summed.minute.replace(minute=0)}
        for (scope, name), (length, start) in product(names.items(), starts.items()):
            row = CounterPeriod(backend=summed.backend, scope=scope, name=name, length=length, start=start)
            PERIODS.add(counters.setdefault(PERIODS.group_key(row), row), summed, histograms)
    return counters


def make_histograms(summed: DeltaSum) -> dict[str, list[int]]:
    return {
        "waits": histogram(summed.wait_bucket, summed.attempts),
        "runs": histogram(summed.run_bucket, summed.attempts),
        "lateness": histogram(summed.lateness_bucket, summed.ticks_enqueued),
    }


def histogram(at: int | None, number: int) -> list[int]:
    """Return the counts of all buckets for a number in one bucket."""
    return [number if index == at else 0 for index in range(len(EDGES) + 1)]
