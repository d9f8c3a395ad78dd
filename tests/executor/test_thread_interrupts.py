"""An interruption never leaves a lock of the standard library locked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobqueue.executor.running.thread_interrupts import clear_thread, interrupt_thread
from tests.waiting import wait_until

ROUNDS = 10


class StopThread(BaseException):
    pass


@pytest.fixture
def own_logger() -> logging.Logger:
    """A logger with a handler that takes its time, so that threads wait for its lock."""

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.getMessage()

    logger = logging.Logger("own", logging.INFO)
    logger.addHandler(Slow())
    return logger


def log(logger: logging.Logger) -> Callable[[], Any]:
    return lambda: logger.info("still here")


def use_condition(_: logging.Logger) -> Callable[[], Any]:
    condition = threading.Condition()

    def use() -> None:
        with condition:
            condition.notify_all()

    return use


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("make", [log, use_condition])
def test_interrupted_threads_leave_no_lock_locked(make: Any, own_logger: logging.Logger) -> None:
    use = make(own_logger)
    interrupted = 0

    def work() -> None:
        nonlocal interrupted
        try:
            while True:
                use()
        except StopThread:
            interrupted += 1

    for _ in range(ROUNDS):
        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            assert thread.ident is not None
            while thread.is_alive() and not interrupt_thread(thread.ident, StopThread):
                pass
            thread.join(10)
            assert not thread.is_alive(), "it waits for a lock that nobody has"
    assert interrupted == 2 * ROUNDS


def test_thread_that_waits_with_a_timeout_is_interrupted() -> None:
    event, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            while True:
                event.wait(0.01)
        except StopThread:
            ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert thread.ident is not None
    assert interrupt_thread(thread.ident, StopThread)
    wait_until(ended.is_set)


def test_thread_that_cannot_be_interrupted_soon_is_left_alone() -> None:
    handler = logging.NullHandler()
    handler.createLock()
    handler.lock = threading.Lock()  # type: ignore[assignment]
    handler.acquire()
    thread = threading.Thread(target=handler.acquire, daemon=True)
    thread.start()
    assert thread.ident is not None
    began_at = time.monotonic()

    assert not interrupt_thread(thread.ident, StopThread)
    assert time.monotonic() - began_at < 5
    handler.release()
    thread.join(10)
    assert not thread.is_alive()
    clear_thread(threading.get_ident())
