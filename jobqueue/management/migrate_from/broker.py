"""
Messages of Celery that wait in Redis become tasks.

A message is moved to a list of this command, then enqueued, and removed after the commit. The row has the id of the
message. So an import that was interrupted loses nothing and enqueues nothing twice: run it again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from django.conf import settings
from django.utils.timezone import is_aware

from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.new_task import new_task
from jobqueue.engine import engine_for
from jobqueue.exceptions import InvalidArguments
from jobqueue.schedules.from_celery import priority_from_celery

BATCH = 500  # messages in a transaction
SEPARATOR = "\x06\x16"  # of kombu, in keys and bindings
STEPS = (0, 3, 6, 9)  # of priorities; each has a list
INTERNAL = ("celeryev", ".pidbox")  # in the names of queues that have no tasks
# Headers that Celery writes. Others are those of the call: apply_async(headers=...).
OF_CELERY = {
    "argsrepr", "compression", "eta", "expires", "group", "group_index", "id", "ignore_result", "kwargsrepr", "lang",
    "meth", "origin", "parent_id", "replaced_task_nesting", "retries", "root_id", "shadow", "stamped_headers", "stamps",
    "task", "timelimit",
}  # fmt: skip
# Moves a message unless a worker of Celery has taken it.
MOVE = """
if redis.call('lrem', KEYS[1], -1, ARGV[1]) == 1 then return redis.call('lpush', KEYS[2], ARGV[1]) end
return 0
"""
IMPORTED, BEFORE, LEFT, HELD, GONE = "imported", "imported before", "left", "held by a worker", "taken by a worker"


@dataclass(frozen=True)
class CeleryMessage:
    """A message of Celery, and what becomes of it."""

    raw: bytes  # as it is in Redis
    key: str  # of the list that it is in
    queue: str  # its name in Celery
    id: str = ""  # of Celery's task
    name: str = ""  # of Celery's task
    task: FunctionTask[..., Any] | None = None  # with the options of the message; None if it does not fit
    args: Sequence[Any] = ()  # of the call
    kwargs: dict[str, Any] | None = None  # of the call; None if it does not fit
    result: str = IMPORTED  # what happens to it
    problem: str = ""  # why it is left in place; empty if it is not

    @property
    def pk(self) -> UUID:
        """The id of its row: that of the message, or one made of it."""
        try:
            return UUID(self.id)
        except ValueError:
            return uuid5(NAMESPACE_OID, self.id)


FindTask = Callable[[str], FunctionTask[..., Any] | None]


@dataclass(frozen=True)
class Broker:
    """The queues of Celery in a Redis."""

    client: Any  # of the package redis
    find_task: FindTask  # by the name in Celery; returns None for an unknown one

    def __post_init__(self) -> None:
        self.client.ping()

    def queues(self) -> list[str]:
        """Return the names of the queues that workers or publishers have declared."""
        members = [
            bytes(member).decode().split(SEPARATOR)[-1]
            for key in self.client.keys(f"{_prefix()}_kombu.binding.*")
            for member in self.client.smembers(key)
        ]
        names = {default_queue(), *members}
        return sorted(name for name in names if name and not any(part in name for part in INTERNAL))

    def read(self, queue: str) -> list[CeleryMessage]:
        """Return the waiting messages of a queue, the oldest first. Those of an interrupted import come before."""
        steps = _transport_options().get("priority_steps", STEPS)
        separator = _transport_options().get("sep", SEPARATOR)
        keys = [f"{_prefix()}{queue}{separator}{step}" if step else f"{_prefix()}{queue}" for step in steps]
        return [
            parse_message(raw, key, queue, self.find_task)
            for key in (import_key(queue), *keys)
            for raw in reversed(self.client.lrange(key, 0, -1))
        ]

    def read_held(self, queues: Sequence[str]) -> Iterator[CeleryMessage]:
        """Yield the messages that workers have reserved: running ones, and those that wait for their time."""
        for raw in self.client.hvals(f"{_prefix()}unacked"):
            envelope, _, queue = json.loads(raw)
            if queue in queues:
                message = parse_message(json.dumps(envelope).encode(), "", queue, self.find_task)
                yield replace(message, result=HELD, problem="")

    def import_messages(self, messages: Sequence[CeleryMessage], *, is_dry_run: bool) -> Iterator[CeleryMessage]:
        """Enqueue messages, each with its result. Each batch is one transaction."""
        yield from (message for message in messages if message.problem)
        fitting = [message for message in messages if not message.problem]
        for first in range(0, len(fitting), BATCH):
            batch = fitting[first : first + BATCH]
            yield from self._plan(batch) if is_dry_run else self._import(batch)

    def _plan(self, batch: Sequence[CeleryMessage]) -> Iterator[CeleryMessage]:
        stored = _stored_ids(batch)
        yield from (replace(message, result=BEFORE if message.pk in stored else IMPORTED) for message in batch)

    def _import(self, batch: Sequence[CeleryMessage]) -> Iterator[CeleryMessage]:
        moved = [message for message in batch if self._move(message)]
        with ExitStack() as transactions:
            for alias in sorted({message.task.backend for message in moved if message.task}):
                transactions.enter_context(engine_for(alias).db.transaction())
            stored = _stored_ids(moved)
            results = []
            for message in moved:
                results.append(replace(message, result=BEFORE if message.pk in stored else IMPORTED))
                if message.pk not in stored:
                    stored.add(message.pk)
                    _enqueue(message)
        for message in moved:
            self.client.lrem(import_key(message.queue), 1, message.raw)
        yield from results
        yield from (replace(message, result=GONE) for message in batch if message not in moved)

    def _move(self, message: CeleryMessage) -> bool:
        """Move a message to the list of imports, where no worker takes it. Return whether it is there."""
        target = import_key(message.queue)
        return message.key == target or bool(self.client.eval(MOVE, 2, message.key, target, message.raw))


def import_key(queue: str) -> str:
    """Return the key of the list with the messages that an import has moved and not yet removed."""
    return f"{_prefix()}jobqueue.import.{queue}"


def default_queue() -> str:
    """Return the queue of tasks that name none."""
    return _named_default_queue() or "celery"


def parse_message(raw: bytes, key: str, queue: str, find_task: FindTask) -> CeleryMessage:
    """Return a message. Its `problem` says why it is no task of this site."""
    message = CeleryMessage(raw, key, queue)
    try:
        envelope = json.loads(raw)
        headers, properties = envelope.get("headers") or {}, envelope.get("properties") or {}
        message = replace(message, id=str(headers.get("id") or ""), name=str(headers.get("task") or ""))
        if not message.id or not message.name:
            raise ValueError("it is not a message of Celery's protocol 2")
        if envelope.get("content-type") != "application/json":
            raise ValueError(f"its body is {envelope.get('content-type')}, not JSON")
        body = envelope["body"]
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(body)
        args, kwargs, embedded = json.loads(body)
        if parts := sorted(name for name, value in (embedded or {}).items() if value):
            raise ValueError(f"it has {', '.join(parts)}, which only Celery can call")
        task = find_task(message.name)
        if task is None:
            raise ValueError("no task here has this name or dotted path; if it was renamed, pass --map OLD=NEW")
        if "__type__" in body.decode() and not is_of_shim(task):
            raise ValueError("only Celery, or a task of jobqueue.contrib.celery, can read its values")
        task = task.using(**message_options(message, task, headers, properties))
        backend: Any = task.get_backend()
        backend.validate_task(task)
        new_task(task, args, kwargs, backend.settings)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidArguments, InvalidTask) as error:
        return replace(message, result=LEFT, problem=str(error).removesuffix("."))
    return replace(message, task=task, args=args, kwargs=kwargs)


def is_of_shim(task: FunctionTask[..., Any]) -> bool:
    """Return whether a task was declared by Celery's interface on this queue."""
    return str(task.func.__globals__["__name__"]).startswith("jobqueue.contrib.celery")


