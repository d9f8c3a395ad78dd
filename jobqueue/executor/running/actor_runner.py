"""An actor's poll: from its row and inbox to a context, and from the actions that it returns to an outcome."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from jobqueue import registry
from jobqueue.actions import Action, Disposition, Done, Kind, Message, Send, Sleep, Spawn, Suspend, Yield
from jobqueue.actor import Actor, ActorTask, Inbox, PollContext
from jobqueue.api.backends import child_row
from jobqueue.api.messages import id_from
from jobqueue.compat import DEFAULT_TASK_BACKEND_ALIAS
from jobqueue.conf import Options, options_for
from jobqueue.exceptions import InvalidActions, TaskNotFound, UndecodableMessage
from jobqueue.function import FunctionTask, changed
from jobqueue.records import (
    FINAL,
    ClaimedTask,
    Effects,
    NewMessage,
    NewTask,
    Outcome,
    Status,
    StoredMessage,
    release_outcome,
)
from jobqueue.results import Result
from jobqueue.serialization.json import check_dedupe_key, decode, encode, encode_message, encode_result, plain
from jobqueue.task_options import time_problems

FIRST_WAIT_SECONDS = 0.1  # of an actor that leaves messages unread; doubles up to POLL_INTERVAL
KINDS: dict[str | None, Kind] = {
    None: Kind.MESSAGE,
    Status.SUCCESSFUL: Kind.CHILD_SUCCESSFUL,
    Status.FAILED: Kind.CHILD_FAILED,
    Status.CANCELLED: Kind.CHILD_CANCELLED,
}
Names = Callable[[Sequence[UUID | str | Spawn], Sequence[str | None]], Sequence[UUID]]


def context_of(
    actor: type[Actor[Any]],
    claimed: ClaimedTask,
    messages: Sequence[StoredMessage],
    make_result: Callable[[], Result],
    should_stop: Callable[[], bool],
) -> PollContext[Any]:
    """Decode state and inbox. Raises ValueError for a state, UndecodableMessage for a message, that does not fit."""
    try:
        state = actor.decode_state(claimed.inner_state)
    except ValueError as error:
        raise ValueError(f"The stored state is not what {actor.__name__}.State allows: {error}") from error
    return PollContext(
        state=state,
        inbox=Inbox(message_of(actor, stored) for stored in messages),
        id=claimed.id,
        parent_id=claimed.parent_id,
        key=claimed.key,
        attempt=claimed.attempts + 1,
        polls=claimed.polls,
        timed_out=claimed.timed_out and (not messages or claimed.timeout_at is not None),
        should_stop=should_stop,
        make_result=make_result,
    )


def message_of(actor: type[Actor[Any]], stored: StoredMessage) -> Message:
    try:
        kind = KINDS[stored.child_status]
    except KeyError:
        raise UndecodableMessage(
            f"Message {stored.id} tells of a child's end {stored.child_status!r}, which is none."
        ) from None
    try:
        body = actor.decode_body(stored.body or "null") if kind is Kind.MESSAGE else decode(stored.body or "null")
    except ValueError as error:
        sender = stored.sender_id or "outside"
        raise UndecodableMessage(
            f"Message {stored.id} from {sender} is not what {actor.__name__}.Message allows: {error}"
        ) from error
    return Message(id=stored.id, kind=kind, body=body, sender=stored.sender_id, sent_at=stored.sent_at)


def is_commit_function(returned: Any) -> bool:
    """Return whether poll() returned a function for the committing transaction. A class lacks its ()."""
    return callable(returned) and not isinstance(returned, type)


def actions_of(returned: Any) -> tuple[list[Action], Disposition | None]:
    """Split what poll() returned into effects, in order, and the disposition. Raises InvalidActions."""
    actions: list[Any]
    match returned:
        case None:
            actions = []
        case Coroutine():
            returned.close()
            raise InvalidActions("poll() returned a coroutine, which nobody awaits; what it returns must be plain.")
        case Iterable() if not isinstance(returned, (str, bytes, Mapping, type)):
            actions = list(returned)
        case _:
            actions = [returned]
    for number, action in enumerate(actions):
        if isinstance(action, type):
            raise InvalidActions(f"poll() returned the class {action.__name__}, not {action.__name__}().")
        if not isinstance(action, (Spawn, Send, Yield, Sleep, Suspend, Done)):
            place = "; it returns actions, or a function that does." if action is returned else " among its actions."
            raise InvalidActions(f"poll() returned {action!r:.200}{place}")
        if isinstance(action, (Sleep, Suspend, Done)) and number < len(actions) - 1:
            raise InvalidActions(f"{type(action).__name__} must come last; poll() returned it before other actions.")
    if actions and isinstance(actions[-1], (Sleep, Suspend, Done)):
        return actions[:-1], actions[-1]
    return actions, None


def outcome_of(
    claimed: ClaimedTask,
    context: PollContext[Any],
    actor: type[Actor[Any]],
    returned: Any,
    names: Names,
    backend: str,
    worker_id: str,
) -> Outcome:
    """
    Turn a successful poll into its outcome.

    names: returns the ids of receivers. Raises InvalidActions, InvalidArguments, InvalidResult, TaskNotFound or
    ValueError if the actions cannot be performed. The attempt has then failed.
    """
    options = options_for(backend)
    limit = options.max_payload_bytes
    effects, decision = actions_of(returned)
    taken = [message.id for message in context.inbox.taken]
    left = [message.id for message in context.inbox]
    # Built at once: replace() on a value of so many fields takes longer than the body of a short poll.
    columns = next_state(decision, claimed, bool(taken), bool(left), options)
    is_new_here = f'"{worker_id}"' not in claimed.worker_ids
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        attempts=0,
        has_succeeded=True,
        worker_id=worker_id if is_new_here or columns["status"] in FINAL else None,
        inner_state=encode(plain(actor.encode_state(context.state)), place=f"{actor.__name__}: state", max_bytes=limit),
        effects=Effects(
            consumed=taken,
            unread=left,
            spawn=[row_of_child(action, claimed, actor, backend) for action in effects if isinstance(action, Spawn)],
            send=messages_of(effects, claimed, names, limit),
            cancel_children=isinstance(decision, Done) and decision.cancel_children,
        ),
        **columns,
    )


def next_state(
    decision: Disposition | None, claimed: ClaimedTask, has_taken: bool, has_left: bool, options: Options
) -> dict[str, Any]:
    """Return the status that follows, with its columns. Raises InvalidActions or InvalidResult."""
    match decision:
        case Done(result=result):
            return_value = encode_result(plain(result), max_bytes=options.max_payload_bytes)
            return {"status": Status.SUCCESSFUL, "return_value": return_value}
        case None:
            return {"status": Status.READY}
    if has_left and has_taken:
        return {"status": Status.READY}
    columns = {"status": Status.SUSPENDED, **wake_columns(decision)}
    return columns | recheck_columns(columns, claimed, options.poll_interval) if has_left else columns


def wake_columns(decision: Sleep | Suspend) -> dict[str, Any]:
    """Return when to wake the actor. Raises InvalidActions for a value that is no time."""
    is_sleep = isinstance(decision, Sleep)
    until: Any = decision.until if isinstance(decision, Sleep) else decision.timeout
    if until is None and not is_sleep:
        return {}
    name = "Sleep(until)" if is_sleep else "Suspend(timeout)"
    if until is None or not (is_sleep or isinstance(until, timedelta)):
        raise InvalidActions(f"{name} must be {'a datetime or ' if is_sleep else ''}a timedelta, not {until!r}.")
    for problem in time_problems(name, until):
        raise InvalidActions(f"{problem}.")
    return (
        {"wake_at": until} if isinstance(until, datetime) else {"wake_after_seconds": max(0.0, until.total_seconds())}
    )


def recheck_columns(alarm: Mapping[str, Any], claimed: ClaimedTask, longest_seconds: float) -> dict[str, Any]:
    """
    Poll again for messages that were left, after a wait that doubles each time. This prevents a hot loop.

    A timeout counts from the first of the polls that consumed nothing.
    """
    columns: dict[str, Any] = {
        "unread_polls": claimed.unread_polls + 1,
        "recheck_after_seconds": wait_after(claimed.unread_polls, longest_seconds),
    }
    if "wake_after_seconds" in alarm and not claimed.timed_out:
        columns["wake_at"] = claimed.timeout_at
    return columns


def poll_again(claimed: ClaimedTask, longest_seconds: float) -> Outcome:
    """Run a task again soon, for example after it has read stale rows. No attempt is counted."""
    return replace(
        release_outcome(claimed),
        status=Status.SCHEDULED,
        keeps_rank=False,
        stale_polls=claimed.stale_polls + 1,
        wake_after_seconds=wait_after(claimed.stale_polls, longest_seconds),
    )


def wait_after(times: int, longest_seconds: float) -> float:
    return float(min(longest_seconds, FIRST_WAIT_SECONDS * 2.0 ** min(times, 30)))


def row_of_child(spawn: Spawn, claimed: ClaimedTask, parent: type[Actor[Any]], backend: str) -> NewTask:
    """Make the row of a child. Raises InvalidActions, or InvalidArguments as enqueue() does."""
    target = spawn.target.task if isinstance(spawn.target, type) and issubclass(spawn.target, Actor) else spawn.target
    if not isinstance(target, FunctionTask):
        raise InvalidActions(f"Spawn() takes an actor or a task, not {target!r:.200}.")
    if target.backend != backend:
        target = move_to_backend(target, parent, backend)
    return child_row(target, spawn.args, spawn.kwargs, pk=spawn.id, parent=claimed.id)


def move_to_backend(target: FunctionTask[..., Any], parent: type[Actor[Any]], backend: str) -> FunctionTask[..., Any]:
    """Move a child to its parent's backend, unless its declaration or using() names another one."""
    declared = registry.get(target.task_type)
    is_chosen = declared is not None and declared.backend != target.backend
    if is_chosen or target.backend not in (DEFAULT_TASK_BACKEND_ALIAS, parent.task.backend):
        raise InvalidActions(
            f"A child lives in its parent's backend {backend!r}; {target.name} is of {target.backend!r}."
        )
    return changed(target, backend=backend)


