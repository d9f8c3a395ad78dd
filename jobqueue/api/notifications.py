"""Wake tasks and notify waiting executors after a commit. Without that, polling finds the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from uuid import UUID

from django.db import connections, transaction

from jobqueue.engine import Engine
from jobqueue.models import TaskQuerySet

# Each process notifies a queue at most once in this time. A notified executor claims again after it. With 20 ms, one
# task in twenty waited 22 ms longer, at 50 tasks a second.
MIN_INTERVAL_SECONDS = 0.005
NEVER = float("-inf")
MAX_QUEUES = 10_000  # whose last notifications are remembered
CANCEL_NOTIFICATION = "!cancel"  # in place of a queue's name: a running task is to be cancelled
ADMIT_NOTIFICATION = "!admit "  # before a queue's name, or no name for all: a limit may let a BLOCKED task run

AWAIT_NOTIFICATION = "!await "  # before the id of a task: a process waits for its end
END_NOTIFICATION = "!end "  # before the id of such a task that has ended, from the executor that ran it


class Notifier:
    """Notifies waiting executors, at most once per backend, queue and MIN_INTERVAL_SECONDS."""

    def __init__(self) -> None:
        self._sent_at: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def due(self, engine: Engine, queues: Iterable[str]) -> list[str]:
        """Return the queues that have not been notified for MIN_INTERVAL_SECONDS."""
        recent = time.monotonic() - MIN_INTERVAL_SECONDS
        return [queue for queue in queues if self._sent_at.get((engine.alias, queue), NEVER) <= recent]

    def send(self, engine: Engine, queues: Iterable[str]) -> None:
        with self._lock:
            due, now = self.due(engine, queues), time.monotonic()
            self._sent_at.update(((engine.alias, queue), now) for queue in due)
            if len(self._sent_at) > MAX_QUEUES:  # callers may invent names of queues
                recent = now - MIN_INTERVAL_SECONDS
                self._sent_at = {queue: at for queue, at in self._sent_at.items() if at >= recent}
        if due:
            engine.queues.notify(due)


notifier = Notifier()


def after_commit(database: str, action: Callable[[], object]) -> None:
    """Run an action that only saves time after the commit. Its errors are logged, not raised."""

    def run_action() -> None:  # Django logs the name of a callback that fails, and a partial has none
        action()

    transaction.on_commit(run_action, using=database, robust=True)


def notify_after_commit(engine: Engine, queues: set[str]) -> None:
    if not queues or not engine.options.notify:
        return
    connection = connections[engine.database]
    if connection.in_atomic_block or not connection.autocommit or notifier.due(engine, queues):
        # NOTIFY takes a database-wide lock at commit, so the caller's transaction never contains one.
        after_commit(engine.database, partial(notifier.send, engine, queues))


def wake_and_notify(engine: Engine, ids: frozenset[UUID]) -> None:
    engine.messages.wake_or_defer(ids)
    notify_ready(engine, ids)


def notify_ready(engine: Engine, ids: Collection[UUID]) -> None:
    """Notify executors of those of these tasks that are READY, and of those that a limit may let run."""
    if engine.options.notify:
        rows = engine.db.tasks.filter(pk__in=ids)
        blocked = {ADMIT_NOTIFICATION + queue for queue in read_queues(rows.blocked())}
        notifier.send(engine, read_queues(rows.ready()) | blocked)


def read_queues(tasks: TaskQuerySet) -> set[str]:
    return set(tasks.order_by().values_list("queue_name", flat=True).distinct())
