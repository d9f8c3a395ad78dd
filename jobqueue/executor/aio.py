"""One event loop in a thread of its own: bodies of `async def` functions."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from asyncio.tasks import _unregister_task  # the documented way to keep a task out of all_tasks()
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any
from weakref import WeakSet

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from jobqueue import registry
from jobqueue.actor import ActorTask
from jobqueue.engine.engine import Engine
from jobqueue.exceptions import Interrupted
from jobqueue.executor import sessions
from jobqueue.executor.atomic import commit_with
from jobqueue.executor.forks import leave_if_forked, this_process
from jobqueue.executor.hold import Hold
from jobqueue.executor.interrupt import run_interruptibly
from jobqueue.executor.pools.threads import OnStart, broken_off, nothing_left_open
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, call, conclude, finish, load
from jobqueue.executor.sessions import Session
from jobqueue.executor.spare import OwnThread, SpareThreads
from jobqueue.executor.telemetry import events
from jobqueue.executor.telemetry.errors import from_the_body
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.records import Outcome

logger = get_logger(__name__)

WIND_UP_SECONDS = 0.5  # for cancelled bodies to go when the loop ends
LIGHT = (type(None), bool, int, float, str)
LIGHT_MOST = 20


_owner: ContextVar[Hold | None] = ContextVar("jobqueue.owner", default=None)  # the claim whose body runs here


class OwnedTask(asyncio.Task[Any]):
    """
    An asyncio task that no other body can cancel.

    `for task in asyncio.all_tasks(): task.cancel()` in one body then cancels no task of another body.
    owner: the claim whose body has created the task, while that body runs.
    """

    owner: Hold | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        caller, owner = _owner.get(), self.owner
        is_of_another = caller is not None and owner is not None and caller is not owner and owner.is_armed
        return not is_of_another and super().cancel(msg)


def make_task(loop: asyncio.AbstractEventLoop, body: Any, **options: Any) -> OwnedTask:
    """Create a task of the event loop, owned by the current body."""
    task = OwnedTask(body, loop=loop, **options)
    task.owner = _owner.get()
    return task


_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _stop_loops() -> None:
    """Stop the event loops in a child process that a body has forked."""
    for loop in _loops:
        loop.stop()
        # stop() alone lets ready callbacks run once more. asyncio has no public way to drop them.
        getattr(loop, "_ready", deque()).clear()


os.register_at_fork(after_in_child=_stop_loops)


class Loop:
    """
    The event loop and its thread.

    on_failure: called if the thread ends unexpectedly. It ends the process.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], object]) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(make_task)
        _loops.add(self._loop)
        self._on_failure, self._process = on_failure, this_process()
        self._asked_at: float | None = None  # monotonic; of the first request without an answer
        self._loop.set_default_executor(_TidyExecutor(thread_name_prefix=f"{name}-sync"))
        self.threads = SpareThreads(name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._run_until_closed()
        except BaseException as failure:  # noqa: BLE001 - a body can do anything to the loop
            self._on_failure(failure)

    def _run_until_closed(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closing:
            try:
                self._loop.run_forever()
            except BaseException:
                leave_if_forked(self._process)
                if self._loop.is_closed():
                    raise
                logger.exception("event_loop.failed")
            leave_if_forked(self._process)
        self._loop.set_task_factory(None)  # a body may have replaced it
        try:
            self._loop.run_until_complete(self._wind_up())
        finally:
            self._loop.close()

    @property
    def ended(self) -> list[str]:
        """Name the loop's thread, if it has ended."""
        return [] if self._thread.is_alive() else [self._thread.name]

    def silent_seconds(self) -> float:
        """Ask the loop to answer. Return the seconds since the first request without an answer."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)
        since = self._asked_at
        return 0.0 if since is None else time.monotonic() - since

    def _answer(self) -> None:
        self._asked_at = None

    async def _wind_up(self) -> None:
        left = (asyncio.all_tasks() | self._tasks) - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=WIND_UP_SECONDS)
        await self._loop.shutdown_asyncgens()

    def submit(
        self, hold: Hold, engine: Engine, worker: Worker, on_start: OnStart, done: Callable[[Ended], None]
    ) -> None:
        """Run one claimed task; `done` gets its outcome, in the loop's thread."""
        is_there = threading.get_ident() == self._thread.ident  # where no wake-up has to be written to the loop
        call_soon = self._loop.call_soon if is_there else self._loop.call_soon_threadsafe
        # A new context: the caller may run in the context of another task, which has just ended.
        call_soon(self._start, hold, engine, worker, on_start, done, context=Context())

    def _start(
        self, hold: Hold, engine: Engine, worker: Worker, on_start: OnStart, done: Callable[[Ended], None]
    ) -> None:
        async def run() -> None:
            try:
                over = await poll_on_loop(hold, engine, worker, on_start, self.threads)
            except BaseException as error:
                if self._is_closing and isinstance(error, asyncio.CancelledError):
                    raise
                over = broken_off(hold, error, worker)
            self._finish(done, over)

        try:
            task = asyncio.Task(run(), loop=self._loop)  # bypasses a factory that a body may have set
        except BaseException as error:  # noqa: BLE001 - asyncio would only log it, and the task would stay RUNNING
            self._finish(done, broken_off(hold, error, worker))
            return
        _unregister_task(task)  # all_tasks() does not show it, so that no body can cancel it or wait for it
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, done: Callable[[Ended], None], over: Ended) -> None:
        try:
            done(over)
        except BaseException as failure:  # noqa: BLE001 - asyncio would only log it, and the task would stay RUNNING
            self._on_failure(failure)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the loop; returns whether its thread has ended."""
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_seconds)
        self.threads.close()
        return not self._thread.is_alive()


class _TidyExecutor(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread` and its like, which keep no connection open behind a call."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(Context().run, _in_session, function, *args, **kwargs)


def _in_session(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    session = Session()
    session.enter()
    try:
        return function(*args, **kwargs)
    finally:
        session.leave()


async def poll_on_loop(hold: Hold, engine: Engine, worker: Worker, on_start: OnStart, threads: SpareThreads) -> Ended:
    """
    Run one claimed task to its outcome.

    The body's ORM calls, and what may block of what we do for it, have a thread and connections of their own: signal
    receivers, code of the user's that reads states and results. Two bodies never share a transaction.
    A body that needs none of that has no thread: to change threads twice takes longer than all the rest.
    """
    own = OwnThread(threads)
    sensitive = ThreadSensitiveContext()  # what its children may outlive
    SyncToAsync.context_to_thread_executor[sensitive] = own
    SyncToAsync.thread_sensitive_context.set(sensitive)
    is_actor = isinstance(registry.get(hold.claimed.task_type), ActorTask)
    try:
        if is_actor or events.is_start_received(hold.claimed):
            loaded = await sync_to_async(_begin, thread_sensitive=True)(hold, worker, on_start)
        else:
            loaded = _begin(hold, worker, on_start)
        if isinstance(loaded, Ended):
            return loaded
        ending = await run_cancellably(hold, own.cancel, loaded)
        if not own.is_taken and not is_actor and is_light(ending):
            hold.disarm()
            return conclude(hold, loaded, finish_quickly(hold, loaded, ending, worker), worker)
        end = partial(copy_context().run, _end, hold, loaded, ending, engine, worker)
        over = asyncio.get_running_loop().run_in_executor(own, end)
    finally:
        own.close()
    return await over


def finish_quickly(hold: Hold, loaded: Loaded, ending: Returned | Raised, worker: Worker) -> Returned | Raised:
    """Finish what a body returned, in this thread or on the loop. The claim must be disarmed."""
    if isinstance(ending, Raised):
        return ending
    try:
        return Returned(finish(hold, loaded, ending.value, worker))
    except BaseException as error:  # noqa: BLE001 - as run_interruptibly() does
        return Raised(from_the_body(error))


def finish_in_thread(
    hold: Hold, loaded: Loaded, ending: Returned | Raised, worker: Worker, session: Session
) -> Returned | Raised:
    """Finish what an async body returned, in this thread and under the body's timeout."""
    if isinstance(ending, Raised):
        hold.disarm()
        return ending
    if hold.reason is not None:  # it was asked to stop, but returned
        hold.disarm()
        return finish_quickly(hold, loaded, ending, worker)
    return run_interruptibly(hold, session, partial(finish, hold, loaded, ending.value, worker))


def _begin(hold: Hold, worker: Worker, on_start: OnStart) -> Loaded | Ended:
    loaded = load(hold, worker)
    if isinstance(loaded, Loaded):
        on_start(hold, loaded)
    return loaded


def is_light(ending: Returned | Raised) -> bool:
    """Whether its outcome takes no time and no code of the user's, which may block: made of a few plain values."""
    if isinstance(ending, Raised):
        return False
    value = ending.value
    parts = [*value, *value.values()] if type(value) is dict else value if type(value) in (list, tuple) else [value]
    return len(parts) <= LIGHT_MOST and all(type(part) in LIGHT for part in parts)


def _end(hold: Hold, loaded: Loaded, ending: Returned | Raised, engine: Engine, worker: Worker) -> Ended:
    # The body may have left its thread at work, say after a wait_for(); it counts as running until here.
    session = sessions.current()
    ending = finish_in_thread(hold, loaded, ending, worker, session)
    match nothing_left_open(ending, session):
        case Returned(value) if not isinstance(value, Outcome):
            return commit_with(hold, loaded, engine, worker, value, session)
        case over:
            return conclude(hold, loaded, over, worker)


async def run_cancellably(hold: Hold, cancel_statement: Callable[[], None], loaded: Loaded) -> Returned | Raised:
    """Run the body as a task of its own, which an interruption cancels; the hold stays armed."""
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


async def _guarded(hold: Hold, loaded: Loaded) -> Returned | Raised:
    """Await the body; a SystemExit or KeyboardInterrupt of its making must not end the loop."""
    _owner.set(hold)
    try:
        returned = await call(hold, loaded)
        leave_if_forked(hold.process)
        return Returned(returned)
    except asyncio.CancelledError:
        leave_if_forked(hold.process)
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the body raises is its outcome
        leave_if_forked(hold.process, error)
        return Raised(from_the_body(error))
