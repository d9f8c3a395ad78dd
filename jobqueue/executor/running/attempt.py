"""One attempt of a claimed task: its values, and a body in a thread that an exception can interrupt."""

from __future__ import annotations

import threading
import time
from _thread import RLock  # the class, without the function of `threading` around it
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from jobqueue.conf.options import Options
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.options import RunOptions
from jobqueue.declarations.results import Result, from_claimed
from jobqueue.engine import Engine
from jobqueue.exceptions import Interrupted, ShuttingDown, TaskCancelled, TaskTimeout
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.process_guard import leave_if_forked, this_process
from jobqueue.executor.reports import LogOfBody, PendingReports
from jobqueue.executor.running.thread_interrupts import clear_thread, interrupt_thread
from jobqueue.executor.step_recorder import StepRecorder
from jobqueue.executor.telemetry.errors import from_the_body
from jobqueue.values.records import ClaimedTask, Outcome, StoredMessage
from jobqueue.values.reports import Progress

Stopper = Callable[[type[Interrupted]], bool]  # returns whether the interruption is on its way

INTERRUPT_GAP_SECONDS = 1.0  # a body is interrupted at most once in this time


@dataclass(frozen=True, kw_only=True)
class ExecutorIdentity:
    """The executor that runs tasks, and the engine of their backend."""

    engine: Engine  # of the backend
    executor_id: UUID  # made by this process
    name: str  # for people
    # progress and log lines that the loop writes
    reports: PendingReports = dataclass_field(default_factory=PendingReports, compare=False)
    # by task_type: the declaration, the same for the backend, and the options of a run of a row without any
    prepared: dict[str, tuple[FunctionTask[..., Any], FunctionTask[..., Any], RunOptions]] = dataclass_field(
        default_factory=dict, compare=False
    )
    # makes of a task's function one that calls it in a child process; None: it runs in this process
    in_process: Callable[[FunctionTask[..., Any]], Callable[..., Any]] | None = dataclass_field(
        default=None, compare=False
    )
    # records the steps of workflows together; None: each by itself
    recorder: StepRecorder | None = dataclass_field(default=None, compare=False)
    is_test: bool = False  # the thread of a test, which lets time pass itself
    passed: timedelta = timedelta()  # how much time a test has let pass
    # set as soon as the executor is to end
    stop: threading.Event = dataclass_field(default_factory=threading.Event, compare=False)

    @cached_property
    def worker_id(self) -> str:
        """The executor's id in a task's `worker_ids`, a name of django.tasks."""
        return str(self.executor_id)

    @property
    def options(self) -> Options:
        return self.engine.options

    def log_of_caller(self) -> LogOfBody | None:
        """Return the log of the body that calls. Before its start, the caller is a receiver of task_started."""
        running = running_here.get()
        is_body = running is not None and running.identity is self and running.started_at is not None
        return running.log if running is not None and is_body else None


