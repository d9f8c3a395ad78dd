"""Rows as TaskResult and TaskError of django.tasks, and the context of a body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from jobqueue.conf.compat import TaskContext, TaskError, TaskResult, TaskResultStatus
from jobqueue.declarations.function import FunctionTask, changed
from jobqueue.values.json import decode
from jobqueue.values.records import ClaimedTask, NewTask, Status
from jobqueue.values.text import escape

if TYPE_CHECKING:
    from jobqueue import models

AnyTask: TypeAlias = FunctionTask[..., Any]
Result: TypeAlias = "TaskResult[..., Any]"

# django.tasks knows four states.
OTHER_STATUS = {
    Status.BLOCKED: "READY",
    Status.SCHEDULED: "READY",
    Status.AWAITING_CODE: "READY",
    Status.SUSPENDED: "READY",
    Status.CANCELLED: "FAILED",
}
SHOWN_AS: Mapping[str, TaskResultStatus] = {
    status: TaskResultStatus(OTHER_STATUS.get(status, status)) for status in Status
}
_put = object.__setattr__
NOTE_CHARACTERS = 200
CANCELLED = TaskError(exception_class_path="jobqueue.exceptions.TaskCancelled", traceback="The task was cancelled.\n")


def not_shown(done: float, total: float | None, note: str) -> None:
    """Do nothing with reported progress, for example in a test that makes a context by hand."""


def checked_progress(done: Any, total: Any, note: Any) -> tuple[float, float | None, str]:
    """Return progress as it can be stored. A long note is cut."""
    for name, value in (("done", done), ("total", total)):
        if value is None and name == "total":
            continue
        if isinstance(value, bool) or not issubclass(type(value), int | float):  # no lazy object
            raise TypeError(f"progress() takes a number as {name}, not {value!r:.100}.")
        if not 0 <= value < inf:
            raise ValueError(f"progress() takes a finite number from 0 as {name}, not {value!r:.100}.")
    return float(done), None if total is None else float(total), escape(str(note))[:NOTE_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):  # type: ignore[misc,type-arg]
    """Django's TaskContext with an idempotency key and a cancel flag."""

    idempotency_key: str  # the same for each attempt. Pass it to systems that accept such keys.
    should_stop: Callable[[], bool]  # whether the executor stops, or the task is to be cancelled
    schedule: str | None = None  # the name of the schedule that enqueued the task; None for other tasks
    scheduled_at: datetime | None = None  # the tick of the schedule that the task stands for; None for other tasks
    report: Callable[[float, float | None, str], None] = not_shown  # of progress: done, total or None, and a note

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """
        Report how much is done, to show it on the task's page. It is written once a second, however often you call it.

        Raises TypeError for what is no number, and ValueError for a negative or infinite one.
        """
        self.report(*checked_progress(done, total, note))

    @property
    def cancelled(self) -> bool:
        """
        Whether the body should stop: cancelled, timed out, its claim is lost, or its executor stops.

        A function that has learned here of a stop is released when it ends. It starts again.
        """
        return self.should_stop()


def task_error(stored: Mapping[str, Any]) -> TaskError:
    """
    Turn one entry of the `errors` column into a TaskError.

    An entry is {"attempt", "claim_number", "at", "executor", "exception_class_path", "message", "traceback",
    "wait_seconds", "run_seconds"}. If the attempt did not start, run_seconds is None.
    """
    path = str(stored.get("exception_class_path") or "builtins.Exception")
    return TaskError(
        exception_class_path=path,
        traceback=str(stored.get("traceback") or f"{path}: {stored.get('message') or ''}\n"),
    )


def _result(task: AnyTask, **values: Any) -> Result:
    """Make a TaskResult from arguments that are JSON. Its own constructor would normalize them again."""
    defaults: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
        "_return_value": None,
    }
    result = object.__new__(TaskResult)
    for name, value in {"task": task, "backend": task.backend, **defaults, **values}.items():
        _put(result, name, value)
    return result


def enqueued(row: NewTask, task: AnyTask, *, id: UUID, enqueued_at: datetime) -> Result:  # noqa: A002 - Django's name
    """Return an inserted row as a TaskResult. task: with the options of the row."""
    return _result(task, id=str(id), enqueued_at=enqueued_at, args=decode(row.args), kwargs=decode(row.kwargs))


def from_row(row: models.Task, task: AnyTask) -> Result:
    """Return a row as a TaskResult. task: the declaration of its task_type."""
    errors = [task_error(error) for error in row.errors]
    is_untouched = row.status == Status.SCHEDULED and row.started_at is None
    return _result(
        changed(
            task,
            backend=row.backend,
            queue_name=row.queue_name,
            priority=row.priority,
            run_after=row.wake_at if is_untouched else None,
            key=row.key,
        ),
        id=str(row.id),
        status=SHOWN_AS[row.status],
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.last_attempted_at,
        args=row.args,
        kwargs=row.kwargs,
        errors=[*errors, CANCELLED] if row.status == Status.CANCELLED else errors,
        worker_ids=row.worker_ids,
        _return_value=row.return_value if row.status == Status.SUCCESSFUL else None,
    )


def from_claimed(
    claimed: ClaimedTask, task: AnyTask, args: list[Any], kwargs: dict[str, Any], *, worker_id: str
) -> Result:
    """Return a claimed task as a TaskResult. `attempts` includes the attempt that starts now."""
    if task.queue_name != claimed.queue_name or task.priority != claimed.priority:
        task = changed(task, queue_name=claimed.queue_name, priority=claimed.priority)
    return _result(
        task,
        id=str(claimed.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=claimed.enqueued_at,
        started_at=claimed.started_at or claimed.claimed_at,
        last_attempted_at=claimed.claimed_at,
        args=args,
        kwargs=kwargs,
        errors=[task_error(error) for error in decode(claimed.errors)],
        worker_ids=[*decode(claimed.worker_ids), worker_id],
    )


def finished(
    result: Result,
    *,
    status: Status,
    finished_at: datetime,
    return_value: Any = None,
    error: Mapping[str, Any] | None = None,
) -> Result:
    """Return the result of an ended task, for task_finished. return_value: decoded. error: as in `errors`."""
    errors = [*result.errors, *([task_error(error)] if error else [])]
    if status is Status.CANCELLED:
        errors.append(CANCELLED)
    ended = replace(result, status=SHOWN_AS[status], finished_at=finished_at, errors=errors)
    _put(ended, "_return_value", return_value)
    return ended
