"""Worker threads: bodies of plain functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from django.db.transaction import TransactionManagementError

from jobqueue.engine.base import Engine
from jobqueue.executor import sessions
from jobqueue.executor.atomic import commit_with, poll_atomically
from jobqueue.executor.hold import Hold
from jobqueue.executor.interrupt import run_interruptibly
from jobqueue.executor.lane import ThreadLane
from jobqueue.executor.masks import log_failure
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, call, conclude, load
from jobqueue.executor.sessions import Session
from jobqueue.executor.turn import is_commit_function

OnStart = Callable[[Hold, Loaded], None]
Job = Callable[[], None]


class Threads:
    """
    The worker threads of a lane, and one more for chores. poll: sees one task to its end and out of the lane; it must
    not raise.

    A chore, such as telling receivers what was committed, waits for no body to end: it has a thread
    of its own, and the workers help between two tasks.
    """

    def __init__(self, lane: ThreadLane, poll: Callable[[Hold], None], name: str) -> None:
        self._lane, self._poll = lane, poll
        self._chores: SimpleQueue[Job | None] = SimpleQueue()
        self._sessions: list[Session] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-worker-{number}", daemon=True)
            for number in range(lane.slots)
        ]
        self._threads.append(threading.Thread(target=self._do_chores, name=f"{name}-chores", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit_chore(self, chore: Job) -> None:
        self._chores.put(chore)

    def _work(self) -> None:
        session = self._enter()
        hold = self._lane.next()
        while hold is not None:
            self._poll(hold)
            if not self._chores.empty():
                self._lane.go_on()
                while (chore := self._next_chore()) is not None:
                    run_safely(chore)
            hold = self._lane.next()
        session.leave()

    def _do_chores(self) -> None:
        session = self._enter()
        while (chore := self._chores.get()) is not None:
            run_safely(chore)
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
    try:
        job()
    except BaseException:  # noqa: BLE001 - a job of ours that fails must not take its thread along
        log_failure("worker.error")


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
        ending = run_interruptibly(hold, session, partial(call, hold, loaded))
        match nothing_left_open(ending, session):
            case Returned(value) if loaded.context is not None and is_commit_function(value):
                return commit_with(hold, loaded, engine, worker, value, session)
            case over:
                return conclude(hold, loaded, over, worker)
    finally:
        if hold.reason is not None:
            session.close()
        session.tidy()
