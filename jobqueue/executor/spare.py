"""Threads for the blocking calls of async bodies, handed on from body to body."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from jobqueue.executor.forks import leave_if_forked
from jobqueue.executor.sessions import Session

T = TypeVar("T")

MOST_AT_REST = 8
MOST_AT_WORK = 32


class SpareThreads:
    """
    Threads at rest, a few: to start one takes a tenth of a millisecond. taken: how often one was asked for.

    And the line before them: so many bodies have a thread at once, and with it database connections. A hundred that
    begin together would open a hundred, which is all that a server has by default; what is beyond waits for its thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[ThreadPoolExecutor] = []
        self._is_closed = False
        self.taken = 0
        self._at_work = 0
        self._line: deque[Callable[[], None]] = deque()

    def enter(self, begin: Callable[[], None]) -> None:
        """Call `begin`, which may take a thread: now, or when another body has left."""
        with self._lock:
            if self._at_work >= MOST_AT_WORK:
                self._line.append(begin)
                return
            self._at_work += 1
        begin()

    def leave(self) -> None:
        """A body has put back its thread."""
        with self._lock:
            if not self._line:
                self._at_work -= 1
                return
            begin = self._line.popleft()
        begin()

    def take(self) -> ThreadPoolExecutor:
        with self._lock:
            self.taken += 1
            if self._idle:
                return self._idle.pop()
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{self._name}-async")

    def put(self, thread: ThreadPoolExecutor) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MOST_AT_REST:
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
        self._waiting: list[tuple[Future[Any], Callable[[], None]]] = []  # for the thread
        self._calls = 0  # not ended yet
        self._is_over = False

    @property
    def is_taken(self) -> bool:
        return self._calls > 0 or self._thread is not None

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        run = partial(self._run, future, partial(function, *args, **kwargs))
        with self._lock:
            self._calls += 1
            if self._thread is not None:
                self._thread.submit(run)
                return future
            self._waiting.append((future, run))
            is_first = len(self._waiting) == 1
        if is_first:
            self._threads.enter(self._begin)
        return future

    def _begin(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._thread, self._session = self._threads.take(), Session()
            try:
                for _, run in waiting:
                    self._thread.submit(run)
                return
            except (RuntimeError, MemoryError) as error:  # no thread is to be had: the first submit() starts it
                refusal = error
                self._calls -= len(waiting)
                self._thread = self._session = None
        self._threads.leave()
        for future, _ in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal)

    def _run(self, future: Future[T], call: Callable[[], T]) -> None:
        session = self._session
        assert session is not None
        session.enter()
        tell: Callable[[], object] = bool  # of a call that was cancelled, nothing
        if future.set_running_or_notify_cancel():
            try:
                tell = partial(future.set_result, call())
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                tell = partial(future.set_exception, error)
        leave_if_forked(session.process)
        try:
            self._end_call()  # first: who hears that the last call has ended finds its connections closed
        finally:
            tell()
            del tell  # an error, its traceback and this frame would hold each other

    def _end_call(self) -> None:
        with self._lock:
            self._calls -= 1
            thread, session = self._let_go()
        if thread is not None and session is not None:
            session.leave()
            self._threads.put(thread)
            self._threads.leave()

    def close(self) -> None:
        """The body is over: hand the thread on as soon as no call is left."""
        with self._lock:
            self._is_over = True
            thread, session = self._let_go()
        if thread is not None and session is not None:
            thread.submit(session.leave)
            self._threads.put(thread)
            self._threads.leave()

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
