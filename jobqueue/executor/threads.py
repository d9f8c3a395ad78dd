"""Worker threads: bodies of plain functions."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import django.db
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue.engine.base import Engine
from jobqueue.exceptions import ClaimLost, Interrupted
from jobqueue.executor.hold import Hold
from jobqueue.executor.run import Ended, Loaded, Raised, Returned, Worker, conclude, context_for, load
from jobqueue.outcome import Status, released

logger = logging.getLogger("jobqueue.executor")

Started = Callable[[Hold, Loaded], None]
_open: dict[int, set[BaseDatabaseWrapper]] = {}  # connections of worker threads, by thread


class Threads:
    """
    N threads that take holds from one queue.

    poll: what to do with a hold. Other small jobs (announcing what was committed) share the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-worker-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        ident = threading.get_ident()
        _open[ident] = set()
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    job()
                except BaseException:  # a job of ours that fails must not take its thread along
                    logger.exception("worker.error")
        finally:
            connections.close_all()
            _open.pop(ident, None)

    def close_connections(self) -> None:
        """Close the connections of all these threads under them: whoever still runs cannot write any more."""
        for thread in self._threads:
            for wrapper in list(_open.get(thread.ident or 0, ())):
                if wrapper.connection is not None:
                    _quietly(wrapper.connection.close)

    def close(self, timeout_seconds: float) -> bool:
        """Stop the threads; returns whether all have ended."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def poll_in_thread(hold: Hold, engine: Engine, worker: Worker, on_started: Started) -> Ended:
    """Run one claimed task to its outcome, on Django connections checked before and cleaned after."""
    clean_connections()
    try:
        match load(hold, worker):
            case Ended() as over:
                return over
            case loaded:
                hold.start(loaded.limits.timeout)
                on_started(hold, loaded)
                if loaded.task.atomic:
                    return poll_atomically(hold, loaded, engine, worker)
                return conclude(hold, loaded, call(hold, loaded), worker)
    finally:
        if hold.reason is not None:
            connections.close_all()
        clean_connections()


def call(hold: Hold, loaded: Loaded) -> Returned | Raised:
    """
    Run the body where an interruption may arrive between any two byte codes.

    It may also arrive after the body, while we disarm; hence the loop.
    """
    ident = threading.get_ident()
    ending: Returned | Raised | None = None
    try:
        hold.arm(lambda reason: stop_thread(ident, reason))
        try:
            ending = Returned(body(hold, loaded))
        except BaseException as error:
            ending = Raised(error)
        hold.disarm(lambda: clear_thread(ident))
    except Interrupted as late:
        ending = ending or Raised(late)
    while hold.is_armed:
        try:
            hold.disarm(lambda: clear_thread(ident))
        except Interrupted as late:
            ending = ending or Raised(late)
    return ending if ending is not None else Raised(RuntimeError("the body ended without an outcome"))


def body(hold: Hold, loaded: Loaded) -> Any:
    if loaded.task.takes_context:
        return loaded.task.func(context_for(hold, loaded), *loaded.args, **loaded.kwargs)
    return loaded.task.func(*loaded.args, **loaded.kwargs)


class _RolledBack(Exception):
    """The atomic body did not succeed; its transaction is undone, its outcome goes the ordinary way."""

    def __init__(self, ended: Ended) -> None:
        self.ended = ended


def poll_atomically(hold: Hold, loaded: Loaded, engine: Engine, worker: Worker) -> Ended:
    """Run the body and commit its outcome in one transaction, on this thread's connection."""
    over: Ended | None = None
    try:
        with transaction.atomic(using=engine.database):
            ending = call(hold, loaded)
            over = conclude(hold, loaded, ending, worker)
            if over.outcome.status is not Status.SUCCESSFUL:
                raise _RolledBack(over)
            committed = engine.commit([over.outcome], wait=True)
            if hold.id in committed.refused:
                raise _RolledBack(conclude(hold, loaded, Raised(committed.refused[hold.id]), worker))
            if hold.id not in committed.done:
                raise ClaimLost
    except _RolledBack as rolled_back:
        return rolled_back.ended
    except ClaimLost:
        # The pulse presents the same outcome once more, is told that it is lost, and says so.
        return over if over is not None else Ended(hold=hold, outcome=released(hold.claimed))
    except django.db.Error as error:
        if over is None or over.outcome.status is not Status.SUCCESSFUL:
            return conclude(hold, loaded, Raised(error), worker)
        # The COMMIT's answer is unknown or it failed: where it took place the row is no longer ours and this
        # release is dropped; where it did not, nothing happened and the body runs again, no attempt counted.
        logger.warning("task.commit_in_doubt task id=%s type=%s: %s", hold.id, hold.claimed.task_type, error)
        return Ended(hold=hold, outcome=released(hold.claimed), result=loaded.result, error=error)
    return Ended(
        hold=hold,
        outcome=over.outcome,
        result=loaded.result,
        error=over.error,
        is_committed=True,
        seconds=over.seconds,
    )


def stop_thread(ident: int, reason: type[Interrupted]) -> None:
    """Raise an exception in a thread between two byte codes, and cancel what it runs on the server."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(reason))
    for wrapper in list(_open.get(ident, ())):
        cancel = getattr(wrapper.connection, "cancel_safe", None) or getattr(
            wrapper.connection, "cancel", None
        )
        if cancel is not None:
            threading.Thread(target=_quietly, args=(cancel,), daemon=True).start()


def _quietly(cancel: Callable[[], None]) -> None:
    try:
        cancel()
    except Exception as error:  # the connection may be closed by now, which is as good
        logger.debug("sql.cancel %s", error)


def clear_thread(ident: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), None)


def clean_connections() -> None:
    """Leave no transaction open, close what is broken or too old, forget logged queries."""
    for wrapper in connections.all(initialized_only=True):
        wrapper.queries_log.clear()
        if wrapper.connection is None:
            continue
        if wrapper.in_atomic_block or not wrapper.get_autocommit():
            discard(wrapper)
        else:
            wrapper.close_if_unusable_or_obsolete()


def discard(wrapper: BaseDatabaseWrapper) -> None:
    """Throw a connection away with whatever transaction a body left open on it."""
    try:
        wrapper.connection.close()
    except Exception as error:  # it is thrown away either way
        logger.debug("connection.discard %s", error)
    del connections[wrapper.alias]


def _remember(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    mine = _open.get(threading.get_ident())
    if mine is not None:
        mine.add(connection)


connection_created.connect(_remember, dispatch_uid="jobqueue.executor.threads")
