"""Batches under the alias of a race, polled by their own code, and callbacks that are plain rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import msgspec
from django.db import transaction

from jobqueue.api import batches
from jobqueue.api.batches import CALLBACKS, PRIORITY, Batch, BatchActor, BatchPoll
from jobqueue.declarations.actions import Action, Done, EndCancelled, Pause, Suspend
from jobqueue.declarations.actor import Inbox, PollContext
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import MembersFailed, TaskFinished
from jobqueue.executor.running.actor_runner import decode_message
from jobqueue.values.batches import BATCH, BatchMessage
from jobqueue.values.ids import new_id
from jobqueue.values.records import ClaimedTask, Effects, NewTask, Outcome, StoredMessage
from jobqueue.values.states import Status
from verification.interleavings.backend import Claim, crash_at_commit, executor_info, outcome, retry_outcome
from verification.interleavings.stepper import ClientState, rest
from verification.interleavings.workflow_backend import WorkflowBackend

BATCH_QUEUE, MEMBER, CALLBACK = "batch", "member", "callback"


class BatchBackend(WorkflowBackend):
    """
    One batch with its members.

    poll_class, handle_class: the code of the batch, which a mutant replaces. results: of its polls that came to
    their commit. needs_sweep: a process has ended before it woke the batch.
    """

    def __init__(self, kind: type[Engine]) -> None:
        super().__init__(kind)
        self.poll_class: type[BatchPoll] = getattr(kind, "poll_class", BatchPoll)
        self.handle_class: type[Batch] = getattr(kind, "handle_class", Batch)
        self.batch_id = new_id()
        self.results: dict[Claim, Outcome] = {}
        self.needs_sweep = False
        self._called: list[UUID] = []  # rows of callbacks, in the open transaction
        self._added: UUID | None = None  # a member, in the open transaction

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the code of batches find the engine, and enqueue callbacks as rows."""
        with (
            patch.object(batches, "engine_for", lambda alias="default": self.engine),
            patch.object(batches, "decode_call", lambda name: SimpleNamespace(enqueue=lambda _: self._call(name))),
        ):
            yield

    def restore(self) -> None:
        super().restore()
        self.results, self.needs_sweep, self._called, self._added = {}, False, [], None

    # --- rows

    def add_batch(self, members: int, *, open_blocks: int = 0) -> UUID:
        """Enqueue a batch with its members, as its block does."""
        kwargs = {"members": members, "open_blocks": open_blocks, "callbacks": {name: name for name in CALLBACKS}}
        row = NewTask(
            id=self.batch_id, task_type=BATCH, queue_name=BATCH_QUEUE, priority=PRIORITY, kwargs=json.dumps(kwargs)
        )
        with transaction.atomic():
            ids = [self._insert_member(self.batch_id) for _ in range(members)]
            self.engine.enqueues.enqueue([row])
        self.names |= {self.batch_id: BATCH_QUEUE} | dict.fromkeys(ids, MEMBER)
        return self.batch_id

    def _insert_member(self, batch: UUID) -> UUID:
        pk = new_id()
        self.engine.enqueues.enqueue([NewTask(id=pk, task_type="tests.noop", queue_name=MEMBER, parent_id=batch)])
        return pk

    @property
    def members(self) -> list[UUID]:
        return [pk for pk, name in self.names.items() if name == MEMBER]

    def _call(self, name: str) -> None:
        pk = new_id()
        self.engine.enqueues.enqueue([NewTask(id=pk, task_type=f"tests.{name}", queue_name=CALLBACK)])
        self._called.append(pk)

    def note_calls(self) -> None:
        """Name the callbacks of a transaction that has committed."""
        self.names |= dict.fromkeys(self._called, CALLBACK)
        self._called = []

    def lose(self, name: str) -> ClaimedTask:
        """Claim a task by an executor that has stopped sending heartbeats."""
        executor_id = uuid4()
        self.engine.executors.heartbeat(executor_info(executor_id))
        (claimed,) = self.claim(name, executor_id=executor_id)
        long_ago = self.engine.db.now().replace(year=2001)
        self.engine.db.heartbeats.filter(pk=executor_id).update(at=long_ago)
        self.engine.db.tasks.filter(pk=claimed.id).update(claimed_at=long_ago)
        return claimed

    # --- what clients do

    def add_member(self) -> None:
        """Add a member while the batch runs. Do nothing if it has ended."""
        batch = self.handle_class(backend="default")
        batch.pk, batch._is_new = self.batch_id, False
        with suppress(TaskFinished), transaction.atomic():
            self._added = self._insert_member(self.batch_id)
            transaction.on_commit(partial(self.names.__setitem__, self._added, MEMBER))
            batch._send(BatchMessage(added=1))

    def note_member(self) -> None:
        """Name the member that a process has added, which ended at its commit."""
        if self._added is not None and self.engine.db.tasks.filter(pk=self._added).exists():
            self.names[self._added] = MEMBER

    def poll_batch(self) -> None:
        """Claim the batch and run its poll. Do nothing if it is not READY."""
        for claimed in self.claim(BATCH_QUEUE):
            self.run_poll(claimed)

    def run_poll(self, claimed: ClaimedTask) -> None:
        """Run a poll as a worker thread does: messages first, then its function in the committing transaction."""
        messages = self.read(claimed.id)
        context = self._context(claimed, messages)
        try:
            poll = BatchActor().poll(context, **json.loads(claimed.kwargs))
        except MembersFailed:
            again = retry_outcome(outcome(claimed, Status.SCHEDULED))
            self.commit(msgspec.structs.replace(again, status=Status.FAILED, wake_after_seconds=None, error='"failed"'))
            return
        assert poll is not None
        for state in chain([ClientState.AFTER_COMMIT], repeat(ClientState.LAST)):
            context = self._context(claimed, messages)
            if context.polls == 0:
                numbers = json.loads(claimed.kwargs)
                context.state.total, context.state.open_blocks = numbers["members"], numbers["open_blocks"]
            self._called = []
            with transaction.atomic():
                if not self.engine.claims.lock_claim(claimed):
                    return
                action = self.poll_class(self.engine, context, json.loads(claimed.kwargs)["callbacks"]).perform()
                result = self._outcome(claimed, context, action)
                answer = self.engine.commits.commit([result], wait=True)
                if answer.unknown:
                    transaction.set_rollback(True)
                elif answer.done:
                    self.results[claimed.id, claimed.claim_number] = result
            if not answer.unknown:
                self._record_result([result], answer)
                self.note_calls()
                self._wake(answer)
                return
            rest(state)

    def _context(self, claimed: ClaimedTask, messages: list[StoredMessage]) -> PollContext[Any]:
        return PollContext(
            state=BatchActor.decode_state(claimed.inner_state),
            inbox=Inbox(decode_message(BatchActor, stored) for stored in messages),
            id=claimed.id,
            polls=claimed.polls,
            make_result=lambda: SimpleNamespace(backend=self.engine.alias),
        )

    def _outcome(self, claimed: ClaimedTask, context: PollContext[Any], action: Action | None) -> Outcome:
        columns: dict[str, Any] = {"status": Status.READY}
        match action:
            case Done():
                columns = {"status": Status.SUCCESSFUL, "return_value": "1"}
            case EndCancelled():
                columns = {"status": Status.CANCELLED}
            case Pause(seconds=seconds):
                columns = {"status": Status.SCHEDULED, "wake_after_seconds": seconds}
            case Suspend():
                columns = {"status": Status.SUSPENDED}
        consumed = [*(message.id for message in context.inbox.taken), *context.inbox.replaced]
        effects = Effects(consumed=consumed, unread=[message.id for message in context.inbox])
        state = msgspec.json.encode(context.state).decode()
        return outcome(claimed, columns.pop("status"), inner_state=state, effects=effects, **columns)

    def crash_in(self, claimed: ClaimedTask, *, after: bool) -> None:
        """Run a poll whose process ends before or after its commit."""
        is_dead = True
        with crash_at_commit(after=after):
            self.run_poll(claimed)
            is_dead = False
        result = self.results.get((claimed.id, claimed.claim_number))
        if is_dead and after and result is not None:
            self.record_crashed(result)
            self.note_calls()
            self.needs_sweep = True

    def note_taken(self) -> None:
        """Note the claims of the batch that a requeue of its members has taken from polls that were about to fail."""
        batch = self.engine.db.tasks.get(pk=self.batch_id)
        for claim in self.records.claims:
            is_held = claim == (batch.pk, batch.claim_number) and batch.status == Status.RUNNING
            if claim[0] == batch.pk and not is_held and self.records.requeued and claim not in self.records.endings:
                self._record_ending(claim, "taken")
