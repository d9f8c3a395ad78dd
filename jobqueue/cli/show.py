"""`show`: the details of a task, as on its page in the admin. REDACT masks arguments."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from jobqueue.cli.backends import engines
from jobqueue.cli.console import Console
from jobqueue.inspect.formatting import duration, local
from jobqueue.inspect.payload_display import DisplayedValue
from jobqueue.inspect.task_detail import describe, read_task
from jobqueue.inspect.tree import Branch
from jobqueue.models import Task

INDENT = "  "


def show(console: Console, *, id: UUID, backend: str | None) -> None:  # noqa: A002 - the argument's name
    """Show a task of any backend. Raises CommandError if there is none."""
    task, database = _find(id, backend)
    page = describe(task, database, with_payload=True)
    if console.is_json:
        console.write_json(_as_json(task, page))
        return
    width = console.width or shutil.get_terminal_size().columns
    for line in _lines(task, page, width):
        console.write(line)


def _find(pk: UUID, backend: str | None) -> tuple[Task, str]:
    for database in dict.fromkeys(engine.database for engine in engines(backend)):
        try:
            return read_task(database, str(pk)), database
        except Task.DoesNotExist:
            continue
    raise CommandError(f"Unknown task {pk}. Ended tasks are deleted after RETENTION.")


def _lines(task: Task, page: Mapping[str, Any], width: int) -> Iterator[str]:
    yield f"{task.task_type}  {task.status}"
    yield from textwrap.wrap(page["sentence"], width)
    yield ""
    details = [(name, value) for name, value in _details(task, page) if value not in (None, "")]
    longest = max(len(name) for name, _ in details)
    yield from (f"{name:<{longest}}  {value}" for name, value in details)
    yield from _values("Arguments", page["arguments"])
    if page["why_masked"]:
        yield from textwrap.wrap(f"({page['why_masked']})", width, initial_indent=INDENT, subsequent_indent=INDENT)
    for name in ("result", "state", "metadata", "options"):
        yield from _values(name.capitalize(), [page[name]] if page[name] else [])
    yield from _errors(page)
    yield from _messages(page)
    yield from _children(page["children"])
    if page["log"]:
        yield from ("", "Manual actions")
        yield from (
            f"{INDENT}{local(e.action_time):%Y-%m-%d %H:%M:%S} {e.user}: {e.get_change_message()}" for e in page["log"]
        )


def _details(task: Task, page: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    now: datetime = task.now  # type: ignore[attr-defined]
    number: int | None = page["attempt_number"]
    yield "Id", task.pk
    yield "Queue", task.queue_name
    yield "Backend", task.backend
    yield "Priority", task.priority
    yield "Key", task.key
    yield "Attempts", None if number is None else f"{number} of {task.max_attempts}"
    yield "Attempts started", page["starts"]
    yield "Successful polls", task.polls if page["is_actor"] or task.polls > 1 else None
    yield "Executor losses", task.executor_losses or None
    yield "Executor", page["executor"].name if page["executor"] else None
    yield "Enqueued", _moment(task.enqueued_at, now)
    yield "First started", _moment(task.started_at, now)
    yield "Last attempted", _moment(task.last_attempted_at, now)
    yield "Next run", _moment(task.wake_at, now)
    yield "Expires", _moment(task.expires_at, now)
    yield "Cancel requested", _moment(task.cancel_requested_at, now)
    yield "Ended", _moment(task.finished_at, now)
    parent = page["parent"]
    if parent is not None:
        yield "Parent", f"{parent.pk} {parent.task_type or '(pruned)'} {parent.status or ''}".rstrip()


def _moment(moment: datetime | None, now: datetime) -> str | None:
    if moment is None:
        return None
    words = f"{duration(now - moment)} ago" if moment <= now else f"in {duration(moment - now)}"
    return f"{local(moment):%Y-%m-%d %H:%M:%S %Z} ({words})".replace("  ", " ")


def _values(title: str, values: Iterable[DisplayedValue]) -> Iterator[str]:
    found = list(values)
    if not found:
        return
    yield from ("", title)
    for value in found:
        first, *rest = (value.text or f"({value.note})").splitlines()
        yield f"{INDENT}{f'{value.name} = ' if value.name else ''}{first}"
        yield from (f"{INDENT}{line}" for line in rest)
        if value.text and value.note:
            yield f"{INDENT}({value.note})"


def _errors(page: Mapping[str, Any]) -> Iterator[str]:
    for attempt in page["attempts"]:
        at = f", {local(attempt.at):%Y-%m-%d %H:%M:%S}" if attempt.at else ""
        by = f" on {attempt.executor}" if attempt.executor else ""
        yield from ("", f"Attempt {attempt.number}{by}{at}: {attempt.headline}")
        yield from (f"{INDENT}{line}" for line in attempt.traceback.rstrip().splitlines())


def _messages(page: Mapping[str, Any]) -> Iterator[str]:
    inbox = page["inbox"]
    if not inbox:
        return
    yield from ("", "Messages")
    for message in inbox:
        state = "undelivered" if message.is_undelivered else "read" if message.consumed_at else "unread"
        sender = f" from {message.sender_id}" if message.sender_id else ""
        yield f"{INDENT}{message.id} {message.kind}{sender}, {local(message.sent_at):%Y-%m-%d %H:%M:%S}, {state}"
        if message.body is not None:
            text = message.body.text or f"({message.body.note})"
            yield from (f"{INDENT * 2}{line}" for line in text.splitlines())
    if inbox.has_more:
        yield f"{INDENT}and more"


def _children(branch: Branch, depth: int = 0) -> Iterator[str]:
    if not branch.total:
        return
    if depth == 0:
        yield from ("", f"Children: {_states(branch)}")
    for node in branch.nodes:
        yield f"{INDENT * (depth + 1)}{node.task.pk} {node.task.task_type} {node.task.status}"
        if node.branch is not None:
            yield from _children(node.branch, depth + 1)
    if branch.hidden > 0:
        yield f"{INDENT * (depth + 1)}and {branch.hidden:,} more"


def _states(branch: Branch) -> str:
    words = ", ".join(f"{count:,} {status.lower()}" for status, count in branch.states)
    return f"{words}, and more" if branch.is_truncated else words


def _as_json(task: Task, page: Mapping[str, Any]) -> dict[str, Any]:
    columns = (
        "backend", "queue_name", "priority", "key", "max_attempts", "polls", "executor_losses", "enqueued_at",
        "started_at", "last_attempted_at", "wake_at", "expires_at", "cancel_requested_at", "finished_at", "parent_id",
    )  # fmt: skip
    return {
        "id": task.pk,
        "task": task.task_type,
        "status": task.status,
        "why": page["sentence"],
        **{column: getattr(task, column) for column in columns},
        "attempts": page["attempt_number"],
        "executor": page["executor"].name if page["executor"] else None,
        "arguments": {value.name: _read(value) for value in page["arguments"]},
        "why_masked": page["why_masked"],
        **{name: _read(page[name]) for name in ("result", "state", "metadata")},
        "errors": [
            {"attempt": one.number, "at": one.at, "executor": one.executor, "class": one.class_path,
             "headline": one.headline, "traceback": one.traceback}
            for one in page["attempts"]
        ],
        "messages": [
            {"id": message.id, "kind": str(message.kind), "sender": message.sender_id, "sent_at": message.sent_at,
             "is_unread": message.consumed_at is None, "body": _read(message.body)}
            for message in page["inbox"]
        ],
        "children": dict(page["children"].counts),
    }  # fmt: skip


def _read(value: DisplayedValue | None) -> Any:
    """Return a value as JSON, or as text with a note if it is not shown in full."""
    if value is None:
        return None
    return {"text": value.text, "note": str(value.note)} if value.note else json.loads(value.text)
