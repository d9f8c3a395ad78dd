"""What people and receivers are told of a task: log lines and django.tasks' signals, after the commit."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from jobqueue import results
from jobqueue.compat import task_backends, task_finished, task_started
from jobqueue.executor.hold import Hold
from jobqueue.executor.outage import first_line
from jobqueue.executor.run import Ended, Loaded, Worker, error_entry
from jobqueue.outcome import FINAL, Status
from jobqueue.payload import decode

logger = logging.getLogger("jobqueue.executor")

WORDS = {
    Status.SUCCESSFUL: ("succeeded", logging.INFO),
    Status.SCHEDULED: ("retry", logging.WARNING),
    Status.FAILED: ("failed", logging.ERROR),
    Status.CANCELLED: ("cancelled", logging.WARNING),
    Status.READY: ("released", logging.WARNING),
    Status.SUSPENDED: ("suspended", logging.INFO),
}


def started(hold: Hold, loaded: Loaded, worker: Worker) -> None:
    """Tell that an attempt starts: one log line, and task_started."""
    claimed = hold.claimed
    logger.info(
        "started %s %s queue=%s attempt=%d/%d wait=%.0fms",
        claimed.task_type,
        claimed.id,
        claimed.queue_name,
        claimed.attempts + 1,
        claimed.max_attempts,
        claimed.wait_seconds * 1000,
        extra=keys(hold, worker),
    )
    task_started.send_robust(sender=type(task_backends[loaded.task.backend]), task_result=loaded.result)


def ended(over: Ended, status: Status, worker: Worker) -> None:
    """Tell what was committed: one log line, and task_finished where this was the end."""
    word, level = WORDS[status]
    error = over.error
    logger.log(
        level,
        "%s %s %s queue=%s attempt=%d/%d took=%.0fms%s%s",
        word,
        over.hold.claimed.task_type,
        over.hold.id,
        over.hold.claimed.queue_name,
        over.hold.claimed.attempts + 1,
        over.hold.claimed.max_attempts,
        over.seconds * 1000,
        f" {first_line(error)}" if error is not None else "",
        f"; again in {over.outcome.wake_after_seconds:.1f}s"
        if status is Status.SCHEDULED and over.outcome.wake_after_seconds
        else "",
        extra=keys(over.hold, worker) | {"duration_ms": round(over.seconds * 1000, 3), "status": str(status)},
    )
    if status in FINAL and over.result is not None:
        announce_finish(over, status)


def announce_finish(over: Ended, status: Status) -> None:
    assert over.result is not None
    outcome = over.outcome
    result = results.finished(
        over.result,
        status=status,
        finished_at=datetime.now(UTC),
        return_value=decode(outcome.return_value) if outcome.return_value is not None else None,
        error=error_entry(outcome),
    )
    sender = type(task_backends[result.task.backend])
    if over.error is None:
        task_finished.send_robust(sender=sender, task_result=result)
        return
    try:
        raise over.error
    except BaseException:  # raised for its receivers only: core's log handler reads sys.exc_info()
        task_finished.send_robust(sender=sender, task_result=result)


def keys(hold: Hold, worker: Worker) -> dict[str, Any]:
    """Give the `extra` of every log line about a task."""
    claimed = hold.claimed
    return {
        "task_id": str(claimed.id),
        "task": claimed.task_type,
        "queue": claimed.queue_name,
        "attempt": claimed.attempts + 1,
        "wait_ms": round(claimed.wait_seconds * 1000, 3),
        "executor": worker.executor_name,
    }
