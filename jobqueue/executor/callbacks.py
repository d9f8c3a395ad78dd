"""Log lines and signals of committed results, and signals of scheduled tasks, in a thread of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from uuid import UUID

from jobqueue.engine import Engine
from jobqueue.executor.database.task_connections import TaskConnections
from jobqueue.executor.pools.base import SiteThreads
from jobqueue.executor.running import events
from jobqueue.executor.running.attempt import CompletedAttempt
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.records import NewTask
from jobqueue.values.states import Status

logger = get_logger(__name__)

MAX_BACKLOG = 1000  # the executor claims nothing while receivers of signals are so far behind


class ResultCallbacks(SiteThreads):
    """
    Announces results and new tasks one after the other, in the order of their commits.

    on_progress: called in that thread when the backlog is empty, or is no longer full.
    """

    def __init__(
        self, engine: Engine, on_progress: Callable[[], None], on_failure: Callable[[BaseException], object]
    ) -> None:
        super().__init__(on_failure)
        self._engine, self._on_progress = engine, on_progress
        self._next: list[Callable[[], None]] = []  # for the next submit()
        self._queue: SimpleQueue[Sequence[Callable[[], None]] | None] = SimpleQueue()
        self._submitted = self._announced = 0  # each is written by one thread
        self._started_at: float | None = None  # monotonic, of the current announcement
        self._connections = TaskConnections()
        self._start_thread("jobqueue-callbacks")

    @property
    def backlog(self) -> int:
        return self._submitted - self._announced

    @property
    def is_full(self) -> bool:
        return self.backlog >= MAX_BACKLOG

    def add(self, completed: CompletedAttempt, status: Status) -> None:
        """Keep a committed result for the next submit(), if a log line or a receiver is to get it."""
        if events.has_observers(completed, status):
            self._next.append(partial(events.report_end, completed, status))

    def submit_enqueued(self, tasks: Sequence[tuple[NewTask, datetime]]) -> None:
        """Announce tasks that the executor has enqueued, each with its moment."""
        if events.is_enqueued_heard():
            self._next += [partial(events.send_enqueued, self._engine, task, at) for task, at in tasks]
            self.submit()

    def submit_ended(self, ids: Sequence[UUID]) -> None:
        """Announce tasks that this executor has ended without an attempt, such as those of a rescue."""
        self._next += [partial(events.send_finished, self._engine, pk) for pk in ids]
        self.submit()

    def submit(self) -> None:
        """Announce the results that were added. To wake the thread once for all takes less time."""
        if self._next:
            self._submitted += len(self._next)
            self._queue.put(self._next)
            self._next = []

    def _work(self) -> None:
        self._connections.enter()
        while (calls := self._queue.get()) is not None:
            for call in calls:
                self._started_at = time.monotonic()
                try:
                    Context().run(call)
                except BaseException:
                    logger.exception("thread.failed")
                self._connections.reset()
                self._started_at = None
                self._announced += 1
                if self.backlog in (0, MAX_BACKLOG - 1):
                    self._on_progress()
        self._connections.leave()

    def blocked(self, limit_seconds: float) -> str | None:
        seconds = time.monotonic() - (self._started_at or time.monotonic())
        return f"A receiver of task signals has been running for {seconds:.0f} s." if seconds > limit_seconds else None

    def cut_connections(self) -> None:
        self._connections.cut()

    def close(self, timeout_seconds: float) -> bool:
        self._queue.put(None)
        return self._join(timeout_seconds)
