"""`submit` and `send`: a task or a message by hand. Invalid ones are refused before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from jobqueue import api, registry
from jobqueue.actor import ActorTask
from jobqueue.api.messages import id_from, receivers
from jobqueue.cli.audit import log
from jobqueue.cli.backends import engine_of, engines
from jobqueue.cli.console import Console
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import TaskNotFound
from jobqueue.function import FunctionTask
from jobqueue.serialization.json import encode_message


def submit(
    console: Console,
    *,
    task: str,
    task_args: Sequence[Any],
    task_kwargs: Mapping[str, Any],
    queue_name: str | None,
    priority: int | None,
    run_after: timedelta | datetime | None,
    max_attempts: int | None,
    key: str | None,
    backend: str | None,
) -> None:
    """Enqueue a task by its full name, or by the last component of it."""
    found = task_named(task).using(
        queue_name=queue_name,
        priority=priority,
        run_after=run_after,
        max_attempts=max_attempts,
        key=key,
        backend=backend,
    )
    engines(found.backend)
    result = found.enqueue(*task_args, **task_kwargs)
    log("submit", task=found.task_type, id=result.id, backend=found.backend)
    console.report({"id": result.id, "status": result.status.value, "task": found.task_type}, result.id)


def task_named(name: str) -> FunctionTask[..., Any]:
    """Find a registered task. Raises CommandError that names similar tasks."""
    known = registry.all()
    if name in known:
        return known[name]
    found = [task for task_type, task in known.items() if task_type.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    near = [task.task_type for task in found] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    short = {task_type.rpartition(".")[2]: task_type for task_type in known}
    near = near or [short[last] for last in difflib.get_close_matches(name, short, n=3)]
    hint = f"Did you mean {' or '.join(near)}?" if near else "Tasks are found in tasks.py and actors.py of apps."
    raise CommandError(f"{'Several tasks are' if found else 'No task is'} named {name!r}. {hint}")


def send(console: Console, *, to: str, body: Any, dedupe_key: str | None, backend: str | None) -> None:
    """Send a message to an actor. Raises CommandError if it is not a valid `Message`: it would fail the polls."""
    engine = _engine_with(to, backend)
    (pk,) = receivers(engine, [to], [dedupe_key])
    task_type = _check_message(engine, pk, body)
    with transaction.atomic(using=engine.database):
        number = api.send(pk, body, dedupe_key=dedupe_key, backend=engine.alias)
    log("message", to=str(pk), id=number, backend=engine.alias)
    text = (
        f"Not sent: {pk} has received a message with --dedupe-key {dedupe_key!r} before."
        if number is None
        else f"Sent message {number} to {task_type} {pk}."
    )
    console.report({"to": pk, "id": number, "is_repeat": number is None}, text)


def _engine_with(to: str, backend: str | None) -> Engine:
    """Return the engine that has the receiver. A key belongs to the given backend, or to the default one."""
    pk = id_from(to)
    if pk is None:
        return engine_of(backend)
    for engine in engines(backend):
        if engine.by_ids([pk]).exists():
            return engine
    raise TaskNotFound(f"Unknown task {pk}.")


def _check_message(engine: Engine, pk: Any, body: Any) -> str:
    task_type = engine.task_types([pk]).get(pk, "")
    task = registry.get(task_type)
    if isinstance(task, ActorTask):
        text = encode_message(body, max_bytes=engine.options.max_payload_bytes)
        try:
            task.actor.decode_body(text)
        except ValueError as error:
            raise CommandError(f"Not a valid {task.actor.__name__}.Message: {error}") from error
    return task_type
