"""Send messages to actors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from jobqueue.api.backends import uuid_of
from jobqueue.api.notifications import after_commit, wake_and_notify
from jobqueue.declarations import registry
from jobqueue.declarations.actions import Send, Spawn
from jobqueue.declarations.actor import PolledTask
from jobqueue.declarations.workflow import WorkflowTask
from jobqueue.engine import Engine, engine_for
from jobqueue.exceptions import InvalidArguments, TaskNotFound
from jobqueue.values.json import check_dedupe_key, encode_message
from jobqueue.values.message_types import with_type
from jobqueue.values.records import NewMessage


def send(
    to: UUID | str,
    body: Any = None,
    *,
    sender: UUID | str | None = None,
    dedupe_key: str | None = None,
    backend: str = "default",
) -> int | None:
    """
    Send a message to an actor, by its id or its live key, in the caller's transaction. Return the message's id.

    After the commit, the receiver is woken. dedupe_key: a second message with this text to the same task inserts
    nothing and returns None, even after the end of the task. So a webhook may be repeated. Raises TaskNotFound or
    TaskFinished. Raises InvalidArguments for a function task, a body that is not JSON, or a dedupe_key of more than 255
    characters. Raises OperationalError if another transaction has locked the receiver for more than a second, or has
    not committed a message with this dedupe_key for so long.
    """
    sent = send_many([Send(to, body, dedupe_key=dedupe_key)], sender=sender, backend=backend)
    return sent[0] if sent else None


def send_many(messages: Iterable[Send], *, sender: UUID | str | None = None, backend: str = "default") -> list[int]:
    """
    Send messages, all or none, in order. Return the ids of those that were not repeats.

    It locks the receivers in the order of their ids, so it cannot deadlock as several calls of send() can.
    """
    engine = engine_for(backend)
    wanted = list(messages)
    dedupe_keys = [check_dedupe_key(message.dedupe_key) for message in wanted]
    ids = resolve_receivers(engine, [message.to for message in wanted], dedupe_keys)
    if not ids:
        return []
    sender_id = None if sender is None else uuid_of(sender)
    workflows = refuse_functions(engine, ids)
    rows = [
        NewMessage(
            task_id=pk,
            body=encode_body(message.body, pk in workflows, engine.options.max_payload_bytes),
            sender_id=sender_id,
            dedupe_key=dedupe_key,
        )
        for pk, message, dedupe_key in zip(ids, wanted, dedupe_keys, strict=True)
    ]
    with engine.db.bounded("a receiver of the messages"):
        sent = engine.messages.send(rows)
    after_commit(engine.database, partial(wake_and_notify, engine, frozenset(ids)))
    return sent


def resolve_receivers(
    engine: Engine, names: Sequence[UUID | str | Spawn], dedupe_keys: Sequence[str | None]
) -> list[UUID]:
    """
    Turn ids, their texts, keys and Spawns into ids, in order. Raises TaskNotFound for an unknown key.

    A key belongs to a live task. For a repeated message it may also belong to the ended task that received the first.
    """
    ids = [id_from(name) for name in names]
    wanted = list(zip(names, ids, dedupe_keys, strict=True))
    held = engine.messages.find_keys({str(name) for name, pk, _ in wanted if pk is None})
    late = {(str(name), key) for name, pk, key in wanted if pk is None and key is not None and name not in held}
    seen = engine.messages.find_seen(late) if late else {}
    resolved = [pk or held.get(str(name)) or seen.get((str(name), key or "")) for name, pk, key in wanted]
    for name, pk in zip(names, resolved, strict=True):
        if pk is None:
            raise TaskNotFound(f"No live task of backend {engine.alias!r} has the id or key {str(name)!r}.")
    return [pk for pk in resolved if pk is not None]


def refuse_functions(engine: Engine, ids: Collection[UUID]) -> set[UUID]:
    """
    Return the receivers that are workflows. A task type unknown to this process is accepted.

    Raises InvalidArguments for a receiver that is a function.
    """
    workflows = set()
    for pk, task_type in engine.messages.task_types(ids).items():
        task = registry.get(task_type)
        if task is not None and not isinstance(task, PolledTask):
            raise InvalidArguments(f"Task {pk} runs {task_type}(), a function. Only actors read messages.")
        if isinstance(task, WorkflowTask):
            workflows.add(pk)
    return workflows


def find_workflows(engine: Engine, ids: Collection[UUID]) -> set[UUID]:
    """Return the tasks that are workflows, as far as this process knows."""
    types = engine.messages.task_types(ids)
    return {pk for pk, task_type in types.items() if isinstance(registry.get(task_type), WorkflowTask)}


def encode_body(body: Any, is_for_workflow: bool, max_bytes: int) -> str:
    """Return the JSON text of a message. One to a workflow names its type."""
    return encode_message(with_type(body) if is_for_workflow else body, max_bytes=max_bytes)


def id_from(name: UUID | str | Spawn) -> UUID | None:
    """Return the id of a receiver, or None if its name is a key."""
    match name:
        case UUID():
            return name
        case Spawn(id=pk):
            return pk
    try:
        return UUID(name) if len(name) == 36 else None
    except TypeError:
        raise TypeError(f"A message goes to a task's id or key, not to {name!r:.200}.") from None
    except ValueError:
        return None
