"""The outcomes of a body's end."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils.safestring import mark_safe

from jobqueue import Actor, Done, Spawn
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import limited_tasks, tasks
from tests.executor.harness import Burst, Start, database_of, gates, on_both_databases, on_postgresql, row_of
from tests.factories import TaskFactory
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = on_postgresql

RESOLUTION = 0.001  # of SQLite's clock
BODIES = [tasks.fail, tasks.fail_later]


def moments(row: Task) -> list[Any]:
    return [row.enqueued_at, row.started_at, row.last_attempted_at, row.finished_at]


def seconds_between(first: datetime, second: datetime) -> float:
    return (second - first).total_seconds()


@on_both_databases
@pytest.mark.parametrize("body", [tasks.add, tasks.add_later])
def test_results_are_stored(burst: Burst, body: Any, backend: str) -> None:
    results = body.using(backend=backend).enqueue_many([((number,), {"b": 10}) for number in range(20)])

    running = burst(backend=backend)

    rows = [row_of(result) for result in results]
    assert [row.return_value for row in rows] == [number + 10 for number in range(20)]
    assert {row.status for row in rows} == {Status.SUCCESSFUL}
    assert {tuple(row.worker_ids) for row in rows} == {(str(running.process.executor_id),)}
    assert all(moments(row) == sorted(moments(row)) for row in rows)
    assert (running.loop.outcomes.counts.finished, running.loop.outcomes.counts.lost) == (20, 0)


@on_both_databases
@pytest.mark.parametrize("body", BODIES)
def test_every_failed_attempt_leaves_its_traceback(burst: Burst, body: Any, backend: str) -> None:
    result = body.using(backend=backend).enqueue()

    running = burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.attempts) == (Status.FAILED, 2)
    assert [error["attempt"] for error in row.errors] == [1, 2]
    assert [error["message"] for error in row.errors] == ["as asked"] * 2
    assert [error["exception_class_path"] for error in row.errors] == ["builtins.ValueError"] * 2
    traceback = row.errors[0]["traceback"]
    assert "tests/executor/tasks.py" in (first_frame := traceback.splitlines()[1])
    assert f"in {body.name}" in first_frame
    assert traceback.endswith("ValueError: as asked\n")
    assert len(row.worker_ids) == 2
    assert running.loop.outcomes.counts.finished == 1


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "kind", ["no message", "weird", "weird exit", "circle", "group", "groups", "unstorable", "stop"]
)
def test_a_strange_exception_is_stored_like_any_other(burst: Burst, body: Any, kind: str) -> None:
    result, after = body.enqueue(kind), tasks.add.enqueue(1)

    burst(threads=1)

    row = row_of(result)
    assert (row.status, len(row.errors)) == (Status.FAILED, 2)
    assert row_of(after).status == Status.SUCCESSFUL


def test_characters_that_cannot_be_stored_are_escaped(burst: Burst) -> None:
    result = tasks.fail.enqueue("unstorable")

    burst()

    (error, _) = row_of(result).errors
    assert error["message"] == r"a\u0000b\ud800c"
    assert error["traceback"].endswith("ValueError: a\\u0000b\\ud800c\n")


def test_a_huge_message_is_cut_in_its_middle(burst: Burst) -> None:
    result = tasks.fail.enqueue("huge")

    burst()

    (error, _) = row_of(result).errors
    assert "characters left out" in error["message"]
    assert len(error["message"]) < 2_200
    assert len(error["traceback"]) < 16_200
    assert error["traceback"].startswith("Traceback")


@pytest.mark.parametrize("body", [*BODIES, tasks.fail_in_a_child])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("exit", "builtins.SystemExit"),
        ("keyboard", "builtins.KeyboardInterrupt"),
        ("generator", "builtins.GeneratorExit"),
        ("cancelled", "asyncio.exceptions.CancelledError"),
    ],
)
def test_an_exception_that_ends_programs_ends_only_the_task(burst: Burst, body: Any, kind: str, path: str) -> None:
    result, after = body.enqueue(kind), [tasks.add.enqueue(1), tasks.add_later.enqueue(1)]

    burst(threads=1)

    row = row_of(result)
    assert (row.status, len(row.errors)) == (Status.FAILED, 2)
    assert row.errors[0]["exception_class_path"] == path
    assert {row_of(result).status for result in after} == {Status.SUCCESSFUL}


# --- how often


@pytest.mark.parametrize(
    ("task", "attempts"),
    [(tasks.fail, 2), (tasks.fail.using(max_attempts=1), 1), (tasks.fail_by_default, 3)],
    ids=["decorator", "using", "OPTIONS"],
)
def test_the_number_of_attempts_comes_from(burst: Burst, options: Options, task: Any, attempts: int) -> None:
    options(MAX_ATTEMPTS=3)
    result = task.enqueue()

    burst()

    row = row_of(result)
    assert (row.status, row.attempts, len(row.errors)) == (Status.FAILED, attempts, attempts)


def test_success_keeps_the_number_of_failed_attempts(burst: Burst) -> None:
    result = limited_tasks.fail_twice.enqueue("a gate", "anna")

    burst()

    row = row_of(result)
    assert (row.status, row.attempts, len(row.errors)) == (Status.SUCCESSFUL, 2, 2)


def test_only_the_exceptions_of_retry_on_are_worth_another_attempt(burst: Burst) -> None:
    other = tasks.fail_selectively.enqueue("plain")
    listed = tasks.fail_selectively.enqueue("temporary")
    excepted = tasks.fail_selectively.enqueue("permanent")
    asked = tasks.retry_anyway.enqueue()

    burst()

    assert [row_of(result).attempts for result in (other, listed, excepted, asked)] == [1, 4, 1, 2]


@on_both_databases
def test_give_up_ends_a_task_with_attempts_left(burst: Burst, backend: str) -> None:
    result = tasks.give_up.using(backend=backend).enqueue()

    burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.attempts) == (Status.FAILED, 1)
    assert row.errors[0]["message"] == "the address does not exist"


# --- how soon


@on_both_databases
def test_a_retry_never_comes_sooner_than_its_backoff(start: Start, backend: str) -> None:
    tasks.fail_with_backoff.using(backend=backend).enqueue(backend, "backoff")

    start(backend=backend)

    first, second, third = gates["backoff"].wait_for(3)
    assert seconds_between(first, second) >= 0.2 - RESOLUTION
    assert seconds_between(second, third) >= 0.4 - RESOLUTION


@pytest.mark.parametrize("as_timedelta", [False, True])
def test_a_body_may_say_when_to_retry(start: Start, as_timedelta: bool) -> None:
    tasks.retry_after.enqueue(0.3, "retry", as_timedelta=as_timedelta)

    start()

    first, second = gates["retry"].wait_for(2)
    assert seconds_between(first, second) >= 0.3 - RESOLUTION


def test_a_retry_is_taken_up_when_it_is_due_and_not_at_the_next_poll(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobqueue.executor.maintenance.CHECK_SECONDS", 600.0)
    tasks.retry_after.enqueue(0.05, "retry")

    start(poll_interval=600.0)

    gates["retry"].wait_for(2)


# --- results


@on_both_databases
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("object", "object is not JSON"),
        ("nan", "NaN is not JSON"),
        ("deep", "nesting deeper than 64"),
        ("long", "an integer of more than 4300 digits cannot be read back"),
        ("large", "more than 1,048,576 bytes"),
        ("unreadable", "RuntimeError('not readable')"),
        ("coroutine", "Declare the task with `async def`"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_the_task_with_the_reason(
    burst: Burst, kind: str, reason: str, backend: str
) -> None:
    result = tasks.give.using(backend=backend).enqueue(kind)

    burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.attempts) == (Status.FAILED, 1)  # the body did its work: not once more
    assert not row.errors[0]["traceback"].startswith("Traceback") or kind == "unreadable"
    assert row.errors[0]["exception_class_path"] == "jobqueue.exceptions.InvalidResult"
    assert reason in row.errors[0]["message"]


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("unstorable", {r"a\u0000b": [r"\ud800", r"\u0000"]}),
        ("tuple", [1, [2, 3]]),
        ("none", None),
    ],
)
def test_a_result_is_stored_as_json(burst: Burst, kind: str, stored: Any) -> None:
    result = tasks.give.enqueue(kind)

    burst()

    row = row_of(result)
    assert (row.status, row.return_value) == (Status.SUCCESSFUL, stored)


def test_a_result_that_only_the_database_refuses_fails_alone(burst: Burst, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer numbers than numeric takes are JSON to everybody else.
    monkeypatch.setattr("jobqueue.executor.running.task_runner.encode_result", lambda value, **_: value)
    refused = tasks.give.enqueue("none")
    monkeypatch.setitem(tasks.RESULTS, "none", lambda: "1" + "0" * 200_000)
    monkeypatch.setitem(tasks.RESULTS, "fine", lambda: "1")
    others = tasks.give.enqueue_many([(("fine",), {})] * 5)

    burst(threads=1)

    row = row_of(refused)
    assert (row.status, row.errors[0]["exception_class_path"]) == (Status.FAILED, "jobqueue.exceptions.InvalidResult")
    assert "The database refused the outcome" in row.errors[0]["message"]
    assert {row_of(result).status for result in others} == {Status.SUCCESSFUL}


# --- rows that never start


@on_both_databases
def test_an_expired_task_fails_without_having_run(burst: Burst, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    result = tasks.add.using(backend=backend, expires=timedelta(seconds=60)).enqueue(1)
    rows = Task.objects.using(database_of(result))
    rows.update(expires_at=rows.get().enqueued_at - timedelta(seconds=1))

    with caplog.at_level("INFO", "jobqueue.executor"):
        burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.attempts, row.worker_ids) == (Status.FAILED, 0, [])
    assert row.errors[0]["exception_class_path"] == "jobqueue.exceptions.Expired"
    (line,) = lines_about(caplog, row.pk)
    assert line.startswith("task.failed ")
    assert " attempt=0/" in line


def test_names_and_errors_cannot_forge_a_line_of_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    forged = "x\n13:59:59 CRITICAL executor.failed\x1b]0;pwned\x07\u2028"
    failing = TaskFactory.create(task_type=tasks.fail.task_type, args=["forged"], queue_name=forged)
    TaskFactory.create(task_type=forged)

    with caplog.at_level("INFO", "jobqueue.executor"):
        start()
        wait_until(lambda: len(lines_about(caplog, failing.pk)) == 2, "the lines of two attempts")
        (other, *_) = wait_until(
            lambda: [line for line in caplog.messages if line.startswith("task.deferred task=x")],
            "the line about an unknown task",
        )
    (failure,) = [record for record in caplog.records if record.exc_info and record.name.startswith("jobqueue")]
    line = failure.getMessage()

    assert r"ValueError: \x1b]0;pwned\x07\x8513:59:59 CRITICAL executor.failed\u2028!" in line
    assert r"queue=x\n13:59:59 CRITICAL executor.failed\x1b]0;pwned\x07\u2028 " in line
    assert line.isprintable()
    assert other.isprintable()
    traceback = logging.Formatter().format(failure)
    assert traceback.endswith(r"ValueError: \x1b]0;pwned\x07\x8513:59:59 CRITICAL executor.failed\u2028!")
    assert all(record.queue.isprintable() for record in caplog.records if hasattr(record, "queue"))


def lines_about(caplog: pytest.LogCaptureFixture, pk: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "task_id", None) == str(pk)]


@pytest.mark.parametrize(
    "broken",
    [
        {"args": "1" * 5000},
        {"args": "{}"},
        {"kwargs": "[]"},
        {"options": '{"max_attempts": "many"}'},
        {"options": '{"backoff": {"base": -1}}'},
        {"errors": "[1]"},
        {"worker_ids": "7"},
    ],
    ids=lambda broken: "-".join(f"{key}={value[:20]}" for key, value in broken.items()),
)
def test_an_unreadable_row_fails_alone(burst: Burst, broken: dict[str, str]) -> None:
    results = tasks.add.enqueue_many([((number,), {}) for number in range(5)])
    ((column, text),) = broken.items()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE jobqueue_task SET {column} = %s::jsonb WHERE id = %s", [text, results[2].id])

    burst()

    others = [row_of(result) for number, result in enumerate(results) if number != 2]
    assert {row.status for row in others} == {Status.SUCCESSFUL}
    with connection.cursor() as cursor:
        cursor.execute("SELECT status, errors::text FROM jobqueue_task WHERE id = %s", [results[2].id])
        status, errors = cursor.fetchone()
    assert status == Status.FAILED
    assert "UndecodableTask" in errors


@pytest.mark.parametrize("path", tasks.BROKEN)
@pytest.mark.parametrize("body", [tasks.fail_with_a_broken_class, tasks.fail_with_a_broken_class_later])
def test_exception_that_cannot_be_judged_is_the_end(burst: Burst, body: Any, path: str) -> None:
    """The error is the body's, so an attempt is counted. Otherwise the body would run without end."""
    result = body.enqueue("runs", path)

    burst()

    row = row_of(result)
    assert (row.status, row.attempts, len(gates["runs"].arrived)) == (Status.FAILED, 1, 1)
    assert row.errors[-1]["exception_class_path"] == path


