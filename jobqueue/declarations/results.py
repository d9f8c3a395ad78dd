"""Rows as TaskResult and TaskError of django.tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from msgspec import Struct

from jobqueue.conf.compat import TaskError, TaskResult, TaskResultStatus
from jobqueue.declarations.function import FunctionTask, copy_unchecked
from jobqueue.values.json import decode
from jobqueue.values.records import ClaimedTask, NewTask
from jobqueue.values.states import Status

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
CANCELLED = TaskError(exception_class_path="jobqueue.exceptions.TaskCancelled", traceback="The task was cancelled.\n")


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


def _result(task: AnyTask, *, return_value: Any = None, **values: Any) -> Result:
    """Make a TaskResult from arguments that are JSON. Its own constructor would normalize them again."""
    result = object.__new__(TaskResult)
    _fill(result, task, values)
    _put(result, "_return_value", return_value)
    return result


def _fill(result: Result, task: AnyTask, values: Mapping[str, Any]) -> None:
    defaults: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
    }
    for name, value in {"task": task, "backend": task.backend, **defaults, **values}.items():
        _put(result, name, value)


class Source(Struct, frozen=True, gc=False):
    """The values that make the result of an inserted row."""

    row: NewTask  # as it was given to the engine
    task: AnyTask  # with the options of the row
    id: UUID  # of the row, or of a task that has its key
    enqueued_at: datetime  # the moment of the insert


class UnreadResult(TaskResult):  # type: ignore[type-arg]
    """
    The TaskResult of an inserted row, which makes its values at the first use.

    Callers of enqueue_many() read few of its results, and making all of them would take as long as making the rows.
    `_return_value` holds their Source.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)

    def __eq__(self, other: object) -> bool:
        return self._read() == other

    def __repr__(self) -> str:
        return repr(self._read())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._read().__reduce_ex__(protocol)

    def _read(self) -> Result:
        """Turn this object into an ordinary TaskResult, and return it. Several threads may do this at once."""
        if (source := self._return_value) is not None:
            arguments = {"args": decode(source.row.args), "kwargs": decode(source.row.kwargs)}
            _fill(self, source.task, {"id": str(source.id), "enqueued_at": source.enqueued_at, **arguments})
            _put(self, "__class__", TaskResult)
            _put(self, "_return_value", None)
        return self


def enqueued(row: NewTask, task: AnyTask, pk: UUID, enqueued_at: datetime) -> Result:
    """Return an inserted row as a TaskResult. task: with its options. pk: its id, or that of a holder of its key."""
    result = object.__new__(UnreadResult)
    _put(result, "_return_value", Source(row, task, pk, enqueued_at))
    return result


def from_row(row: models.Task, task: AnyTask) -> Result:
    """Return a row as a TaskResult. task: the declaration of its task_type."""
    errors = [task_error(error) for error in row.errors]
    is_untouched = row.status == Status.SCHEDULED and row.started_at is None
    return _result(
        copy_unchecked(
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
        return_value=row.return_value if row.status == Status.SUCCESSFUL else None,
    )


def from_claimed(
    claimed: ClaimedTask, task: AnyTask, args: list[Any], kwargs: dict[str, Any], *, worker_id: str
) -> Result:
    """Return a claimed task as a TaskResult. `attempts` includes the attempt that starts now."""
    if task.queue_name != claimed.queue_name or task.priority != claimed.priority:
        task = copy_unchecked(task, queue_name=claimed.queue_name, priority=claimed.priority)
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
