"""An actor's poll: from its row and inbox to a context, and from the actions that it returns to an outcome."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from jobqueue.api.backends import child_row
from jobqueue.api.messages import encode_body, find_workflows, id_from, resolve_receivers
from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS
from jobqueue.declarations import registry
from jobqueue.declarations.actions import (
    Action,
    Disposition,
    Done,
    EndCancelled,
    Kind,
    Message,
    Pause,
    Send,
    Sleep,
    Spawn,
    Suspend,
    Yield,
)
from jobqueue.declarations.actor import Actor, ActorTask, Inbox, PollContext, PolledTask
from jobqueue.declarations.function import FunctionTask, copy_unchecked
from jobqueue.declarations.options import read_tick, time_problems
from jobqueue.declarations.workflow import WorkflowTask
from jobqueue.exceptions import InvalidActions, UndecodableMessage
from jobqueue.executor.running.attempt import Attempt, RunningTask
from jobqueue.values.json import as_builtins, check_dedupe_key, decode, encode, encode_result
from jobqueue.values.message_types import PLAIN
from jobqueue.values.records import ClaimedTask, Effects, NewMessage, NewTask, Outcome, StoredMessage, release_outcome
from jobqueue.values.states import FINAL, Status

STATE = "state: "  # before a problem of a stored state, as the entry of `errors` stores it
FIRST_WAIT_SECONDS = 0.1  # of an actor that leaves messages unread; doubles up to POLL_INTERVAL
KINDS: dict[str | None, Kind] = {
    None: Kind.MESSAGE,
    Status.SUCCESSFUL: Kind.CHILD_SUCCESSFUL,
    Status.FAILED: Kind.CHILD_FAILED,
    Status.CANCELLED: Kind.CHILD_CANCELLED,
    Status.READY: Kind.CHILD_REQUEUED,
}


def prepared_actor(attempt: Attempt) -> type[Actor[Any]]:
    assert isinstance(attempt.task, ActorTask)
    return attempt.task.actor


def prepare_context(attempt: Attempt) -> PollContext[Any]:
    """Decode state and inbox. Raises InvalidState or UndecodableMessage for one that does not fit."""
    actor, claimed, messages = prepared_actor(attempt), attempt.claimed, attempt.running.messages
    tick = read_tick(claimed.options)
    return PollContext(
        state=read_state(actor, claimed.inner_state),
        inbox=Inbox(decode_message(actor, stored) for stored in messages),
        id=claimed.id,
        parent_id=claimed.parent_id,
        key=claimed.key,
        attempt=claimed.attempts + 1,
        polls=claimed.polls,
        timed_out=claimed.timed_out and (not messages or claimed.timeout_at is not None),
        should_stop=attempt.running.is_cancelled,
        schedule=tick.schedule,
        scheduled_at=tick.scheduled_at,
        make_result=lambda: attempt.result,
        report=attempt.running.report,
    )


class InvalidState(Exception):
    """A stored state that this code does not take. Its text begins with STATE."""


def read_state(actor: type[Actor[Any]], text: str | None) -> Any:
    """Decode a state. Raises InvalidState, whatever the code of the class raises."""
    try:
        return actor.decode_state(text)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidState(f"{STATE}{actor.__name__}.State does not allow it: {error}") from error


def decode_message(actor: type[Actor[Any]], stored: StoredMessage) -> Message:
    try:
        kind = KINDS[stored.child_status]
    except KeyError:
        raise UndecodableMessage(f"Message {stored.id} has an unknown child status {stored.child_status!r}.") from None
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


def split_actions(returned: Any) -> tuple[list[Action], Disposition | None]:
    """Split what poll() returned into effects, in order, and the disposition. Raises InvalidActions."""
    actions: list[Any]
    match returned:
        case None:
            actions = []
        case Coroutine():
            returned.close()
            raise InvalidActions("poll() returned a coroutine. To await, declare poll() itself with `async def`.")
        case Iterable() if not isinstance(returned, (str, bytes, Mapping, type)):
            actions = list(returned)
        case _:
            actions = [returned]
    for number, action in enumerate(actions):
        if isinstance(action, type):
            raise InvalidActions(f"poll() returned the class {action.__name__}, not {action.__name__}().")
        if not isinstance(action, Action):
            where = "; it returns actions, or a function that does." if action is returned else " among its actions."
            raise InvalidActions(f"poll() returned {action!r:.200}{where}")
        if isinstance(action, Disposition) and number < len(actions) - 1:
            raise InvalidActions(f"{type(action).__name__} must come last; poll() returned it before other actions.")
    if actions and isinstance(actions[-1], Disposition):
        return actions[:-1], actions[-1]
    return actions, None


def outcome_of_poll(attempt: Attempt, returned: Any) -> Outcome:
    """
    Turn a successful poll into its outcome.

    Raises InvalidActions, InvalidArguments, InvalidResult, TaskNotFound or ValueError if the actions cannot be
    performed. The attempt has then failed.
    """
    claimed, context, actor, worker_id = (
        attempt.claimed,
        attempt.context,
        prepared_actor(attempt),
        attempt.identity.worker_id,
    )
    assert context is not None
    limit = attempt.identity.options.max_payload_bytes
    effects, decision = split_actions(returned)
    consumed = [message.id for message in context.inbox.taken]
    unread = [message.id for message in context.inbox]
    # Built at once: replace() on a value of so many fields takes longer than the body of a short poll.
    columns = next_state(attempt, decision, bool(consumed), bool(unread))
    is_new_here = f'"{worker_id}"' not in claimed.worker_ids
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        attempts=claimed.attempts if columns["status"] is Status.SUCCESSFUL else 0,
        has_succeeded=True,
        may_unblock_others=claimed.may_unblock_others,
        worker_id=worker_id if is_new_here or columns["status"] in FINAL else None,
        inner_state=encode(
            as_builtins(actor.encode_state(context.state)), where=f"{actor.__name__}: state", max_bytes=limit
        ),
        effects=Effects(
            consumed=[*consumed, *context.inbox.replaced],
            unread=unread,
            spawn=[row_of_child(attempt, action) for action in effects if isinstance(action, Spawn)],
            send=make_messages(attempt, effects),
            cancel_children=isinstance(decision, Done) and decision.cancel_children,
        ),
        **columns,
    )


def next_state(attempt: Attempt, decision: Disposition | None, has_consumed: bool, has_unread: bool) -> dict[str, Any]:
    """Return the status that follows, with its columns. Raises InvalidActions or InvalidResult."""
    options = attempt.identity.options
    match decision:
        case Done(result=result):
            return_value = encode_result(as_builtins(result), max_bytes=options.max_payload_bytes)
            return {"status": Status.SUCCESSFUL, "return_value": return_value}
        case EndCancelled():
            return {"status": Status.CANCELLED}
        case Pause(seconds=seconds):
            return {"status": Status.SCHEDULED, "wake_after_seconds": seconds}
        case None:
            return {"status": Status.READY}
    if has_unread and has_consumed:
        return {"status": Status.READY}
    columns = {"status": Status.SUSPENDED, **wake_columns(decision)}
    return columns | recheck_columns(columns, attempt.claimed, options.poll_interval) if has_unread else columns


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


def recheck_columns(wake: Mapping[str, Any], claimed: ClaimedTask, longest_seconds: float) -> dict[str, Any]:
    """
    Poll again for messages that were left, after a wait that doubles each time. This prevents a hot loop.

    A timeout counts from the first of the polls that consumed nothing.
    """
    columns: dict[str, Any] = {
        "unread_polls": claimed.unread_polls + 1,
        "recheck_seconds": wait_after(claimed.unread_polls, longest_seconds),
    }
    if "wake_after_seconds" in wake and not claimed.timed_out:
        columns["wake_at"] = claimed.timeout_at
    return columns


def poll_again(running: RunningTask) -> Outcome:
    """Run a task again soon, for example after it has read stale rows. No attempt is counted."""
    claimed = running.claimed
    return replace(
        release_outcome(claimed),
        status=Status.SCHEDULED,
        keeps_rank=False,
        stale_polls=claimed.stale_polls + 1,
        wake_after_seconds=wait_after(claimed.stale_polls, running.identity.options.poll_interval),
    )


def wait_after(times: int, longest_seconds: float) -> float:
    return float(min(longest_seconds, FIRST_WAIT_SECONDS * 2.0 ** min(times, 30)))


def row_of_child(attempt: Attempt, spawn: Spawn) -> NewTask:
    """
    Make the row of a child, in its parent's backend unless its declaration or using() names another one.

    Raises InvalidActions, or InvalidArguments as enqueue() does.
    """
    target = spawn.target.task if isinstance(spawn.target, type) and issubclass(spawn.target, Actor) else spawn.target
    if not isinstance(target, FunctionTask):
        raise InvalidActions(f"Spawn() takes an actor or a task, not {target!r:.200}.")
    backend = attempt.identity.engine.alias
    if target.backend != backend:
        declared = registry.get(target.task_type)
        is_chosen = declared is not None and declared.backend != target.backend
        parent = registry.get(attempt.claimed.task_type)
        if is_chosen or target.backend not in (DEFAULT_TASK_BACKEND_ALIAS, parent and parent.backend):
            raise InvalidActions(
                f"A child lives in its parent's backend {backend!r}; {target.name} is of {target.backend!r}."
            )
        target = copy_unchecked(target, backend=backend)
    return child_row(target, spawn.args, spawn.kwargs, pk=spawn.id, parent=attempt.claimed.id)


def make_messages(attempt: Attempt, effects: Sequence[Action]) -> list[NewMessage]:
    """
    Make the messages of a poll, in order.

    Raises InvalidActions for a Yield without a parent, and as send() does.
    """
    claimed, identity = attempt.claimed, attempt.identity
    sends = [action for action in effects if isinstance(action, Send | Yield)]
    if not sends:
        return []
    keys = [check_dedupe_key(action.dedupe_key) if isinstance(action, Send) else None for action in sends]
    ids = resolve_receivers(identity.engine, list(find_receivers(effects, claimed.parent_id)), keys)
    # A message to a workflow names its type, which plain JSON does itself.
    has_types = any(type(action.body) not in PLAIN for action in sends)
    workflows = find_workflows(identity.engine, ids) if has_types else set[UUID]()
    workflows |= {spawn.id for spawn in effects if isinstance(spawn, Spawn) and isinstance(spawn.target, WorkflowTask)}
    sent_to = {pk for action, pk in zip(sends, ids, strict=True) if isinstance(action, Send)}
    return [
        NewMessage(
            task_id=pk,
            body=encode_body(action.body, pk in workflows, identity.options.max_payload_bytes),
            sender_id=claimed.id,
            dedupe_key=key,
            # With a Send() to the parent in the same poll, both are sent or neither, in order.
            is_droppable=isinstance(action, Yield) and pk not in sent_to,
        )
        for action, pk, key in zip(sends, ids, keys, strict=True)
    ]


def find_receivers(effects: Sequence[Action], parent_id: UUID | None) -> Iterator[UUID | str | Spawn]:
    """Yield the receiver of each Send and Yield. A key of an earlier Spawn in the same poll means that child."""
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
            case Yield():
                if parent_id is None:
                    raise InvalidActions("Yield() sends to the parent, and this task has none.")
                yield parent_id


def is_actor(target: Any) -> bool:
    return isinstance(target, PolledTask) or (isinstance(target, type) and issubclass(target, Actor))
