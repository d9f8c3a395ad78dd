"""Outcomes of attempts that did not succeed: a failure with its entry of `errors`, or a release without an attempt."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from msgspec.structs import replace

from jobqueue.engine import iso_utc
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, RunningTask
from jobqueue.executor.telemetry.errors import TRACEBACK_CHARACTERS, describe_error, full_traceback, path_of
from jobqueue.executor.telemetry.logger import mask_for
from jobqueue.values.causes import fingerprint
from jobqueue.values.records import Outcome, release_outcome
from jobqueue.values.states import Status
from jobqueue.values.text import clean_text

LATER_SECONDS = 5.0  # after which a task is READY again, if its messages or limits could not be read


def failure_outcome(running: RunningTask, error: BaseException, status: Status = Status.FAILED, **more: str) -> Outcome:
    """Return the outcome of an attempt that did not succeed, with its entry of the `errors` column. more: for this."""
    claimed = running.claimed
    mask = mask_for(claimed, running.identity.options)  # a fingerprint of a secret could be compared with guesses
    entry: dict[str, Any] = {
        "attempt": claimed.attempts + 1,
        "claim_number": claimed.claim_number,
        "at": iso_utc(running.now()),
        "executor": running.identity.name,
        "exception_class_path": path_of(error),
        "message": describe_error(error),
        "traceback": clean_text(full_traceback(error), TRACEBACK_CHARACTERS),
        "wait_seconds": round(claimed.wait_seconds, 3),
        "run_seconds": None if running.started_at is None else round(time.monotonic() - running.started_at, 3),
        **more,
    }
    return Outcome(
        task_id=claimed.id,
        claim_number=claimed.claim_number,
        parent_id=claimed.parent_id,
        status=status,
        attempts=claimed.attempts + 1,
        worker_id=running.identity.worker_id,
        error=json.dumps(entry),
        cause=fingerprint(claimed.task_type, entry["exception_class_path"], describe_error(error, mask)),
        may_unblock_others=claimed.may_unblock_others,
    )


def release_started(running: RunningTask) -> Outcome:
    """Release a task without a used attempt. If its claim is lost, the commit drops this outcome."""
    return replace(release_outcome(running.claimed), worker_id=running.identity.worker_id)


def release_unstarted(running: RunningTask) -> CompletedAttempt:
    """Release a task unchanged."""
    return CompletedAttempt(running=running, outcome=release_outcome(running.claimed))


def release_for_later(running: RunningTask) -> CompletedAttempt:
    """Release a task that this process cannot begin now, for some seconds. No attempt is counted."""
    wait = LATER_SECONDS * random.uniform(1.0, 1.3)
    outcome = replace(release_outcome(running.claimed), status=Status.SCHEDULED, wake_after_seconds=wait)
    return CompletedAttempt(running=running, outcome=outcome)


def reject_unstarted(running: RunningTask, error: Exception, attempt: Attempt | None = None) -> CompletedAttempt:
    """Fail a task before its body started. No attempt is counted."""
    outcome = replace(failure_outcome(running, error), attempts=running.claimed.attempts, worker_id=None)
    return CompletedAttempt(running=running, outcome=outcome, attempt=attempt, error=error)
