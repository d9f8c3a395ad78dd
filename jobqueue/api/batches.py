"""Batches: tasks with common callbacks and progress."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Self
from uuid import UUID

import msgspec
from asgiref.sync import sync_to_async
from django.db import transaction

from jobqueue.api.backends import uuid_of
from jobqueue.api.notifications import CANCEL_NOTIFICATION, after_commit, notify_after_commit, wake_and_notify
from jobqueue.api.tasks import cancel
from jobqueue.conf.compat import DEFAULT_TASK_BACKEND_ALIAS, InvalidTask, TaskResult
from jobqueue.declarations.actions import Action, Done, EndCancelled, Kind, Pause, Suspend
from jobqueue.declarations.actor import Actor, PollContext
from jobqueue.declarations.backends import HOME, queues_of
from jobqueue.declarations.function import RESULT, Call, FunctionTask, PlannedCall, backend_named
from jobqueue.declarations.limits import OnConflict
from jobqueue.declarations.members import Block, block_in
from jobqueue.declarations.stored_calls import JsonCall, decode_call, encode_call, planned
from jobqueue.engine import MESSAGES_PER_POLL, Engine, engine_for
from jobqueue.exceptions import MembersFailed, TaskFinished, TaskNotFound
from jobqueue.models import Task
from jobqueue.values.backoff import Backoff
from jobqueue.values.batches import BATCH, BatchMessage, BatchState
from jobqueue.values.changes import CancelReport
from jobqueue.values.ids import new_id
from jobqueue.values.kinds import MAX_TASK_ATTEMPTS
from jobqueue.values.records import NewMessage
from jobqueue.values.states import Status

CHUNK = 1000  # members in one statement
COLLECT_SECONDS = 0.05  # between two polls, in which the ends of members collect
# A poll is short. With this priority it starts before members that have been READY for a week.
PRIORITY = 10_000
CALLBACKS = ("on_success", "on_failure", "on_end")
ENDS = {
    Kind.CHILD_SUCCESSFUL: Status.SUCCESSFUL,
    Kind.CHILD_FAILED: Status.FAILED,
    Kind.CHILD_CANCELLED: Status.CANCELLED,
    Kind.CHILD_REQUEUED: Status.READY,
}


class BatchActor(
    Actor[BatchState],
    name=BATCH,
    abstract=not HOME,
    max_attempts=MAX_TASK_ATTEMPTS,
    backoff=Backoff(cap=60.0),
    **HOME,
):
    """A batch. Its members are its children. It ends after them, with its callbacks in the same transaction."""

    State = BatchState
    Message = BatchMessage

    def poll(
        self,
        context: PollContext[BatchState],
        members: int = 0,
        open_blocks: int = 0,
        callbacks: Mapping[str, JsonCall] | None = None,
    ) -> Any:
        """Return the function that counts ends in the committing transaction. members: when it was enqueued."""
        state = context.state
        if context.polls == 0:
            state.total, state.open_blocks = members, open_blocks
        if state.is_over and state.requeued_up_to is None and not context.inbox:
            raise MembersFailed(describe_failure(state))
        return lambda: BatchPoll(engine_for(context.task_result.backend), context, callbacks or {}).perform()


@dataclass(frozen=True)
class BatchPoll:
    """One poll of a batch, in its committing transaction."""

    engine: Engine
    context: PollContext[BatchState]
    callbacks: Mapping[str, JsonCall]

    def perform(self) -> Action | None:
        """Count what the messages tell. Return what the batch does next."""
        state, messages_read = self.context.state, len(self.context.inbox) + len(self.context.inbox.replaced)
        assert self.context.id is not None
        self._count_messages(self.context.id)
        if state.is_cancelled:
            return self._cancel_members(self.context.id, messages_read)
        if (last := state.requeued_up_to) is not None:  # the next poll reads which members run again
            batches, until = self.engine.batches, state.requeues_up_to
            state.requeued_up_to = batches.requeue_members(self.context.id, last, until, CHUNK)
            return None
        if messages_read >= MESSAGES_PER_POLL:
            return None
        if state.running or state.open_blocks:
            return Pause(COLLECT_SECONDS) if messages_read else Suspend()
        if not self.engine.batches.is_alone(self.context.id, messages_read):
            return Pause(COLLECT_SECONDS)
        result = {"id": str(self.context.id), **state.numbers()}
        state.is_over = state.successful < state.total
        self._call("on_failure" if state.is_over else "on_success", result)
        self._call("on_end", result)
        return None if state.is_over else Done(result)

    def _count_messages(self, batch_id: UUID) -> None:
        state, ends = self.context.state, dict[UUID, Status]()
        for message in self.context.inbox.take():
            if message.kind is not Kind.MESSAGE and message.sender is not None:
                ends[message.sender] = ENDS[message.kind]
            elif message.kind is Kind.MESSAGE:
                state.total += message.body.added
                state.open_blocks += message.body.opened
                if message.body.requeues:
                    state.requeued_up_to = 0
                    state.requeues_up_to = self.engine.batches.newest_entry(batch_id)
                if message.body.cancels and not state.is_cancelled:
                    state.is_cancelled, state.cancelled_up_to = True, batch_id
        if state.failed or state.cancelled or any(status is not Status.SUCCESSFUL for status in ends.values()):
            for status in self.engine.batches.record_ends(batch_id, ends).values():
                state.count(status, -1)
        for status in ends.values():
            state.count(status, +1)
        state.is_over &= not ends

    def _cancel_members(self, batch_id: UUID, messages_read: int) -> Action | None:
        state, batches = self.context.state, self.engine.batches
        notify_after_commit(self.engine, {CANCEL_NOTIFICATION})
        if state.cancelled_up_to is not None:
            _, state.cancelled_up_to = batches.cancel_members(batch_id, state.cancelled_up_to, CHUNK)
            return None
        if (count := batches.cancel_others(batch_id, CHUNK)) is not None:
            return None if count else Pause(COLLECT_SECONDS)
        return EndCancelled() if batches.is_alone(batch_id, messages_read) else Pause(COLLECT_SECONDS)

    def _call(self, name: str, result: Any) -> None:
        """Enqueue a callback, if there is one, and once only."""
        if name in self.callbacks and name not in self.context.state.called:
            decode_call(self.callbacks[name]).enqueue(result)
            self.context.state.called.append(name)


def describe_failure(state: BatchState) -> str:
    parts = [f"{count:,} {name}" for name, count in (("failed", state.failed), ("cancelled", state.cancelled)) if count]
    return f"Of {state.total:,} members: {', '.join(parts)}. When these are requeued, the batch goes on."


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How far a batch is, some moments ago."""

    status: Status  # of the batch
    total: int  # members
    successful: int  # members whose last end was SUCCESSFUL
    failed: int  # whose last end was FAILED
    cancelled: int  # whose last end was CANCELLED
    running: int  # members that have not ended, whether or not they have started


