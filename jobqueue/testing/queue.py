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
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from jobqueue.conf.compat import TaskResult
from jobqueue.declarations.actions import Kind, Message
from jobqueue.declarations.actor import Actor, Inbox, PollContext
from jobqueue.engine import Engine, engine_for
from jobqueue.executor.awaiting_code import is_bound
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.maintenance import AGAIN_SECONDS
from jobqueue.executor.running import events
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
from jobqueue.executor.running.task_runner import end_code_wait, missing_limits, poll, prepare, reject_by_database
from jobqueue.models import (
    AdmissionRequest,
    Executor,
    InboxMessage,
    JournalEntry,
    KeyReservation,
    Queue,
    RateStart,
    Task,
    TaskProgress,
)
from jobqueue.testing.schedule_time import PassedTime, ScheduleTime, move_back
from jobqueue.values.ids import new_id
from jobqueue.values.json import as_builtins
from jobqueue.values.records import ClaimedTask, ClaimRequest
from jobqueue.values.states import Status

CALLS_READ = 1000  # of a task that waits for code

_numbers = count(1)  # of messages made by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """One poll, or one attempt of a function."""

    id: UUID  # of the task
    task_type: str  # of the task
    status: Status | None  # the new status of the task; None if the poll had no effect
    # Why the poll failed; None if it did not. A failed poll is retried as in production.
    error: BaseException | None = None


def run_until_idle(*, limit: int = 1000, backend: str = "default") -> list[Polled]:
    """
    Run tasks one after the other, best rank first, until none is READY or due. Return the polls in order.

    Tasks that sleep or wait for a retry need advance(). A failed poll raises nothing: see its `error`.
    Raises AssertionError at the end if this process has no code for a task, or its code does not take the arguments:
    in a test, no other executor has such code.
    limit: raises AssertionError if tasks can still run after this number of polls, because they may never end.
    """
    queue = _Queue(engine_for(backend))
    polls: list[Polled] = queue.end_code_waits()
    while (claimed := queue.claim()) is not None:
        if len(polls) >= limit:
            queue.engine.commits.release([claimed])
            last = ", ".join(f"{poll.task_type} {poll.id}" for poll in polls[-3:]) or "nothing"
            raise AssertionError(
                f"Not idle after {limit} polls. The last: {last}. The next: {claimed.task_type} {claimed.id}. "
                "Does an actor never suspend or end, or do two actors wake each other without end?"
            )
        polls.append(queue.poll(claimed))
    _raise_without_code(polls)
    return polls


def poll_once(task: TaskResult[..., Any] | Task | UUID | str, *, backend: str | None = None) -> Polled:
    """
    Run one task once: a function to its end, an actor for one poll. Other tasks stay in the queue.

    backend: needed for an id of another backend than the default one. Raises AssertionError if the task has ended,
    waits for a message, or is not due, or if this process has no code that takes its arguments.
    """
    named = getattr(task, "backend", "default") if backend is None else backend
    pk = task if isinstance(task, UUID | str) else getattr(task, "id", None)
    if pk is None:
        raise TypeError(f"poll_once() takes a TaskResult, a row or an id, not {task!r:.200}.")
    queue = _Queue(engine_for(named))
    queue.wake()
    polled = queue.poll(queue.claim_one(UUID(str(pk))))
    _raise_without_code([polled])
    return polled


def _raise_without_code(polls: Iterable[Polled]) -> None:
    """Raise AssertionError if tasks wait for code."""
    if waiting := [poll for poll in polls if poll.status is Status.AWAITING_CODE]:
        tasks = "\n".join(f"{poll.task_type} {poll.id}: {poll.error}" for poll in waiting[:3])
        raise AssertionError(f"This process has no code for {len(waiting)} of the tasks:\n{tasks}") from waiting[
            0
        ].error


