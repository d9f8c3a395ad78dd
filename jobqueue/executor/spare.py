"""Threads for the blocking calls of async bodies, handed on from body to body."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from jobqueue.executor.sessions import Session

T = TypeVar("T")


class SpareThreads:
    """Threads at rest; there are as many as were ever at work at once. To start one takes a tenth of a millisecond."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[ThreadPoolExecutor] = []
        self._is_closed = False

    def take(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{self._name}-async")

    def put(self, thread: ThreadPoolExecutor) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(thread)
                return
        thread.shutdown(wait=False)

    def close(self) -> None:
        """End those that rest; the others end when they would be put back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.shutdown(wait=False)


class OwnThread(Executor):
    """
    The thread of one body, and its database connections: all its calls run there, one after the other.

    It is taken with the first call. Once the body is over, the last call to end closes the connections and hands the
    thread on: while one is at work, as after a wait_for(), it belongs to the body still. What the body has
    left behind may call on, each time in a thread that is taken anew. Calls may come from any thread.
    """

    def __init__(self, threads: SpareThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._session: Session | None = None
        self._calls = 0  # not ended yet
        self._is_over = False

    @property
    def is_taken(self) -> bool:
        return self._thread is not None

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        with self._lock:
            if self._thread is None:
                self._thread, self._session = self._threads.take(), Session()
            self._calls += 1
            return self._thread.submit(self._run, self._session, partial(function, *args, **kwargs))

    def _run(self, session: Session | None, call: Callable[[], T]) -> T:
        assert session is not None
        session.enter()
        try:
            return call()
        finally:
            self._end_call()

    def _end_call(self) -> None:
        with self._lock:
            self._calls -= 1
            thread, session = self._let_go()
        if thread is not None and session is not None:
            session.leave()
            self._threads.put(thread)

    def close(self) -> None:
        """The body is over: hand the thread on as soon as no call is left."""
        with self._lock:
            self._is_over = True
            thread, session = self._let_go()
        if thread is not None and session is not None:
            thread.submit(session.leave)
            self._threads.put(thread)

    def _let_go(self) -> tuple[ThreadPoolExecutor | None, Session | None]:
        """Give up the thread where it is to be handed on; the lock is held."""
        if self._calls or not self._is_over:
            return None, None
        given = self._thread, self._session
        self._thread = self._session = None
        return given

    def cancel(self) -> None:
        """Cancel on the server what the body waits for; from any thread."""
        if (session := self._session) is not None:
            session.cancel()
