"""A workflow's run: the check of what it waits for, its body on its journal, and the outcome of both."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_effects
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from msgspec.structs import replace

from jobqueue.api.messages import encode_body, refuse_functions, resolve_receivers
from jobqueue.api.notifications import notify_after_commit
from jobqueue.declarations.actions import Spawn
from jobqueue.declarations.replay import Replay, Suspended, Unwritten
from jobqueue.declarations.step import DeclaredStep
from jobqueue.declarations.workflow import WorkflowTask
from jobqueue.declarations.workflow_context import WorkflowContext
from jobqueue.engine import iso_utc
from jobqueue.exceptions import (
    ChildFailed,
    CompensationFailed,
    JournalTooLong,
    NonDeterminism,
    StepFailed,
    TaskCancelled,
    WorkflowCancelled,
)
from jobqueue.executor.running import events
from jobqueue.executor.running.actor_runner import row_of_child, wait_after
from jobqueue.executor.running.attempt import Attempt, run_with_timeout
from jobqueue.executor.running.determinism import Guard
from jobqueue.executor.telemetry.errors import (
    TRACEBACK_CHARACTERS,
    causes,
    describe_error,
    format_first_line,
    full_traceback,
    path_of,
)
from jobqueue.executor.telemetry.logger import get_logger, mask_for
from jobqueue.values.arguments import encode_arguments
from jobqueue.values.journal import OPEN, Entry, EntryKind, EntryStatus, Journal, Restart, Waiting, WorkflowState
from jobqueue.values.json import as_builtins, encode_result
from jobqueue.values.message_types import names_in
from jobqueue.values.records import NO_EFFECTS, Effects, NewMessage, NewTask, Outcome
from jobqueue.values.states import FINAL, Status
from jobqueue.values.text import clean_text, printable

logger = get_logger(__name__)

CAUGHT = "Its code caught the exception that ends a run at a wait. Catch Exception around calls of the context."
LONGEST_RECHECK_SECONDS = 3600.0  # of a workflow that waits and has left messages unread
COALESCE_SECONDS = 0.05  # for which the ends of children are collected

RECORDED = (
    StepFailed,
    ChildFailed,
    CompensationFailed,
    NonDeterminism,
    JournalTooLong,
)  # another run raises them again


class WorkflowRun:
    """
    One run of a workflow: what its context needs of the executor, and the outcome.

    It has more than 20 methods and more than 15 attributes because the context reaches the executor by it only.
    """

    def __init__(self, attempt: Attempt) -> None:
        assert isinstance(attempt.task, WorkflowTask)
        self._attempt, self._engine, self._task = attempt, attempt.identity.engine, attempt.task
        claimed = attempt.claimed
        self._state = msgspec.json.decode(claimed.inner_state or "{}", type=WorkflowState)
        self.task_id, self.key, self.attempt = claimed.id, claimed.key, claimed.attempts + 1
        self.generation, self.options = self._state.generation, attempt.identity.options
        self.report, self.now = attempt.running.report, attempt.running.now
        self.passed = attempt.identity.passed
        self._is_cancel_requested = False  # as the journal was read or written last
        self._replay = Replay(self)
        self._guard = Guard(attempt.identity.is_test)
        self._depth = 0  # of transactions, before the body

    # --- run

    def poll(self) -> Outcome:
        """Run the body, unless what it waits for has not come. Raises its error."""
        claimed, attempt, self._depth = self._attempt.claimed, self._attempt, depth_of(self._engine.database)
        is_first = claimed.polls == 0 and claimed.claim_number == 1
        journal = Journal() if is_first else self._engine.journal.read(claimed.id)
        self._is_cancel_requested = journal.is_cancel_requested
        self._replay = replay = self._fold(journal.entries)
        if self._state.waiting is not None and not self._is_over(self._state.waiting):
            return self._wait_on(self._state.waiting)
        is_intercepted, returned = True, None
        try:
            with self._guard.watch(self._task.func):
                returned = self._task.func(WorkflowContext(replay), *attempt.args, **attempt.kwargs)
        except Suspended:
            is_intercepted = False
        except WorkflowCancelled:
            replay.refuse_lost_blocks()
            raise
        except Exception as error:
            if replay.closed is None:
                replay.error = error
                raise
        if replay.closed is not None:
            if is_intercepted:
                logger.warning("workflow.wait_intercepted task=%s hint=%s", printable(claimed.task_type), CAUGHT)
            if replay.closed.error is not None:
                raise replay.closed.error from replay.closed.error.__cause__
            return self._suspend(replay.closed)
        replay.refuse_lost_blocks()
        if replay.ahead:
            names = printable(", ".join(sorted(replay.ahead))[:200])
            logger.warning("workflow.entries_unreached task=%s names=%s", printable(claimed.task_type), names)
        return self._outcome(Status.SUCCESSFUL, self._new_state(), return_value=self.encode(returned))

    def _fold(self, entries: Sequence[Entry]) -> Replay:
        """Return the journal with the ends of children in their entries, and the other messages."""
        unwritten, inbox = Unwritten(), []
        children = {entry.child_id: entry for entry in entries if entry.kind is EntryKind.SPAWN}
        for message in self._attempt.running.messages:
            if message.child_status is None:
                inbox.append(message)
                continue
            unwritten.consumed.append(message.id)
            entry = children.get(message.sender_id)
            if entry is not None and entry.status is EntryStatus.WAITING:
                column = {"value" if message.child_status == Status.SUCCESSFUL else "error": message.body}
                ended = replace(entry, status=EntryStatus(message.child_status), finished_at=message.sent_at, **column)
                unwritten.entries[entry.name] = ended
        return Replay(self, [unwritten.entries.get(entry.name, entry) for entry in entries], inbox, unwritten)

    def _is_over(self, waiting: Waiting) -> bool:
        """Return whether what the workflow waits for has come."""
        entries = self._replay.entries
        entry = entries.get(waiting.name)
        if self.is_cancelled:
            return True
        if entry is not None and (
            entry.status not in OPEN or (entry.due_at is not None and entry.due_at <= self.now())
        ):
            return True  # people may have ended it
        if waiting.kind == "receive":
            bodies = [message.body or "null" for message in self._replay.inbox]
            return any(not waiting.types or not names_in(body).isdisjoint(waiting.types) for body in bodies)
        if waiting.kind == "children":
            ended = [name for name in {*waiting.children} if name not in entries or entries[name].status not in OPEN]
            return len(ended) >= waiting.count
        return entry is None

    def _wait_on(self, waiting: Waiting) -> Outcome:
        """Wait on without a run of the body. Read the ends of children that come at once together, a little later."""
        has_ends, is_test = bool(self._replay.unwritten.entries), self._attempt.identity.is_test
        if waiting.kind == "children" and has_ends and not is_test:
            return self._outcome(Status.SCHEDULED, None, wake_after_seconds=COALESCE_SECONDS)
        entry = self._replay.entries.get(waiting.name)
        return self._outcome(Status.SUSPENDED, None, wake_at=None if entry is None else entry.due_at)

    def _suspend(self, suspended: Suspended) -> Outcome:
        if suspended.restart is None:
            assert suspended.waiting is not None
            state = replace(self._new_state(), waiting=suspended.waiting)
            return self._outcome(Status.SUSPENDED, state, wake_at=suspended.waiting.until)
        args, kwargs = suspended.restart
        limit = self.options.max_payload_bytes
        texts = encode_arguments(
            self._task.func, args, kwargs, name="continue_as_new()", takes_context=True, max_bytes=limit
        )
        state = WorkflowState(code=self._task.code, generation=self.generation + 1)
        outcome = self._outcome(Status.READY, state)
        return replace(outcome, effects=replace_effects(outcome.effects, journal=(), restart=Restart(*texts)))

    def ending_of(self, error: BaseException) -> tuple[Status, dict[str, Any]] | None:
        """
        Return the final state after an error of the body, with its columns; None: it is an error like that of any task.

        A failed step or compensation is set back, so that a requeue runs it again. An error of the body ends the
        workflow if compensations have run and none is open. It is tried again if it came before they were reached.
        """
        if isinstance(error, WorkflowCancelled):
            self._replay.forget_children()
            return Status.CANCELLED, self._columns(self._new_state())
        failed = next((cause for cause in causes(error) if isinstance(cause, RECORDED)), None)
        compensations = [entry for entry in self._replay.entries.values() if entry.kind is EntryKind.COMPENSATION]
        is_undone = self._replay.has_unwound and all(entry.status not in OPEN for entry in compensations)
        if failed is None and not (is_undone and error is self._replay.error):
            return None
        for entry in [*self._replay.entries.values()]:
            is_stuck = entry.kind is EntryKind.COMPENSATION and entry.status is EntryStatus.FAILED
            is_failed_step = isinstance(failed, StepFailed) and failed.name == entry.name
            if is_stuck or (is_failed_step and not self._replay.has_unwound):
                self._replay.write(replace(entry, status=EntryStatus.RETRYING, attempts=0, due_at=None))
        child = failed.child_id if isinstance(failed, ChildFailed) and not self._replay.has_unwound else None
        return Status.FAILED, self._columns(replace(self._new_state(), failed_child=child))

    def ends_of_blocks(self) -> Effects:
        """Return the ends of compensations and shields that a failed run has left, so that none is shown as open."""
        ends = [
            entry
            for entry in self._replay.unwritten.entries.values()
            if entry.kind in (EntryKind.COMPENSATION, EntryKind.SHIELD) and entry.status not in OPEN
        ]
        return Effects(journal=ends) if ends else NO_EFFECTS

    def _new_state(self) -> WorkflowState:
        return WorkflowState(
            code=self._task.code, compensating=self._replay.has_unwound, generation=self._state.generation
        )

    def _outcome(self, status: Status, state: WorkflowState | None = None, **columns: Any) -> Outcome:
        claimed, worker_id, inbox = self._attempt.claimed, self._attempt.identity.worker_id, self._replay.inbox
        is_new_here = f'"{worker_id}"' not in claimed.worker_ids
        has_consumed = bool(self._replay.unwritten.consumed)
        unread_polls = 0 if not inbox else 1 if has_consumed else claimed.unread_polls + 1
        waits_beside_unread = status is Status.SUSPENDED and unread_polls > 0
        return Outcome(
            task_id=claimed.id,
            claim_number=claimed.claim_number,
            parent_id=claimed.parent_id,
            status=status,
            attempts=claimed.attempts if status in FINAL else 0,
            has_succeeded=True,
            may_unblock_others=claimed.may_unblock_others,
            worker_id=worker_id if is_new_here or status in FINAL else None,
            # Above 0, so that the sweep does not wake the workflow for messages that it has left. It then looks for
            # newer ones only, but a sender's transaction may have been open for long: the workflow looks by itself.
            unread_polls=unread_polls,
            recheck_seconds=wait_after(unread_polls, LONGEST_RECHECK_SECONDS) if waits_beside_unread else None,
            **self._columns(state),
            **columns,
        )

    def _columns(self, state: WorkflowState | None) -> dict[str, Any]:
        """Return the effects of the run, and its state; None: unchanged."""
        replay = self._replay
        effects = Effects(
            consumed=replay.unwritten.consumed,
            unread=[message.id for message in replay.inbox],
            spawn=replay.unwritten.spawn,
            send=replay.unwritten.send,
            journal=list(replay.unwritten.entries.values()),
            finishes_itself=replay.defers_cancel,
        )
        return {"effects": effects, "inner_state": None if state is None else msgspec.json.encode(state).decode()}

    # --- what the context needs

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancel_requested or self._attempt.running.reason is TaskCancelled

    def refuse_transaction(self, call: str) -> None:
        if depth_of(self._engine.database) != self._depth:
            raise RuntimeError(
                f"Call {call}() of the context outside of transaction.atomic(), which a wait would roll back. A step "
                "with atomic=True has a transaction of its own."
            )

    def record(self, entries: Sequence[Entry], effects: Effects) -> bool:
        claimed, identity = self._attempt.claimed, self._attempt.identity
        is_requested = None
        with self._guard.pause():
            if identity.recorder is not None and effects is NO_EFFECTS and depth_of(self._engine.database) == 0:
                is_requested = identity.recorder.record(claimed, entries)
            if is_requested is None:
                is_requested = self._engine.journal.record(claimed, identity.executor_id, entries, effects)
            if is_requested:
                self._is_cancel_requested = True
                effects = effects.without_children()
            if effects.spawn:  # as a commit does for its children
                notify_after_commit(self._engine, {row.queue_name for row in effects.spawn})
                events.announce_children(self._engine, effects.spawn, self.now())
        return is_requested

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._guard.pause(), transaction.atomic(using=self._engine.database):
            yield

    def call(self, step: DeclaredStep[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function of a step, and log its error."""
        try:
            return self._call(step, args, kwargs)
        except Exception as error:
            claimed, mask = self._attempt.claimed, mask_for(self._attempt.claimed, self.options)
            logger.warning(
                "step.failed task=%s id=%s step=%s error=%s",
                printable(claimed.task_type),
                claimed.id,
                printable(step.name),
                format_first_line(error, mask),
                extra={"mask": mask},
            )
            raise

    def _call(self, step: DeclaredStep[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        seconds = step.timeout.total_seconds() if isinstance(step.timeout, timedelta) else step.timeout
        with self._guard.pause():
            if inspect.iscoroutinefunction(step.function):
                return async_to_sync(asyncio.wait_for)(step.function(*args, **kwargs), seconds)
            if seconds is None:
                return step.function(*args, **kwargs)
            return run_with_timeout(self._attempt, seconds, partial(step.function, *args, **kwargs))

    def encode(self, value: Any) -> str:
        return encode_result(as_builtins(value), max_bytes=self.options.max_payload_bytes)

    def row_of_child(self, spawn: Spawn) -> NewTask:
        with self._guard.pause():  # it calls MIDDLEWARE
            return row_of_child(self._attempt, spawn)

    def message_to(self, receiver: UUID | str, body: Any) -> NewMessage:
        with self._guard.pause():
            (pk,) = resolve_receivers(self._engine, [receiver], [None])
            is_workflow = pk in refuse_functions(self._engine, [pk])
        text = encode_body(body, is_workflow, self.options.max_payload_bytes)
        return NewMessage(task_id=pk, body=text, sender_id=self.task_id)

    def describe(self, error: BaseException, attempt: int) -> str:
        entry = {
            "attempt": attempt,
            "at": iso_utc(self.now()),
            "executor": self._attempt.identity.name,
            "exception_class_path": path_of(error),
            "message": describe_error(error),
            "traceback": clean_text(full_traceback(error), TRACEBACK_CHARACTERS),
        }
        return json.dumps(entry)


def depth_of(database: str) -> int:
    """Return how many transaction.atomic() are open in this thread."""
    connection = connections[database]
    return len(connection.savepoint_ids) + connection.in_atomic_block