@on_both_databases
def test_failures_have_one_cause_if_only_numbers_and_secrets_differ(burst: Burst, backend: str) -> None:
    values = [(1, "hunter2hunter2"), (20, "correct-horse-battery")]
    results = [tasks.fail_with_values.using(backend=backend).enqueue(*pair) for pair in values]
    other = tasks.fail.using(backend=backend).enqueue()

    burst(backend=backend)

    first, second, third = (row_of(result).cause for result in (*results, other))
    assert first is not None
    assert first == second != third


@on_both_databases
def test_history_is_written_only_where_other_columns_lack_it(burst: Burst, backend: str) -> None:
    plain, failed = tasks.add.using(backend=backend).enqueue(1), tasks.fail.using(backend=backend).enqueue()

    burst(backend=backend)

    assert (row_of(plain).history, row_of(failed).history) == (None, None)
    for entry in row_of(failed).errors:
        assert 0 <= entry["wait_seconds"] < 60
        assert 0 <= entry["run_seconds"] < 60


class SpawnsByMarkedTexts(Actor):
    """Takes key and queue of its child from Django's templates."""

    def poll(self, context: Any) -> Any:
        return Spawn(tasks.add.using(key=mark_safe("k"), queue_name=mark_safe("default")), 1), Done()


@on_both_databases
def test_spawn_whose_key_is_a_subclass_of_str_is_committed(burst: Burst, backend: str) -> None:
    parent = SpawnsByMarkedTexts.using(backend=backend).enqueue()

    burst(backend=backend)

    child = Task.objects.using(database_of(parent)).get(parent=row_of(parent))
    assert (row_of(parent).status, child.status, child.key) == (Status.SUCCESSFUL, Status.SUCCESSFUL, "k")
