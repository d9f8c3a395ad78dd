"""One event loop in a thread of its own: bodies of `async def` functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from jobqueue import registry
from jobqueue.actor import ActorTask
from jobqueue.engine.base import Engine
from jobqueue.exceptions import Interrupted
from jobqueue.executor import announce, sessions
from jobqueue.executor.atomic import commit_with
from jobqueue.executor.errors import from_the_body
from jobqueue.executor.hold import Hold
from jobqueue.executor.masks import log_failure, subject
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, broken_off, call, conclude, load
from jobqueue.executor.sessions import Session
from jobqueue.executor.spare import OwnThread, SpareThreads
from jobqueue.executor.threads import OnStart, nothing_left_open
from jobqueue.executor.turn import is_commit_function
from jobqueue.outcome import FINAL

WIND_UP_SECONDS = 0.5  # for cancelled bodies to go when the loop ends
LIGHT = (type(None), bool, int, float, str)
LIGHT_MOST = 20


class Loop:
    """The loop, started with its thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_TidyExecutor(thread_name_prefix=f"{name}-sync"))
        self.threads = SpareThreads(name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closing:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001 - a SystemExit of a task that a body started and left ends every event loop
                log_failure("loop.error")
        try:
            self._loop.run_until_complete(self._wind_up())
        finally:
            self._loop.close()

    async def _wind_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
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
        call_soon(self._start, hold, engine, worker, on_start, done)

    def _start(
        self, hold: Hold, engine: Engine, worker: Worker, on_start: OnStart, done: Callable[[Ended], None]
    ) -> None:
        async def run() -> None:
            subject.set((hold.claimed, worker))
            try:
                over = await poll_on_loop(hold, engine, worker, on_start, self.threads)
            except BaseException as error:  # not the body's: ours. The task must not stay RUNNING for it.
                if self._is_closing and isinstance(error, asyncio.CancelledError):
                    raise
                over = broken_off(hold, error, worker)
                if over.outcome.status in FINAL:
                    log_failure("loop.error task id=%s type=%s", hold.id, hold.claimed.task_type)
            done(over)

        task = self._loop.create_task(run())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

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
        return super().submit(_in_session, function, *args, **kwargs)


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
        if is_actor or announce.is_start_received(hold.claimed):
            loaded = await sync_to_async(_begin, thread_sensitive=True)(hold, worker, on_start)
        else:
            loaded = _begin(hold, worker, on_start)
        if isinstance(loaded, Ended):
            return loaded
        ending = await run_cancellably(hold, own.cancel, loaded)
        if not own.is_taken and not is_actor and is_light(ending):
            hold.disarm()
            return conclude(hold, loaded, ending, worker)
        end = partial(copy_context().run, _end, hold, loaded, ending, engine, worker)
        over = asyncio.get_running_loop().run_in_executor(own, end)
    finally:
        own.close()
    return await over


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
    hold.disarm()
    session = sessions.current()
    match nothing_left_open(ending, session):
        case Returned(value) if loaded.context is not None and is_commit_function(value):
            return commit_with(hold, loaded, engine, worker, value, session)
        case over:
            return conclude(hold, loaded, over, worker)


async def run_cancellably(hold: Hold, cancel_statement: Callable[[], None], loaded: Loaded) -> Returned | Raised:
    """Run the body as a task of its own, which an interruption cancels; the hold stays armed."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(_guarded(hold, loaded))

    def stop(_: type[Interrupted]) -> None:
        loop.call_soon_threadsafe(task.cancel)
        cancel_statement()

    try:
        hold.arm(stop)
    except Interrupted:
        task.cancel()
    await asyncio.wait([task])
    try:
        return task.result()
    except asyncio.CancelledError as cancelled:
        if hold.reason is None:
            return Raised(from_the_body(cancelled))
        return Raised(hold.reason().with_traceback(from_the_body(cancelled).__traceback__))


async def _guarded(hold: Hold, loaded: Loaded) -> Returned | Raised:
    """Await the body; a SystemExit or KeyboardInterrupt of its making must not end the loop."""
    try:
        return Returned(await call(hold, loaded))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the body raises is its outcome
        return Raised(from_the_body(error))
