"""`show`: the details of a task, as on its page in the admin. REDACT masks arguments."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobqueue.management.cli.backends import engines
from jobqueue.management.cli.console import Console
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import Task
from jobqueue.operations.formatting import attempt_number, clock_time, duration
from jobqueue.operations.limits import KeyState
from jobqueue.operations.payloads import DisplayedValue
from jobqueue.operations.task.detail import describe_task, find_task, find_task_with_key
from jobqueue.operations.task.journal import ShownJournal
from jobqueue.operations.task.reports import ShownProgress
from jobqueue.operations.task.timeline import Timeline
from jobqueue.operations.task.tree import Branch

INDENT = "  "
COLUMNS = {
    "queue_name": "Queue",
    "backend": "Backend",
    "priority": "Priority",
    "key": "Key",
    "polls": "Successful polls",
    "executor_losses": "Executor losses",
    "enqueued_at": "Enqueued",
    "started_at": "First started",
    "last_attempted_at": "Last attempted",
    "wake_at": "Next run",
    "expires_at": "Expires",
    "cancel_requested_at": "Cancel requested",
    "finished_at": "Ended",
}
ALSO_IN_JSON = ("max_attempts", "parent_id", "taken_over_by_id")
WIDTH = max(map(len, (*COLUMNS.values(), "Concurrency limit")))


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID-or-key", help="task id, or the unique key of a task")
    parser.add_argument("--journal", action="store_true", help="show the journal of a workflow: its newest entries")
    parser.add_argument("--before", type=int, metavar="ENTRY", help="with --journal, entries before the one of this id")


def show(console: Console, flags: Any) -> None:
    """Show a task of any backend. Raises CommandError if there is none."""
    database_of = {engine.alias: engine.database for engine in engines(flags.backend)}
    task = find_task(flags.id, dict.fromkeys(database_of.values())) or find_task_with_key(flags.id, database_of)
    if task is None:
        raise CommandError(f"Unknown task {flags.id}. Ended tasks are deleted after RETENTION.")
    page = describe_task(task, with_payload=True, entries_before=flags.before)
    if not (flags.journal or flags.before):
        page["journal"] = None
    if console.is_json:
        console.write_json(_as_json(task, page))
        return
    width = console.width or shutil.get_terminal_size().columns
    for line in _lines(task, page, width):
        console.write(line)


def _lines(task: Task, page: Mapping[str, Any], width: int) -> Iterator[str]:
    yield f"{task.task_type}  {task.status}"
    yield from textwrap.wrap(page["sentence"], width, break_on_hyphens=False)
    for holder in page["holders"]:
        text = f"Held by {holder.task.pk} {holder.task.task_type} {holder.task.status}. {holder.sentence}"
        yield from textwrap.wrap(text, width, subsequent_indent=INDENT, break_on_hyphens=False)
    yield ""
    yield from (
        f"{title:<{WIDTH}}  {value}" for title, value in _details(task, page).items() if value not in (None, "")
    )
    yield from value_lines("Arguments", page["arguments"])
    for name in ("result", "checkpoint", "state", "metadata", "options"):
        yield from value_lines(name.capitalize(), [page[name]] if page[name] else [])
    yield from _journal(page["journal"])
    yield from _timeline(page["timeline"])
    yield from _messages(page)
    yield from _children(page["children"])
    if page["log"]:
        yield from ("", "Manual actions")
        yield from (
            f"{INDENT}{clock_time(entry.action_time)} {entry.user}: {entry.get_change_message()}"
            for entry in page["log"]
        )


def _details(task: Task, page: Mapping[str, Any]) -> dict[str, Any]:
    now: datetime = task.now  # type: ignore[attr-defined]
    values = {title: getattr(task, column) for column, title in COLUMNS.items()}
    if not (page["is_actor"] or task.polls > 1):
        values["Successful polls"] = None
    parent = page["parent"]
    return {
        "Id": task.pk,
        "Renamed to": page["renamed_to"],
        "Tags": ", ".join(page["tags"]),
        "Parent": parent and f"{parent.pk} {parent.task_type or '(pruned)'} {parent.status or ''}".rstrip(),
        "Key taken over by": task.taken_over_by_id,
        **{"Rate" if limit.is_rate else "Concurrency limit": _limit(limit) for limit in page["limits"]},
        "Attempt": page["attempts"],
        "Progress": _progress(page["reported"]),
        "Executor": page["executor"] and page["executor"].name,
        **{title: _ago(value, now) if isinstance(value, datetime) else value for title, value in values.items()},
        "Executor losses": task.executor_losses or None,
    }


def _limit(limit: KeyState) -> str:
    """Return a key and how much of it is used, if its number is known: code or a live task has it."""
    return limit.key.label if limit.number is None else f"{limit.key.label}: {limit.active} of {limit.number_text}"


def _progress(reported: ShownProgress | None) -> str | None:
    if reported is None:
        return None
    parts = (reported.text, reported.note, "" if reported.is_current else "by an earlier attempt")
    return ", ".join(part for part in parts if part)


def _ago(moment: datetime, now: datetime) -> str:
    text = f"{duration(now - moment)} ago" if moment <= now else f"in {duration(moment - now)}"
    return f"{clock_time(moment)} ({text})"


def value_lines(title: str, values: Iterable[DisplayedValue]) -> Iterator[str]:
    for index, value in enumerate(values):
        if index == 0:
            yield from ("", title)
        name = f"{value.name} = " if value.name else ""
        yield from textwrap.indent(f"{name}{value.text or f'({value.note})'}", INDENT).splitlines()
        if value.text and value.note:
            yield f"{INDENT}({value.note})"


def _journal(journal: ShownJournal | None) -> Iterator[str]:
    if journal is None:
        return
    states = ", ".join(f"{count:,} {status.lower()}" for status, count in journal.states)
    yield from ("", f"Journal: {states}")
    if journal.older is not None:
        yield f"{INDENT}Older entries: --before {journal.older}"
    for entry in journal.entries:
        at = clock_time(entry.started_at) if entry.started_at else "?"
        took = [] if entry.seconds is None else [f"took {duration(entry.seconds)}"]
        attempts = [f"{entry.attempts} attempts"] if entry.attempts > 1 else []
        child = [f"{entry.child.task.pk} {entry.child.task.status}"] if entry.child else []
        parts = [entry.status.lower(), *took, *attempts, *child, *filter(None, [entry.note])]
        yield f"{INDENT}{at} {entry.name} {entry.title} {', '.join(parts)}"
        yield from (f"{INDENT * 2}{line}" for line in (entry.line, entry.headline) if line)
    if journal.newer is not None:
        yield f"{INDENT}Newer entries: --before {journal.newer}"


def _timeline(timeline: Timeline) -> Iterator[str]:
    """Yield the attempts, the oldest first."""
    if timeline.steps:
        yield from ("", "Timeline")
    for step in reversed(timeline.steps):
        at = clock_time(step.at) if step.at else "?"
        if step.is_requeue:
            yield f"{INDENT}{at} {step.note}"
            continue
        times = {"waited": step.wait_seconds, "took": step.run_seconds}
        durations = [f"{name} {duration(seconds)}" for name, seconds in times.items() if seconds is not None]
        by = [f"on {step.executor}"] if step.executor else []
        parts = [step.status.lower(), *durations, *by, *filter(None, [step.note])]
        yield f"{INDENT}{at} {step.label}: {', '.join(parts)}"
        if step.headline:
            yield f"{INDENT * 2}{step.headline}"
        yield from textwrap.indent(step.traceback.rstrip(), INDENT * 2).splitlines()
        if step.log:
            yield from (f"{INDENT * 2}{line}" for line in (step.log.title, step.log.note) if line)
            yield from (f"{INDENT * 3}{line}" for line in step.log.lines)


def _messages(page: Mapping[str, Any]) -> Iterator[str]:
    inbox = page["inbox"]
    if inbox.entries:
        yield from ("", "Messages")
    for message in inbox.entries:
        row = message.row
        state = "undelivered" if message.is_undelivered else "read" if row.consumed_at else "unread"
        sender = f" from {row.sender_id}" if row.sender_id else ""
        yield f"{INDENT}{row.pk} {message.kind}{sender}, {clock_time(row.sent_at)}, {state}"
        if message.body is not None:
            yield from textwrap.indent(message.body.text or f"({message.body.note})", INDENT * 2).splitlines()
    if inbox.has_more:
        yield f"{INDENT}and more"


def _children(branch: Branch, indent: str = INDENT) -> Iterator[str]:
    if branch.total and indent == INDENT:
        states = ", ".join(f"{count:,} {status.lower()}" for status, count in branch.states)
        yield from ("", f"Children: {states}{', and more' if branch.is_truncated else ''}")
    for node in branch.nodes:
        yield f"{indent}{node.task.pk} {node.task.task_type} {node.task.status}"
        if node.branch:
            yield from _children(node.branch, indent + INDENT)
    if branch.hidden > 0:
        yield f"{indent}and {branch.hidden:,} more"


def _as_json(task: Task, page: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": task.pk,
        "task": task.task_type,
        "renamed_to": page["renamed_to"],
        "status": task.status,
        "why": page["sentence"],
        "held_by": [
            {"id": holder.task.pk, "task": holder.task.task_type, "status": holder.task.status, "why": holder.sentence}
            for holder in page["holders"]
        ],
        **{column: getattr(task, column) for column in (*COLUMNS, *ALSO_IN_JSON)},
        "limits": [
            {"kind": holder.key.kind, "key": holder.key.stored, "number": holder.number, "active": holder.active.number}
            for holder in page["limits"]
        ],
        "attempt": attempt_number(task),
        "tags": page["tags"],
        "executor": page["executor"] and page["executor"].name,
        "arguments": {value.name: _read(value) for value in page["arguments"]},
        **{name: _read(page[name]) for name in ("result", "checkpoint", "state", "metadata")},
        "progress": page["reported"] and page["reported"].as_json(),
        **({} if page["journal"] is None else {"journal": page["journal"].as_json()}),
        "timeline": [step.as_json() for step in reversed(page["timeline"].steps)],
        "errors": page["errors"],
        "messages": [
            {"id": holder.row.pk, "kind": holder.kind, "sender": holder.row.sender_id, "sent_at": holder.row.sent_at,
             "is_unread": holder.row.consumed_at is None, "body": _read(holder.body)}
            for holder in page["inbox"].entries
        ],
        "children": page["children"].counts,
    }  # fmt: skip


def _read(value: DisplayedValue | None) -> Any:
    """Return a value as JSON, or as text with a note if it is not shown in full."""
    if value is None:
        return None
    return {"text": value.text, "note": value.note} if value.note else json.loads(value.text)


VERB = Verb("show", "Show one task in full.", show, add_arguments)
