"""Everything that a task's page shows, gathered in a number of queries that does not depend on the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import F
from django.db.models.functions import Now
from django.utils.timezone import make_naive

from jobqueue.admin.base import options_of
from jobqueue.admin.explain import Surroundings, explain
from jobqueue.admin.values import Shown, raw, read, show, show_arguments
from jobqueue.admin.words import headline
from jobqueue.models import Executor, InboxMessage, Queue, Task

RAW = ("args", "kwargs", "options", "metadata", "inner_state", "worker_ids", "errors", "return_value")
RELATED = 100  # children, messages, log entries shown
EXECUTORS = 1000  # living executors looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One entry of `errors`."""

    number: Any
    at: datetime | None
    executor: str
    headline: str
    class_path: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One message in the task's inbox."""

    id: int
    sender_id: Any
    sent_at: datetime
    consumed_at: datetime | None
    eof: str | None
    is_undelivered: bool
    body: Shown | None


def read_task(database: str, pk: str) -> Task:
    """Read a task with its JSON columns as text. Raises Task.DoesNotExist, ValidationError."""
    texts = {f"{column}_text": raw(column) for column in RAW}
    return Task.objects.using(database).defer(*RAW).annotate(now=Now(), **texts).get(pk=pk)


def describe(task: Task, database: str, *, with_payload: bool) -> dict[str, Any]:
    """Gather the context of the page. with_payload: whether the reader may see arguments, results and state."""
    values: dict[str, Any] = {column: read(getattr(task, f"{column}_text")) for column in RAW}
    patterns = options_of(task.backend).redact
    errors = [entry for entry in listed(values["errors"]) if isinstance(entry, Mapping)]
    children = read_children(database, task)
    mail = read_mail(database, task, patterns, with_payload)
    around = surroundings(
        task,
        database,
        errors=errors,
        unread=sum(1 for message in mail if message.consumed_at is None),
        live_children=sum(1 for child in children if child.finished_at is None),
    )
    context = {
        "task": task,
        "sentence": explain(task, around),
        "executor": around.executor,
        "attempts": [attempt(entry) for entry in reversed(errors)],
        "parent": read_parent(database, task),
        "children": children[:RELATED],
        "has_more_children": len(children) > RELATED,
        "mail": mail,
        "log": log_entries(task),
        "with_payload": with_payload,
        "options": show(values["options"], ()) if values["options"] else None,
        "starts": len(listed(values["worker_ids"])),
    }
    if with_payload:
        context |= {
            "arguments": show_arguments(task.task_type, values["args"], values["kwargs"], patterns),
            "result": show(values["return_value"], patterns) if task.status == Task.Status.SUCCESSFUL else None,
            "state": show(values["inner_state"], patterns) if values["inner_state"] is not None else None,
            "metadata": show(values["metadata"], patterns) if values["metadata"] else None,
        }
    return context


def listed(value: Any) -> list[Any]:
    """Give what should be a list; an empty one where a row holds something else."""
    return value if isinstance(value, list) else []


def read_parent(database: str, task: Task) -> Task | None:
    if task.parent_id is None:
        return None
    return Task.objects.using(database).filter(pk=task.parent_id).only("task_type", "status").first()


def read_children(database: str, task: Task) -> list[Task]:
    """Read some children, the newest first; one more than is shown."""
    rows = Task.objects.using(database).filter(parent_id=task.pk)
    rows = rows.only("task_type", "queue_name", "status", "finished_at", "enqueued_at")
    # Not sorted by the database, which might walk the primary key to find them.
    return sorted(rows.order_by()[: RELATED + 1], key=lambda row: row.pk, reverse=True)


def surroundings(task: Task, database: str, **known: Any) -> Surroundings:
    options = options_of(task.backend)
    now: datetime = task.now  # type: ignore[attr-defined]
    executors = Executor.objects.using(database).filter(backend=task.backend)
    living = list(
        executors.filter(heartbeat__gt=now - timedelta(seconds=options.heartbeat_timeout))
        .exclude(state=Executor.State.STOPPED)
        .only("queues", "slots", "state")[:EXECUTORS]
    )
    serving = [
        row for row in living
        if row.state == Executor.State.RUNNING and (not row.queues or task.queue_name in row.queues)
    ]  # fmt: skip
    slots = sum(row.slots for row in serving)
    running = Task.objects.using(database).running()
    return Surroundings(
        now=now,
        aging_seconds=options.aging,
        timeout_seconds=options.heartbeat_timeout,
        queue=Queue.objects.using(database).filter(backend=task.backend, name=task.queue_name).first(),
        alive=len(living),
        serving=len(serving),
        slots=slots,
        busy=running.filter(executor_id__in=[row.pk for row in serving])[:slots].count() if serving else 0,
        executor=executors.filter(pk=task.executor_id).first() if task.executor_id else None,
        **known,
    )


def attempt(entry: Mapping[str, Any]) -> Attempt:
    return Attempt(
        number=entry.get("attempt"),
        at=_moment(entry.get("at")),
        executor=str(entry.get("executor") or ""),
        headline=headline(entry.get("exception_class_path"), entry.get("message")),
        class_path=str(entry.get("exception_class_path") or ""),
        traceback=str(entry.get("traceback") or ""),
    )


def _moment(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment if settings.USE_TZ else make_naive(moment)


def read_mail(database: str, task: Task, patterns: tuple[str, ...], with_payload: bool) -> list[Mail]:
    """Read the inbox, unread messages first."""
    rows = InboxMessage.objects.using(database).filter(task_id=task.pk).defer("body").annotate(body_text=raw("body"))
    newest = rows.order_by(F("consumed_at").asc(nulls_first=True), "pk")[:RELATED]
    return [
        Mail(
            id=row.pk,
            sender_id=row.sender_id,
            sent_at=row.sent_at,
            consumed_at=row.consumed_at,
            eof=row.eof,
            is_undelivered=row.consumed_at is None and task.is_finished,
            body=show(read(row.body_text), patterns) if with_payload else None,
        )
        for row in newest
    ]


def log_entries(task: Task) -> list[LogEntry]:
    """Who requeued or cancelled it by hand; the newest first."""
    kind = ContentType.objects.get_for_model(Task)
    entries = LogEntry.objects.filter(content_type=kind, object_id=str(task.pk)).select_related("user")
    return list(entries.order_by("-action_time")[:RELATED])
