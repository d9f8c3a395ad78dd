"""One event loop in a thread of its own: bodies of `async def` functions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from jobqueue.engine.base import Engine
from jobqueue.exceptions import Interrupted
from jobqueue.executor.atomic import commit_with
from jobqueue.executor.errors import from_the_body, log_failure
from jobqueue.executor.hold import Hold
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, call, conclude, failed, load
from jobqueue.executor.sessions import Session
from jobqueue.executor.threads import OnStart, nothing_left_open
from jobqueue.executor.turn import is_commit_function

logger = logging.getLogger("jobqueue.executor")

WIND_UP_SECONDS = 0.5  # for cancelled bodies to go when the loop ends


class Loop:
    """The loop, started with its thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_TidyExecutor(thread_name_prefix=f"{name}-sync"))
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
                log_failure(logger, "loop.error")
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
        self._loop.call_soon_threadsafe(self._start, hold, engine, worker, on_start, done)

    def _start(
        self, hold: Hold, engine: Engine, worker: Worker, on_start: OnStart, done: Callable[[Ended], None]
    ) -> None:
        async def run() -> None:
            try:
                over = await poll_on_loop(hold, engine, worker, on_start)
            except BaseException as error:  # not the body's: ours. The task must not stay RUNNING for it.
                if self._is_closing and isinstance(error, asyncio.CancelledError):
                    raise
                log_failure(logger, "loop.error task id=%s type=%s", hold.id, hold.claimed.task_type)
                over = Ended(hold=hold, outcome=failed(hold.claimed, error, worker), error=error)
            done(over)

        task = self._loop.create_task(run())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the loop; returns whether its thread has ended."""
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_seconds)
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


class _OwnThread(ThreadSensitiveContext):
    """A thread of its own for the ORM calls of one body, which nobody waits for when the body is over."""

    async def __aexit__(self, *exc_info: Any) -> None:
        # asgiref would block the whole loop until the thread has ended.
        executor = SyncToAsync.context_to_thread_executor.pop(self, None)
        if executor is not None:
            executor.shutdown(wait=False)
        await super().__aexit__(*exc_info)  # type: ignore[no-untyped-call]


async def poll_on_loop(hold: Hold, engine: Engine, worker: Worker, on_start: OnStart) -> Ended:
    """
    Run one claimed task to its outcome.

    Everything of ours around the body, and the body's own ORM calls, have a thread and connections
    of their own: signal receivers may block, and two bodies never share a transaction.
    """
    session = Session()
    async with _OwnThread():
        loaded = await sync_to_async(_begin, thread_sensitive=True)(hold, session, worker, on_start)
        if isinstance(loaded, Ended):
            return loaded
        ending = await run_cancellably(hold, session, loaded)
        return await sync_to_async(_end, thread_sensitive=True)(hold, session, loaded, ending, engine, worker)


def _begin(hold: Hold, session: Session, worker: Worker, on_start: OnStart) -> Loaded | Ended:
    session.enter()
    loaded = load(hold, worker)
    if isinstance(loaded, Loaded):
        on_start(hold, loaded)
    else:
        session.leave()
    return loaded


def _end(
    hold: Hold, session: Session, loaded: Loaded, ending: Returned | Raised, engine: Engine, worker: Worker
) -> Ended:
    # The body may have left its thread at work, say after a wait_for(); it counts as running until here.
    hold.disarm()
    try:
        match nothing_left_open(ending, session):
            case Returned(value) if loaded.context is not None and is_commit_function(value):
                return commit_with(hold, loaded, engine, worker, value, session)
            case over:
                if loaded.context is None:
                    session.leave()
                return conclude(hold, loaded, over, worker)
    finally:
        session.leave()


async def run_cancellably(hold: Hold, session: Session, loaded: Loaded) -> Returned | Raised:
    """Run the body as a task of its own, which an interruption cancels; the hold stays armed."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(_guarded(hold, loaded))

    def stop(_: type[Interrupted]) -> None:
        loop.call_soon_threadsafe(task.cancel)
        session.cancel()

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
