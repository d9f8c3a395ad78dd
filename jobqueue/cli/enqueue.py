"""`submit` and `send`: a task or a message by hand. What would not be taken is refused, and nothing is written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from jobqueue import api, registry
from jobqueue.actor import ActorTask
from jobqueue.api.messages import id_from, receivers
from jobqueue.cli.audit import note
from jobqueue.cli.backends import engine_of, engines
from jobqueue.cli.console import Console
from jobqueue.engine.base import Engine
from jobqueue.exceptions import TaskNotFound
from jobqueue.function import FunctionTask
from jobqueue.serialization.json import encode_message


def submit(console: Console, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any) -> None:
    """Enqueue a task by the name under which it is registered, or what stands behind its last dot."""
    task = task_named(name).using(**options)
    engines(task.backend)
    result = task.enqueue(*args, **kwargs)
    note("submit", task=task.task_type, id=result.id, backend=task.backend)
    if console.is_json:
        console.write_json({"id": result.id, "status": result.status.value, "task": task.task_type})
        return
    console.write(result.id)


def task_named(name: str) -> FunctionTask[..., Any]:
    """Find a registered task. Raises CommandError, with what may have been meant."""
    known = registry.all()
    if name in known:
        return known[name]
    found = [task for task_type, task in known.items() if task_type.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    near = [task.task_type for task in found] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    short = {task_type.rpartition(".")[2]: task_type for task_type in known}
    near = near or [short[last] for last in difflib.get_close_matches(name, short, n=3)]
    hint = f"did you mean {' or '.join(near)}?" if near else "tasks are found in tasks.py and actors.py of apps."
    raise CommandError(f"{'Several tasks are' if found else 'No task is'} called {name!r}; {hint}")


def send(console: Console, to: str, body: Any, *, dedupe_key: str | None, backend: str | None) -> None:
    """Send a message to an actor; refused where its `Message` does not allow it: that would fail its polls."""
    engine = _engine_with(to, backend)
    (pk,) = receivers(engine, [to], [dedupe_key])
    actor = _refuse_for(engine, pk, body)
    with transaction.atomic(using=engine.database):
        number = api.send(pk, body, dedupe_key=dedupe_key, backend=engine.alias)
    note("message", to=str(pk), id=number, backend=engine.alias)
    if console.is_json:
        console.write_json({"to": pk, "id": number, "is_repeat": number is None})
    elif number is None:
        console.write(f"A message with dedupe_key {dedupe_key!r} was sent to {pk} before; nothing was sent.")
    else:
        console.write(f"Message {number} was sent to {actor} {pk}.")


def _engine_with(to: str, backend: str | None) -> Engine:
    """Give the backend that has the receiver; a key is one of the backend that is named, or of the default one."""
    pk = id_from(to)
    if pk is None:
        return engine_of(backend)
    for engine in engines(backend):
        if engine.among([pk]).exists():
            return engine
    raise TaskNotFound(f"There is no task {pk}.")


def _refuse_for(engine: Engine, pk: Any, body: Any) -> str:
    task_type = engine.task_types([pk]).get(pk, "")
    task = registry.get(task_type)
    if isinstance(task, ActorTask):
        text = encode_message(body, max_bytes=engine.options.max_payload_bytes)
        try:
            task.actor.decode_body(text)
        except ValueError as error:
            raise CommandError(f"{task.actor.__name__}.Message does not allow that: {error}") from error
    return task_type
