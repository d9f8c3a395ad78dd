"""`prune`: delete tasks that ended long ago, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

from jobqueue.cli.audit import log
from jobqueue.cli.backends import engine_of
from jobqueue.cli.console import Console
from jobqueue.cli.progress import progress
from jobqueue.cli.tables import many
from jobqueue.engine.clock import now_plus
from jobqueue.engine.engine import Engine
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.queries import Count, of_status
from jobqueue.inspect.stats import count_ended
from jobqueue.records import FINAL, Status


def prune(
    console: Console,
    *,
    backend: str | None,
    status: Sequence[Status],
    older_than: timedelta,
    batch: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete tasks of the statuses, by default of all final ones, that ended longer ago than `older_than`."""
    engine = engine_of(backend)
    statuses = tuple(dict.fromkeys(status)) or FINAL
    age = older_than.total_seconds()
    expected = {one: count_ended(of_status(engine, one).filter(finished_at__lte=now_plus(-age))) for one in statuses}
    total = sum(expected.values(), Count())
    ended = f"that ended more than {duration(older_than)} ago"
    if dry_run:
        fields = {one.lower(): count.number for one, count in expected.items()}
        console.report(fields, f"Would delete {many(total, 'task')} {ended}{_parts(fields)}.")
        return
    if total:
        question = f"Delete {many(total, 'task')} {ended} (status {' or '.join(statuses)})? This cannot be undone."
        console.confirm(question, is_confirmed=yes)
    deleted: Counter[str] = Counter({one.lower(): 0 for one in statuses})
    try:
        with progress(console, "deleted", total) as work:
            for name, count in _batches(engine, statuses, age, batch):
                deleted[name] += count
                if work.add(count):
                    break
    finally:  # also after an error, or a second Ctrl-C
        log("prune", older_than=duration(older_than), backend=engine.alias, **deleted)
    console.report(dict(deleted), f"Deleted {many(deleted.total(), 'task')} {ended}{_parts(deleted)}.")
    work.raise_if_stopped()


def _batches(engine: Engine, statuses: Sequence[Status], age: float, size: int) -> Iterator[tuple[str, int]]:
    for status in statuses:
        count = size
        while count == size:
            count = engine.prune_status(status, age, size)
            yield status.lower(), count


def _parts(counts: dict[str, int]) -> str:
    parts = ", ".join(f"{number:,} {status}" for status, number in counts.items() if number)
    return parts and f": {parts}"
