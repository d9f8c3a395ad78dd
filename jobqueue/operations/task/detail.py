"""The details of a task, as its page and `jobqueue show` show them. The number of queries is fixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS
from django.db.models.functions import Now

from jobqueue.declarations import registry
from jobqueue.models import Schedule, Task
from jobqueue.operations import log_entries
from jobqueue.operations.backends import options_of
from jobqueue.operations.explain import explain
from jobqueue.operations.formatting import attempts_text, headline
from jobqueue.operations.holders import read_holders, task_facts
from jobqueue.operations.limits import key_that_matters, list_task_keys, read_key_states
from jobqueue.operations.payloads import (
    RAW,
    find_secrets,
    listed,
    parse_column,
    raw,
    read_moment,
    show_arguments,
    show_value,
    shown_errors,
    tags_of,
)
from jobqueue.operations.task.batch import read_batch
from jobqueue.operations.task.inbox import read_inbox, reads_messages
from jobqueue.operations.task.journal import read_journal
from jobqueue.operations.task.reports import read_logs, read_progress
from jobqueue.operations.task.timeline import read_timeline
from jobqueue.operations.task.tree import read_ancestors, read_tree
from jobqueue.values.json import CHECKPOINT


def find_task(pk: str, among: Iterable[str]) -> Task | None:
    """Look for a task in several databases, because its id does not name the backend. JSON columns are read as text."""
    texts = {f"{column}_text": raw(column) for column in RAW}
    for database in among:
        with suppress(Task.DoesNotExist, ValidationError, ValueError):
            return Task.objects.using(database).defer(*RAW).annotate(now=Now(), **texts).get(pk=pk)
    return None


def find_task_with_key(key: str, database_of: Mapping[str, str]) -> Task | None:
    """Look for the live task with a unique key, else for the last one that had it. database_of: backends to search."""
    for backend, database in database_of.items():
        tasks = Task.objects.using(database).filter(backend=backend, key=key)
        live = tasks.filter(finished_at__isnull=True, taken_over_by_id__isnull=True)
        ended = tasks.filter(finished_at__isnull=False).order_by("-pk")
        for pk in (*live.values_list("pk", flat=True)[:1], *ended.values_list("pk", flat=True)[:1]):
            return find_task(str(pk), [database])
    return None


def describe_task(task: Task, *, with_payload: bool, entries_before: int | None = None) -> dict[str, Any]:
    """
    Return the details by name.

    with_payload: whether the reader may see payloads and errors. entries_before: which page of a journal.
    """
    database = task._state.db or DEFAULT_DB_ALIAS
    values: dict[str, Any] = {column: parse_column(getattr(task, f"{column}_text")) for column in RAW}
    patterns = options_of(task.backend).redact
    secrets = find_secrets(task.task_type, values["args"], values["kwargs"], patterns)
    errors = shown_errors(values["errors"], patterns, secrets, with_payload=with_payload)
    children = read_tree(database, task.pk)
    ancestors = read_ancestors(database, task)
    inbox = read_inbox(database, task, patterns, with_payload)
    limits = {state.key: state for state in read_key_states(database, task.backend, list_task_keys(task))}
    key = key_that_matters(task)
    blocked_by = limits[key] if key is not None and task.status == Task.Status.BLOCKED else None
    log = log_entries.read_entries(task)
    batch = read_batch(database, task, values["inner_state"], values["kwargs"])
    journal = None
    if batch is None:
        journal = read_journal(
            database, task, values["inner_state"], patterns, secrets, with_payload=with_payload, before=entries_before
        )
    logs = read_logs(database, task, patterns, secrets) if with_payload else {}
    facts = task_facts(
        task,
        database,
        errors=errors,
        unread=inbox.unread,
        live_children=children.live,
        limit=limits[key] if key is not None else None,
        wait=batch.wait if batch is not None else journal.wait if journal is not None else "",
        is_orphan=ancestors.parent is not None and ancestors.parent.has_ended,
    )
    context: dict[str, Any] = {
        "task": task,
        "reported": read_progress(database, task, patterns, secrets, with_payload=with_payload),
        "sentence": explain(task, facts),
        "executor": facts.executor,
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
        "batch": batch,
        "journal": journal,
        "inbox": inbox,
        "keeps_messages": options_of(task.backend).keep_messages,
        "is_actor": reads_messages(task),
        "log": log,
        "with_payload": with_payload,
        "options": show_value(values["options"], ()) if values["options"] else None,
        "attempts": attempts_text(task),
        "renamed_to": name if (name := registry.name_now(task.task_type)) != task.task_type else None,
        "tags": tags_of(task),
    }
    if with_payload:
        result, state, metadata = (values[column] for column in ("return_value", "inner_state", "metadata"))
        checkpoint = None
        if isinstance(state, dict) and [*state] == [CHECKPOINT] and not is_polled(task):
            checkpoint, state = state[CHECKPOINT], None
        context |= {
            "arguments": show_arguments(task.task_type, values["args"], values["kwargs"], patterns),
            "result": show_value(result, patterns, secrets=secrets) if task.status == Task.Status.SUCCESSFUL else None,
            "state": show_value(state, patterns, secrets=secrets) if state is not None else None,
            "checkpoint": show_value(checkpoint, patterns, secrets=secrets) if checkpoint is not None else None,
            "metadata": show_value(metadata, patterns, secrets=secrets) if metadata else None,
        }
    return context


def is_polled(task: Task) -> bool:
    """Return whether the task is an actor, perhaps one that this process does not know."""
    return reads_messages(task) or task.polls > 1


def schedule_of(task: Task, database: str) -> Schedule | None:
    """Return the schedule of a task; None for tasks without one, and if it was deleted."""
    if task.schedule_id is None:
        return None
    return Schedule.objects.using(database).defer("new_task").filter(pk=task.schedule_id).first()
