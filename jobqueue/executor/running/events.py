"""Report the start and the end of attempts: log lines, and the signals of django.tasks, after the commit."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from jobqueue.api.ends import ended_results
from jobqueue.conf.compat import (
    is_heard,
    is_received,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from jobqueue.declarations import registry, results
from jobqueue.declarations.function import copy_unchecked
from jobqueue.declarations.results import Result
from jobqueue.engine import Engine
from jobqueue.executor.running.attempt import Attempt, CompletedAttempt, RunningTask, running_here
from jobqueue.executor.telemetry.console_log import ConsoleHandler
from jobqueue.executor.telemetry.errors import Mask, find_reason, format_first_line
from jobqueue.executor.telemetry.logger import get_logger, mask_for
from jobqueue.values.json import decode
from jobqueue.values.records import ClaimedTask, NewTask
from jobqueue.values.redaction import redact_text
from jobqueue.values.states import FINAL, Status
from jobqueue.values.text import printable

logger = get_logger(__name__)

EVENTS = {
    Status.SUCCESSFUL: ("task.succeeded", logging.INFO),
    Status.SCHEDULED: ("task.retried", logging.WARNING),
    Status.FAILED: ("task.failed", logging.ERROR),
    Status.CANCELLED: ("task.cancelled", logging.WARNING),
    Status.READY: ("task.released", logging.WARNING),
    Status.SUSPENDED: ("task.polled", logging.DEBUG),
    Status.AWAITING_CODE: ("task.deferred", logging.WARNING),
}
ATTEMPT = "task=%(task)s id=%(task_id)s queue=%(queue)s attempt=%(attempt)d/%(max_attempts)d wait_ms=%(wait_ms).0f"
END = f"{ATTEMPT} duration_ms=%(duration_ms).0f"
SUCCEEDED = f"{EVENTS[Status.SUCCESSFUL][0]} {END}"


def report_start(attempt: Attempt) -> bool:
    """
    Report the first poll of an attempt: a line for debugging, and task_started.

    Return whether this may have run code of the site: its log handlers and receivers.
    """
    if attempt.running.claimed.polls:
        return False
    if is_logged := logger.isEnabledFor(logging.DEBUG):
        fields = task_fields(attempt.running)
        values = {**fields, "max_attempts": attempt.run_options.max_attempts}
        logger.debug(f"task.started {ATTEMPT}", values, extra=fields)
    if is_sent := is_heard(task_started, logging.INFO):
        _send(task_started, attempt.result, mask_for(attempt.claimed, attempt.identity.options))
    return is_logged or is_sent


def is_start_received(claimed: ClaimedTask) -> bool:
    """Return whether a receiver gets the start of this attempt. Its code may block."""
    return claimed.polls == 0 and is_received(task_started)


def report_end(completed: CompletedAttempt, status: Status) -> None:
    """
    Report a committed outcome: one log line, task_enqueued for children, and task_finished for a final state.

    Log handlers and receivers see the ContextVars of the body. So an error tracker finds the scope of the body.
    """
    # A copy: the body may have left code that runs in the original.
    completed.running.variables.copy().run(_report_end, completed, status)


def _report_end(completed: CompletedAttempt, status: Status) -> None:
    running_here.set(None)  # what receivers log is not shown as lines of the body
    event, level = _choose_event(completed, status)
    if logger.isEnabledFor(level):
        _log_end(completed, status, event, level)
    if (children := completed.outcome.effects.spawn) and status is not Status.CANCELLED:
        announce_children(completed.running.identity.engine, children, completed.running.now())
    if _is_end_received(completed, status):
        if completed.attempt is None:
            send_finished(completed.running.identity.engine, completed.running.id)
        else:
            _send_end(completed, completed.attempt.result, status)


def are_successes_observed() -> bool:
    """Return whether report_end() would log or send anything for tasks that have succeeded."""
    return logger.isEnabledFor(logging.INFO) or is_heard(task_finished, logging.INFO)


def log_successes(ended: Sequence[CompletedAttempt]) -> bool:
    """
    Log tasks that have succeeded and spawned nothing, if only the console of `run_executors` gets the lines.

    Return False if code of the site may see the lines. The caller then calls report_end() for each task.
    """
    console = logger.only_handler()
    if (
        not isinstance(console, ConsoleHandler)
        or not console.writes_all_records
        or is_heard(task_finished, logging.INFO)
    ):
        return False
    if logger.isEnabledFor(logging.INFO):
        try:
            console.write_events(logging.INFO, logger.logger.name, map(describe_success, ended))
        except Exception:  # noqa: BLE001 - memory may be short: each line alone needs less
            return False
    return True


def describe_success(completed: CompletedAttempt) -> tuple[str, dict[str, Any]]:
    """Return the message and the fields of task.succeeded."""
    fields = end_fields(completed, Status.SUCCESSFUL)
    return SUCCEEDED % {**fields, "max_attempts": max_attempts_of(completed)}, fields


def has_observers(completed: CompletedAttempt, status: Status) -> bool:
    """Return whether report_end() would log or send anything. Most polls of actors that continue are not observed."""
    if completed.attempt is None and completed.error is None and status is Status.READY:
        return False  # released unchanged
    if status is Status.AWAITING_CODE:
        return False  # executor/awaiting_code.py logs a line for many of them
    if logger.isEnabledFor(_choose_event(completed, status)[1]) or _is_end_received(completed, status):
        return True
    return bool(completed.outcome.effects.spawn) and is_enqueued_heard()


def is_enqueued_heard() -> bool:
    """Return whether send_enqueued() would reach a receiver or a log."""
    return is_heard(task_enqueued, logging.DEBUG)


def task_fields(running: RunningTask) -> dict[str, Any]:
    """Return the `extra` of every log line about a task. Names come from outside and must not forge a line."""
    claimed = running.claimed
    return {
        "task_id": str(claimed.id),
        "task": printable(claimed.task_type),
        "queue": printable(claimed.queue_name),
        "attempt": claimed.attempts + 1,
        "wait_ms": round(claimed.wait_seconds * 1000, 3),
        "executor": running.identity.name,
    }


def end_fields(completed: CompletedAttempt, status: Status) -> dict[str, Any]:
    """Return the `extra` of the line about the end of an attempt."""
    fields = task_fields(completed.running)
    if completed.outcome.status is Status.FAILED:
        fields["attempt"] = completed.outcome.attempts  # 0 for a task that fails before its first attempt
    fields["duration_ms"] = round(completed.seconds * 1000, 3)
    fields["status"] = status.value
    return fields


def max_attempts_of(completed: CompletedAttempt) -> int:
    attempt = completed.attempt
    return completed.running.claimed.max_attempts if attempt is None else attempt.run_options.max_attempts


def _log_end(completed: CompletedAttempt, status: Status, event: str, level: int) -> None:
    running, outcome, error = completed.running, completed.outcome, completed.error
    fields = end_fields(completed, status)
    details = "" if _is_attempt_counted(completed, status) else " counted=no"
    if status is Status.SCHEDULED and outcome.wake_after_seconds is not None:
        details += f" retry_in_s={outcome.wake_after_seconds:.1f}"
    mask = mask_for(running.claimed, running.identity.options)
    if error is not None:
        details += f" error={format_first_line(error, mask)}"
    values = {**fields, "max_attempts": max_attempts_of(completed), "details": details}
    template = f"{event} {END}%(details)s"
    if status is Status.FAILED:
        logger.log(level, template, values, extra={**fields, "mask": mask}, exc_info=error and find_reason(error))
    else:
        logger.log_quickly(level, template, (values,), fields)


def _choose_event(completed: CompletedAttempt, status: Status) -> tuple[str, int]:
    """Return the name of the log event and its level."""
    if status in FINAL:
        return EVENTS[status]
    if _continues(completed, status):
        return EVENTS[Status.SUSPENDED]
    if status is Status.SCHEDULED and not _is_attempt_counted(completed, status):
        return EVENTS[Status.READY]  # released, to be claimed a little later
    return EVENTS[status]


def _is_attempt_counted(completed: CompletedAttempt, status: Status) -> bool:
    """Return whether an attempt was used up, or brought the task to its end."""
    return (
        status in FINAL
        or _continues(completed, status)
        or completed.outcome.attempts > completed.running.claimed.attempts
    )


def _continues(completed: CompletedAttempt, status: Status) -> bool:
    """Return whether this was a successful poll of an actor that has not ended."""
    return completed.outcome.has_succeeded and status not in FINAL


def _is_end_received(completed: CompletedAttempt, status: Status) -> bool:
    level = logging.INFO if status is Status.SUCCESSFUL else logging.ERROR
    return status in FINAL and is_heard(task_finished, level)


def announce_children(engine: Engine, children: Sequence[NewTask], now: datetime) -> None:
    """Send task_enqueued for children that were inserted."""
    if is_enqueued_heard():
        for child in children:
            send_enqueued(engine, child, now)


def send_enqueued(engine: Engine, new: NewTask, enqueued_at: datetime) -> None:
    """Send task_enqueued for a task that an executor has enqueued: of an actor's child or of a schedule."""
    if (task := registry.get(new.task_type)) is not None:
        options = {"queue_name": new.queue_name, "priority": new.priority, "key": new.key}
        task = copy_unchecked(task, backend=engine.alias, run_after=new.wake_at, **options)
        result = results.enqueued(new, task, new.id, enqueued_at)
        _send(task_enqueued, result, mask_for(new, engine.options))


