"""What people and receivers are told of a task: log lines and django.tasks' signals, after the commit."""

from __future__ import annotations

import json
import logging
from typing import Any

from jobqueue import registry, results
from jobqueue.compat import is_heard, is_received, task_backends, task_enqueued, task_finished, task_started
from jobqueue.executor.errors import first_line_of
from jobqueue.executor.hold import Hold
from jobqueue.executor.log import logger
from jobqueue.executor.masks import log_failure, mask_of, telling_of
from jobqueue.executor.run import Ended, Loaded, Worker
from jobqueue.executor.scribe import say
from jobqueue.function import changed
from jobqueue.printable import printable
from jobqueue.records import FINAL, ClaimedTask, Status
from jobqueue.results import Result
from jobqueue.serialization.json import decode

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
    level = logging.INFO if claimed.polls == 0 else logging.DEBUG
    if logger.isEnabledFor(level):
        log_start(claimed, loaded, level, worker)
    if claimed.polls == 0 and is_heard(task_started, logging.INFO):
        send(task_started, loaded.result)


def is_start_received(claimed: ClaimedTask) -> bool:
    """Whether somebody's code runs, which may block, when a task's start is told."""
    return claimed.polls == 0 and is_received(task_started)


def log_start(claimed: ClaimedTask, loaded: Loaded, level: int, worker: Worker) -> None:
    say(
        logger,
        level,
        "started %s %s queue=%s attempt=%d/%d wait=%.0fms",
        claimed.task_type,
        claimed.id,
        claimed.queue_name,
        claimed.attempts + 1,
        loaded.limits.max_attempts,
        claimed.wait_seconds * 1000,
        extra=lambda: keys(claimed, worker),
    )


def ended(over: Ended, status: Status, worker: Worker) -> None:
    """Tell what was committed: one log line, and task_finished where this was the end."""
    word, level = word_for(over, status)
    if logger.isEnabledFor(level):
        log_end(over, status, word, level, worker)
    if over.outcome.effects.spawn and status is not Status.CANCELLED and hears_of_children():
        announce_children(over, worker)
    if is_heard_of(over, status) and over.loaded is not None:
        with telling_of(over.hold.claimed, worker):
            announce_finish(over, over.loaded.result, status)


def log_end(over: Ended, status: Status, word: str, level: int, worker: Worker) -> None:
    claimed = over.hold.claimed
    error = "" if over.error is None else f" {first_line_of(over.error, mask_of(claimed, worker))}"
    again = ""
    if status is Status.SCHEDULED and over.outcome.wake_after_seconds is not None:
        again = f"; again in {over.outcome.wake_after_seconds:.1f}s"
    say(
        logger,
        level,
        "%s %s %s queue=%s attempt=%d/%d%s took=%.0fms%s%s",
        word,
        claimed.task_type,
        claimed.id,
        claimed.queue_name,
        attempt_of(over),
        claimed.max_attempts if over.loaded is None else over.loaded.limits.max_attempts,
        "" if is_counted(over, status) else " (not counted)",
        over.seconds * 1000,
        error,
        again,
        extra=lambda: (
            keys(claimed, worker)
            | {"attempt": attempt_of(over), "duration_ms": round(over.seconds * 1000, 3), "status": str(status)}
        ),
    )


def attempt_of(over: Ended) -> int:
    """Give the number of the attempt; of what failed before one was started, of the last, 0 without any."""
    outcome = over.outcome
    return outcome.attempts if outcome.status is Status.FAILED else over.hold.claimed.attempts + 1


def word_for(over: Ended, status: Status) -> tuple[str, int]:
    """Give what a line of the log calls an outcome, and its level."""
    if goes_on(over, status):
        return "polled", logging.DEBUG
    if status is Status.SCHEDULED and not is_counted(over, status):
        return WORDS[Status.READY]  # handed back, for a little later
    return WORDS[status]


def is_counted(over: Ended, status: Status) -> bool:
    """Whether an attempt was used up, or brought the task to its end."""
    return status in FINAL or goes_on(over, status) or over.outcome.attempts > over.hold.claimed.attempts


def goes_on(over: Ended, status: Status) -> bool:
    """Whether this was one poll of many."""
    return over.outcome.is_good_poll and status not in FINAL


def is_news(over: Ended, status: Status) -> bool:
    """Whether ended() has anything to tell; most polls of actors that go on are of no interest to anybody."""
    if over.loaded is None and over.error is None and status is Status.READY:
        return False  # handed back as it came
    if logger.isEnabledFor(word_for(over, status)[1]) or is_heard_of(over, status):
        return True
    return bool(over.outcome.effects.spawn) and hears_of_children()


def is_heard_of(over: Ended, status: Status) -> bool:
    """Whether somebody listens for this end of a task."""
    level = logging.INFO if status is Status.SUCCESSFUL else logging.ERROR
    return status in FINAL and over.loaded is not None and is_heard(task_finished, level)


def hears_of_children() -> bool:
    return is_heard(task_enqueued, logging.DEBUG)


def announce_children(over: Ended, worker: Worker) -> None:
    now = over.hold.now()
    for child in over.outcome.effects.spawn:
        if (task := registry.get(child.task_type)) is not None:
            task = changed(task, backend=worker.backend)
            with telling_of(child, worker):
                send(task_enqueued, results.enqueued(child, task, enqueued_at=now))


def announce_finish(over: Ended, running: Result, status: Status) -> None:
    outcome, error = over.outcome, over.error
    result = results.finished(
        running,
        status=status,
        finished_at=over.hold.now(),
        return_value=decode(outcome.return_value) if outcome.return_value is not None else None,
        error=json.loads(outcome.error) if outcome.error is not None else None,
    )
    if error is None:
        send(task_finished, result)
        return
    frames = error.__traceback__
    try:
        raise error
    except BaseException:  # noqa: BLE001 - raised for its receivers only: core's log handler reads sys.exc_info()
        error.__traceback__ = frames  # without the frame of this function, which holds the error in turn
        send(task_finished, result)


def send(signal: Any, result: Result) -> None:
    """Send one of django.tasks' signals; what receivers raise is theirs."""
    try:
        signal.send_robust(sender=type(task_backends[result.backend]), task_result=result)
    except BaseException:  # noqa: BLE001 - send_robust() logs and keeps no more than an Exception
        log_failure("signal.error task id=%s", result.id)


def keys(claimed: ClaimedTask, worker: Worker) -> dict[str, Any]:
    """Give the `extra` of every log line about a task."""
    return {
        "task_id": str(claimed.id),
        "task": printable(claimed.task_type),
        "queue": printable(claimed.queue_name),
        "attempt": claimed.attempts + 1,
        "wait_ms": round(claimed.wait_seconds * 1000, 3),
        "executor": worker.executor_name,
    }