def messages_of(effects: Sequence[Action], claimed: ClaimedTask, names: Names, limit: int) -> list[NewMessage]:
    """
    Make the messages of a poll, in order.

    Raises InvalidActions for a Yield without a parent, and as send() does.
    """
    sends = [action for action in effects if isinstance(action, Send | Yield)]
    if any(isinstance(action, Yield) for action in sends) and claimed.parent_id is None:
        raise InvalidActions("Yield() sends to the parent, and this task has none.")
    to = list(receivers_of(effects)) if any(isinstance(action, Send) for action in sends) else []
    keys = [check_dedupe_key(action.dedupe_key) for action in sends if isinstance(action, Send)]
    found = names(to, keys) if to else ()
    ids, dedupe_keys = iter(found), iter(keys)
    return [
        NewMessage(
            task_id=next(ids) if isinstance(action, Send) else parent(claimed),
            body=encode_message(action.body, max_bytes=limit),
            sender_id=claimed.id,
            dedupe_key=next(dedupe_keys) if isinstance(action, Send) else None,
            # With a Send() to the parent in the same poll, both are sent or neither, in order.
            is_droppable=isinstance(action, Yield) and claimed.parent_id not in found,
        )
        for action in sends
    ]


def receivers_of(effects: Sequence[Action]) -> Iterator[UUID | str | Spawn]:
    """Yield the receiver of each Send. A key of an earlier Spawn in the same poll means that child."""
    spawned: dict[str, Spawn] = {}
    for action in effects:
        match action:
            case Spawn(target=FunctionTask(key=str() as key)) if id_from(key) is None:
                spawned[key] = action
            case Send(to=to):
                receiver = spawned.get(to, to) if isinstance(to, str) else to
                if isinstance(receiver, Spawn) and not is_actor(receiver.target):
                    name = getattr(receiver.target, "name", receiver.target)
                    raise InvalidActions(f"Send() to {name}, a function, which reads no messages: actors do.")
                yield receiver


def is_actor(target: Any) -> bool:
    return isinstance(target, ActorTask) or (isinstance(target, type) and issubclass(target, Actor))


def parent(claimed: ClaimedTask) -> UUID:
    if claimed.parent_id is None:
        raise TaskNotFound("This task has no parent.")
    return claimed.parent_id