def send_finished(engine: Engine, pk: UUID) -> None:
    """Send task_finished for a task that has ended without an attempt. Nothing if its row or its code is gone."""
    for signal, result in ended_results(engine, [pk]):
        _send(signal, result, lambda text: redact_text(text, engine.options.redact))


def _send_end(completed: CompletedAttempt, started: Result, status: Status) -> None:
    outcome, error = completed.outcome, completed.error
    result = results.finished(
        started,
        status=status,
        finished_at=completed.running.now(),
        return_value=decode(outcome.return_value) if outcome.return_value is not None else None,
        error=json.loads(outcome.error) if outcome.error is not None else None,
    )
    mask = mask_for(completed.running.claimed, completed.running.identity.options)
    if error is None:
        _send(task_finished, result, mask)
        return
    error = find_reason(error)  # as in the log: a tool that gets both drops the second
    frames = error.__traceback__
    try:
        raise error
    except BaseException:  # noqa: BLE001 - the framework's receiver reads sys.exc_info()
        error.__traceback__ = frames  # without this function's frame, which refers to the error
        _send(task_finished, result, mask)


def _send(signal: Any, result: Result, mask: Mask) -> None:
    """Send a signal of django.tasks. Errors of receivers are logged."""
    try:
        signal.send_robust(sender=type(task_backends[result.backend]), task_result=result)
    except BaseException as error:
        logger.error("receiver.failed task=%s id=%s", result.task.name, result.id, exc_info=error, extra={"mask": mask})
