"""Run a workflow without a database, with values in place of its steps and children."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from dataclasses import replace as replace_effects
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, ClassVar, NoReturn
from uuid import UUID, uuid4

from msgspec.structs import replace

from jobqueue.conf.options import Options
from jobqueue.declarations import registry
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.options import run_options
from jobqueue.declarations.step import DeclaredStep
from jobqueue.declarations.workflow import WorkflowTask
from jobqueue.exceptions import ClaimLost, TaskFinished, TaskNotFound
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.running.attempt import Attempt, ExecutorIdentity, Raised, RunningTask, run_interruptibly
from jobqueue.executor.running.task_runner import complete, poll
from jobqueue.executor.running.workflow_runner import COALESCE_SECONDS, WorkflowRun
from jobqueue.executor.telemetry.errors import path_of
from jobqueue.values.ids import new_id
from jobqueue.values.journal import Entry, EntryStatus, Journal
from jobqueue.values.json import as_builtins, decode, encode_result
from jobqueue.values.message_types import with_type
from jobqueue.values.records import ClaimedTask, Effects, NewMessage, NewTask, Outcome, StoredMessage
from jobqueue.values.states import FINAL, Status

MAX_RUNS = 1000  # between two waits


@dataclass(eq=False)
class MemoryTask:
    """A task that has no row. It has more than 15 attributes because each column is one."""

    id: UUID  # made by the context
    task_type: str  # the name of the task
    args: str  # JSON array
    kwargs: str = "{}"  # JSON object
    parent_id: UUID | None = None  # the workflow that spawned it; None: no task
    status: Status = Status.READY
    inner_state: str | None = None  # JSON text; None before its first run
    entries: dict[str, Entry] = field(default_factory=dict)  # of its journal, by name
    inbox: list[StoredMessage] = field(default_factory=list)  # unread messages
    left: set[int] = field(default_factory=set)  # messages that the last run has read and left
    wake_at: datetime | None = None  # the end of its wait; None: it waits for a message, or not at all
    claim_number: int = 0  # of its last run
    attempts: int = 0  # of the run that failed last
    polls: int = 0  # runs that did not fail
    unread_polls: int = 0  # in a row, that left messages
    is_cancel_requested: bool = False  # whether cancel() was called while it ran or unwinds
    return_value: str | None = None  # JSON text; None before it is SUCCESSFUL
    error: str | None = None  # of its last failed run; None: no run failed


class MemoryEngine:
    """
    The verbs of an engine that a run calls, on tasks in memory. Only advance() moves its clock.

    It has more than 20 methods because each verb is one.
    """

    alias: ClassVar[str] = "default"
    database: ClassVar[str] = "default"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.journal = self.messages = self  # the verbs that a run calls
        self.tasks: dict[UUID, MemoryTask] = {}
        self.now = datetime.now(UTC)
        self._ids = count(1)
        self._identity = ExecutorIdentity(engine=self, executor_id=uuid4(), name="testing")  # type: ignore[arg-type]

    # --- verbs for runs

    def read(self, task_id: UUID) -> Journal:
        task = self.tasks[task_id]
        return Journal(list(task.entries.values()), task.is_cancel_requested)

    def record(self, claimed: ClaimedTask, executor_id: UUID, entries: Sequence[Entry], effects: Effects) -> bool:
        task = self.tasks[claimed.id]
        if task.status is not Status.RUNNING or task.claim_number != claimed.claim_number:
            raise ClaimLost
        effects = replace_effects(effects, journal=entries)
        if task.is_cancel_requested:
            effects = effects.without_children()
        self._perform(task, effects)
        self._write(task, effects.journal)
        return task.is_cancel_requested

    def task_types(self, ids: Collection[UUID]) -> dict[UUID, str]:
        return {pk: self.tasks[pk].task_type for pk in ids if pk in self.tasks}

    def find_keys(self, keys: Collection[str]) -> dict[str, UUID]:
        return {}

    def transaction(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def call(self, step: DeclaredStep[..., Any], call: Callable[[], Any]) -> Any:
        return call()

    # --- what happens from outside

    def enqueue(self, task: FunctionTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> MemoryTask:
        limit = self.options.max_payload_bytes
        values, names = (encode_result(as_builtins(value), max_bytes=limit) for value in (args, kwargs))
        made = MemoryTask(new_id(), task.task_type, values, names)
        self.tasks[made.id] = made
        return made

    def send(self, message: NewMessage) -> None:
        """Deliver a message. Raises TaskFinished or TaskNotFound."""
        task = self.tasks.get(message.task_id)
        if task is None:
            raise TaskNotFound(f"There is no task {message.task_id} to send to.")
        if task.status in FINAL and message.child_status is None:
            raise TaskFinished(f"Task {message.task_id} has ended and takes no messages.")
        stored = StoredMessage(
            next(self._ids), task.id, message.sender_id, message.child_status, message.body, self.now
        )
        task.inbox.append(stored)
        if task.status is Status.SUSPENDED:
            task.status = Status.READY

    def cancel(self, task: MemoryTask) -> None:
        """Cancel a task that does not run now."""
        if task.status in FINAL:
            return
        task.is_cancel_requested = True
        if self.defers_cancel(task):
            task.status, task.wake_at = Status.READY, None
        else:
            self._end(task, Status.CANCELLED)

    def defers_cancel(self, task: MemoryTask) -> bool:
        return bool(task.entries)

    def advance(self, time: timedelta) -> None:
        self.now += time
        for task in self.tasks.values():
            if task.wake_at is not None and task.wake_at <= self.now:
                task.status, task.wake_at = Status.READY, None

    def run_until_idle(self) -> None:
        for _ in range(MAX_RUNS):
            task = next((task for task in self.tasks.values() if task.status is Status.READY), None)
            if task is None:
                return
            self.run(task)
        raise AssertionError(f"Not idle after {MAX_RUNS} runs. Does a workflow never wait or end?")

    # --- a run

    def run(self, task: MemoryTask) -> None:
        """Claim a task, run its body once, and commit the outcome."""
        task.status, task.wake_at = Status.RUNNING, None
        task.claim_number += 1
        declared = registry.get(task.task_type)
        assert declared is not None
        running = RunningTask(self._claimed(task, declared), self._identity, tuple(task.inbox))
        attempt = Attempt(
            running=running,
            connections=TaskConnections(),
            task=declared,
            args=decode(task.args),
            kwargs=decode(task.kwargs),
            run_options=run_options(declared, "{}", self.options),
        )
        if isinstance(declared, WorkflowTask):
            running.finishes_when_cancelled = True
            attempt.context = _StubRun(attempt, self)
        running.start(None)
        ending = running.variables.run(run_interruptibly, attempt, partial(poll, attempt))
        if isinstance(ending, Raised) and not isinstance(ending.error, Exception):
            self.check(ending.error)
        self.commit(complete(attempt, ending).outcome)

    def check(self, error: BaseException) -> None:
        """Look at an error of a run that is no Exception."""

    def _claimed(self, task: MemoryTask, declared: FunctionTask[..., Any]) -> ClaimedTask:
        return ClaimedTask(
            id=task.id,
            task_type=task.task_type,
            queue_name="default",
            priority=0,
            args=task.args,
            kwargs=task.kwargs,
            inner_state=task.inner_state,
            options="{}",
            metadata="{}",
            errors="[]",
            worker_ids="[]",
            parent_id=task.parent_id,
            key=None,
            claim_number=task.claim_number,
            attempts=task.attempts,
            max_attempts=run_options(declared, "{}", self.options).max_attempts,
            polls=task.polls,
            executor_losses=0,
            rank=self.now,
            enqueued_at=self.now,
            started_at=None,
            claimed_at=self.now,
            wait_seconds=0.0,
            is_expired=False,
            unread_polls=task.unread_polls,
        )

    def commit(self, outcome: Outcome) -> None:
        """Perform the outcome of a run, if its claim is still held."""
        task = self.tasks[outcome.task_id]
        if task.status is not Status.RUNNING or task.claim_number != outcome.claim_number:
            return
        effects, status = outcome.effects, outcome.status
        if task.is_cancel_requested:
            effects = effects.without_children()
        if effects.restart is not None:
            task.entries, task.args, task.kwargs = {}, effects.restart.args, effects.restart.kwargs
        self._write(task, effects.journal)
        if task.is_cancel_requested and status not in FINAL and not effects.finishes_itself:
            status = Status.READY if self.defers_cancel(task) else Status.CANCELLED
        self._perform(task, effects)
        task.left = set(effects.unread)
        task.inner_state = outcome.inner_state or task.inner_state
        task.attempts, task.unread_polls = outcome.attempts, outcome.unread_polls
        task.polls += outcome.has_succeeded
        task.error = outcome.error or task.error
        if status in FINAL:
            self._end(task, status, outcome.return_value)
            return
        seconds = outcome.wake_after_seconds
        task.wake_at = outcome.wake_at or (None if seconds is None else self.now + timedelta(seconds=seconds))
        if seconds is not None and seconds <= COALESCE_SECONDS:  # no other end of a child comes meanwhile
            status, task.wake_at = Status.READY, None
        if status is Status.SUSPENDED and {message.id for message in task.inbox} - task.left:
            status = Status.READY
        task.status = status
        self.advance(timedelta())

    def _end(self, task: MemoryTask, status: Status, return_value: str | None = None) -> None:
        task.status, task.return_value, task.wake_at = status, return_value, None
        if task.parent_id in self.tasks and self.tasks[task.parent_id].status is not Status.SUCCESSFUL:
            body = return_value if status is Status.SUCCESSFUL else task.error
            self.send(NewMessage(task_id=task.parent_id, sender_id=task.id, child_status=status, body=body or "null"))

    def _write(self, task: MemoryTask, entries: Sequence[Entry]) -> None:
        for entry in entries:
            due_at = entry.due_at
            if due_at is None and entry.due_seconds is not None:
                due_at = self.now + timedelta(seconds=entry.due_seconds)
            task.entries[entry.name] = replace(entry, due_at=due_at)

    def _perform(self, task: MemoryTask, effects: Effects) -> None:
        consumed = set(effects.consumed)
        task.inbox = [message for message in task.inbox if message.id not in consumed]
        for child in effects.spawn:
            self.spawn(task, child)
        for message in effects.send:
            self.send(message)

    def spawn(self, parent: MemoryTask, child: NewTask) -> None:
        self.tasks[child.id] = MemoryTask(child.id, child.task_type, child.args, child.kwargs, parent.id)


class _StubRun(WorkflowRun):
    """A run of a workflow on tasks in memory."""

    def __init__(self, attempt: Attempt, memory: MemoryEngine) -> None:
        super().__init__(attempt)
        self._memory = memory
        self.now = lambda: memory.now

    def record(self, entries: Sequence[Entry], effects: Effects) -> bool:
        claimed, executor_id = self._attempt.claimed, self._attempt.identity.executor_id
        is_requested = self._memory.record(claimed, executor_id, entries, effects)
        self._is_cancel_requested |= is_requested
        return is_requested

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._memory.transaction():
            yield

    def call(self, step: DeclaredStep[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._memory.call(step, partial(super().call, step, args, kwargs))


class WorkflowStub:
    """
    A workflow without a database: `stub = WorkflowStub(checkout, 42); stub.returns(charge, "c1"); stub.run()`.

    Steps and children run as they are, unless returns() or raises() replaces them. Time passes with advance() only.
    """

    def __init__(self, workflow: WorkflowTask[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self._memory = _ReplacingEngine()
        self._task = self._memory.enqueue(workflow, args, kwargs)

    def returns(self, function: Callable[..., Any] | FunctionTask[..., Any], value: Any) -> None:
        """Return a value in place of each call of a step or child."""
        self._memory.replaced[_name_of(function)] = lambda: value

    def raises(self, function: Callable[..., Any] | FunctionTask[..., Any], error: Exception) -> None:
        """Raise an error in place of each call of a step or child."""

        def fail() -> NoReturn:
            raise error

        self._memory.replaced[_name_of(function)] = fail

    def run(self) -> WorkflowStub:
        """Run until it waits or has ended."""
        self._memory.run_until_idle()
        return self

    def send(self, body: Any) -> WorkflowStub:
        """Send a message, and run. Raises TaskFinished."""
        text = encode_result(with_type(body), max_bytes=self._memory.options.max_payload_bytes)
        self._memory.send(NewMessage(task_id=self._task.id, body=text))
        return self.run()

    def advance(self, time: timedelta) -> WorkflowStub:
        """Let time pass, and run what is due."""
        self._memory.advance(time)
        return self.run()

    def cancel(self) -> WorkflowStub:
        """Cancel it, and run."""
        self._memory.cancel(self._task)
        return self.run()

    @property
    def status(self) -> Status:
        """SUSPENDED while it waits."""
        return self._task.status

    @property
    def result(self) -> Any:
        """The value that it has returned, in JSON's own types; None before."""
        return decode(self._task.return_value or "null")

    @property
    def error(self) -> str:
        """The message of its last error, or an empty text."""
        return str(decode(self._task.error or "{}").get("message", ""))

    @property
    def journal(self) -> dict[str, EntryStatus]:
        """The status of each recorded call by its name, in order."""
        return {entry.name: entry.status for entry in self._task.entries.values()}


def _name_of(function: Any) -> str:
    name = function.name if isinstance(function, FunctionTask | DeclaredStep) else function.__name__
    return str(name).rpartition(".")[2]


class _ReplacingEngine(MemoryEngine):
    """Tasks in memory, with values in place of some steps and children."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: dict[str, Callable[[], Any]] = {}

    def call(self, step: DeclaredStep[..., Any], call: Callable[[], Any]) -> Any:
        return self.replaced.get(step.name, call)()

    def spawn(self, parent: MemoryTask, child: NewTask) -> None:
        super().spawn(parent, child)
        if (replace_with := self.replaced.get(child.task_type.rpartition(".")[2])) is None:
            return
        task = self.tasks[child.id]
        try:
            text = encode_result(as_builtins(replace_with()), max_bytes=self.options.max_payload_bytes)
            self._end(task, Status.SUCCESSFUL, text)
        except Exception as error:  # noqa: BLE001 - given by the test
            entry = {"exception_class_path": path_of(error), "message": str(error)}
            task.error = encode_result(entry, max_bytes=self.options.max_payload_bytes)
            self._end(task, Status.FAILED)
