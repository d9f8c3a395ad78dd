"""Log lines and task_finished signals of committed results, in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import SimpleQueue

from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.running.task_runner import CompletedAttempt, ExecutorIdentity
from jobqueue.executor.telemetry import events
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.records import Status

logger = get_logger(__name__)

MAX_BACKLOG = 1000  # the executor claims nothing while receivers of signals are so far behind

Result = tuple[CompletedAttempt, Status]


class ResultCallbacks:
    """
    Announces results one after the other, in the order of their commits.

    on_progress: called in that thread when the backlog is empty, or is no longer full. on_failure: called if the
    thread ends unexpectedly. It ends the process.
    """

    def __init__(
        self, worker: ExecutorIdentity, on_progress: Callable[[], None], on_failure: Callable[[BaseException], object]
    ) -> None:
        self._worker, self._on_progress, self._on_failure = worker, on_progress, on_failure
        self._queue: SimpleQueue[Sequence[Result] | None] = SimpleQueue()
        self._submitted = self._announced = 0  # each is written by one thread
        self._started_at: float | None = None  # monotonic, of the current announcement
        self._session = TaskConnections()
        self._thread = threading.Thread(target=self._work, name="jobqueue-callbacks", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return self._submitted - self._announced

    @property
    def is_full(self) -> bool:
        return self.backlog >= MAX_BACKLOG

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def blocked_seconds(self) -> float:
        """Return for how long the current announcement has run."""
        started_at = self._started_at
        return 0.0 if started_at is None else time.monotonic() - started_at

    def submit(self, results: Sequence[Result]) -> None:
        self._submitted += len(results)
        self._queue.put(results)

    def _work(self) -> None:
        try:
            self._session.enter()
            while (results := self._queue.get()) is not None:
                for completed, status in results:
                    self._started_at = time.monotonic()
                    try:  # in a context of its own
                        copy_context().run(events.report_end, completed, status, self._worker)
                    except BaseException:
                        logger.exception("thread.failed")
                    self._session.reset()
                    self._started_at = None
                    self._announced += 1
                    if self.backlog in (0, MAX_BACKLOG - 1):
                        self._on_progress()
            self._session.leave()
        except BaseException as failure:  # noqa: BLE001 - a receiver can raise any exception in this thread
            self._on_failure(failure)

    def cut_connections(self) -> None:
        """Close the database connections of a receiver that still runs."""
        self._session.cut()

    def close(self, timeout_seconds: float) -> bool:
        """Stop the thread. Return whether it has ended."""
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        return self.has_ended
