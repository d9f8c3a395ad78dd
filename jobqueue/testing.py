"""
Run tasks in a test of your own: in its thread, in its transaction, on any database.

The queue works on Django's own connection, as the code under test does, so that an ordinary TestCase
rolls everything back. Nothing here waits: `advance()` lets time pass. Timeouts of bodies do not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from time import sleep
from typing import Any
from uuid import UUID, uuid4

import msgspec
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections
from django.db.models import (
    DateTimeField,
    DurationField,
    Exists,
    Expression,
    ExpressionWrapper,
    F,
    Model,
    OuterRef,
    Q,
    Value,
)
from django.utils import timezone

from jobqueue.actions import Kind, Message
from jobqueue.actor import Actor, Inbox, PollContext
from jobqueue.compat import TaskResult
from jobqueue.engine import engine_for
from jobqueue.engine.engine import Engine
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.maintenance import AGAIN_SECONDS
from jobqueue.executor.running.async_runner import finish_in_thread, run_cancellably
from jobqueue.executor.running.atomic import end_attempt, poll_atomically
from jobqueue.executor.running.attempt import (
    Attempt,
    CompletedAttempt,
    ExecutorIdentity,
    Raised,
    Returned,
    RunningTask,
    run_interruptibly,
)
from jobqueue.executor.running.task_runner import poll, prepare, reject_by_database
from jobqueue.executor.telemetry import events
from jobqueue.models import Executor, InboxMessage, Queue, Task
from jobqueue.records import ClaimedTask, ClaimRequest, Status
from jobqueue.serialization.ids import new_id
from jobqueue.serialization.json import plain

__all__ = ["Polled", "advance", "context", "message", "poll_once", "run_until_idle"]

_numbers = count(1)  # of messages made by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """
    One poll that took place. status: what the task entered, None where the poll had no effect.

    error: why a poll failed; it is retried or not as in production.
    """

    id: UUID
    task_type: str
    status: Status | None
    error: BaseException | None = None


def run_until_idle(*, limit: int = 1000, backend: str = "default") -> list[Polled]:
    """
    Run tasks one after the other, best rank first, until none is READY or due. Return the polls in order.

    Tasks that sleep or wait for a retry need advance(). A failed poll raises nothing: see its `error`.
    limit: raises AssertionError if tasks can still run after so many polls, because they may never end.
    """
    queue = _Queue(engine_for(backend))
    polls: list[Polled] = []
    while (claimed := queue.claim()) is not None:
        if len(polls) >= limit:
            queue.engine.release([claimed])
            raise AssertionError(
                f"Not idle after {limit} polls; the last were of {_last(polls)}, and next is {claimed.task_type} "
                f"{claimed.id}. Does a poll return nothing, or two tasks wake each other, without end?"
            )
        polls.append(queue.poll(claimed))
    return polls


def poll_once(task: TaskResult[..., Any] | Task | UUID | str, *, backend: str | None = None) -> Polled:
    """
    Run one task once: a function to its end, an actor for one poll. Other tasks stay in the queue.

    backend: only for an id of another backend than the default one. Raises AssertionError when
    it is not READY: it has ended, or sleeps without mail, or its time has not come.
    """
    named = getattr(task, "backend", "default") if backend is None else backend
    pk = task if isinstance(task, UUID | str) else getattr(task, "id", None)
    if pk is None:
        raise TypeError(f"poll_once() takes a TaskResult, a row or an id, not {task!r:.200}.")
    queue = _Queue(engine_for(named))
    queue.wake()
    return queue.poll(queue.claim_one(UUID(str(pk))))


def advance(time: timedelta, *, backend: str = "default") -> None:
    """
    Let time pass for everything the queue has stored: alarms, backoffs, expiries, heartbeats, retention.

    All stored moments move back, one statement per table, since the queue goes by the database's clock. What
    bodies keep themselves, in their state or their models, does not move.
    """
    if not isinstance(time, timedelta):
        raise TypeError(f"advance() takes a timedelta, such as timedelta(minutes=5), not {time!r}.")
    database = engine_for(backend).database
    for model, where in (
        (Task, Q(backend=backend)),
        (InboxMessage, Q(task__backend=backend)),
        (Executor, Q(backend=backend)),
        (Queue, Q(backend=backend)),
    ):
        _move_back(model, where, time, database)


def context(
    actor: type[Actor[Any]], *, state: Any = None, inbox: Iterable[Any] = (), **values: Any
) -> PollContext[Any]:
    """
    Make what a poll is given, for a test without a database: `Fibonacci().poll(context(Fibonacci), 2) == Done(1)`.

    state: what `State` allows, None stands for a fresh one. inbox: messages made by message(), or their bodies, which
    must be what the actor's `Message` allows. Raises ValueError otherwise. values: other fields of PollContext, such as
    timed_out.
    """
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise TypeError(f"context() is what polls of an actor are given, not {actor!r:.200}; call() a function task.")
    if state is not None:
        actor.encode_state(state)
    letters = [entry if isinstance(entry, Message) else message(entry) for entry in inbox]
    defaults: dict[str, Any] = {"id": new_id()}
    return PollContext(
        state=actor.decode_state(None) if state is None else state,
        inbox=Inbox(_delivered(actor, letter) for letter in letters),
        **defaults | values,
    )


def message(
    body: Any = None, *, kind: Kind = Kind.MESSAGE, sender: UUID | None = None, sent_at: datetime | None = None
) -> Message:
    """Make a message for context(), with a number above all before it."""
    return Message(id=next(_numbers), kind=Kind(kind), body=body, sender=sender, sent_at=sent_at or timezone.now())


def _delivered(actor: type[Actor[Any]], letter: Message) -> Message:
    """Send a message through JSON, as production does."""
    if letter.kind is not Kind.MESSAGE:
        return letter
    text = msgspec.json.encode(plain(letter.body)).decode()
    return replace(letter, body=actor.decode_body(text))


class _TestsOwn(TaskConnections):
    """The connections of a test: in its transaction, which is not left open by a body, and never ours to tidy."""

    def check(self, atomic: str | None = None) -> None:
        """Let it pass."""


class _Queue:
    """A backend's queue, served by the thread of the test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._executor_id = uuid4()
        self._session = _TestsOwn()
        self._identity = ExecutorIdentity(engine=engine, executor_id=self._executor_id, name="testing")

    def claim(self) -> ClaimedTask | None:
        """Return the next task. If none is READY, wake those that are due or have messages."""
        return self._claim_ready() or (self._claim_ready() if self.wake() else None)

    def _claim_ready(self) -> ClaimedTask | None:
        demand = ClaimRequest(
            executor_id=self._executor_id,
            queues=self.engine.queues_in_use(),
            limit=1,
            limited=self.engine.limited_queues(),
        )
        claimed = self.engine.claim(demand) or self.engine.claim_isolated(demand)
        return claimed[0] if claimed else None

    def claim_one(self, pk: UUID) -> ClaimedTask:
        claimed = self.engine.claim_one(pk, self._executor_id)
        if claimed is None:
            row = self.engine.tasks.filter(pk=pk).first()
            found = "there is none" if row is None else f"it is {row.status}"
            until = f" until {row.wake_at}" if row is not None and row.wake_at else ""
            raise AssertionError(f"Task {pk} of backend {self.engine.alias!r} is not ready to run: {found}{until}.")
        return claimed

    def wake(self) -> int:
        """Do what an executor's alarm and sweep do, and the wake-up after a commit, which a TestCase never sees."""
        count = self.engine.wake_due()
        mail = self.engine.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        news = mail.filter(sent_at__gt=OuterRef("last_attempted_at"))
        # Mail that a poll read and left is no reason to wake: its alarm is.
        sleepers = self.engine.tasks.suspended().filter(Q(Exists(mail), unread_polls=0) | Exists(news))
        return count + self.engine.wake(list(sleepers.values_list("pk", flat=True)))

    def poll(self, claimed: ClaimedTask) -> Polled:
        messages = self.engine.read_messages([claimed.id]).get(claimed.id, ())
        completed, status = self._commit(self._run(RunningTask(claimed, self._identity, messages)))
        if isinstance(completed.error, KeyboardInterrupt):
            raise completed.error
        if status is not None:
            events.report_end(completed, status)
        return Polled(id=claimed.id, task_type=claimed.task_type, status=status, error=completed.error)

    def _run(self, running: RunningTask) -> CompletedAttempt:
        attempt = prepare(running, self._session)
        if isinstance(attempt, CompletedAttempt):
            return attempt
        events.report_start(attempt)
        running.start(None)
        if attempt.task.atomic:
            return poll_atomically(attempt, durable=False)
        with _mended():
            ending = self._call(attempt)
        return end_attempt(attempt, ending)

    def _call(self, attempt: Attempt) -> Returned | Raised:
        if not inspect.iscoroutinefunction(attempt.task.func):
            return run_interruptibly(attempt, partial(poll, attempt))
        ending: Returned | Raised = async_to_sync(run_cancellably)(attempt)
        return finish_in_thread(attempt, ending)

    def _commit(self, completed: CompletedAttempt) -> tuple[CompletedAttempt, Status | None]:
        """Commit, as the loop does, until the row has taken it or another claim holds the row."""
        if completed.is_committed:
            return completed, completed.outcome.status
        pk = completed.running.id
        while True:
            result = self.engine.commit([completed.outcome], wait=True)
            if (refusal := result.refused.get(pk)) is not None:
                completed = reject_by_database(completed, refusal)
            elif pk in result.unknown:  # another thread of the test holds a row that it writes to
                sleep(AGAIN_SECONDS)
            else:
                return completed, result.done.get(pk)


@contextmanager
def _mended() -> Iterator[None]:
    """
    Keep a statement that fails in a body from spoiling the test's transaction.

    In an executor, the body's statements are transactions of their own.
    """
    savepoints = [
        (connection, savepoint)
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block and (savepoint := connection.savepoint())
    ]
    yield
    for connection, savepoint in reversed(savepoints):
        try:
            connection.savepoint_commit(savepoint)
        except DatabaseError:
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)


def _move_back(model: type[Model], where: Q, time: timedelta, database: str) -> None:
    def earlier(name: str) -> Expression:
        return ExpressionWrapper(F(name) - Value(time, DurationField()), DateTimeField())

    moments = [field.name for field in model._meta.get_fields() if isinstance(field, DateTimeField)]
    rows = model._default_manager.using(database).filter(where)
    rows.update(**{name: earlier(name) for name in moments})


def _last(polls: list[Polled]) -> str:
    return ", ".join(f"{poll.task_type} {poll.id}" for poll in polls[-3:]) or "nothing"
