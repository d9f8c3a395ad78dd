"""One attempt of an `async def` task: its body runs on the event loop, its ORM calls in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from jobqueue.declarations import registry
from jobqueue.declarations.actor import ActorTask
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
from jobqueue.executor.running.task_runner import call, complete, finish, prepare
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


async def run_async_task(
    running: RunningTask, on_start: Callable[[Attempt], None], thread: BodyThread
) -> CompletedAttempt:
    """
    Run one claimed task to its outcome.

    The body's ORM calls run in its thread. So does our own code that may block: signal receivers, and user code that
    reads states and results. A body that needs none of that starts no thread: with a thread for each body, an executor
    ran 1,500 empty tasks a second instead of 6,600, and had 117 threads instead of 16. asgiref's own executor has no
    hook for that, nor one that resets and limits connections, so this function gives asgiref ours.
    """

    def begin() -> Attempt | CompletedAttempt:
        attempt = prepare(running, thread.connections)
        if isinstance(attempt, Attempt):
            on_start(attempt)
        return attempt

    running_here.set(running)
    context = ThreadSensitiveContext()
    SyncToAsync.context_to_thread_executor[context] = thread
    SyncToAsync.thread_sensitive_context.set(context)
    is_actor = isinstance(registry.get(running.claimed.task_type), ActorTask)
    try:
        may_block = is_actor or events.is_start_received(running.claimed)
        attempt = await sync_to_async(begin, thread_sensitive=True)() if may_block else begin()
        if isinstance(attempt, CompletedAttempt):
            return attempt
        ending = await run_cancellably(attempt)
        if not thread.is_used and not is_actor and is_plain(ending):
            return complete(attempt, finish_quickly(attempt, ending))
        # The body may have left its thread at work, say after a wait_for(). It counts as running until then.
        running.variables = running.variables.copy()  # tasks that the body has left may run in the original
        end = partial(running.variables.run, lambda: end_attempt(attempt, finish_in_thread(attempt, ending)))
        return await asyncio.get_running_loop().run_in_executor(thread, end)
    finally:
        thread.close()


def finish_quickly(attempt: Attempt, ending: Returned | Raised) -> Returned | Raised:
    """Finish what a body returned, without an interruption."""
    attempt.running.disarm()
    if isinstance(ending, Raised):
        return ending
    try:
        return Returned(finish(attempt, ending.value))
    except BaseException as error:  # noqa: BLE001 - as run_interruptibly() does
        return Raised(from_the_body(error))


def finish_in_thread(attempt: Attempt, ending: Returned | Raised) -> Returned | Raised:
    """Finish what an async body returned, in this thread and under the body's timeout."""
    if isinstance(ending, Raised) or attempt.running.reason is not None:  # it was asked to stop, but returned
        return finish_quickly(attempt, ending)
    return run_interruptibly(attempt, partial(finish, attempt, ending.value))


def is_plain(ending: Returned | Raised) -> bool:
    """Return whether the result is a few plain values. Encoding them takes no time and runs no code of the user's."""
    if isinstance(ending, Raised):
        return False
    value = ending.value
    parts = [*value, *value.values()] if type(value) is dict else value if type(value) in (list, tuple) else [value]
    return len(parts) <= MAX_PLAIN_VALUES and all(type(part) in PLAIN_TYPES for part in parts)


async def run_cancellably(attempt: Attempt) -> Returned | Raised:
    """Run the body as a task of its own, which an interruption cancels; the claim stays armed."""
    loop, running = asyncio.get_running_loop(), attempt.running
    running.variables = copy_context()  # with what receivers of task_started have set
    task = BodyTask(_guarded(attempt), loop=loop, context=running.variables)
    task.owner = running

    def stop(_: type[Interrupted]) -> bool:
        of_body = Context()  # cancelling the body cancels what it waits for: that may be tasks of its neighbours
        of_body.run(running_here.set, running)
        loop.call_soon_threadsafe(task.cancel, context=of_body)
        attempt.connections.cancel()
        return True

    try:
        running.arm(stop)
    except Interrupted:
        task.cancel()
    try:
        ending: Returned | Raised = await task
        return ending
    except asyncio.CancelledError as cancelled:
        if not task.done():  # this task was cancelled, at the end of the pool
            raise
        if running.reason is None:
            return Raised(from_the_body(cancelled))
        return Raised(running.reason().with_traceback(from_the_body(cancelled).__traceback__))


async def _guarded(attempt: Attempt) -> Returned | Raised:
    """Await the body. A SystemExit or KeyboardInterrupt that it raises must not end the loop."""
    running = attempt.running
    try:
        returned = await call(attempt)
        leave_if_forked(running.process)
        return Returned(returned)
    except asyncio.CancelledError:
        leave_if_forked(running.process)
        raise
    except BaseException as error:  # noqa: BLE001 - any exception of the body is its outcome
        leave_if_forked(running.process, error)
        return Raised(from_the_body(error))
