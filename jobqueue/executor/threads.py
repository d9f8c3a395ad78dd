"""Worker threads: bodies of plain functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue

from django.db.transaction import TransactionManagementError

from jobqueue.engine.engine import Engine
from jobqueue.executor import sessions
from jobqueue.executor.atomic import commit_with, poll_atomically
from jobqueue.executor.hold import Hold
from jobqueue.executor.interrupt import run_interruptibly
from jobqueue.executor.lane import ThreadLane
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, conclude, load, poll
from jobqueue.executor.sessions import Session
from jobqueue.executor.telemetry.errors import is_starved
from jobqueue.executor.telemetry.events import task_fields
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.executor.telemetry.redaction_filter import mask_for
from jobqueue.executor.turn import poll_again
from jobqueue.printable import printable
from jobqueue.records import Outcome

logger = get_logger(__name__)

OnStart = Callable[[Hold, Loaded], None]
Job = Callable[[], None]


class Threads:
    """
    The worker threads of a lane, and one more for chores.

    poll: runs one task until it has ended and left the lane. on_failure: called if a thread ends unexpectedly. It ends
    the process, because the thread's task would otherwise stay RUNNING.

    A chore, such as telling receivers what was committed, waits for no body to end: it has a thread
    of its own, and the workers help between two tasks.
    """

    def __init__(
        self, lane: ThreadLane, poll: Callable[[Hold], None], name: str, on_failure: Callable[[BaseException], object]
    ) -> None:
        self._lane, self._poll, self._on_failure = lane, poll, on_failure
        self._chore_since: float | None = None  # monotonic; when the current chore began
        self._chores: SimpleQueue[Job | None] = SimpleQueue()
        self._sessions: list[Session] = []
        self._threads = [
            threading.Thread(target=self._guard, args=(self._work,), name=f"{name}-worker-{number}", daemon=True)
            for number in range(lane.slots)
        ]
        chores = threading.Thread(target=self._guard, args=(self._do_chores,), name=f"{name}-chores", daemon=True)
        self._threads.append(chores)
        for thread in self._threads:
            thread.start()

    def submit_chore(self, chore: Job) -> None:
        self._chores.put(chore)

    @property
    def ended(self) -> list[str]:
        """Name the threads that have ended."""
        return [thread.name for thread in self._threads if not thread.is_alive()]

    @property
    def chore_seconds(self) -> float:
        """Return for how many seconds the current chore has run."""
        since = self._chore_since
        return 0.0 if since is None else time.monotonic() - since

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001 - a body can raise any exception in this thread
            self._on_failure(failure)

    def _work(self) -> None:
        session = self._enter()
        hold = self._lane.next()
        while hold is not None:
            # A context for each task, so that the next one does not see the language or tenant that a body sets.
            copy_context().run(self._poll, hold)
            if not self._chores.empty():
                self._lane.go_on()
                while (chore := self._next_chore()) is not None:
                    run_safely(chore)
            hold = self._lane.next()
        session.leave()

    def _do_chores(self) -> None:
        session = self._enter()
        while (chore := self._chores.get()) is not None:
            self._chore_since = time.monotonic()
            run_safely(chore)
            self._chore_since = None
        session.leave()

    def _enter(self) -> Session:
        session = Session()
        session.enter()
        self._sessions.append(session)
        return session

    def _next_chore(self) -> Job | None:
        try:
            chore = self._chores.get_nowait()
        except Empty:
            return None
        if chore is None:  # the end, and meant for the other thread
            self._chores.put(None)
        return chore

    def cut_connections(self) -> None:
        """Cut the connections of all these threads off: whoever still runs cannot write any more."""
        for session in list(self._sessions):
            session.cut()

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads; returns whether all have ended."""
        self._lane.close()
        self._chores.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def run_safely(job: Job) -> None:
    """Run a job in its own context, and log what it raises."""
    try:
        copy_context().run(job)
    except BaseException:
        logger.exception("thread.failed")


def broken_off(hold: Hold, error: BaseException, worker: Worker) -> Ended:
    """
    Release a task whose poll failed outside its body, however often that happens.

    No attempt is counted, because the cause is the executor, the site, or a neighbour that used up the memory.
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
    """A body that left a transaction open has failed: what it wrote there is undone."""
    if isinstance(ending, Returned):
        try:
            session.check()
        except TransactionManagementError as error:
            return Raised(error.with_traceback(None))
    return ending


def poll_in_thread(hold: Hold, engine: Engine, worker: Worker, on_start: OnStart) -> Ended:
    """Run one claimed task to its outcome, on connections that nobody left anything open on."""
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
            case over:
                return conclude(hold, loaded, over, worker)
    finally:
        if hold.reason is not None:
            session.close()
        session.tidy()
