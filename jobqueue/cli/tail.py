"""`tail`: tasks as they end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobqueue.cli.backends import engines
from jobqueue.cli.console import Console
from jobqueue.cli.tables import shorten_end
from jobqueue.engine.engine import Engine
from jobqueue.inspect.backends import options_of
from jobqueue.inspect.formatting import attempt_number, attempts_text, duration, headline, local, short_type
from jobqueue.inspect.payload_display import raw, read, secrets_of
from jobqueue.inspect.queries import newest
from jobqueue.inspect.task_detail import listed
from jobqueue.inspect.task_filter import TaskFilter
from jobqueue.models import Task
from jobqueue.records import FINAL, Status
from jobqueue.serialization.redaction import redact_text

LATE = timedelta(seconds=10)  # finished_at precedes the commit: a row may become visible this much later
MAX_LINES = 500  # per query


def tail(
    console: Console,
    *,
    backend: str | None,
    status: Sequence[Status],
    task: Sequence[str],
    queue: Sequence[str],
    lines: int,
    follow: bool,
    interval: timedelta,
) -> None:
    """Show the last tasks that ended; with `follow` also those that end later, until Ctrl-C."""
    task_filter = TaskFilter(tuple(dict.fromkeys(status)), tuple(queue), tuple(task))
    backends = engines(backend)
    started = {engine.alias: engine.now() for engine in backends}
    shown: dict[tuple[UUID, datetime], None] = {}
    try:
        _print(console, _ended(backends, task_filter, dict.fromkeys(started), lines)[-lines:] if lines else [], shown)
        since: Mapping[str, datetime | None] = started
        while follow:
            time.sleep(interval.total_seconds())
            since = {engine.alias: max(engine.now() - LATE, started[engine.alias]) for engine in backends}
            if _print(console, _ended(backends, task_filter, since, MAX_LINES), shown) >= MAX_LINES:
                console.say("… and more that are not shown.")
            _forget(shown)
    except KeyboardInterrupt:
        return


def _forget(shown: dict[tuple[UUID, datetime], None]) -> None:
    while len(shown) > 20 * MAX_LINES:
        del shown[next(iter(shown))]


def _ended(
    backends: Iterable[Engine], task_filter: TaskFilter, since: Mapping[str, datetime | None], limit: int
) -> list[tuple[datetime, Engine, UUID]]:
    found = [
        (at, engine, pk)
        for engine in backends
        for status in task_filter.statuses or FINAL
        for at, pk in newest(engine, status, task_filter, since[engine.alias], limit)
    ]
    return sorted(found, key=lambda one: (one[0], one[2]))


def _print(
    console: Console, found: Sequence[tuple[datetime, Engine, UUID]], shown: dict[tuple[UUID, datetime], None]
) -> int:
    """Print the tasks that were not shown before, and return their number."""
    new = [one for one in found if (one[2], one[0]) not in shown]
    shown.update({(pk, at): None for at, _, pk in new})
    for task in _read(new):
        if console.is_json:
            console.write_json(_as_json(task), indent=None)
        else:
            for line in _lines(task, console.width):
                console.write(line)
    console.out.flush()
    return len(new)


def _read(found: Sequence[tuple[datetime, Engine, UUID]]) -> Iterator[Task]:
    """Read rows in their order, without those that were pruned or requeued since."""
    by_id: dict[UUID, Task] = {}
    for engine in {engine.alias: engine for _, engine, _ in found}.values():
        rows = engine.by_ids([pk for _, mine, pk in found if mine is engine])
        columns = ("task_type", "queue_name", "status", "attempts", "max_attempts", "polls", "finished_at")
        texts = {f"{name}_text": raw(name) for name in ("errors", "worker_ids", "args", "kwargs")}
        by_id |= {row.pk: row for row in rows.only(*columns, "last_attempted_at", "backend").annotate(**texts)}
    return (by_id[pk] for _, _, pk in found if pk in by_id and by_id[pk].finished_at is not None)


def _lines(task: Task, width: int | None) -> Iterator[str]:
    """Yield one long line for `grep`, or lines that fit a terminal."""
    at, error = task.finished_at, " ".join(_error(task).split())
    assert at is not None
    moment = local(at)
    attempt = attempts_text(task, _starts(task))
    parts = [f"{moment:%H:%M:%S}", f"{task.status:<10}", str(task.pk)]
    if width is None:
        yield " ".join([*parts, task.task_type, f"queue={task.queue_name}", attempt, _took(task), error]).rstrip()
        return
    yield shorten_end(" ".join([*parts, f"{attempt:>3}", f"{_took(task):>5}", short_type(task.task_type)]), width)
    if error:
        yield shorten_end(f"{'':20}{error}", width)


def _starts(task: Task) -> int:
    return len(listed(read(task.worker_ids_text)))  # type: ignore[attr-defined]


def _took(task: Task) -> str:
    if task.finished_at is None or task.last_attempted_at is None:
        return ""
    return duration(task.finished_at - task.last_attempted_at).replace(" ", "")


def _error(task: Task) -> str:
    errors = listed(read(task.errors_text))  # type: ignore[attr-defined]
    last = errors[-1] if errors and task.status == Status.FAILED else None
    if not isinstance(last, Mapping):
        return ""
    args, kwargs = read(task.args_text), read(task.kwargs_text)  # type: ignore[attr-defined]
    patterns = options_of(task.backend).redact
    secrets = secrets_of(task.task_type, args, kwargs, patterns)
    message = redact_text(str(last.get("message") or ""), patterns, secrets)
    return headline(last.get("exception_class_path"), message)


def _as_json(task: Task) -> dict[str, Any]:
    return {
        "finished_at": task.finished_at,
        "status": task.status,
        "id": task.pk,
        "task": task.task_type,
        "backend": task.backend,
        "queue": task.queue_name,
        "attempts": attempt_number(task, _starts(task)),
        "max_attempts": task.max_attempts,
        "error": _error(task) or None,
    }
