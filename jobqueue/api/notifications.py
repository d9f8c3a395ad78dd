"""Hints after a commit: wake who has mail, and tell waiting executors of work. Nothing depends on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from uuid import UUID

from django.db import transaction

from jobqueue.engine.base import Engine

# At most one notice per queue and process in this time; a woken executor looks again after it. With 20 ms, a task that
# came within them waited for that look: of 50 tasks a second one in twenty for 22 ms.
NOTICE_GAP_SECONDS = 0.005
CANCEL_NOTICE = "!cancel"  # in place of a queue's name: look which running tasks are to be cancelled


class Notices:
    """Notices to waiting executors, at most one per backend, queue and gap from this process."""

    def __init__(self) -> None:
        self._sent_at: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def send(self, engine: Engine, queues: Iterable[str]) -> None:
        now = time.monotonic()
        with self._lock:
            due = [
                queue
                for queue in queues
                if now - self._sent_at.get((engine.alias, queue), float("-inf")) >= NOTICE_GAP_SECONDS
            ]
            self._sent_at.update(((engine.alias, queue), now) for queue in due)
        if due:
            engine.notify(due)


notices = Notices()


def after_commit(engine: Engine, hint: Callable[[], object]) -> None:
    """Do what saves others time; that it fails, say because the database is away, is logged and no more."""

    def give_hint() -> None:  # Django's log asks a hint that fails for its name, and a partial has none
        hint()

    transaction.on_commit(give_hint, using=engine.database, robust=True)


def notify_after_commit(engine: Engine, queues: set[str]) -> None:
    if queues and engine.options.notify:
        # A notice takes a database-wide lock at commit, so it never travels in the user's transaction.
        after_commit(engine, partial(notices.send, engine, queues))


def wake_and_tell(engine: Engine, ids: frozenset[UUID]) -> None:
    engine.wake_or_leave(ids)
    tell_of(engine, ids)


def tell_of(engine: Engine, ids: Collection[UUID]) -> None:
    """Send notices for those of these tasks that are READY."""
    if engine.options.notify:
        queues = engine.tasks.ready().filter(pk__in=ids).order_by().values_list("queue_name", flat=True).distinct()
        notices.send(engine, set(queues))
