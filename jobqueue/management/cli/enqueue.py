"""`submit` and `send`: a task or a message by hand. Invalid ones are refused before anything is written."""

from __future__ import annotations

import difflib
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from jobqueue import api
from jobqueue.api.messages import id_from, resolve_receivers
from jobqueue.conf.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from jobqueue.declarations import registry
from jobqueue.declarations.function import FunctionTask
from jobqueue.engine import Engine
from jobqueue.exceptions import TaskNotFound
from jobqueue.management.cli.arguments import json_value, parse_moment
from jobqueue.management.cli.backends import engines, find_engine
from jobqueue.management.cli.console import Console, log
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.task.inbox import check_message

OPTIONS = ("queue_name", "priority", "run_after", "max_attempts", "key", "backend")  # of using()


def add_submit_arguments(parser: CommandParser) -> None:
    parser.add_argument("task", help="full name of a task, or its last component")
    for name, kind, text in (("args", list, 'such as [1, "a"]'), ("kwargs", dict, 'such as {"a": 1}')):
        value = partial(json_value, kind=kind)
        parser.add_argument(f"--{name}", dest=f"task_{name}", type=value, default=kind(), metavar="JSON", help=text)
    parser.add_argument("--queue", dest="queue_name", metavar="NAME", help="queue (default: as declared)")
    parser.add_argument("--priority", type=int, help=f"{TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}")
    parser.add_argument("--run-after", type=parse_moment, metavar="WHEN", help="start later: 30m, or 2030-01-31T09:00")
    parser.add_argument("--max-attempts", type=int, help="attempts (default: as declared)")
    parser.add_argument("--key", help="if a live task has this key, print its id instead")


def add_send_arguments(parser: CommandParser) -> None:
    parser.add_argument("to", help="id or key of a live actor")
    parser.add_argument("body", type=json_value, nargs="?", metavar="JSON", help="the message (default: null)")
    parser.add_argument("--dedupe-key", help="the actor gets only one message with this text")


def submit(console: Console, flags: Any) -> None:
    """Enqueue a task by its full name, or by the last component of it."""
    task = task_named(flags.task).using(**{name: getattr(flags, name) for name in OPTIONS})
    engines(task.backend)
    result = task.enqueue(*flags.task_args, **flags.task_kwargs)
    log("submit", task=task.task_type, id=result.id, backend=task.backend)
    console.report({"id": result.id, "status": result.status.value, "task": task.task_type}, result.id)


def task_named(name: str) -> FunctionTask[..., Any]:
    """Find a registered task. Raises CommandError that names similar tasks."""
    offered, name = registry.offered(), registry.name_now(name)
    short = {task_type: task_type.rpartition(".")[2] for task_type in offered}
    matching = [name] if name in offered else [task_type for task_type in offered if short[task_type] == name]
    if len(matching) == 1:
        return offered[matching[0]]
    alike = {*difflib.get_close_matches(name, [*offered, *short.values()], n=3)}
    similar = matching or [task_type for task_type in offered if {task_type, short[task_type]} & alike]
    hint = (
        f"Did you mean {' or '.join(similar)}?"
        if similar
        else f"Tasks come from {registry.DISCOVERED_FILES} of INSTALLED_APPS."
    )
    raise CommandError(f"{'Several tasks are' if matching else 'No task is'} named {name!r}. {hint}")


def send(console: Console, flags: Any) -> None:
    """Send a message to an actor, if it is a valid `Message`: others would fail the polls."""
    engine = _engine_with(flags.to, flags.backend)
    (pk,) = resolve_receivers(engine, [flags.to], [flags.dedupe_key])
    task_type = engine.messages.task_types([pk]).get(pk, "")
    check_message(task_type, flags.body, engine.options.max_payload_bytes)
    with transaction.atomic(using=engine.database):
        number = api.send(pk, flags.body, dedupe_key=flags.dedupe_key, backend=engine.alias)
    log("message", to=str(pk), id=number, backend=engine.alias)
    text = (
        f"Not sent: {pk} has received a message with --dedupe-key {flags.dedupe_key!r} before."
        if number is None
        else f"Sent message {number} to {task_type} {pk}."
    )
    console.report({"to": pk, "id": number, "is_repeat": number is None}, text)


def _engine_with(to: str, backend: str | None) -> Engine:
    """Return the engine that has the receiver. A key belongs to the given backend, or to the default one."""
    pk = id_from(to)
    if pk is None:
        return find_engine(backend)
    for engine in engines(backend):
        if engine.db.by_ids([pk]).exists():
            return engine
    raise TaskNotFound(f"Unknown task {pk}.")


VERBS = (
    Verb("submit", "Enqueue a task, and print its id.", submit, add_submit_arguments),
    Verb("send", "Send a message to an actor.", send, add_send_arguments),
)