class RunningTask(Struct, eq=False):
    """
    One claimed task, from the claim to the commit of its outcome.

    Between arm() and disarm() its body runs and may be interrupted; the lock keeps an interruption
    from arriving once the body has ended and its commit begins. The moments are of time.monotonic().

    It has more than 15 attributes because it keeps the moments of an attempt and all that interrupts it.
    """

    claimed: ClaimedTask  # as it was read at the claim
    identity: ExecutorIdentity  # the executor that has claimed it
    messages: Sequence[StoredMessage] = ()  # unread when it was claimed
    process: object = field(default_factory=this_process)  # that has the claim; a forked copy does not have it
    # The ContextVars of its body, of receivers and log handlers that hear of it, and of nothing else. It starts
    # empty: a copy of a thread's context would share the objects in it, such as the scope of an error tracker.
    variables: Context = field(default_factory=Context)
    finishes_when_cancelled: bool = False  # a poll of an actor is short, and ends before its task does
    has_seen_stop: bool = False  # its body has learned from `context.cancelled` that the executor stops
    claimed_at: float = field(default_factory=time.monotonic)  # when this process received the claim
    started_at: float | None = None  # when its thread began to prepare it; None before
    begun_at: float | None = None  # when the body of a task with a rate has begun; None before, and without a rate
    deadline_at: float | None = None  # when its timeout ends; None before its body runs, and without a timeout
    first_interrupted_at: float | None = None  # when its body was to be interrupted first; None: never
    interrupted_at: float | None = None  # when its body was interrupted last; None: never
    reason: type[Interrupted] | None = None  # why its body was to be interrupted; None: it was not
    _log: LogOfBody | None = None  # the lines that its body has logged; None before the first one
    _stopper: Stopper | None = None  # interrupts the body; None while it does not run
    _lock: Any = field(default_factory=RLock)  # of the change between "the body runs" and "it has ended"

    @property
    def id(self) -> UUID:
        return self.claimed.id

    def now(self) -> datetime:
        """Return the database's time without asking it: the time of the claim, and what has passed since."""
        return self.claimed.claimed_at + timedelta(seconds=time.monotonic() - self.claimed_at)

    @property
    def begun_seconds(self) -> float | None:
        """Since the body has begun, for the rate of the task; None: it has no rate, or its body has not begun."""
        return None if self.begun_at is None else time.monotonic() - self.begun_at

    @property
    def is_armed(self) -> bool:
        """Whether its body runs now."""
        return self._stopper is not None

    def start(self, timeout_seconds: float | None) -> None:
        self.started_at = time.monotonic()
        if timeout_seconds is not None:
            self.deadline_at = self.started_at + timeout_seconds

    def arm(self, stopper: Stopper) -> None:
        """Let the body be interrupted from here on. Raises the reason of an earlier interruption."""
        with self._lock:
            if self.reason is not None and not self._may_finish(self.reason):
                raise self.reason
            self._stopper = stopper

    def disarm(self, clear: Callable[[], None] = lambda: None) -> None:
        """
        End the time in which the body may be interrupted. `clear` revokes an interruption that has not arrived yet.

        The interruption may arrive in this method, in the body's thread. Call it again then, until it returns.
        """
        # Not `with`: an exception right behind acquire() would leave the lock taken for ever. Here the
        # next call takes it once more, and gives it back as often.
        lock = self._lock
        lock.acquire()
        self._stopper = None
        if self.interrupted_at is not None:
            clear()
        while lock._is_owned():
            lock.release()

    def interrupt(self, reason: type[Interrupted]) -> bool:
        """Interrupt the body. The first reason that does counts. Return whether a body was running."""
        with self._lock:
            if self.reason is None or (self._may_finish(self.reason) and not self._may_finish(reason)):
                self.reason = reason
            if self._stopper is None or self._may_finish(reason):
                return False
            now = time.monotonic()
            if self.interrupted_at is None or now - self.interrupted_at >= INTERRUPT_GAP_SECONDS:
                self.first_interrupted_at = self.first_interrupted_at or now
                if self._stopper(self.reason):
                    self.interrupted_at = now
            return True

    def _may_finish(self, reason: type[Interrupted]) -> bool:
        return reason is TaskCancelled and self.finishes_when_cancelled

    def should_stop(self) -> bool:
        """Return whether it must not start any more."""
        return self.reason is not None or self.identity.stop.is_set()

    def is_cancelled(self) -> bool:
        """Answer `context.cancelled`."""
        if self.reason in (None, ShuttingDown) and self.identity.stop.is_set():
            self.has_seen_stop = True
        return self.reason is not None or self.has_seen_stop

    def report(self, done: float, total: float | None, note: str) -> None:
        """Keep the progress that the body reports, until the loop writes it."""
        self.identity.reports.add_progress(
            Progress(task_id=self.id, claim_number=self.claimed.claim_number, done=done, total=total, note=note)
        )

    @property
    def log(self) -> LogOfBody:
        """The lines that its body has logged."""
        if self._log is None:
            self._log = LogOfBody(self.claimed, self.identity.options, self.claimed_at)
        return self._log


# The task whose code calls, also from a task of asyncio or a thread of asgiref that the body has started.
running_here: ContextVar[RunningTask | None] = ContextVar("jobqueue.running_here", default=None)