def advance(time: timedelta, *, schedules: bool = True, downtime: bool = False, backend: str = "default") -> None:
    """
    Let time pass for the queue: timeouts, backoffs, expiries, rates, heartbeats, retention and schedules.

    The stored times move back, because the queue uses the database's clock. `context.now()` of a workflow moves on.
    Times in the state of actors and in your models do not move. Schedules have a clock that stands still between two
    calls. Their ticks become tasks or are skipped as in production, and run_until_idle() runs the tasks. schedules:
    whether they take part. downtime: no executor was running until the end of the time, so `catch_up` decides.
    """
    if not isinstance(time, timedelta):
        raise TypeError(f"advance() takes a timedelta, such as timedelta(minutes=5), not {time!r}.")
    engine = engine_for(backend)
    move_back(InboxMessage.objects.using(engine.database).filter(task__backend=backend), time)
    move_back(JournalEntry.objects.using(engine.database).filter(task__backend=backend), time)
    move_back(TaskProgress.objects.using(engine.database).filter(pk__in=engine.db.tasks.values("pk")), time)
    move_back(engine.db.heartbeats.filter(executor__in=engine.db.executors), time)
    for model in (Task, Executor, Queue, AdmissionRequest, RateStart, KeyReservation):
        move_back(model._default_manager.using(engine.database).filter(backend=backend), time)
    PassedTime(engine).add(time)
    if schedules:
        ScheduleTime(engine).advance(time, downtime=downtime)


