"""One attempt of an `async def` task: its body runs on the event loop, its ORM calls in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from jobqueue.declarations import registry
from jobqueue.declarations.actor import PolledTask
from jobqueue.exceptions import Interrupted
from jobqueue.executor.database.permits import Permits
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.process_guard import leave_if_forked
from jobqueue.executor.running import events
from jobqueue.executor.running.atomic import end_attempt
from jobqueue.executor.running.attempt import (
    Attempt,
    CompletedAttempt,
    Raised,
    Returned,
    RunningTask,
    run_interruptibly,
    running_here,
)
from jobqueue.executor.running.task_runner import call, call_in_context, complete, finish, in_context, prepare
from jobqueue.executor.telemetry.errors import from_the_body

PLAIN_TYPES = (type(None), bool, int, float, str)
MAX_PLAIN_VALUES = 20


class BodyTask(asyncio.Task[Any]):
    """
    An asyncio task that no other body can cancel.

    `for task in asyncio.all_tasks(): task.cancel()` in one body then cancels no task of another body.
    """

    # the claim of the body that has created the task, while that body runs; None: no body has, or it has ended
    owner: RunningTask | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        caller, owner = running_here.get(), self.owner
        is_of_another = caller is not None and owner is not None and caller is not owner and owner.is_armed
        return not is_of_another and super().cancel(msg)


def make_owned_task(loop: asyncio.AbstractEventLoop, body: Any, **options: Any) -> BodyTask:
    """Create a task of the event loop, owned by the current body."""
    task = BodyTask(body, loop=loop, **options)
    task.owner = running_here.get()
    return task


class BodyThread(Executor):
    """
    The thread of one async body: its ORM calls run there, and have connections of their own.

    The thread, and all that it needs, is made for the first call. permits: limits how many bodies have database
    connections at once. A body that gets none waits in its thread. later: for what the body leaves behind on the loop
    and calls the ORM when the body is over.
    """

    def __init__(self, permits: Permits, later: Executor, name: str) -> None:
        self._permits, self._later, self._name = permits, later, name
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False
        self.connections = TaskConnections()

    @property
    def is_used(self) -> bool:
        return self._thread is not None

    def _enter(self) -> None:
        self._permit = self._permits.acquire()
        self.connections.enter()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_closed:
            return self._later.submit(function, *args, **kwargs)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name, self._enter)
        return self._thread.submit(self._call, partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], Any]) -> Any:
        self._permit.is_resting = False
        try:
            return function()
        finally:
            self._permit.is_resting = True
            leave_if_forked(self.connections.process)

    def close(self) -> None:
        """Close the connections and end the thread, as soon as its calls have returned."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.submit(self._leave)
            self._thread.shutdown(wait=False)

    def _leave(self) -> None:
        self.connections.leave()
        self._permits.release(self._permit)


@dataclass(slots=True, eq=False)
class AsyncRun:
    """
    One claimed task on the event loop, from its start to its outcome.

    The body's ORM calls run in its thread. So does our own code that may block: signal receivers, and user code that
    reads states and results. A body that needs none of that starts no thread: with a thread for each body, an executor
    ran 1,500 empty tasks a second instead of 6,600, and had 117 threads instead of 16. asgiref's own executor has no
    hook for that, nor one that resets and limits connections, so this class gives asgiref ours.

    The steps are callbacks. Only the body is a task of asyncio, and what waits for the thread: another one around all
    steps would cost as much as that of the body.
    """

    running: RunningTask  # the claimed task
    on_start: Callable[[Attempt], None]  # called before the body starts
    thread: BodyThread  # for the body's calls that block
    make_task: Callable[[Coroutine[Any, Any, Any], Context], asyncio.Task[Any]]  # of asyncio, which no body sees
    # called with the outcome, or with an error that is not the body's. It may start the next task, so start() leaves
    # that to a later callback.
    on_end: Callable[[RunningTask, CompletedAttempt | BaseException], None]

    def start(self) -> None:
        """Prepare the task and start its body. Call it in the ContextVars of the task."""
        running_here.set(self.running)
        context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[context] = self.thread
        SyncToAsync.thread_sensitive_context.set(context)
        claimed = self.running.claimed
        if isinstance(registry.get(claimed.task_type), PolledTask) or events.is_start_received(claimed):
            begin = sync_to_async(self._begin, thread_sensitive=True)()  # it keeps what receivers set
            self._wait_for(begin, self._start_body, self.running.variables)
        elif (completed := self._start_body(self._begin())) is not None:
            asyncio.get_running_loop().call_soon(self._step, lambda: completed)

    def _begin(self) -> Attempt | CompletedAttempt:
        attempt = prepare(self.running, self.thread.connections)
        if isinstance(attempt, Attempt):
            self.on_start(attempt)
        return attempt

    def _start_body(self, attempt: Attempt | CompletedAttempt) -> CompletedAttempt | None:
        if isinstance(attempt, CompletedAttempt):
            return attempt
        start_body(attempt).add_done_callback(partial(self._step, self._finish, attempt))
        return None

    def _finish(self, attempt: Attempt, body: asyncio.Task[Returned | Raised]) -> CompletedAttempt | None:
        running, ending = self.running, ending_of(attempt, body)
        if not self.thread.is_used and attempt.context is None and is_plain(ending):
            return complete(attempt, finish_quickly(attempt, ending))
        # The body may have left its thread at work, say after a wait_for(). It counts as running until then.
        running.variables = running.variables.copy()  # tasks that the body has left may run in the original
        end = partial(running.variables.run, lambda: end_attempt(attempt, finish_in_thread(attempt, ending)))
        work = asyncio.get_running_loop().run_in_executor(self.thread, end)
        self._wait_for(work, lambda completed: completed, Context())
        return None

    def _wait_for(
        self, work: Awaitable[Any], then: Callable[[Any], CompletedAttempt | None], variables: Context
    ) -> None:
        """Do the next step with the result of work in the thread."""

        async def result() -> Any:
            return await work

        task = self.make_task(result(), variables)
        task.add_done_callback(partial(self._step, lambda done: then(done.result())))

    def _step(self, act: Callable[..., CompletedAttempt | None], *arguments: Any) -> None:
        """Do a step. After the last one, and after an error outside of the body, the attempt is over."""
        result: CompletedAttempt | BaseException | None
        try:
            result = act(*arguments)
        except BaseException as error:  # noqa: BLE001 - not the body's error. The task must not stay RUNNING.
            result = error
        if result is not None:
            try:
                self.thread.close()
            finally:
                self.on_end(self.running, result)