class Attempt(Struct, kw_only=True, eq=False):
    """A claimed task, ready to run."""

    running: RunningTask  # the claimed task
    connections: TaskConnections  # those that the body uses
    task: FunctionTask[..., Any]  # the declaration that this process has
    args: list[Any]  # decoded
    kwargs: dict[str, Any]  # decoded
    run_options: RunOptions  # those of the row, or else of the declaration
    context: Any = None  # an actor's PollContext, or a workflow's WorkflowRun; None for a function
    _result: Result | None = None  # for the context of the body; None until it is needed

    @property
    def claimed(self) -> ClaimedTask:
        return self.running.claimed

    @property
    def identity(self) -> ExecutorIdentity:
        return self.running.identity

    @property
    def result(self) -> Result:
        """The task as django.tasks shows it. It takes 7 us to build, so it is built on first use."""
        if self._result is None:
            worker_id = self.identity.worker_id
            self._result = from_claimed(self.claimed, self.task, self.args, self.kwargs, worker_id=worker_id)
        return self._result


class CompletedAttempt(Struct, frozen=True, kw_only=True, eq=False):
    """One attempt that has ended, and its outcome."""

    running: RunningTask  # the claimed task
    outcome: Outcome  # to be committed, unless is_committed
    attempt: Attempt | None = None  # None if the task could not be prepared
    error: BaseException | None = None  # that the body raised; None: none
    seconds: float = 0.0  # of the body
    is_committed: bool = False  # the outcome is in the database already (an atomic body)
    wake: frozenset[UUID] = frozenset()  # the receivers that its commit left to be woken
    # How many messages will never be read: those in the inbox of an actor that has ended, and those to a parent
    # that had ended.
    undelivered: int = 0
    # the attempt that counts if this outcome is lost, because an earlier COMMIT succeeded and its answer was lost
    success_in_doubt: CompletedAttempt | None = None


def with_start(completed: CompletedAttempt) -> CompletedAttempt:
    """Let a rate count the start, also if the task was released after its body had begun."""
    seconds = completed.running.begun_seconds
    if seconds is None or completed.outcome.begun_seconds is not None:
        return completed
    return replace(completed, outcome=replace(completed.outcome, begun_seconds=seconds))


class Returned(Struct, frozen=True):
    """The body has returned."""

    value: Any  # what it returned; after finish(), an Outcome or a function for the commit


class Raised(Struct, frozen=True):
    """The body raised."""

    error: BaseException


def run_interruptibly(attempt: Attempt, body: Callable[[], Any]) -> Returned | Raised:
    """
    Run the body in this thread. After this has returned, no interruption arrives.

    Until disarm() has returned, one may arrive at any line here, so this is a loop. The next one cannot arrive while
    the first is caught: INTERRUPT_GAP_SECONDS are between them.
    """
    ident, running = threading.get_ident(), attempt.running
    ending: Returned | Raised | None = None
    is_over = False
    while not is_over:
        try:
            if ending is None:
                try:
                    running.arm(partial(stop_thread, ident, attempt.connections))
                    ending = Returned(body())
                except BaseException as error:  # noqa: BLE001 - any exception of the body is its outcome
                    ending = Raised(from_the_body(error))
            leave_if_forked(running.process, ending.error if isinstance(ending, Raised) else None)
            running.disarm(partial(clear_thread, ident))
            is_over = True
        except Interrupted as late:
            ending = ending or Raised(from_the_body(late))
    assert ending is not None
    return ending


def run_with_timeout(attempt: Attempt, seconds: float, function: Callable[[], Any]) -> Any:
    """
    Run a part of the body in this thread, with a timeout of its own. Raises TimeoutError after it.

    The body can be interrupted before and after, but not in between, when no part runs.
    """
    running, deadline_at = attempt.running, attempt.running.deadline_at

    def part() -> Any:
        end_at = time.monotonic() + seconds
        running.deadline_at = end_at if deadline_at is None else min(end_at, deadline_at)
        return function()

    ending = run_interruptibly(attempt, part)
    is_late = running.reason is TaskTimeout and (deadline_at is None or time.monotonic() < deadline_at)
    running.deadline_at = deadline_at
    if is_late:
        running.reason = running.first_interrupted_at = running.interrupted_at = None
    running.arm(partial(stop_thread, threading.get_ident(), attempt.connections))
    if isinstance(ending, Returned):
        return ending.value
    raise TimeoutError(f"It ran longer than {seconds:g} s.") if is_late else ending.error


def stop_thread(ident: int, connections: TaskConnections, reason: type[Interrupted]) -> bool:
    """Raise an exception in a thread, and cancel its statement on the server. Return whether it could be done."""
    if not interrupt_thread(ident, reason):
        return False
    connections.cancel()
    return True