class Batch:
    """
    Tasks with common callbacks and progress.

    Tasks of the same backend that are enqueued in its with-block are its members. The block is a transaction, or a
    savepoint in the caller's: if it raises, nothing of it is left. In async code, `async with` has no transaction. If
    it raises, the batch and its members are cancelled.

    on_success: called when all members are SUCCESSFUL, also if some had failed and were requeued. on_failure: called
    when all have ended, and some were FAILED or CANCELLED. on_end: called when all have ended. Each is a task or a
    planned call, is enqueued once, by the commit that counts the last end, and gets the id and the numbers of the
    batch as a dict. If members were not successful, the batch is FAILED, until one of these is requeued. A requeue of
    the batch requeues all of them.
    """

    def __init__(
        self,
        *,
        on_success: PlannedCall | FunctionTask[..., Any] | type[Actor[Any]] | None = None,
        on_failure: PlannedCall | FunctionTask[..., Any] | type[Actor[Any]] | None = None,
        on_end: PlannedCall | FunctionTask[..., Any] | type[Actor[Any]] | None = None,
        backend: str = DEFAULT_TASK_BACKEND_ALIAS,
        queue_name: str | None = None,
        key: str | None = None,
        tags: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Make a batch. Its with-block enqueues it.

        queue_name: of the batch itself; None: as the first member. key: at most one live batch has it, and another one
        raises DuplicateKey. Raises InvalidArguments if a callback does not fit its function.
        """
        self.pk, self.backend, self._queue_name = new_id(), backend, queue_name
        self._is_new = True  # not enqueued yet
        calls = dict(zip(CALLBACKS, (on_success, on_failure, on_end), strict=True))
        self._callbacks = {
            name: encode_call(self._checked(planned(call).check((RESULT,)))) for name, call in calls.items() if call
        }
        conflict: OnConflict | None = None if key is None else "raise"
        self._task = BatchActor.using(backend=backend, key=key, tags=tags, metadata=metadata, on_conflict=conflict)

    @classmethod
    def get(cls, id: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> Batch:  # noqa: A002
        """Return a batch that was enqueued, by its id. Raises TaskNotFound."""
        batch = cls(backend=backend)
        batch.pk, batch._is_new = uuid_of(id), False
        batch._row()
        return batch

    @property
    def id(self) -> str:
        """The id of its task, which members can take as an argument."""
        return str(self.pk)

    # --- blocks

    def __enter__(self) -> Self:
        transaction_of_block = transaction.atomic(using=self._engine.database)
        transaction_of_block.__enter__()
        Block(self.pk, self.backend, threading.get_ident(), transaction_of_block, self._is_new).enter()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        block = Block.exit()
        assert block.transaction is not None
        if error is not None:
            block.transaction.__exit__(kind, error, traceback)
            return
        with ExitStack() as stack:
            stack.push(block.transaction)
            if block.is_first:
                self._insert(block.queue_name, members=block.added)
            elif block.added:
                self._send(BatchMessage(added=block.added))
        self._is_new = False

    async def __aenter__(self) -> Self:
        is_first, self._is_new = self._is_new, False
        if is_first:
            await sync_to_async(self._insert)(None, open_blocks=1)
        else:
            await sync_to_async(self._send)(BatchMessage(opened=1))
        Block(self.pk, self.backend, None, None, is_first).enter()
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        block = Block.exit()
        with nullcontext() if error is None else suppress(TaskFinished):
            await sync_to_async(self._send)(BatchMessage(added=block.added, opened=-1))
        if error is not None and block.is_first:
            await self.acancel()

    # --- members

    def add(self, call: PlannedCall | FunctionTask[..., Any]) -> TaskResult[..., Any]:
        """
        Enqueue a member in the caller's transaction, also while the batch runs, as from one of its members.

        Raises TaskFinished if all members have ended. Raises as enqueue() does.
        """
        member = self._checked(planned(call))
        with nullcontext() if block_in(self.pk) else self:
            return member.enqueue()

    def add_many(self, task: FunctionTask[..., Any], calls: Iterable[Call]) -> int:
        """
        Enqueue a member for each (args, kwargs), all or none, a thousand with one statement. Return how many.

        Call it with an iterator for any number of members. Raises as add() and enqueue_many() do.
        """
        self._checked(planned(task))
        if (block := block_in(self.pk)) is None:
            with self:
                return self.add_many(task, calls)
        backend: Any = backend_named(self.backend)
        iterator, before, count = iter(calls), block.added, 0
        while part := list(islice(iterator, CHUNK)):
            backend.enqueue_many(task, part, count)
            count += len(part)
        return block.added - before

    async def aadd(self, call: PlannedCall | FunctionTask[..., Any]) -> TaskResult[..., Any]:
        """See add()."""
        return await sync_to_async(self.add)(call)

    async def aadd_many(self, task: FunctionTask[..., Any], calls: Iterable[Call]) -> int:
        """See add_many()."""
        return await sync_to_async(self.add_many)(task, calls)

    # --- the batch

    def progress(self) -> BatchProgress:
        """Return how far it is. It reads one row. Raises TaskNotFound before its block has ended."""
        row = self._row()
        state = BatchState(total=row.kwargs.get("members", 0))
        if row.inner_state is not None:
            state = msgspec.convert(row.inner_state, BatchState)
        if row.status == Status.CANCELLED:
            state.cancelled += state.running
        return BatchProgress(status=Status(row.status), running=state.running, **state.numbers())

    async def aprogress(self) -> BatchProgress:
        """See progress()."""
        return await sync_to_async(self.progress)()

    def cancel(self) -> CancelReport:
        """Cancel its members, a thousand with each transaction, then the batch."""
        return cancel([self.pk], backend=self.backend)

    async def acancel(self) -> CancelReport:
        """See cancel()."""
        return await sync_to_async(self.cancel)()

    @property
    def _engine(self) -> Engine:
        return engine_for(self.backend)

    def _checked(self, call: PlannedCall) -> PlannedCall:
        """Return a call. Raises InvalidTask if it is of another backend, perhaps with another database."""
        if call.task.backend != self.backend:
            raise InvalidTask(
                f"{call.task.name}: it is of backend {call.task.backend!r}, and the batch of {self.backend!r}: use "
                f"Batch(backend=...), or {call.task.name}.using(backend={self.backend!r})."
            )
        return call

    def _row(self) -> Task:
        row = self._engine.db.tasks.filter(pk=self.pk, task_type=BATCH).first()
        if row is None:
            raise TaskNotFound(f"There is no batch {self.pk} in backend {self.backend!r}. Its with-block enqueues it.")
        return row

    def _insert(self, queue_name: str | None, **numbers: int) -> None:
        queue_name = self._queue_name or queue_name or queues_of(self.backend)[0]
        backend: Any = backend_named(self.backend)
        kwargs = {**numbers, "callbacks": self._callbacks}
        task = self._task.using(queue_name=queue_name)
        backend.enqueue_as(task, (), kwargs, id=self.pk, priority=PRIORITY)

    def _send(self, message: BatchMessage) -> None:
        """Send a message to the batch. Raises TaskFinished if it ends, or has ended."""
        has_ended = TaskFinished(f"All members of batch {self.pk} have ended, or it was cancelled. Make another batch.")
        with self._engine.db.transaction():
            try:
                self._engine.messages.send([NewMessage(task_id=self.pk, body=message.encode())])
            except TaskFinished:
                raise has_ended from None
            # The message has locked the row, so that no poll can end the batch before this transaction does.
            state = self._row().inner_state or {}
            if message.opened >= 0 and (state.get("is_over") or state.get("is_cancelled")):
                raise has_ended
        after_commit(self._engine.database, partial(wake_and_notify, self._engine, frozenset({self.pk})))
