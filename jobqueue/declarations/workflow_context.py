"""
The context of a workflow: calls that are recorded in its journal, and return the recorded result in later runs.

A call that must wait ends the run. The workflow then runs again from its top.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from jobqueue.declarations.actions import Spawn
from jobqueue.declarations.actor import Actor
from jobqueue.declarations.context import checked_progress
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.replay import (
    Replay,
    Suspended,
    Unwritten,
    arguments_of,
    digest,
    is_begun_compensation,
)
from jobqueue.declarations.step import DeclaredStep, as_step, is_task
from jobqueue.declarations.step_run import decode_error, decode_result, make_idempotency_key, run_step
from jobqueue.exceptions import (
    ChildFailed,
    CompensationFailed,
    NonDeterminism,
    StepFailed,
    TaskFinished,
    TaskNotFound,
    WorkflowCancelled,
)
from jobqueue.values.arguments import read_parameters
from jobqueue.values.journal import OPEN, Entry, EntryKind, EntryStatus, Waiting
from jobqueue.values.message_types import Unfit, names_of, read_message

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Handle(Generic[T]):
    """A child of a workflow. `gather()` and `wait()` take it, and `send()` sends to it."""

    name: str  # of its entry in the journal
    id: UUID  # of its task
    target: Any = field(default=None, compare=False, repr=False)  # the task


class CommonContext:
    """The calls of a context that are never awaited."""

    def __init__(self, replay: Replay) -> None:
        self._replay, self._recorder = replay, replay.recorder
        self.log = ReplayLogger(logging.getLogger("jobqueue.workflow"), replay)

    # --- about the workflow

    @property
    def id(self) -> UUID:
        """The id of the task."""
        return self._recorder.task_id

    @property
    def key(self) -> str | None:
        """The unique key of the task; None: it has none."""
        return self._recorder.key

    @property
    def attempt(self) -> int:
        """The number of this attempt to run the body, after errors outside of steps. The first is 1."""
        return self._recorder.attempt

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was requested. The next call that is not recorded raises WorkflowCancelled."""
        return self._recorder.is_cancelled

    @property
    def idempotency_key(self) -> str:
        """A text for other systems: in a step the same in each attempt of it, otherwise the same in each run."""
        return make_idempotency_key(self._replay)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how much is done, to show it on the task's page."""
        progress = checked_progress(done, total, note)
        if not self._replay.ahead:
            self._recorder.report(*progress)

    # --- compensations and cancel

    @contextmanager
    def compensate(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
        """
        Call a function as a step if the block ends with an error or a cancel. A wait does not end it.

        If the function fails in its last attempt, the workflow is FAILED. Requeue it to run the function again.
        """
        replay = self._replay
        step = as_step(function)
        name = replay.enter(step.name)
        arguments = digest(args, kwargs, step.parameters)
        if replay.find(name, EntryKind.COMPENSATION, arguments) is None:
            replay.wait(name, EntryKind.COMPENSATION, arguments)
        replay.blocks.append(name)
        try:
            yield
            replay.raise_if_unwinding(name)  # not for an outer one: this block may have ended well
        except (Exception, WorkflowCancelled) as cause:
            replay.raise_if_closed()
            self._unwind(step, name, args, kwargs, cause)
            raise
        finally:
            replay.blocks.remove(name)
        if replay.entries[name].status is EntryStatus.WAITING:
            replay.end(replay.entries[name], EntryStatus.SKIPPED)

    def _unwind(self, step: DeclaredStep[..., Any], name: str, args: Any, kwargs: Any, cause: BaseException) -> None:
        replay, entry = self._replay, self._replay.entries[name]
        if not is_begun_compensation(entry):
            # Recorded before the function runs: no later run goes on in the block, whatever its code does there.
            replay.write(replace(entry, status=EntryStatus.RETRYING, error=self._recorder.describe(cause, 1)))
            replay.record()
        replay.has_unwound = True
        replay.protected += 1
        try:
            run_step(self._replay, step, EntryKind.COMPENSATION, name, args, kwargs)
        except StepFailed as failed:
            raise replay.close(CompensationFailed(f"compensation failed: {failed}")) from failed
        finally:
            replay.protected -= 1

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Let the calls of a block run to their end, although the workflow is to be cancelled."""
        replay = self._replay
        name = replay.enter("shield")
        if replay.find(name, EntryKind.SHIELD) is None:
            replay.wait(name, EntryKind.SHIELD)
            replay.record()  # at once: a cancel waits for it, also if the executor dies in the first step of the block
        replay.shields.append(name)
        replay.protected += 1
        try:
            yield
        except Exception:
            replay.end(replay.entries[name], EntryStatus.FAILED)
            raise
        else:
            if replay.entries[name].status is EntryStatus.WAITING:
                replay.end(replay.entries[name], EntryStatus.SUCCESSFUL)
            if replay.unwritten.spawn:
                replay.record()  # now, so that a cancel after the block does not leave its children out
        finally:
            replay.shields.remove(name)
            replay.protected -= 1

    # --- children

    @overload
    def spawn(self, target: type[Actor[Any]], /, *args: Any, **kwargs: Any) -> Handle[Any]: ...
    @overload
    def spawn(self, target: FunctionTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]: ...
    def spawn(self, target: Any, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """
        Start a child: a task, an actor or another workflow.

        Its name in the journal is that of the task, or its first alias, so that a rename starts no second child.
        `using()` of the target sets its options. A child lives on if the workflow ends before it.
        """
        if not is_task(target):
            raise TypeError(
                f"spawn() takes a task, an actor or a workflow, not {target!r:.200}; step() takes functions."
            )
        task: FunctionTask[..., Any] = target if isinstance(target, FunctionTask) else target.task
        name = self._replay.enter(task.first_name.rpartition(".")[2])
        arguments = digest(args, kwargs, read_parameters(task.func, task.takes_context).positional)
        entry = self._replay.find(name, EntryKind.SPAWN, arguments)
        if entry is None:
            row = self._recorder.row_of_child(Spawn(task, *args, **kwargs))
            entry = self._replay.wait(name, EntryKind.SPAWN, arguments, child_id=row.id)
            self._replay.unwritten.spawn.append(row)
        assert entry.child_id is not None
        return Handle(name, entry.child_id, task)

    # --- values and versions

    def now(self) -> datetime:
        """Return the current time, the same in later runs."""
        return msgspec.convert(self._value("now", lambda: self._recorder.now() + self._recorder.passed), datetime)

    def uuid(self) -> UUID:
        """Return a random UUID, the same in later runs."""
        return UUID(self._value("uuid", uuid4))

    def random(self) -> float:
        """Return a random number from 0 to 1, the same in later runs."""
        return float(self._value("random", random.random))

    def _value(self, base: str, make: Callable[[], Any]) -> Any:
        name = self._replay.enter(base)
        entry = self._replay.find(name, EntryKind.VALUE)
        if entry is None:
            value = self._recorder.encode(make())
            entry = self._replay.write(
                Entry(name=name, kind=EntryKind.VALUE, status=EntryStatus.SUCCESSFUL, value=value)
            )
        return msgspec.json.decode(entry.value or "null")

    def patched(self, name: str) -> bool:
        """
        Return whether this workflow runs new code: `if context.patched("new-pricing"): ...`.

        False for a workflow that older code had brought beyond this place. All calls with a name return the same.
        """
        self._replay.raise_if_closed()
        name = f"patched-{name}"
        self._replay.ahead.discard(name)
        entry = self._replay.find(name, EntryKind.PATCH)
        if entry is None:
            value = "false" if self._replay.ahead else "true"
            entry = self._replay.write(
                Entry(name=name, kind=EntryKind.PATCH, status=EntryStatus.SUCCESSFUL, value=value)
            )
        return entry.value == "true"

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """
        Start again with these arguments and an empty journal: the same task, with its id, key and inbox.

        Raises RuntimeError within compensate(), whose entry the new journal would not have.
        """
        self._replay.raise_if_closed()
        if self._replay.blocks:
            raise RuntimeError("continue_as_new() must not be within compensate(): end the block before it.")
        self._replay.closed = Suspended()
        self._replay.closed.restart = (args, kwargs)
        raise self._replay.closed


class WorkflowContext(CommonContext):
    """
    The calls of a workflow, which are recorded.

    Each has a name in the journal: that of the function, or of the call, with #2, #3 where it repeats. In later runs, a
    recorded call returns what it returned before. So code between the calls must do the same each time.

    It has more than 20 methods because each form of a call is one.
    """

    # --- steps

    @overload
    def step(self, function: type[Actor[Any]], /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def step(self, function: FunctionTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """
        Call a function once, and record its result. A task, an actor or another workflow runs as a child.

        A process may die between the function's effect and the record. So the function runs at least once, but with
        `@step(atomic=True)` exactly once. Its result must be JSON, or what msgspec makes JSON of, such as a dataclass.
        Raises StepFailed after the last attempt, or ChildFailed.
        """
        if is_task(function):
            return self.gather(self.spawn(function, *args, **kwargs))[0]
        step = as_step(function)
        return run_step(self._replay, step, EntryKind.STEP, self._replay.enter(step.name), args, kwargs)

    def as_async(self) -> AsyncWorkflowContext:
        """Return the context of an `async def` workflow."""
        return AsyncWorkflowContext(self._replay)

    # --- waits

    def sleep(self, time: timedelta) -> None:
        """Wait for this long, without a slot, a thread or a connection."""
        self._sleep(lambda: self._recorder.now() + time)

    def sleep_until(self, moment: datetime) -> None:
        """Wait until a moment."""
        self._sleep(lambda: moment - self._recorder.passed)

    def _sleep(self, choose_end: Callable[[], datetime]) -> None:
        name = self._replay.enter("sleep")
        entry = self._replay.find(name, EntryKind.SLEEP)
        if entry is None or entry.status is EntryStatus.WAITING:
            entry = entry or self._replay.wait(name, EntryKind.SLEEP, due_at=choose_end())
            self._replay.raise_if_cancelled(name)
            self._replay.end_or_suspend(entry, Waiting(name=name, kind="sleep"))

    @overload
    def receive(self, *, timeout: timedelta | None = None) -> Any: ...
    @overload
    def receive(self, kind: type[A], /) -> A: ...
    @overload
    def receive(self, kind: type[A], /, *, timeout: timedelta | None) -> A | None: ...
    @overload
    def receive(self, kind: type[A], other: type[B], /) -> A | B: ...
    @overload
    def receive(self, kind: type[A], other: type[B], /, *, timeout: timedelta | None) -> A | B | None: ...
    @overload
    def receive(self, kind: type[A], other: type[B], third: type[C], /) -> A | B | C: ...
    @overload
    def receive(
        self, kind: type[A], other: type[B], third: type[C], /, *, timeout: timedelta | None
    ) -> A | B | C | None: ...
    @overload
    def receive(self, *kinds: type[Any], timeout: timedelta | None = None) -> Any: ...
    def receive(self, *kinds: type[Any], timeout: timedelta | None = None) -> Any:
        """
        Return the next message of one of these classes, in order of arrival. Return None after the timeout.

        A message names its class in the member `type` of its JSON object: {"type": "Shipped", "tracking": "T1"}.
        `send()` adds it to a dataclass or Struct. dict, list, str, int, float and bool take JSON of this kind. Without
        classes, any message is returned as plain JSON. Other messages stay in the inbox for later calls.
        """
        replay, types = self._replay, [name for kind in kinds for name in names_of(kind)]
        name = replay.enter("receive")
        entry = replay.find(name, EntryKind.RECEIVE)
        if entry is None or entry.status is EntryStatus.WAITING:
            due_at = None if timeout is None else self._recorder.now() + timeout
            entry = entry or replay.wait(name, EntryKind.RECEIVE, digest((), {"classes": types}), due_at=due_at)
            replay.raise_if_cancelled(name)
            waiting = Waiting(name=name, kind="receive", types=types)
            entry = self._take(entry, kinds) or replay.end_or_suspend(entry, waiting, EntryStatus.TIMED_OUT)
        if entry.status is not EntryStatus.SUCCESSFUL:
            return None
        replay.sender = entry.child_id
        message = read_message(entry.value or "null", kinds)
        if isinstance(message, Unfit):
            raise replay.close(
                NonDeterminism(
                    f"The recorded message of {name} does not fit the code: {message.problem}. Pass its class to "
                    "receive(), and give new fields a default. Then requeue the workflow: it goes on."
                )
            )
        return message

    def _take(self, waiting: Entry, kinds: Sequence[type[Any]]) -> Entry | None:
        """Record the first message of these classes that has come in time. Return its entry, or None."""
        for stored in self._replay.inbox:
            is_late = waiting.due_at is not None and stored.sent_at > waiting.due_at
            if not is_late and not isinstance(read_message(stored.body or "null", kinds), Unfit):
                self._replay.inbox.remove(stored)
                self._replay.unwritten.consumed.append(stored.id)
                received = replace(waiting, value=stored.body or "null", child_id=stored.sender_id)
                return self._replay.end(received, EntryStatus.SUCCESSFUL)
        return None

    # --- children

    @overload
    def gather(self, first: Handle[A], /) -> list[A]: ...
    @overload
    def gather(self, first: Handle[A], second: Handle[B], /) -> tuple[A, B]: ...
    @overload
    def gather(self, first: Handle[A], second: Handle[B], third: Handle[C], /) -> tuple[A, B, C]: ...
    @overload
    def gather(self, *handles: Handle[T], return_exceptions: Literal[False] = False) -> list[T]: ...
    @overload
    def gather(self, *handles: Handle[T], return_exceptions: bool) -> list[T | ChildFailed]: ...
    def gather(self, *handles: Handle[Any], return_exceptions: bool = False) -> Any:
        """
        Wait until all these children have ended. Return their results, in this order.

        Raises ChildFailed for the first that was FAILED or CANCELLED. return_exceptions: return it in its place.
        """
        replay, names = self._replay, [handle.name for handle in handles]
        name = replay.enter("gather")
        is_open = any(replay.child(child).status in OPEN for child in names)
        if is_open or name in replay.entries:
            replay.find(name, EntryKind.CANCEL)  # the only entry that it can have
        if is_open:
            replay.suspend(Waiting(name=name, kind="children", children=names, count=len({*names})))
        results = [self._result(handle) for handle in handles]
        if not return_exceptions and (failed := next((r for r in results if isinstance(r, ChildFailed)), None)):
            raise failed
        return results

    def _result(self, handle: Handle[Any]) -> Any:
        entry = self._replay.entries[handle.name]
        if entry.status is EntryStatus.SUCCESSFUL:
            return decode_result(self._replay, entry, handle.target.func)
        return ChildFailed(handle.name, entry.child_id, decode_error(entry))

    def wait(self, *handles: Handle[T], count: int = 1, timeout: timedelta | None = None) -> list[Handle[T]]:
        """
        Wait until `count` of these children have ended, or until the timeout. Return those that have, in this order.

        `gather()` returns their results.
        """
        replay, names, count = self._replay, [handle.name for handle in handles], min(count, len(handles))
        name = replay.enter("wait")
        entry = replay.find(name, EntryKind.WAIT)
        if entry is None or entry.value is None:
            due_at = None if timeout is None else self._recorder.now() + timeout
            entry = entry or replay.wait(name, EntryKind.WAIT, due_at=due_at)
            replay.raise_if_cancelled(name)
            ended = [child for child in names if replay.child(child).status not in OPEN]
            entry = replace(entry, value=self._recorder.encode(ended))
            if entry.status is EntryStatus.TIMED_OUT:
                replay.write(entry)  # people have skipped it
            elif len(ended) >= count:
                replay.end(entry, EntryStatus.SUCCESSFUL)
            else:
                waiting = Waiting(name=name, kind="children", children=names, count=count)
                replay.end_or_suspend(entry, waiting, EntryStatus.TIMED_OUT)
        ended = msgspec.json.decode(entry.value or "[]")
        return [handle for handle in handles if handle.name in ended]

    # --- messages

    def send(self, to: UUID | str | Handle[Any], body: Any = None) -> None:
        """
        Send a message once to an actor or a workflow, by its id, its live key, or as a child.

        Raises TaskNotFound or TaskFinished, in later runs, too.
        """
        self._send(self._replay.enter("send"), to.id if isinstance(to, Handle) else to, body)

    def reply(self, body: Any = None) -> None:
        """Send a message to the sender of the message that was received last. Raises as send()."""
        name, sender = self._replay.enter("reply"), self._replay.sender
        if sender is None:
            raise TaskNotFound(
                "reply() answers a message of a task. The last one came from elsewhere, or there is none."
            )
        self._send(name, sender, body)

    def _send(self, name: str, to: UUID | str, body: Any) -> None:
        replay, arguments = self._replay, digest((to, body), {}, ("to", "body"))
        entry = replay.find(name, EntryKind.SEND, arguments)
        if entry is None:
            replay.record()  # now, so that it is not undone if the message is refused
            replay.raise_if_cancelled(name)
            sent = Entry(name=name, kind=EntryKind.SEND, status=EntryStatus.SUCCESSFUL, **arguments_of(arguments))
            try:
                replay.unwritten.send.append(self._recorder.message_to(to, body))
                entry = replay.end(sent, EntryStatus.SUCCESSFUL)
                replay.record(TaskFinished, TaskNotFound)
            except (TaskFinished, TaskNotFound) as error:
                replay.unwritten = Unwritten()
                entry = replay.end(replace(sent, error=self._recorder.describe(error, 1)), EntryStatus.FAILED)
        if entry.status is EntryStatus.FAILED:
            stored = decode_error(entry)
            is_finished = str(stored.get("exception_class_path")).endswith("TaskFinished")
            raise (TaskFinished if is_finished else TaskNotFound)(stored.get("message"))


class AsyncWorkflowContext(CommonContext):
    """
    The context of an `async def` workflow: the calls that may wait are awaited. See WorkflowContext.

    It has more than 20 methods because each form of a call is one.
    """

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay)
        self._calls = WorkflowContext(replay)

    @overload
    async def step(self, function: type[Actor[Any]], /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    async def step(self, function: FunctionTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._calls.step(function, *args, **kwargs)

    async def sleep(self, time: timedelta) -> None:
        self._calls.sleep(time)

    async def sleep_until(self, moment: datetime) -> None:
        self._calls.sleep_until(moment)

    @overload
    async def receive(self, kind: type[A], /) -> A: ...
    @overload
    async def receive(self, kind: type[A], other: type[B], /) -> A | B: ...
    @overload
    async def receive(self, kind: type[A], /, *, timeout: timedelta | None) -> A | None: ...
    @overload
    async def receive(self, kind: type[A], other: type[B], /, *, timeout: timedelta | None) -> A | B | None: ...
    @overload
    async def receive(self, *kinds: type[Any], timeout: timedelta | None = None) -> Any: ...
    async def receive(self, *kinds: type[Any], timeout: timedelta | None = None) -> Any:
        return self._calls.receive(*kinds, timeout=timeout)

    @overload
    async def gather(self, first: Handle[A], second: Handle[B], /) -> tuple[A, B]: ...
    @overload
    async def gather(self, *handles: Handle[T], return_exceptions: Literal[False] = False) -> list[T]: ...
    @overload
    async def gather(self, *handles: Handle[T], return_exceptions: bool) -> list[T | ChildFailed]: ...
    async def gather(self, *handles: Handle[Any], return_exceptions: bool = False) -> Any:
        return self._calls.gather(*handles, return_exceptions=return_exceptions)

    async def wait(self, *handles: Handle[T], count: int = 1, timeout: timedelta | None = None) -> list[Handle[T]]:
        return self._calls.wait(*handles, count=count, timeout=timeout)

    async def send(self, to: UUID | str | Handle[Any], body: Any = None) -> None:
        self._calls.send(to, body)

    async def reply(self, body: Any = None) -> None:
        self._calls.reply(body)


class ReplayLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while a workflow repeats calls of earlier runs."""

    def __init__(self, logger: logging.Logger, replay: Replay) -> None:
        super().__init__(logger, {})
        self._replay = replay

    def isEnabledFor(self, level: int) -> bool:
        return not self._replay.ahead and super().isEnabledFor(level)
