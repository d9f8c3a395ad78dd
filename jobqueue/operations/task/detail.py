"""The details of a task, as its page and `jobqueue show` show them. The number of queries is fixed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS
from django.db.models.functions import Now

from jobqueue.declarations import registry
from jobqueue.engine import with_last_heartbeat
from jobqueue.models import Executor, Queue, Schedule, Task
from jobqueue.operations import log_entries
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import attempts_text, headline
from jobqueue.operations.limits import KeyState, active_of, key_that_matters, keys_of, read_keys
from jobqueue.operations.moments import read_moment
from jobqueue.operations.payloads import (
    listed,
    raw,
    read,
    secrets_of,
    show,
    show_arguments,
    shown_errors,
    tags_of,
)
from jobqueue.operations.task.body_log import read_logs
from jobqueue.operations.task.explain import Surroundings, explain
from jobqueue.operations.task.inbox import actor_of, read_inbox
from jobqueue.operations.task.progress import read_progress
from jobqueue.operations.task.timeline import read_timeline
from jobqueue.operations.task.tree import read_ancestors, read_tree

RAW = ("args", "kwargs", "options", "metadata", "inner_state", "worker_ids", "errors", "return_value")
MAX_EXECUTORS = 1000
MAX_HOLDERS = 3  # of a limit by key; others are only counted


def find_task(pk: str, among: Iterable[str]) -> Task | None:
    """Look for a task in several databases, because its id does not name the backend. JSON columns are read as text."""
    texts = {f"{column}_text": raw(column) for column in RAW}
    for database in among:
        with suppress(Task.DoesNotExist, ValidationError, ValueError):
            return Task.objects.using(database).defer(*RAW).annotate(now=Now(), **texts).get(pk=pk)
    return None


def describe(task: Task, *, with_payload: bool) -> dict[str, Any]:
    """Return the details by name. with_payload: whether the reader may see payloads and errors."""
    database = task._state.db or DEFAULT_DB_ALIAS
    values: dict[str, Any] = {column: read(getattr(task, f"{column}_text")) for column in RAW}
    patterns = options_of(task.backend).redact
    secrets = secrets_of(task.task_type, values["args"], values["kwargs"], patterns)
    errors = shown_errors(values["errors"], patterns, secrets, with_payload=with_payload)
    children = read_tree(database, task.pk)
    ancestors = read_ancestors(database, task)
    inbox = read_inbox(database, task, patterns, with_payload)
    limits = {state.key: state for state in read_keys(database, task.backend, keys_of(task))}
    key = key_that_matters(task)
    blocked_by = limits[key] if key is not None and task.status == Task.Status.BLOCKED else None
    log = log_entries.entries_of(task)
    logs = read_logs(database, task, patterns, secrets) if with_payload else {}
    around = surroundings(
        task,
        database,
        errors=errors,
        unread=inbox.unread,
        live_children=children.live,
        limit=limits[key] if key is not None else None,
        is_orphan=ancestors.parent is not None and ancestors.parent.has_ended,
    )
    context: dict[str, Any] = {
        "task": task,
        "reported": read_progress(database, task, patterns, secrets, with_payload=with_payload),
        "sentence": explain(task, around),
        "executor": around.executor,
        "limits": list(limits.values()),
        "blocked_by": blocked_by,
        "holders": read_holders(database, blocked_by, with_payload=with_payload) if blocked_by is not None else (),
        "errors": [
            {
                **entry,
                "at": read_moment(entry.get("at")),
                "headline": headline(entry.get("exception_class_path"), entry["message"]),
            }
            for entry in reversed(errors)
        ],
        "timeline": read_timeline(task, errors, listed(values["worker_ids"]), log, logs=logs, is_actor=is_polled(task)),
        "ancestors": ancestors,
        "parent": ancestors.parent,
        "schedule": schedule_of(task, database),
        "tick_at": read_moment(options.get("scheduled_at")) if isinstance(options := values["options"], dict) else None,
        "children": children,
        "inbox": inbox,
        "keeps_messages": options_of(task.backend).keep_messages,
        "is_actor": actor_of(task) is not None,
        "log": log,
        "with_payload": with_payload,
        "options": show(values["options"], ()) if values["options"] else None,
        "attempts": attempts_text(task),
        "tags": tags_of(task),
    }
    if with_payload:
        result, state, metadata = (values[column] for column in ("return_value", "inner_state", "metadata"))
        context |= {
            "arguments": show_arguments(task.task_type, values["args"], values["kwargs"], patterns),
            "result": show(result, patterns, secrets=secrets) if task.status == Task.Status.SUCCESSFUL else None,
            "state": show(state, patterns, secrets=secrets) if state is not None else None,
            "metadata": show(metadata, patterns, secrets=secrets) if metadata else None,
        }
    return context


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that counts for a limit, and why it has not ended."""

    task: Task
    sentence: str


