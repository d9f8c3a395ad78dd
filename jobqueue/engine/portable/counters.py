"""Counters: each transaction inserts its deltas; maintenance adds them to the counters later."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.db.models import Q

from jobqueue.engine.clock import now_plus
from jobqueue.engine.portable.database import Part
from jobqueue.metrics import COUNTERS, EDGES, Counted, bucket
from jobqueue.models import Counter, CounterDelta, Task
from jobqueue.records import Outcome, Status

logger = logging.getLogger(__name__)

AGGREGATE_BATCH = 10_000  # deltas
MINUTES_KEPT_SECONDS = 86_400.0


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
    attempts: int
    wait_bucket: int | None
    run_bucket: int | None
    wait_seconds: float
    run_seconds: float


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
                **{name: getattr(delta, name) or 0 for name in (*COUNTERS, "attempts", "wait_seconds", "run_seconds")},
                wait_bucket=delta.wait_bucket,
                run_bucket=delta.run_bucket,
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
            add_row(new[key_of(row)], row, row.waits, row.runs)
        rows.filter(pk__in=[row.pk for row in stored])._raw_delete(self.db.using)
        rows.bulk_create(counters)

    def counter_totals(self) -> list[Counted]:
        """Return the counters of this backend, of all time. Locks: none."""
        rows = Counter.objects.using(self.db.using).filter(backend=self.db.backend, minute__isnull=True)
        return [
            Counted(
                queue_name=row.queue_name,
                task_type=row.task_type,
                **{name: getattr(row, name) for name in (*COUNTERS, "wait_seconds", "run_seconds", "waits", "runs")},
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
            waits, runs = (histogram(at, summed.attempts) for at in (summed.wait_bucket, summed.run_bucket))
            add_row(counters.setdefault(key_of(counter), counter), summed, waits, runs)
    return list(counters.values())


def histogram(at: int | None, number: int) -> list[int]:
    """Return the counts of all buckets for attempts of one bucket."""
    return [number if place == at else 0 for place in range(len(EDGES) + 1)]


def add_row(counter: Counter, row: Counter | Summed, waits: Sequence[int], runs: Sequence[int]) -> None:
    for name in (*COUNTERS, "wait_seconds", "run_seconds"):
        setattr(counter, name, getattr(counter, name) + getattr(row, name))
    counter.waits = [sum(counts) for counts in zip_longest(counter.waits, waits, fillvalue=0)]
    counter.runs = [sum(counts) for counts in zip_longest(counter.runs, runs, fillvalue=0)]


def key_of(counter: Counter) -> tuple[object, ...]:
    return counter.backend, counter.queue_name, counter.task_type, counter.minute
