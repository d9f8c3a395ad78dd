"""Counters: an event is counted in the transaction in which it happens, and the counts are added up later."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.db.models import Q

from jobqueue.engine.clock import bound
from jobqueue.engine.portable.database import Part
from jobqueue.metrics import COUNTERS, EDGES, Counted, bucket
from jobqueue.models import Counter, CounterDelta
from jobqueue.records import Outcome, Status

logger = logging.getLogger(__name__)

AGGREGATE_BATCH = 10_000  # deltas
MINUTES_KEPT_SECONDS = 86_400.0


class Summed(NamedTuple):
    """Some deltas of one minute that agree in all but their numbers: the columns of take_counter_deltas.sql."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """A claimed task before its outcome is written: what of its row is counted."""

    queue_name: str
    task_type: str
    attempts: int
    wait_seconds: float


class Counters(Part):
    def add(self, deltas: Sequence[CounterDelta]) -> None:
        """Insert counter deltas in the caller's transaction. Locks: only the new rows."""
        if deltas:
            now = self.db.now()
            for delta in deltas:
                delta.backend, delta.at = self.db.backend, now
            CounterDelta.objects.using(self.db.using).bulk_create(deltas)

    def aggregate_counters(self, limit: int = AGGREGATE_BATCH) -> int:
        """
        Add up to so many deltas, of every backend here, to the rows of the tally; returns how many.

        Each goes into the row of its minute and into the one of all time. Does nothing while another session is at
        it. Locks: the deltas, and the rows that they add to.
        """
        # SQLite has one lock for all writers; exists() would drop the order that leads past what others took away.
        if CounterDelta.objects.using(self.db.using).order_by("pk").values_list("pk").first() is None:
            return 0
        try:
            with self.db.transaction():
                taken = self._take_deltas(limit)
                self._add_up(tallies_of(taken))
        except IntegrityError as error:  # where nothing keeps two from folding at once, the other one was faster
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

    def _add_up(self, tallies: Sequence[Counter]) -> None:
        """Replace rows by ones that include the numbers they had."""
        if not tallies:
            return
        rows = Counter.objects.using(self.db.using)
        found = rows.filter(
            Q(minute__isnull=True) | Q(minute__in={tally.minute for tally in tallies if tally.minute}),
            queue_name__in={tally.queue_name for tally in tallies},
            task_type__in={tally.task_type for tally in tallies},
        )
        new = {key_of(tally): tally for tally in tallies}
        before = [row for row in found.select_for_update().order_by("pk") if key_of(row) in new]
        for row in before:
            add_row(new[key_of(row)], row)
        rows.filter(pk__in=[row.pk for row in before])._raw_delete(self.db.using)
        rows.bulk_create(tallies)

    def counter_totals(self) -> list[Counted]:
        """Give what was counted and added up of this backend's tasks, ever since. Locks: none."""
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
        """Forget minutes long ago, which are in the rows of all time as well."""
        rows = Counter.objects.using(self.db.using)
        old = rows.filter(minute__isnull=False, minute__lt=bound(-MINUTES_KEPT_SECONDS)).order_by("minute")
        rows.filter(pk__in=list(old.values_list("pk", flat=True)[:limit]))._raw_delete(self.db.using)


def of_attempts(changes: Iterable[tuple[Outcome, Status, Attempted]]) -> list[CounterDelta]:
    """Count what outcomes are to the tally, as commit.sql does."""
    sums: dict[tuple[str, str, int | None, int | None], Any] = {}
    for outcome, entering, row in changes:
        is_attempt = outcome.worker_id is not None
        if not is_attempt and entering is not Status.FAILED:
            continue
        wait_seconds = row.wait_seconds if is_attempt else None
        run_seconds = outcome.run_seconds if is_attempt else None
        has_failed = outcome.attempts > row.attempts and outcome.status is not Status.CANCELLED
        sums.setdefault(
            (row.queue_name, row.task_type, place(wait_seconds), place(run_seconds)), collections.Counter()
        ).update(
            attempts=is_attempt,
            completed=entering is Status.SUCCESSFUL,
            failed=has_failed,
            retries=has_failed and entering is Status.SCHEDULED,
            dead=entering is Status.FAILED,
            wait_seconds=wait_seconds or 0,
            run_seconds=run_seconds or 0,
        )
    return [
        CounterDelta(queue_name=queue_name, task_type=task_type, wait_bucket=wait, run_bucket=run, **numbers)
        for (queue_name, task_type, wait, run), numbers in sums.items()
    ]


def place(seconds: float | None) -> int | None:
    return None if seconds is None else bucket(seconds)


def tallies_of(taken: Iterable[Summed]) -> list[Counter]:
    """Add up deltas, by minute and in all."""
    tallies: dict[tuple[object, ...], Counter] = {}
    for summed in taken:
        for minute in (summed.minute, None):
            tally = Counter(
                backend=summed.backend, queue_name=summed.queue_name, task_type=summed.task_type, minute=minute
            )
            tally = tallies.setdefault(key_of(tally), tally)
            for name in (*COUNTERS, "wait_seconds", "run_seconds"):
                setattr(tally, name, getattr(tally, name) + getattr(summed, name))
            tally.waits = with_more(tally.waits, summed.wait_bucket, summed.attempts)
            tally.runs = with_more(tally.runs, summed.run_bucket, summed.attempts)
    return list(tallies.values())


def with_more(counts: Sequence[int], at: int | None, number: int) -> list[int]:
    more = list(counts) or [0] * (len(EDGES) + 1)
    if at is not None:
        more[at] += number
    return more


def add_row(tally: Counter, row: Counter) -> None:
    for name in (*COUNTERS, "wait_seconds", "run_seconds"):
        setattr(tally, name, getattr(tally, name) + getattr(row, name))
    tally.waits = [new + old for new, old in zip_longest(tally.waits, row.waits, fillvalue=0)]
    tally.runs = [new + old for new, old in zip_longest(tally.runs, row.runs, fillvalue=0)]


def key_of(tally: Counter) -> tuple[object, ...]:
    return tally.backend, tally.queue_name, tally.task_type, tally.minute