def read_holders(database: str, state: KeyState, *, with_payload: bool) -> list[Holder]:
    """
    Return tasks that a BLOCKED task of a key waits for, up to MAX_HOLDERS, none if the limit allows another one.

    First those that count while they wait, because these may wait for long. Of a rate, those that have not started.
    """
    if state.is_all or state.left or not state.active:
        return []
    columns = {f"{column}_text": raw(column) for column in RAW}
    of_key = Task.objects.using(database).filter(active_of(state.key), backend=state.backend)
    parts = [of_key] if state.is_rate else [of_key.filter(counts_while_waiting=counts) for counts in (True, False)]
    rows: list[Task] = []
    for part in parts:
        found = part.defer(*RAW).annotate(now=Now(), **columns).order_by("status", "rank", "pk")
        rows += found[: MAX_HOLDERS - len(rows)]
    patterns = options_of(state.backend).redact
    holders = []
    for row in rows:
        args, kwargs, stored = (read(getattr(row, f"{name}_text")) for name in ("args", "kwargs", "errors"))
        secrets = secrets_of(row.task_type, args, kwargs, patterns)
        errors = shown_errors(stored, patterns, secrets, with_payload=with_payload)
        holders.append(Holder(row, explain(row, surroundings(row, database, errors=errors, limit=state))))
    return holders


def is_polled(task: Task) -> bool:
    """Whether the task is an actor, perhaps one that this process does not know."""
    return actor_of(task) is not None or task.polls > 1


def surroundings(task: Task, database: str, **known: Any) -> Surroundings:
    """Read the executors and the queue of a task."""
    options = options_of(task.backend)
    now: datetime = task.now  # type: ignore[attr-defined]
    executors = with_last_heartbeat(Executor.objects.using(database).filter(backend=task.backend))
    executor = executors.filter(pk=task.executor_id).first() if task.executor_id else None
    living = list(
        executors.filter(last_heartbeat__gt=now - timedelta(seconds=options.heartbeat_timeout))
        .exclude(state=Executor.State.STOPPED)
        .only("queues", "slots", "state")[:MAX_EXECUTORS]
    )
    of_queue = [row for row in living if not row.queues or task.queue_name in row.queues]
    serving = [row for row in of_queue if row.state == Executor.State.RUNNING]
    on_event_loop = [name for name, known_task in registry.all().items() if iscoroutinefunction(known_task.func)]
    slots = 0 if task.task_type in on_event_loop else sum(row.slots for row in serving)  # slots count threads only
    running = Task.objects.using(database).running()
    queue = Queue.objects.using(database).filter(backend=task.backend, name=task.queue_name).first()
    in_threads = running.filter(executor_id__in=[row.pk for row in serving]).exclude(task_type__in=on_event_loop)
    of_queue_running = running.filter(backend=task.backend, queue_name=task.queue_name).order_by("executor_id")
    return Surroundings(
        now=now,
        aging_seconds=options.aging,
        timeout_seconds=options.heartbeat_timeout,
        queue=queue,
        running=of_queue_running[: queue.max_running].count() if queue is not None and queue.max_running else 0,
        alive=len(living),
        serving=len(serving),
        knowing=_count_knowing(task, serving, database),
        paused=sum(row.state == Executor.State.PAUSED for row in of_queue),
        slots=slots,
        busy=in_threads[:slots].count() if slots else 0,
        executor=executor,
        silent_seconds=max(0.0, (now - executor.last_heartbeat).total_seconds()) if executor is not None else 0.0,
        **known,
    )


def _count_knowing(task: Task, serving: Sequence[Executor], database: str) -> int:
    """Count the executors with code for a task that waits for it. Their lists of names may be long."""
    if task.status != Task.Status.AWAITING_CODE:
        return 0
    rows = Executor.objects.using(database).filter(pk__in=[row.pk for row in serving])
    return sum(task.task_type in names for names in rows.values_list("task_types", flat=True))


def schedule_of(task: Task, database: str) -> Schedule | None:
    """Return the schedule of a task; None for tasks without one, and if it was deleted."""
    if task.schedule_id is None:
        return None
    return Schedule.objects.using(database).defer("new_task").filter(pk=task.schedule_id).first()