def finish_quickly(attempt: Attempt, ending: Returned | Raised, in_thread: bool = False) -> Returned | Raised:
    """Finish what a body returned, without an interruption."""
    attempt.running.disarm()
    if isinstance(ending, Raised):
        return ending
    try:
        return Returned(finish_in_context(attempt, ending.value) if in_thread else finish(attempt, ending.value))
    except BaseException as error:  # noqa: BLE001 - as run_interruptibly() does
        return Raised(from_the_body(error))


def finish_in_thread(attempt: Attempt, ending: Returned | Raised) -> Returned | Raised:
    """Finish what an async body returned, in this thread and under the body's timeout."""
    if isinstance(ending, Raised) or attempt.running.reason is not None:  # it was asked to stop, but returned
        return finish_quickly(attempt, ending, in_thread=True)
    return run_interruptibly(attempt, partial(finish_in_context, attempt, ending.value))


def finish_in_context(attempt: Attempt, value: Any) -> Any:
    return in_context(attempt, partial(finish, attempt, value))


def is_plain(ending: Returned | Raised) -> bool:
    """Return whether the result is a few plain values. Encoding them takes no time and runs no code of the user's."""
    if isinstance(ending, Raised):
        return False
    value = ending.value
    parts = [*value, *value.values()] if type(value) is dict else value if type(value) in (list, tuple) else [value]
    return len(parts) <= MAX_PLAIN_VALUES and all(type(part) in PLAIN_TYPES for part in parts)


async def run_cancellably(attempt: Attempt) -> Returned | Raised:
    """Run the body in a copy of the current context."""
    attempt.running.variables = copy_context()
    body = start_body(attempt)
    try:
        await body
    except asyncio.CancelledError:
        if not body.done():
            raise
    return ending_of(attempt, body)


def start_body(attempt: Attempt) -> asyncio.Task[Returned | Raised]:
    """Start the body as a task of its own, which an interruption cancels; the claim stays armed."""
    loop, running = asyncio.get_running_loop(), attempt.running
    body = BodyTask(_guarded(attempt), loop=loop, context=running.variables)  # with what receivers have set
    body.owner = running

    def stop(_: type[Interrupted]) -> bool:
        of_body = Context()  # cancelling the body cancels what it waits for: that may be tasks of its neighbours
        of_body.run(running_here.set, running)
        loop.call_soon_threadsafe(body.cancel, context=of_body)
        attempt.connections.cancel()
        return True

    try:
        running.arm(stop)
    except Interrupted:
        body.cancel()
    return body


def ending_of(attempt: Attempt, body: asyncio.Task[Returned | Raised]) -> Returned | Raised:
    """Return how a body has ended, also if it was cancelled."""
    try:
        return body.result()
    except asyncio.CancelledError as cancelled:
        reason, error = attempt.running.reason, from_the_body(cancelled)
        return Raised(error if reason is None else reason().with_traceback(error.__traceback__))


async def _guarded(attempt: Attempt) -> Returned | Raised:
    """Await the body. A SystemExit or KeyboardInterrupt that it raises must not end the loop."""
    running = attempt.running
    try:
        has_no_context = running.claimed.metadata == "{}"
        returned = await (call(attempt) if has_no_context else call_in_context(attempt))
        leave_if_forked(running.process)
        return Returned(returned)
    except asyncio.CancelledError:
        leave_if_forked(running.process)
        raise
    except BaseException as error:  # noqa: BLE001 - any exception of the body is its outcome
        leave_if_forked(running.process, error)
        return Raised(from_the_body(error))
