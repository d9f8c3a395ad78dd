"""Counters: each transaction inserts its deltas; maintenance adds them to the counters later."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.db.models import Q

from jobqueue.engine.clock import now_plus
from jobqueue.engine.portable.database import Part
from jobqueue.metrics import COUNTERS, EDGES, TICK_COUNTERS, Counted, bucket
from jobqueue.models import Counter, CounterDelta, Task
from jobqueue.records import NewTask, Outcome, Status
from jobqueue.schedules.planning import Skipped
from jobqueue.schedules.rows import ScheduleRow, queue_name_of

logger = logging.getLogger(__name__)

AGGREGATE_BATCH = 10_000  # deltas
MINUTES_KEPT_SECONDS = 86_400.0
SUMS = (*COUNTERS, *TICK_COUNTERS, "wait_seconds", "run_seconds", "lateness_seconds")
HISTOGRAMS = ("waits", "runs", "lateness")


class Summed(NamedTuple):
    """The sum of similar deltas of one minute: the columns of take_counter_deltas.sql."""

    deltas: int
    backend: str
    queue_name: str
    task_type: str
    minute: datetime
    submitted: int
    completed: int
    failed: int
    retries: int
    dead: int
    lost: int
    ticks_enqueued: int
    ticks_overlap: int
    ticks_paused: int
    ticks_missed: int
    ticks_key: int
    attempts: int
    wait_bucket: int | None
    run_bucket: int | None
    lateness_bucket: int | None
    wait_seconds: float
    run_seconds: float
    lateness_seconds: float


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
            place = (row.queue_name, row.task_type, *buckets)
            numbers: Any = {
                "attempts": is_attempt,
                "completed": entering is Status.SUCCESSFUL,
                "failed": has_failed,
                "retries": has_failed and entering is Status.SCHEDULED,
                "dead": entering is Status.FAILED,
                "wait_seconds": wait_seconds or 0,
                "run_seconds": run_seconds or 0,
            }
            sums.setdefault(place, collections.Counter()).update(numbers)
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
            place = (task.queue_name, task.task_type, None if late is None else bucket(late))
            sums.setdefault(place, []).append(late or 0.0)
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
            place = (queue_name_of(row), row.task_type)
            sums.setdefault(place, collections.Counter())[f"ticks_{skipped.reason}"] += skipped.count
        self.add(
            [
                CounterDelta(queue_name=queue_name, task_type=task_type, **numbers)
                for (queue_name, task_type), numbers in sums.items()
            ]
        )

    def aggregate_counters(self, limit: int = AGGREGATE_BATCH) -> int:
        """
        Add the oldest deltas of all backends to the counters: of their minute, and of all time. Return how many.

        Does nothing while another session does this. Locks: the deltas, and the counters.
        """
        # Read first: SQLite has one lock for all writers. exists() would drop the order, which leads past dead rows.
        if CounterDelta.objects.using(self.db.using).order_by("pk").values_list("pk").first() is None:
            return 0
        try:
            with self.db.transaction():
                taken = self._take_deltas(limit)
                self._store(counters_of(taken))
        except IntegrityError as error:  # another session aggregated the same deltas first
            logger.info("counters.deferred error=%s", error)
            return 0
        return sum(summed.deltas for summed in taken)

    def _take_deltas(self, limit: int) -> list[Summed]:
        deltas = list(CounterDelta.objects.using(self.db.using).select_for_update().order_by("pk")[:limit])
        ids = [delta.pk for delta in deltas]
        CounterDelta.objects.using(self.db.using).filter(pk__in=ids)._raw_delete(self.db.using)
        return [
            Summed(
                deltas=1,
                minute=delta.at.replace(second=0, microsecond=0),
                backend=delta.backend,
                queue_name=delta.queue_name,
                task_type=delta.task_type,
                **{name: getattr(delta, name) or 0 for name in (*SUMS, "attempts")},
                wait_bucket=delta.wait_bucket,
                run_bucket=delta.run_bucket,
                lateness_bucket=delta.lateness_bucket,
            )
            for delta in deltas
        ]

    def _store(self, counters: Sequence[Counter]) -> None:
        """Replace stored counters by ones that include their numbers."""
        if not counters:
            return
        rows = Counter.objects.using(self.db.using)
        candidates = rows.filter(
            Q(minute__isnull=True) | Q(minute__in={counter.minute for counter in counters if counter.minute}),
            queue_name__in={counter.queue_name for counter in counters},
            task_type__in={counter.task_type for counter in counters},
        )
        new = {key_of(counter): counter for counter in counters}
        stored = [row for row in candidates.select_for_update().order_by("pk") if key_of(row) in new]
        for row in stored:
            add_row(new[key_of(row)], row, {name: getattr(row, name) for name in HISTOGRAMS})
        rows.filter(pk__in=[row.pk for row in stored])._raw_delete(self.db.using)
        rows.bulk_create(counters)

    def counter_totals(self) -> list[Counted]:
        """Return the counters of this backend, of all time. Locks: none."""
        rows = Counter.objects.using(self.db.using).filter(backend=self.db.backend, minute__isnull=True)
        return [
            Counted(
                queue_name=row.queue_name,
                task_type=row.task_type,
                **{name: getattr(row, name) for name in (*SUMS, *HISTOGRAMS)},
            )
            for row in rows.order_by("queue_name", "task_type")
        ]

    def prune_minutes(self, limit: int) -> None:
        """Delete old minutes. The counters of all time include them."""
        rows = Counter.objects.using(self.db.using)
        old = rows.filter(minute__isnull=False, minute__lt=now_plus(-MINUTES_KEPT_SECONDS)).order_by("minute")
        rows.filter(pk__in=list(old.values_list("pk", flat=True)[:limit]))._raw_delete(self.db.using)


def counters_of(taken: Iterable[Summed]) -> list[Counter]:
    """Add up deltas, by minute and in all."""
    counters: dict[tuple[object, ...], Counter] = {}
    for summed in taken:
        for minute in (summed.minute, None):
            counter = Counter(
                backend=summed.backend, queue_name=summed.queue_name, task_type=summed.task_type, minute=minute
            )
            histograms = {
                "waits": histogram(summed.wait_bucket, summed.attempts),
                "runs": histogram(summed.run_bucket, summed.attempts),
                "lateness": histogram(summed.lateness_bucket, summed.ticks_enqueued),
            }
            add_row(counters.setdefault(key_of(counter), counter), summed, histograms)
    return list(counters.values())


def histogram(at: int | None, number: int) -> list[int]:
    """Return the counts of all buckets for a number in one bucket."""
    return [number if place == at else 0 for place in range(len(EDGES) + 1)]


def add_row(counter: Counter, row: Counter | Summed, histograms: Mapping[str, Sequence[int]]) -> None:
    for name in SUMS:
        setattr(counter, name, getattr(counter, name) + getattr(row, name))
    for name, counts in histograms.items():
        pairs = zip_longest(getattr(counter, name), counts, fillvalue=0)
        setattr(counter, name, [sum(pair) for pair in pairs])


def key_of(counter: Counter) -> tuple[object, ...]:
    return counter.backend, counter.queue_name, counter.task_type, counter.minute
