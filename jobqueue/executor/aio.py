"""One event loop in a thread of its own: bodies of `async def` functions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

from jobqueue.exceptions import Interrupted
from jobqueue.executor.hold import Hold
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, conclude, context_for, failed, load
from jobqueue.executor.threads import Started, clean_connections

logger = logging.getLogger("jobqueue.executor")


class Loop:
    """The loop, started with its thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def submit(self, hold: Hold, worker: Worker, on_started: Started, done: Callable[[Ended], None]) -> None:
        """Run one claimed task; `done` gets its outcome, in the loop's thread."""
        self._loop.call_soon_threadsafe(self._start, hold, worker, on_started, done)

    def _start(self, hold: Hold, worker: Worker, on_started: Started, done: Callable[[Ended], None]) -> None:
        async def run() -> None:
            try:
                over = await poll_on_loop(hold, worker, on_started)
            except Exception as error:  # not the body's: ours. The task must not stay RUNNING for it.
                logger.exception("loop.error task id=%s type=%s", hold.id, hold.claimed.task_type)
                over = Ended(hold=hold, outcome=failed(hold.claimed, error, worker), error=error)
            done(over)

        task = self._loop.create_task(run())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def close(self, timeout_seconds: float) -> bool:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()


async def poll_on_loop(hold: Hold, worker: Worker, on_started: Started) -> Ended:
    """
    Run one claimed task to its outcome.

    Everything of ours around the body, and the body's own ORM calls, have a thread and connections
    of their own: signal receivers may block, and two bodies never share a transaction.
    """
    async with ThreadSensitiveContext():
        match await sync_to_async(_begin, thread_sensitive=True)(hold, worker, on_started):
            case Ended() as over:
                return over
            case loaded:
                ending = await call(hold, loaded)
                return await sync_to_async(_end, thread_sensitive=True)(hold, loaded, ending, worker)


def _begin(hold: Hold, worker: Worker, on_started: Started) -> Loaded | Ended:
    clean_connections()
    loaded = load(hold, worker)
    if isinstance(loaded, Loaded):
        hold.start(loaded.limits.timeout)
        on_started(hold, loaded)
    else:
        connections.close_all()
    return loaded


def _end(hold: Hold, loaded: Loaded, ending: Returned | Raised, worker: Worker) -> Ended:
    # This thread ends with the task, and its connections with it.
    clean_connections()
    connections.close_all()
    return conclude(hold, loaded, ending, worker)


async def call(hold: Hold, loaded: Loaded) -> Returned | Raised:
    """Run the body as a task of its own, which an interruption cancels."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(guarded(hold, loaded))

    def stop(_: type[Interrupted]) -> None:
        loop.call_soon_threadsafe(task.cancel)

    hold.arm(stop)
    try:
        await asyncio.wait([task])
    finally:
        hold.disarm()
    if task.cancelled():
        return Raised(
            hold.reason() if hold.reason is not None else asyncio.CancelledError("the task cancelled itself")
        )
    return task.result()


async def guarded(hold: Hold, loaded: Loaded) -> Returned | Raised:
    """Await the body; a SystemExit or KeyboardInterrupt of its making must not end the loop."""
    arguments = [context_for(hold, loaded), *loaded.args] if loaded.task.takes_context else loaded.args
    try:
        return Returned(await loaded.task.func(*arguments, **loaded.kwargs))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return Raised(error)
