"""Worker threads, and how a plain function runs in one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial

from django.db.transaction import TransactionManagementError

from jobqueue.engine.engine import Engine
from jobqueue.executor import sessions
from jobqueue.executor.atomic import commit_with, poll_atomically
from jobqueue.executor.hold import Hold
from jobqueue.executor.interrupt import run_interruptibly
from jobqueue.executor.pools.base import Pool, PoolContext
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, conclude, load, poll
from jobqueue.executor.sessions import Session
from jobqueue.executor.standard_streams import fill_standard_streams
from jobqueue.executor.telemetry.errors import is_starved
from jobqueue.executor.telemetry.events import task_fields
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.executor.telemetry.redaction_filter import mask_for
from jobqueue.executor.turn import poll_again
from jobqueue.printable import printable
from jobqueue.records import Outcome

logger = get_logger(__name__)

OnStart = Callable[[Hold, Loaded], None]


class ThreadPool(Pool):
    """Worker threads. Each takes its next task from the buffer itself."""

    def __init__(self, slots: int, context: PoolContext) -> None:
        super().__init__(slots, context)
        self._sessions: list[Session] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"jobqueue-worker-{number}", daemon=True)
            for number in range(slots)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Sequence[Hold]) -> None:
        self._buffer.put(tasks)

    def ended_threads(self) -> Iterator[str]:
        return (thread.name for thread in self._threads if not thread.is_alive())

    def _work(self) -> None:
        try:
            session = Session()
            session.enter()
            self._sessions.append(session)
            while (task := self._buffer.wait_and_take()) is not None:
                # A context for each task, so that the next one does not see the language or tenant that a body sets.
                copy_context().run(self._run, task)
            session.leave()
        except BaseException as failure:  # noqa: BLE001 - a body can raise any exception in this thread
            self._context.on_failure(failure)

    def _run(self, task: Hold) -> None:
        engine, worker = self._context.engine, self._context.worker
        try:
            attempt = poll_in_thread(task, engine, worker, self._context.on_start)
        except BaseException as error:  # noqa: BLE001 - not the body's error. The task must not stay RUNNING.
            attempt = broken_off(task, error, worker)
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


def broken_off(hold: Hold, error: BaseException, worker: Worker) -> Ended:
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
    return Ended(hold=hold, outcome=poll_again(hold.claimed, worker.options.poll_interval), error=error)


def nothing_left_open(ending: Returned | Raised, session: Session) -> Returned | Raised:
    """Turn the end of a body that left a transaction open into a failure, because the executor rolls it back."""
    if isinstance(ending, Returned):
        try:
            session.check()
        except TransactionManagementError as error:
            return Raised(error.with_traceback(None))
    return ending


def poll_in_thread(hold: Hold, engine: Engine, worker: Worker, on_start: OnStart) -> Ended:
    """Run one claimed task to its outcome, on connections without open transactions."""
    session = sessions.current()
    loaded = load(hold, worker)
    if isinstance(loaded, Ended):
        return loaded
    on_start(hold, loaded)
    try:
        if loaded.task.atomic:
            return poll_atomically(hold, loaded, engine, worker, session)
        ending = run_interruptibly(hold, session, partial(poll, hold, loaded, worker))
        match nothing_left_open(ending, session):
            case Returned(value) if not isinstance(value, Outcome):
                return commit_with(hold, loaded, engine, worker, value, session)
            case attempt:
                return conclude(hold, loaded, attempt, worker)
    finally:
        if hold.reason is not None:
            session.close()
        session.tidy()
