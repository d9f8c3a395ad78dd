"""Worker threads, and how a plain function runs in one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from functools import partial

from jobqueue.engine.engine import Engine
from jobqueue.executor.database import task_connections
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.pools.base import Pool, PoolContext
from jobqueue.executor.running.actor_runner import poll_again
from jobqueue.executor.running.atomic import end_attempt, poll_atomically
from jobqueue.executor.running.interrupt import run_interruptibly
from jobqueue.executor.running.task_runner import CompletedAttempt, ExecutorIdentity, OnStart, poll, prepare
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.standard_streams import fill_standard_streams
from jobqueue.executor.telemetry.errors import is_starved
from jobqueue.executor.telemetry.events import task_fields
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.executor.telemetry.redaction_filter import mask_for
from jobqueue.printable import printable

logger = get_logger(__name__)


class ThreadPool(Pool):
    """Worker threads. Each takes its next task from the buffer itself."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        super().__init__(slots, context)
        self._sessions: list[TaskConnections] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"jobqueue-worker-{number}", daemon=True)
            for number in range(slots)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Sequence[RunningTask]) -> None:
        self._buffer.put(tasks)

    def ended_threads(self) -> Iterator[str]:
        return (thread.name for thread in self._threads if not thread.is_alive())

    def _work(self) -> None:
        try:
            session = TaskConnections()
            session.enter()
            self._sessions.append(session)
            while (task := self._buffer.wait_and_take()) is not None:
                # A context for each task, so that the next one does not see the language or tenant that a body sets.
                copy_context().run(self._run, task)
            session.leave()
        except BaseException as failure:  # noqa: BLE001 - a body can raise any exception in this thread
            self._context.on_failure(failure)

    def _run(self, task: RunningTask) -> None:
        engine, worker = self._context.engine, self._context.worker
        try:
            attempt = poll_in_thread(task, engine, worker, self._context.on_start)
        except BaseException as error:  # noqa: BLE001 - not the body's error. The task must not stay RUNNING.
            attempt = release_aborted(task, error, worker)
        fill_standard_streams()
        # The slot comes first: the transaction that commits this task then claims another one for it.
        self._buffer.release(task)
        self._context.on_completed(attempt)

    def cut_connections(self) -> None:
        for session in list(self._sessions):
            session.cut()

    def close(self, timeout_seconds: float) -> bool:
        self._buffer.close()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def release_aborted(hold: RunningTask, error: BaseException, worker: ExecutorIdentity) -> CompletedAttempt:
    """
    Release a task after a failure outside its body.

    This counts no attempt, because the cause is the executor, the site, or another task that used up the memory.
    """
    if not is_starved(error):
        logger.error(
            "task.aborted task=%s id=%s",
            printable(hold.claimed.task_type),
            hold.id,
            exc_info=error,
            extra=task_fields(hold.claimed, worker) | {"mask": mask_for(hold.claimed, worker.options)},
        )
    return CompletedAttempt(hold=hold, outcome=poll_again(hold.claimed, worker.options.poll_interval), error=error)


def poll_in_thread(hold: RunningTask, engine: Engine, worker: ExecutorIdentity, on_start: OnStart) -> CompletedAttempt:
    """Run one claimed task to its outcome, on connections without open transactions."""
    session = task_connections.current()
    loaded = prepare(hold, worker)
    if isinstance(loaded, CompletedAttempt):
        return loaded
    on_start(hold, loaded)
    try:
        if loaded.task.atomic:
            return poll_atomically(hold, loaded, engine, worker, session)
        ending = run_interruptibly(hold, session, partial(poll, hold, loaded, worker))
        return end_attempt(hold, loaded, ending, engine, worker, session)
    finally:
        if hold.reason is not None:
            session.close()
        session.reset()
