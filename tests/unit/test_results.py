"""Rows and claimed tasks as results of Django's task framework."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from jobqueue.compat import TaskContext, TaskResultStatus
from jobqueue.records import ClaimedTask, Status
from jobqueue.results import finished, from_claimed, task_error
from tests import tasks

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ERROR = {
    "attempt": 1,
    "at": NOON.isoformat(),
    "executor": "a",
    "exception_class_path": "builtins.ValueError",
    "message": "no",
    "traceback": "Traceback ...\nValueError: no\n",
}


def claimed(**values: Any) -> ClaimedTask:
    defaults: dict[str, Any] = {
        "id": UUID(int=1),
        "task_type": "tests.tasks.add",
        "queue_name": "default",
        "priority": 0,
        "args": "[1]",
        "kwargs": '{"b":2}',
        "inner_state": None,
        "options": "{}",
        "metadata": "{}",
        "errors": "[]",
        "worker_ids": "[]",
        "parent_id": None,
        "key": None,
        "claim_number": 1,
        "attempts": 0,
        "max_attempts": 4,
        "polls": 0,
        "executor_losses": 0,
        "rank": NOON,
        "enqueued_at": NOON,
        "started_at": None,
        "claimed_at": NOON + timedelta(seconds=1),
        "wait_seconds": 1.0,
        "is_expired": False,
    }
    return ClaimedTask(**{f: defaults[f] for f in ClaimedTask.__struct_fields__ if f in defaults} | values)


def running(**values: Any) -> Any:
    return from_claimed(claimed(**values), tasks.add, [1], {"b": 2}, worker_id="executor-1")


def test_running_result_counts_current_attempt() -> None:
    result = running()
    assert (result.status, result.worker_ids) == (TaskResultStatus.RUNNING, ["executor-1"])
    assert TaskContext(task_result=result).attempt == 1
    assert (result.enqueued_at, result.started_at) == (NOON, NOON + timedelta(seconds=1))
    assert (result.args, result.kwargs, result.errors, result.backend) == ([1], {"b": 2}, [], "default")
    assert result.task is tasks.add


def test_later_attempt_has_earlier_errors() -> None:
    result = running(worker_ids='["a","a"]', errors=json.dumps([ERROR]), started_at=NOON, queue_name="slow", priority=5)
    assert TaskContext(task_result=result).attempt == 3
    assert (result.started_at, result.last_attempted_at) == (NOON, NOON + timedelta(seconds=1))
    assert result.errors[0].exception_class is ValueError
    assert (result.task.queue_name, result.task.priority) == ("slow", 5)


def test_finished_result_carries_its_value() -> None:
    before = running()
    after = finished(before, status=Status.SUCCESSFUL, finished_at=NOON, return_value=[1])
    assert (after.status, after.return_value, after.finished_at) == ("SUCCESSFUL", [1], NOON)
    assert (before.status, before.finished_at) == ("RUNNING", None)


def test_failed_result_carries_one_more_error() -> None:
    after = finished(running(errors=json.dumps([ERROR])), status=Status.FAILED, finished_at=NOON, error=ERROR)
    assert [error.exception_class for error in after.errors] == [ValueError, ValueError]
    with pytest.raises(ValueError, match="Task failed"):
        _ = after.return_value


def test_cancelled_result_has_an_error() -> None:
    after = finished(running(), status=Status.CANCELLED, finished_at=NOON)
    assert after.status == TaskResultStatus.FAILED
    assert after.errors[0].traceback == "The task was cancelled.\n"


def test_error_without_a_traceback_shows_its_message() -> None:
    error = task_error({"exception_class_path": "jobqueue.exceptions.Expired", "message": "too late"})
    assert error.traceback == "jobqueue.exceptions.Expired: too late\n"
