"""task_finished for tasks that end without an attempt: by a cancel, by a schedule that replaces them, by a rescue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from jobqueue.api.notifications import after_commit
from jobqueue.conf.compat import is_heard, is_received, task_backends, task_finished, without_own_receivers
from jobqueue.declarations import registry, results
from jobqueue.declarations.results import Result
from jobqueue.engine import Database, Engine, engine_for, listen_to_ends
from jobqueue.values.states import Status

BATCH = 100  # rows in memory at once, with their arguments


class _Delivery(threading.local):
    """The way this thread reports ended tasks after the commit: the loop of an executor runs no receivers."""

    deliver: Callable[[Sequence[UUID]], None] | None = None


here = _Delivery()


def announce(db: Database, ids: Collection[UUID], status: Status) -> None:
    """Send task_finished after the commit for tasks that this transaction has ended, if it has a receiver."""
    is_failed = status is Status.FAILED
    if is_heard(task_finished, logging.ERROR) if is_failed else is_received(task_finished):
        deliver = here.deliver or partial(_send_finished, db.backend)
        after_commit(db.using, partial(deliver, sorted(ids)))


def _send_finished(backend: str, ids: Sequence[UUID]) -> None:
    """Send task_finished for ended tasks. Errors of receivers are logged by Django."""
    engine = engine_for(backend)
    for signal, result in ended_results(engine, ids):
        signal.send_robust(sender=type(task_backends[engine.alias]), task_result=result)


def ended_results(engine: Engine, ids: Sequence[UUID]) -> Iterator[tuple[Any, Result]]:
    """
    Yield the result of each ended task, with the signal to send it by.

    Nothing for a task that was deleted or requeued since, or whose code this process does not have. Django's own
    receiver logs an error for each task that has not succeeded, so it gets no cancelled ones.
    """
    for first in range(0, len(ids), BATCH):
        batch = ids[first : first + BATCH]
        for row in engine.db.tasks.filter(pk__in=batch, finished_at__isnull=False).order_by("pk"):
            if (task := registry.get(row.task_type)) is not None:
                signal = without_own_receivers(task_finished) if row.status == Status.CANCELLED else task_finished
                yield signal, results.from_row(row, task)


listen_to_ends(announce)
