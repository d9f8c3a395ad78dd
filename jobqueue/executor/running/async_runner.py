"""One attempt of an `async def` task: its body runs on the event loop, its ORM calls in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from jobqueue import registry
from jobqueue.actor import ActorTask
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import Interrupted
from jobqueue.executor.database import task_connections
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.forks import leave_if_forked
from jobqueue.executor.running.atomic import end_attempt
from jobqueue.executor.running.interrupt import run_interruptibly
from jobqueue.executor.running.task_runner import (
    CompletedAttempt,
    ExecutorIdentity,
    OnStart,
    PreparedTask,
    Raised,
    Returned,
    call,
    finish,
    prepare,
    to_outcome,
)
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.telemetry import events
from jobqueue.executor.telemetry.errors import from_the_body

PLAIN_TYPES = (type(None), bool, int, float, str)
MAX_PLAIN_VALUES = 20

_owner: ContextVar[RunningTask | None] = ContextVar("jobqueue.owner", default=None)  # the claim whose body runs here


class OwnedTask(asyncio.Task[Any]):
    """
    An asyncio task that no other body can cancel.

    `for task in asyncio.all_tasks(): task.cancel()` in one body then cancels no task of another body.
    owner: the claim whose body has created the task, while that body runs.
    """

    owner: RunningTask | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        caller, owner = _owner.get(), self.owner
        is_of_another = caller is not None and owner is not None and caller is not owner and owner.is_armed
        return not is_of_another and super().cancel(msg)


def make_task(loop: asyncio.AbstractEventLoop, body: Any, **options: Any) -> OwnedTask:
    """Create a task of the event loop, owned by the current body."""
    task = OwnedTask(body, loop=loop, **options)
    task.owner = _owner.get()
    return task


class BodyThread(ThreadPoolExecutor):
    """
    The thread of one async body: its ORM calls run there, and have connections of their own.

    The thread starts with the first call. permits: limits how many bodies have database connections at once. A body
    that gets none waits in its thread.
    """

    def __init__(self, permits: threading.Semaphore, name: str) -> None:
        super().__init__(max_workers=1, thread_name_prefix=name, initializer=self._enter)
        self._permits = permits
        self.connections = TaskConnections()
        self.is_used = False

    def _enter(self) -> None:
        self._permits.acquire()
        self.connections.enter()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.is_used = True
        return super().submit(self._call, partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        finally:
            leave_if_forked(self.connections.process)

    def close(self) -> None:
        """Close the connections and end the thread, as soon as its calls have returned."""
        if self.is_used:
            super().submit(self._leave)
        self.shutdown(wait=False)

    def _leave(self) -> None:
        self.connections.leave()
        self._permits.release()


async def run_async_task(
    hold: RunningTask,
    engine: Engine,
    worker: ExecutorIdentity,
    on_start: OnStart,
    thread: BodyThread,
    later_threads: Executor,
) -> CompletedAttempt:
    """
    Run one claimed task to its outcome.

    The body's ORM calls run in its thread. So does our own code that may block: signal receivers, and user code that
    reads states and results. A body that needs none of that starts no thread, which would cost more than all the rest.
    later_threads: for what the body leaves behind on the loop and calls the ORM when the body is over.
    """
    context = ThreadSensitiveContext()
    SyncToAsync.context_to_thread_executor[context] = thread
    SyncToAsync.thread_sensitive_context.set(context)
    is_actor = isinstance(registry.get(hold.claimed.task_type), ActorTask)
    try:
        if is_actor or events.is_start_received(hold.claimed):
            loaded = await sync_to_async(_begin, thread_sensitive=True)(hold, worker, on_start)
        else:
            loaded = _begin(hold, worker, on_start)
        if isinstance(loaded, CompletedAttempt):
            return loaded
        ending = await run_cancellably(hold, thread.connections.cancel, loaded)
        if not thread.is_used and not is_actor and is_plain(ending):
            hold.disarm()
            return to_outcome(hold, loaded, finish_quickly(hold, loaded, ending, worker), worker)
        # The body may have left its thread at work, say after a wait_for(). It counts as running until then.
        end = partial(copy_context().run, _end, hold, loaded, ending, engine, worker)
        return await asyncio.get_running_loop().run_in_executor(thread, end)
    finally:
        SyncToAsync.context_to_thread_executor[context] = later_threads
        thread.close()


def finish_quickly(
    hold: RunningTask, loaded: PreparedTask, ending: Returned | Raised, worker: ExecutorIdentity
) -> Returned | Raised:
    """Finish what a body returned, in this thread or on the loop. The claim must be disarmed."""
    if isinstance(ending, Raised):
        return ending
    try:
        return Returned(finish(hold, loaded, ending.value, worker))
    except BaseException as error:  # noqa: BLE001 - as run_interruptibly() does
        return Raised(from_the_body(error))


def finish_in_thread(
    hold: RunningTask,
    loaded: PreparedTask,
    ending: Returned | Raised,
    worker: ExecutorIdentity,
    connections: TaskConnections,
) -> Returned | Raised:
    """Finish what an async body returned, in this thread and under the body's timeout."""
    if isinstance(ending, Raised):
        hold.disarm()
        return ending
    if hold.reason is not None:  # it was asked to stop, but returned
        hold.disarm()
        return finish_quickly(hold, loaded, ending, worker)
    return run_interruptibly(hold, connections, partial(finish, hold, loaded, ending.value, worker))


