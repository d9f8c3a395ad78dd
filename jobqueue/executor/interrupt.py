"""A body in a thread, which an exception may stop between any two byte codes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from jobqueue.exceptions import Interrupted
from jobqueue.executor.forks import leave_if_forked
from jobqueue.executor.hold import Hold
from jobqueue.executor.run import Raised, Returned
from jobqueue.executor.sessions import Session
from jobqueue.executor.telemetry.errors import from_the_body


def run_interruptibly(hold: Hold, session: Session, body: Callable[[], Any]) -> Returned | Raised:
    """
    Run the body in this thread; once this has returned, no interruption arrives any more.

    Until disarm() is through, it may arrive anywhere in here: hence the loop. That a second one
    arrives in the lines that catch the first cannot be, by hold.TELL_GAP_SECONDS.
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
                except BaseException as error:  # noqa: BLE001 - whatever the body raises is its outcome
                    ending = Raised(from_the_body(error))
            leave_if_forked(hold.process, ending.error if isinstance(ending, Raised) else None)
            hold.disarm(partial(clear_thread, ident))
            is_over = True
        except Interrupted as late:
            ending = ending or Raised(from_the_body(late))
    assert ending is not None
    return ending


def stop_thread(ident: int, session: Session, reason: type[Interrupted]) -> None:
    """Raise an exception in a thread, and cancel what it waits for on the server."""
    set_async_exception(ctypes.c_ulong(ident), ctypes.py_object(reason))
    session.cancel()


def clear_thread(ident: int) -> None:
    """Take back an exception that has not been raised yet."""
    set_async_exception(ctypes.c_ulong(ident), None)


set_async_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
