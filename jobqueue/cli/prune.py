"""`purge`: delete what ended long ago, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from jobqueue.cli.audit import note
from jobqueue.cli.backends import engine_of
from jobqueue.cli.console import Console
from jobqueue.cli.progress import Progress, progress
from jobqueue.engine.base import Engine
from jobqueue.engine.clock import bound
from jobqueue.inspect.formatting import duration
from jobqueue.inspect.queries import of_status
from jobqueue.inspect.stats import Count, count_ended
from jobqueue.records import FINAL, Status


def prune(
    console: Console,
    backend: str | None,
    statuses: Sequence[Status],
    *,
    kept_seconds: float,
    batch: int,
    is_dry: bool,
    is_sure: bool,
) -> None:
    """Delete tasks of these statuses, all that have ended if none is named, that ended longer ago than that."""
    engine = engine_of(backend)
    statuses = statuses or FINAL
    expected = {status: _old(engine, status, kept_seconds) for status in statuses}
    total = sum(expected.values(), Count())
    old = f"that ended more than {duration(timedelta(seconds=kept_seconds))} ago" if kept_seconds else "that ended"
    if is_dry:
        _report(
            console, {status: count.number for status, count in expected.items()}, f"Would delete {total} tasks", old
        )
        return
    if total.number:
        console.confirm(f"Delete {total} {' or '.join(statuses)} tasks {old}, for ever?", is_sure=is_sure)
    deleted: Counter[Status] = Counter(dict.fromkeys(statuses, 0))
    try:
        with progress(console, "deleted", None if total.is_more else total.number) as work:
            for status in statuses:
                _purge(engine, status, kept_seconds, batch, deleted, work)
    finally:  # also of what was done before an error, or a second Ctrl-C
        note("purge", older_than=duration(timedelta(seconds=kept_seconds)), backend=engine.alias, **plain(deleted))
    _report(console, deleted, f"Deleted {deleted.total():,} tasks", old)
    work.raise_if_stopped()


def _purge(
    engine: Engine, status: Status, kept_seconds: float, batch: int, deleted: Counter[Status], work: Progress
) -> None:
    while not work.is_stopped:
        count = engine.purge(status, kept_seconds, batch)
        deleted[status] += count
        work.add(count)
        if count < batch:
            return


def _old(engine: Engine, status: Status, kept_seconds: float) -> Count:
    return count_ended(of_status(engine, status).filter(finished_at__lte=bound(-kept_seconds)))


def plain(counts: Mapping[Status, int]) -> dict[str, int]:
    return {status.lower(): number for status, number in counts.items()}


def _report(console: Console, counts: dict[Status, int], said: str, old: str) -> None:
    if console.is_json:
        console.write_json(plain(counts))
        return
    parts = ", ".join(f"{number:,} {status.lower()}" for status, number in counts.items() if number)
    console.write(f"{said} {old}{f': {parts}' if parts else ''}.")