def set_time(moment: datetime, *, backend: str = "default") -> None:
    """
    Set the clock of schedules: `set_time(datetime(2026, 2, 27, tzinfo=UTC))`. Ticks up to this moment do not fire.

    Without it, their clock starts at the current time. Other times of the queue do not change, and `timezone.now()`
    does not either. Raises ValueError for a naive datetime, and if a schedule has fired a later tick.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"set_time() takes a datetime with a time zone, not {moment!r:.100}.")
    ScheduleTime(engine_for(backend)).set(moment)


def context(
    actor: type[Actor[Any]], *, state: Any = None, inbox: Iterable[Any] = (), **values: Any
) -> PollContext[Any]:
    """
    Make the context of a poll, without a database: `Fibonacci().poll(context(Fibonacci), 2) == Done(1)`.

    state: of the actor's `State`; None makes a new one. inbox: messages made by message(), or bodies of the actor's
    `Message`. values: other fields of PollContext, such as timed_out. Raises ValueError for a state or a body that the
    actor's types do not allow.
    """
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise TypeError(f"context() makes the context of an actor, not of {actor!r:.200}; call() a function task.")
    if state is not None:
        actor.encode_state(state)
    messages = [entry if isinstance(entry, Message) else message(entry) for entry in inbox]
    return PollContext(
        state=actor.decode_state(None) if state is None else state,
        inbox=Inbox(_delivered(actor, message) for message in messages),
        **{"id": new_id(), **values},
    )


def message(
    body: Any = None, *, kind: Kind = Kind.MESSAGE, sender: UUID | None = None, sent_at: datetime | None = None
) -> Message:
    """Make a message for context(). Its id is above those of all messages made before it."""
    return Message(id=next(_numbers), kind=Kind(kind), body=body, sender=sender, sent_at=sent_at or timezone.now())


def _delivered(actor: type[Actor[Any]], message: Message) -> Message:
    """Send a message through JSON, as an executor does."""
    if message.kind is not Kind.MESSAGE:
        return message
    return replace(message, body=actor.decode_body(msgspec.json.encode(as_builtins(message.body)).decode()))


class _TestConnections(TaskConnections):
    """The connections of a test. A transaction that is open there belongs to the test, not to a body."""

    def check(self, atomic: str | None = None) -> None:
        """Accept an open transaction."""


class _Queue:
    """A backend's queue, and an executor in the thread of the test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._connections = _TestConnections()
        self._executor_id = uuid4()
        self._identity = ExecutorIdentity(
            engine=engine, executor_id=self._executor_id, name="testing", is_test=True, passed=PassedTime(engine).read()
        )

    def claim(self) -> ClaimedTask | None:
        """Return the next task. If none is READY, wake those that are due or have messages."""
        return self._claim_ready() or (self._claim_ready() if self.wake() else None)

    def _claim_ready(self) -> ClaimedTask | None:
        self.engine.admissions.admit()
        request = ClaimRequest(
            executor_id=self._executor_id,
            queues=self.engine.queues.queues_in_use(),
            limit=1,
            limited=self.engine.queues.limited_queues(),
        )
        while claimed := self.engine.claims.claim(request) or self.engine.claims.claim_isolated(request):
            if not self.engine.admissions.impose_limits(missing_limits(claimed)):
                return claimed[0]
            self.engine.admissions.admit()
        return None

    def claim_one(self, pk: UUID) -> ClaimedTask:
        claimed = self.engine.claims.claim_one(pk, self._executor_id)
        if claimed is None:
            row = self.engine.db.tasks.filter(pk=pk).first()
            reason = "there is none" if row is None else f"it is {row.status}"
            until = f" until {row.wake_at}" if row is not None and row.wake_at else ""
            raise AssertionError(f"Task {pk} of backend {self.engine.alias!r} is not ready to run: {reason}{until}.")
        return claimed

    def wake(self) -> int:
        """Wake due tasks, and actors with messages: a TestCase never runs the wake-up after a commit."""
        count = self.engine.inbox.wake_due()
        count += sum(self.engine.admissions.admit().queues.values())
        unread = self.engine.db.messages.filter(task_id=OuterRef("pk"), consumed_at__isnull=True)
        newer = unread.filter(sent_at__gt=OuterRef("last_attempted_at"))
        # Messages that a poll has left unread wake an actor at its wake_at only.
        sleepers = self.engine.db.tasks.suspended().filter(Q(Exists(unread), unread_polls=0) | Exists(newer))
        count += self.engine.messages.wake(list(sleepers.values_list("pk", flat=True)))
        count += self._return_with_code()
        # Tasks of this package that let messages collect for a moment.
        pausing = self.engine.db.tasks.scheduled().filter(polls__gt=0, attempts=0, stale_polls=0)
        count += self.engine.tasks.run_now(list(pausing.values_list("pk", flat=True))).changed
        return count + ScheduleTime(self.engine).fire_waiting()

    def _return_with_code(self) -> int:
        """Make tasks READY that waited for code which this process has now."""
        waits = self.engine.code_waits
        calls = [(group.task_type, call) for group in waits.groups() for call in waits.calls(group, CALLS_READ)]
        bound = [call.id for task_type, call in calls if is_bound(task_type, call.call)]
        with self.engine.db.transaction():
            return waits.end(bound, len(bound)) if bound else 0

    def end_code_waits(self) -> list[Polled]:
        """Fail tasks that have waited for code for as long as they may."""
        ended = self.engine.code_waits.claim_ended(self._executor_id)
        return [self._end(claimed, end_code_wait(RunningTask(claimed, self._identity))) for claimed in ended]

    def poll(self, claimed: ClaimedTask) -> Polled:
        messages = self.engine.messages.read_messages([claimed.id]).get(claimed.id, ())
        running = RunningTask(claimed, self._identity, messages)
        return self._end(claimed, running.variables.run(self._run, running))

    def _end(self, claimed: ClaimedTask, completed: CompletedAttempt) -> Polled:
        completed, status = self._commit(completed)
        self._identity.reports.write(self.engine, is_last=True)
        if isinstance(completed.error, KeyboardInterrupt):
            raise completed.error
        if status is not None:
            events.report_end(completed, status)
        return Polled(id=claimed.id, task_type=claimed.task_type, status=status, error=completed.error)

    def _run(self, running: RunningTask) -> CompletedAttempt:
        attempt = prepare(running, self._connections)
        if isinstance(attempt, CompletedAttempt):
            return attempt
        events.report_start(attempt)
        running.start(None)
        if attempt.task.atomic:
            return poll_atomically(attempt, durable=False)
        with _savepoints():
            ending = self._call(attempt)
        return end_attempt(attempt, ending)

    def _call(self, attempt: Attempt) -> Returned | Raised:
        if not inspect.iscoroutinefunction(attempt.task.func):
            return run_interruptibly(attempt, partial(poll, attempt))
        ending: Returned | Raised = async_to_sync(run_cancellably)(attempt)
        return finish_in_thread(attempt, ending)

    def _commit(self, completed: CompletedAttempt) -> tuple[CompletedAttempt, Status | None]:
        """Commit until the database has written the outcome, or another claim holds the task."""
        if completed.is_committed:
            return completed, completed.outcome.status
        pk = completed.running.id
        while True:
            result = self.engine.commits.commit([completed.outcome], wait=True)
            if pk in result.refused:
                completed = reject_by_database(completed, result.refused[pk])
            elif pk in result.unknown:  # another thread of the test has locked a row
                sleep(AGAIN_SECONDS)
            else:
                return completed, result.done.get(pk)


@contextmanager
def _savepoints() -> Iterator[None]:
    """Roll a failed statement of a body back, because it would fail the test's transaction."""
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