def _begin(hold: RunningTask, worker: ExecutorIdentity, on_start: OnStart) -> PreparedTask | CompletedAttempt:
    loaded = prepare(hold, worker)
    if isinstance(loaded, PreparedTask):
        on_start(hold, loaded)
    return loaded


def is_plain(ending: Returned | Raised) -> bool:
    """Return whether the result is a few plain values. Encoding them takes no time and runs no code of the user's."""
    if isinstance(ending, Raised):
        return False
    value = ending.value
    parts = [*value, *value.values()] if type(value) is dict else value if type(value) in (list, tuple) else [value]
    return len(parts) <= MAX_PLAIN_VALUES and all(type(part) in PLAIN_TYPES for part in parts)


def _end(
    hold: RunningTask, loaded: PreparedTask, ending: Returned | Raised, engine: Engine, worker: ExecutorIdentity
) -> CompletedAttempt:
    connections = task_connections.current()
    ending = finish_in_thread(hold, loaded, ending, worker, connections)
    return end_attempt(hold, loaded, ending, engine, worker, connections)


async def run_cancellably(
    hold: RunningTask, cancel_statement: Callable[[], None], loaded: PreparedTask
) -> Returned | Raised:
    """Run the body as a task of its own, which an interruption cancels; the claim stays armed."""
    loop = asyncio.get_running_loop()
    task = OwnedTask(_guarded(hold, loaded), loop=loop)
    task.owner = hold
    of_body = Context()  # cancelling the body cancels what it waits for: that may be tasks of its neighbours
    of_body.run(_owner.set, hold)

    def stop(_: type[Interrupted]) -> None:
        loop.call_soon_threadsafe(task.cancel, context=of_body)
        cancel_statement()

    try:
        hold.arm(stop)
    except Interrupted:
        task.cancel()
    await asyncio.wait([task])
    try:
        ending: Returned | Raised = task.result()
        return ending
    except asyncio.CancelledError as cancelled:
        if hold.reason is None:
            return Raised(from_the_body(cancelled))
        return Raised(hold.reason().with_traceback(from_the_body(cancelled).__traceback__))


async def _guarded(hold: RunningTask, loaded: PreparedTask) -> Returned | Raised:
    """Await the body. A SystemExit or KeyboardInterrupt that it raises must not end the loop."""
    _owner.set(hold)
    try:
        returned = await call(hold, loaded)
        leave_if_forked(hold.process)
        return Returned(returned)
    except asyncio.CancelledError:
        leave_if_forked(hold.process)
        raise
    except BaseException as error:  # noqa: BLE001 - any exception of the body is its outcome
        leave_if_forked(hold.process, error)
        return Raised(from_the_body(error))
