"""The contract of Django's task framework on both databases."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from jobqueue import InvalidArguments, task
from jobqueue.backend import JobQueueBackend
from jobqueue.conf.compat import (
    PACKAGE,
    InvalidTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from jobqueue.conf.options import options_for
from jobqueue.declarations import registry
from jobqueue.declarations.function import FunctionTask
from jobqueue.models import Task
from tests import tasks
from tests.engine.sessions import threads
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(params=["default", "sqlite"])
def alias(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def add(alias: str) -> FunctionTask[Any, int]:
    return tasks.add.using(backend=alias)


@pytest.fixture
def signals() -> Iterator[list[Any]]:
    seen: list[Any] = []

    def remember(sender: Any, task_result: Any, **_: Any) -> None:
        seen.append((sender, task_result))

    task_enqueued.connect(remember)
    yield seen
    task_enqueued.disconnect(remember)


def row(result: Any) -> Task:
    return Task.objects.using(options_for(result.backend).database).get(pk=result.id)


def rows(alias: str) -> Any:
    return Task.objects.using(options_for(alias).database).filter(backend=alias)


# --- enqueue


def test_enqueued_task_is_a_row_and_a_ready_result(add: Any, alias: str, signals: list[Any]) -> None:
    result = add.enqueue(2, b=3)
    ((sender, seen),) = signals
    assert (sender, seen is result) == (JobQueueBackend, True)
    assert result.status == TaskResultStatus.READY
    assert (result.args, result.kwargs, result.backend) == ([2], {"b": 3}, alias)
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert result.enqueued_at is not None
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    stored = row(result)
    assert (stored.task_type, stored.queue_name, stored.priority) == ("tests.tasks.add", "default", 0)
    assert (stored.args, stored.kwargs, stored.status) == ([2], {"b": 3}, "READY")
    assert (stored.max_attempts, stored.options, stored.metadata, stored.key) == (4, {}, {}, None)
    assert len(result.id) == 36
    assert UUID(result.id).version == 7


def test_backend_supports_all_features_of_the_framework(alias: str) -> None:
    backend = task_backends[alias]
    features = ("defer", "async_task", "get_result", "priority")
    assert [getattr(backend, f"supports_{name}") for name in features] == [True] * 4


def test_async_twins_do_the_same(add: Any) -> None:
    async def enqueue() -> Any:
        result = await add.aenqueue(2)
        return result, await add.aget_result(result.id), await add.aenqueue_many([((1,), {})])

    result, read_back, many = async_to_sync(enqueue)()
    assert read_back == result
    assert row(many[0]).args == [1]


def test_options_of_the_copy_reach_the_row(alias: str) -> None:
    result = tasks.named.using(
        backend=alias,
        priority=-5,
        queue_name="slow",
        max_attempts=2,
        timeout=1.5,
        metadata={"user": 7},
        key="k",
    ).enqueue("a", flag=True)
    stored = row(result)
    assert (stored.task_type, stored.priority, stored.queue_name) == ("tests.stable", -5, "slow")
    assert (stored.max_attempts, stored.options) == (2, {"max_attempts": 2, "timeout": 1.5})
    assert (stored.metadata, stored.key) == ({"user": 7}, "k")


@pytest.mark.parametrize(
    ("run_after", "status"),
    [
        (datetime(2031, 5, 1, tzinfo=UTC), "SCHEDULED"),
        (timedelta(hours=1), "SCHEDULED"),
        (timedelta(seconds=-5), "READY"),
        (datetime(2020, 1, 1, tzinfo=UTC), "READY"),
    ],
)
def test_run_after_schedules_a_task_by_the_databases_clock(add: Any, run_after: Any, status: str) -> None:
    result = add.using(run_after=run_after, expires=timedelta(hours=2)).enqueue(1)
    stored = row(result)
    due = stored.enqueued_at + run_after if isinstance(run_after, timedelta) else run_after
    assert (stored.status, stored.wake_at) == (status, due if status == "SCHEDULED" else None)
    assert stored.expires_at == stored.enqueued_at + timedelta(hours=2)
    read_back = add.get_result(result.id)
    assert (read_back.status, read_back.task.run_after) == (TaskResultStatus.READY, stored.wake_at)


def test_arguments_come_back_as_json_reads_them(alias: str) -> None:
    values = [
        {"a": [1, 2.5, None, True, "é\U0001f600"], "deep": {"x": {}}},
        10**100,
        10**4300 - 1,
        5e-324,
        0.1,
        "",
        [],
    ]
    results = tasks.echo.using(backend=alias).enqueue_many([((value,), {}) for value in values])
    for value, result in zip(values, results, strict=True):
        [back] = row(result).args
        assert back == value
        assert type(back) is type(value)


def test_enqueue_joins_the_callers_transaction(add: Any, alias: str) -> None:
    database = options_for(alias).database

    with transaction.atomic(using=database):
        result = add.enqueue(1)
        assert row(result).status == "READY"
        transaction.set_rollback(True, using=database)
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result.id)


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "add(): missing a required argument: 'a'"),
        ((1, 2, 3), {}, "add(): too many positional arguments"),
        ((1,), {"c": 2}, "add(): got an unexpected keyword argument 'c'"),
        ((float("nan"),), {}, "add(): argument 'a': NaN is not JSON"),
        ((1,), {"b": "\x00"}, "add(): argument 'b': a NUL character cannot be stored"),
        (({1},), {}, "add(): argument 'a': set is not JSON"),
        (("x" * 1_048_577,), {}, "add(): more than 1,048,576 bytes"),
    ],
)
def test_refused_arguments_write_nothing(
    add: Any, alias: str, signals: list[Any], args: Any, kwargs: Any, reason: str
) -> None:
    with CaptureQueriesContext(connections[options_for(alias).database]) as queries:
        with pytest.raises(InvalidArguments) as caught:
            add.enqueue(*args, **kwargs)
    assert reason in str(caught.value)
    assert len(queries) == 0
    assert signals == []


def test_metadata_that_is_not_json_is_refused(add: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"add\(\): metadata\['user'\]: object is not JSON"):
        add.using(metadata={"user": object()}).enqueue(1)


def test_unknown_queue_is_refused_before_anything_is_written(alias: str) -> None:
    params = {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": ["emails", "default"]}
    declared = tasks.add.using(queue_name="elsewhere", backend=alias)
    options = {"OPTIONS": {"DATABASE": options_for(alias).database}}
    with override_settings(TASKS={alias: params | options, "default": params}):
        with pytest.raises(InvalidTask, match=r"add: unknown queue 'nowhere'. QUEUES of TASKS"):
            tasks.add.using(backend=alias, queue_name="nowhere")
        with pytest.raises(InvalidTask, match=r"add: unknown queue 'elsewhere'. QUEUES of TASKS"):
            declared.enqueue(1)
        assert row(tasks.add.using(backend=alias, queue_name="emails").enqueue(1)).queue_name == "emails"
    assert rows(alias).count() == 1


def test_task_of_djangos_own_class_is_accepted(alias: str) -> None:
    # Declared while another backend stood under the alias.
    immediate = {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"}
    with override_settings(TASKS={"default": immediate, alias: immediate}):
        from jobqueue.conf.compat import Task as DjangosTask

        plain: Any = DjangosTask(
            func=tasks.add.func,
            priority=0,
            backend=alias,
            queue_name="default",
            run_after=None,
            takes_context=False,
        )
    result = plain.enqueue(1)
    assert row(result).task_type == "tests.tasks.add"
    assert isinstance(result.task, FunctionTask)
    assert registry.get("tests.tasks.add") is tasks.add


@pytest.mark.parametrize("read", [repr, copy.copy, replace, lambda result: result == result.task.get_result(result.id)])
def test_first_use_of_a_result_reads_all_of_it(add: Any, alias: str, read: Any) -> None:
    """enqueue() leaves the values of a result to be made at its first use."""
    result = add.enqueue(2, b=3)

    answer = read(result)

    assert type(result) is TaskResult
    assert result == add.get_result(result.id)
    assert answer in (True, repr(result), result)
    assert "b" in vars(TaskResult)["kwargs"].__get__(result)


def test_results_can_be_compared_before_another_use(add: Any) -> None:
    first, second, third = add.enqueue_many([((1,), {}), ((1,), {}), ((2,), {})])
    assert first != second
    assert add.get_result(str(rows(add.backend).order_by("pk").last().pk)) == third
    assert not hasattr(add.enqueue(1), "no_such_name")
    with pytest.raises(AttributeError):
        add.enqueue(1).id = "another"


def test_threads_read_the_same_results_at_once(add: Any) -> None:
    made = add.enqueue_many([((number,), {}) for number in range(300)])

    with threads(4) as start:
        readers = [start(lambda: [(result.args, result.status, result.id) for result in made]) for _ in range(4)]
        read = [reader.result(DEADLINE_SECONDS) for reader in readers]

    assert [args for args, _, _ in read[0]] == [[number] for number in range(300)]
    assert all(values == read[0] for values in read)


def test_code_that_runs_within_a_statement_may_enqueue() -> None:
    made: list[Any] = []

    def enqueue_another(execute: Any, sql: str, *rest: Any) -> Any:
        answer = execute(sql, *rest)
        if not made and "jobqueue_enqueue_plain(" in sql:
            made.append(None)
            made[0] = tasks.add.enqueue(2)
        return answer

    before = tasks.add.enqueue(0)  # a connection keeps the cursor of such a statement
    with connections["default"].execute_wrapper(enqueue_another):
        first = tasks.add.enqueue(1)

    assert [row.args for row in Task.objects.order_by("enqueued_at")] == [[0], [1], [2]]
    assert [str(row.pk) for row in Task.objects.order_by("enqueued_at")] == [before.id, first.id, made[0].id]


# --- many


def test_enqueue_many_uses_one_statement_per_thousand(alias: str, signals: list[Any]) -> None:
    add = tasks.add.using(backend=alias)
    with CaptureQueriesContext(connections[options_for(alias).database]) as queries:
        results = add.enqueue_many(((number,), {"b": 2}) for number in range(2_500))
    inserts = [query for query in queries if "jobqueue_enqueue_plain(" in query["sql"]]
    assert alias != "default" or len(inserts) == 3
    assert [result.args for result in results] == [[number] for number in range(2_500)]
    assert [seen for _, seen in signals] == results
    stored = {str(row.pk): row.args for row in rows(alias)}
    assert stored == {result.id: result.args for result in results}
    assert add.enqueue_many([]) == []


def test_enqueue_many_names_the_invalid_call(add: Any, alias: str) -> None:
    with pytest.raises(InvalidArguments, match=r"add\(\), call 2: argument 'b': NaN is not JSON"):
        add.enqueue_many([((1,), {}), ((2,), {}), ((3,), {"b": float("nan")})])
    wrong_calls: list[Any] = [5, (1, 2), ("ab", {}), ((1,), {}, {}), [(1,)]]
    for wrong in wrong_calls:
        with pytest.raises(InvalidArguments, match="must be a pair"):
            add.enqueue_many([wrong])
    assert rows(alias).count() == 0


# --- key


def test_enqueue_with_a_live_key_returns_its_task(alias: str, signals: list[Any]) -> None:
    keyed = tasks.add.using(backend=alias, key="order-1")
    first = keyed.enqueue(1)
    by_another_function = tasks.echo.using(backend=alias, key="order-1").enqueue(2)
    results: list[Any] = [keyed.enqueue(2), by_another_function, *keyed.enqueue_many([((1,), {}), ((2,), {})])]
    assert {result.id for result in results} == {first.id}
    assert results[0].args == [1]
    assert by_another_function.task.func is tasks.add.func
    assert len(signals) == rows(alias).count() == 1
    rows(alias).update(status="SUCCESSFUL", finished_at=datetime.now(UTC))
    assert keyed.enqueue(2).id != first.id


# --- results


def test_result_is_found_by_its_id(add: Any, alias: str) -> None:
    result = add.using(priority=3, queue_name="q", key="k").enqueue(2, b=3)
    read_back: Any
    for read_back in (add.get_result(result.id), task_backends[alias].get_result(result.id)):
        assert read_back == result
        assert read_back.task.func is tasks.add.func
        assert (read_back.task.priority, read_back.task.queue_name, read_back.task.key) == (3, "q", "k")


@pytest.mark.parametrize(
    "result_id",
    [
        "00000000-0000-4000-8000-000000000000",
        "",
        "nonsense",
        "x" * 36,
        "x" * 100_000,
        "\x00" * 36,
        "\ud800" * 36,
        "{00000000-0000-0000-0000-00000000000}",
        "00000000000040008000000000000000",
        None,
        5,
        b"x" * 36,
    ],
)
def test_unknown_and_malformed_ids_do_not_exist(add: Any, result_id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result_id)


def test_result_of_another_or_an_unknown_function_is_refused(add: Any, alias: str) -> None:
    result = tasks.echo.using(backend=alias).enqueue(1)
    with pytest.raises(TaskResultMismatch):
        add.get_result(result.id)
    rows(alias).update(task_type="os.system")
    with pytest.raises(TaskResultDoesNotExist, match=r"'os\.system', which this process does not know"):
        task_backends[alias].get_result(result.id)


def test_backends_do_not_see_each_others_tasks() -> None:
    options = {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": []}
    with override_settings(TASKS={"default": options, "second": options}):
        result = tasks.add.enqueue(1)
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["second"].get_result(result.id)


def test_result_of_an_unconfigured_queue_is_found(add: Any, alias: str) -> None:
    result = add.using(queue_name="forgotten").enqueue(1)
    params = {
        "BACKEND": "jobqueue.backend.JobQueueBackend",
        "OPTIONS": {"DATABASE": options_for(alias).database},
    }
    with override_settings(TASKS={"default": params, alias: params}):
        assert task_backends[alias].get_result(result.id).task.queue_name == "forgotten"


@pytest.mark.parametrize(
    ("status", "expected", "finished"),
    [
        ("READY", "READY", False),
        ("SCHEDULED", "READY", False),
        ("SUSPENDED", "READY", False),
        ("RUNNING", "RUNNING", False),
        ("SUCCESSFUL", "SUCCESSFUL", True),
        ("FAILED", "FAILED", True),
        ("CANCELLED", "FAILED", True),
    ],
)
def test_seven_states_are_shown_as_four(add: Any, alias: str, status: str, expected: str, finished: bool) -> None:
    result = add.enqueue(1)
    rows(alias).update(status=status, return_value=5, finished_at=datetime.now(UTC) if finished else None)
    result.refresh()
    assert result.status == expected
    assert result.is_finished is finished
    if status == "SUCCESSFUL":
        assert result.return_value == 5
    else:
        with pytest.raises(ValueError, match="Task failed" if finished else "not finished yet"):
            _ = result.return_value


def test_cancelled_task_has_an_error(add: Any, alias: str) -> None:
    result = add.enqueue(1)
    rows(alias).update(status="CANCELLED", finished_at=datetime.now(UTC))
    async_to_sync(result.arefresh)()
    [error] = result.errors
    assert "cancelled" in error.traceback
    assert error.exception_class.__name__ == "TaskCancelled"


def test_errors_of_every_attempt_are_shown(add: Any, alias: str) -> None:
    result = add.enqueue(1)
    stored = [
        {
            "attempt": 1,
            "at": "2026-01-01T00:00:00+00:00",
            "executor": "a",
            "exception_class_path": "builtins.ValueError",
            "message": "no",
            "traceback": "Traceback ...\nValueError: no\n",
        },
        {"attempt": 2},
    ]
    rows(alias).update(errors=stored, worker_ids=["a", "a"])
    result.refresh()
    assert result.errors[0] == TaskError(
        exception_class_path="builtins.ValueError", traceback="Traceback ...\nValueError: no\n"
    )
    assert result.errors[1].exception_class is Exception
    assert result.attempts == 2


# --- subclasses


class Loud(JobQueueBackend):
    """A site's own backend."""


def test_subclass_is_the_sender_of_its_signals(signals: list[Any]) -> None:
    with override_settings(TASKS={"default": {"BACKEND": f"{__name__}.Loud", "QUEUES": []}}):
        task(tasks.add.func).enqueue(1)
    assert [sender for sender, _ in signals] == [Loud]
