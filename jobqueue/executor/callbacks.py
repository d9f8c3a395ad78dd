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
Announcement = Callable[[], None] | list[CompletedAttempt]  # a list: tasks that have succeeded


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
        self._next: list[Announcement] = []  # for the next submit()
        self._added = 0  # how many tasks these are about
        self._queue: SimpleQueue[Sequence[Announcement] | None] = SimpleQueue()
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
            self._add(partial(events.report_end, completed, status))

    def add_successes(self, ended: list[CompletedAttempt]) -> None:
        """Announce tasks that have succeeded and spawned nothing."""
        if ended and events.are_successes_observed():
            self._next.append(ended)
            self._added += len(ended)

    def _add(self, *calls: Callable[[], None]) -> None:
        self._next += calls
        self._added += len(calls)

    def submit_enqueued(self, tasks: Sequence[tuple[NewTask, datetime]]) -> None:
        """Announce tasks that the executor has enqueued, each with its moment."""
        if events.is_enqueued_heard():
            self._add(*(partial(events.send_enqueued, self._engine, task, at) for task, at in tasks))
            self.submit()

    def submit_ended(self, ids: Sequence[UUID]) -> None:
        """Announce tasks that this executor has ended without an attempt, such as those of a rescue."""
        self._add(*(partial(events.send_finished, self._engine, pk) for pk in ids))
        self.submit()

    def submit(self) -> None:
        """Announce the results that were added. To wake the thread once for all takes less time."""
        if self._next:
            self._submitted += self._added
            self._queue.put(self._next)
            self._next, self._added = [], 0

    def _work(self) -> None:
        self._connections.enter()
        while (announcements := self._queue.get()) is not None:
            for announcement in announcements:
                if not isinstance(announcement, list):
                    self._announce(announcement)
                elif events.log_successes(announcement):
                    self._count(len(announcement))
                else:
                    for completed in announcement:
                        self._announce(partial(events.report_end, completed, Status.SUCCESSFUL))
        self._connections.leave()

    def _announce(self, call: Callable[[], None]) -> None:
        """Run code of the site."""
        self._started_at = time.monotonic()
        try:
            Context().run(call)
        except BaseException:
            logger.exception("thread.failed")
        self._connections.reset()
        self._started_at = None
        self._count(1)

    def _count(self, announced: int) -> None:
        was_full = self.is_full
        self._announced += announced
        if self.backlog == 0 or (was_full and not self.is_full):
            self._on_progress()

    def blocked(self, limit_seconds: float) -> str | None:
        seconds = time.monotonic() - (self._started_at or time.monotonic())
        return f"A receiver of task signals has been running for {seconds:.0f} s." if seconds > limit_seconds else None

    def cut_connections(self) -> None:
        self._connections.cut()

    def close(self, timeout_seconds: float) -> bool:
        self._queue.put(None)
        return self._join(timeout_seconds)