def message_options(
    message: CeleryMessage, task: FunctionTask[..., Any], headers: dict[str, Any], properties: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of using() for the headers of a message."""
    options: dict[str, Any] = {}
    for header, option in (("eta", "run_after"), ("expires", "expires")):
        if headers.get(header):
            moment = datetime.fromisoformat(headers[header])
            options[option] = moment if is_aware(moment) else moment.replace(tzinfo=UTC)
    if limits := [limit for limit in headers.get("timelimit") or () if limit]:
        options["timeout"] = min(limits)
    if priority := properties.get("priority"):
        options["priority"] = priority_from_celery(priority, "redis:")
    if message.queue != default_queue() or (is_of_shim(task) and _named_default_queue()):  # as the shim's calls
        options["queue_name"] = message.queue
    metadata: dict[str, Any] = {} if str(message.pk) == message.id else {"id": message.id}
    if own := {name: value for name, value in headers.items() if name not in OF_CELERY}:
        metadata["headers"] = own
    if headers.get("ignore_result"):
        metadata["ignore_result"] = True
    if metadata:
        options["metadata"] = {"celery": metadata}  # where the shim has them
    return options


def _stored_ids(messages: Sequence[CeleryMessage]) -> set[UUID]:
    """Return the ids of messages that are rows already."""
    ids = [message.pk for message in messages]
    aliases = {message.task.backend for message in messages if message.task}
    return {pk for alias in aliases for pk in engine_for(alias).db.by_ids(ids).values_list("pk", flat=True)}


def _enqueue(message: CeleryMessage) -> None:
    if message.task is not None:
        backend: Any = message.task.get_backend()
        backend.enqueue_as(message.task, message.args, message.kwargs or {}, id=message.pk)


def _named_default_queue() -> str:
    return str(getattr(settings, "CELERY_TASK_DEFAULT_QUEUE", None) or "")


def _transport_options() -> dict[str, Any]:
    return getattr(settings, "CELERY_BROKER_TRANSPORT_OPTIONS", None) or {}


def _prefix() -> str:
    return str(_transport_options().get("global_keyprefix", ""))
