"""A body in a thread, which an exception can interrupt between any two byte codes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from jobqueue.exceptions import Interrupted
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.forks import leave_if_forked
from jobqueue.executor.running.task_runner import Raised, Returned
from jobqueue.executor.running_tasks import RunningTask
from jobqueue.executor.telemetry.errors import from_the_body


def run_interruptibly(hold: RunningTask, session: TaskConnections, body: Callable[[], Any]) -> Returned | Raised:
    """
    Run the body in this thread. After this has returned, no interruption arrives.

    Until disarm() has returned, one may arrive at any line here, so this is a loop. The next one cannot arrive while
    the first is caught: running_tasks.INTERRUPT_GAP_SECONDS are between them.
    """
    ident = threading.get_ident()
    ending: Returned | Raised | None = None
    is_over = False
    while not is_over:
        try:
            if ending is None:
                try:
                    hold.arm(partial(stop_thread, ident, session))
                    ending = Returned(body())
                except BaseException as error:  # noqa: BLE001 - any exception of the body is its outcome
                    ending = Raised(from_the_body(error))
            leave_if_forked(hold.process, ending.error if isinstance(ending, Raised) else None)
            hold.disarm(partial(clear_thread, ident))
            is_over = True
        except Interrupted as late:
            ending = ending or Raised(from_the_body(late))
    assert ending is not None
    return ending


def stop_thread(ident: int, session: TaskConnections, reason: type[Interrupted]) -> None:
    """Raise an exception in a thread, and cancel its statement on the server."""
    set_async_exception(ctypes.c_ulong(ident), ctypes.py_object(reason))
    session.cancel()


def clear_thread(ident: int) -> None:
    """Clear an exception that has not been raised yet."""
    set_async_exception(ctypes.c_ulong(ident), None)


set_async_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
