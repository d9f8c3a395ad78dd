"""Bodies that take longer than their timeout."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from django.db import connection

from jobqueue.conf.compat import task_started
from jobqueue.executor import watchdog
from jobqueue.executor.running import attempt
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import (
    Burst,
    Start,
    connected,
    gates,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
)
from tests.fixtures import Options
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = on_postgresql

TIMED_OUT = "jobqueue.exceptions.TaskTimeout"


@on_both_databases
@pytest.mark.parametrize("body", [tasks.spin, tasks.swallow_exceptions, tasks.sleep_later])
def test_a_body_is_stopped_at_its_timeout(burst: Burst, body: Any, backend: str) -> None:
    result = body.using(backend=backend, timeout=0.1, max_attempts=1).enqueue(60.0)

    burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.attempts) == (Status.FAILED, 1)
    assert row.errors[0]["exception_class_path"] == TIMED_OUT
    assert row.errors[0]["message"] == "The task ran longer than its timeout."


@pytest.mark.parametrize("body", [tasks.spin, tasks.sleep_later])
def test_the_traceback_shows_where_a_body_was(burst: Burst, body: Any) -> None:
    result = body.using(timeout=0.1, max_attempts=1).enqueue(60.0)

    burst()

    traceback = row_of(result).errors[0]["traceback"]
    assert "tests/executor/tasks.py" in traceback
    assert f"in {body.name}" in traceback


@pytest.mark.parametrize("source", ["decorator", "using", "OPTIONS"])
def test_the_timeout_comes_from(burst: Burst, options: Any, source: str) -> None:
    options(TIMEOUT=0.1 if source == "OPTIONS" else 60.0)
    task = tasks.spin_for_a_tenth if source == "decorator" else tasks.spin.using(max_attempts=1)
    result = (task.using(timeout=0.1) if source == "using" else task).enqueue(60.0)

    burst()

    assert row_of(result).errors[0]["exception_class_path"] == TIMED_OUT


def test_a_timeout_is_retried_like_any_error(burst: Burst) -> None:
    result = tasks.spin.using(timeout=0.05, max_attempts=3).enqueue(60.0)

    burst()

    row = row_of(result)
    assert [error["exception_class_path"] for error in row.errors] == [TIMED_OUT] * 3
    assert (row.status, row.attempts) == (Status.FAILED, 3)


@pytest.mark.parametrize("body", [tasks.sleep_in_the_database, tasks.sleep_in_the_database_later])
def test_the_servers_part_of_a_body_is_cancelled_too(burst: Burst, body: Any) -> None:
    result = body.using(timeout=0.2, max_attempts=1).enqueue()

    burst()

    assert row_of(result).errors[0]["exception_class_path"] == TIMED_OUT
    wait_until(lambda: not statements("pg_sleep(3600)"), "the end of the statement")


def test_body_that_sees_a_cancelled_statement_has_timed_out(burst: Burst) -> None:
    result = tasks.wrap_the_database_error.using(timeout=0.2, max_attempts=1).enqueue()

    burst()

    (error,) = row_of(result).errors
    assert error["exception_class_path"] == TIMED_OUT


def test_a_body_may_have_the_last_word_at_its_timeout(burst: Burst) -> None:
    saved = tasks.save_what_there_is.using(timeout=0.1).enqueue()
    asked = tasks.ask_for_more_time.using(timeout=0.1).enqueue()

    burst()

    assert (row_of(saved).status, row_of(saved).return_value) == (Status.SUCCESSFUL, "half of it")
    assert row_of(asked).status == Status.SCHEDULED
    assert row_of(asked).errors[0]["exception_class_path"] == "jobqueue.exceptions.Retry"


def test_body_that_swallows_interruptions_gets_more(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "REPEAT_SECONDS", 0.0)
    monkeypatch.setattr(attempt, "INTERRUPT_GAP_SECONDS", 0.0)
    result = tasks.swallow_interruptions.using(timeout=0.1).enqueue("swallowed", 3)
    start(shutdown_timeout=DEADLINE_SECONDS)  # after this time it counts as stuck

    assert len(gates["swallowed"].wait_for(4)) == 4
    assert wait_for_status(result, Status.SUCCESSFUL).return_value == 3


def test_time_in_receivers_of_the_start_does_not_count(burst: Burst) -> None:
    def receiver(**_: Any) -> None:
        time.sleep(1.1)

    result = tasks.add.using(timeout=1.0).enqueue(1)
    with connected(receiver, task_started):
        burst()

    assert row_of(result).status == Status.SUCCESSFUL


def test_an_async_body_counts_as_running_until_its_thread_is_free(start: Start) -> None:
    """The claim stays while a sync function of the ended body may still write."""
    result = tasks.leave_a_thread_at_work.enqueue("left")
    running = start()
    gates["left"].wait_for(1)
    wait_until(lambda: gates["left"].arrived == ["thread", "body"])

    assert row_of(result).status == Status.RUNNING
    (hold,) = running.running_tasks.values()
    assert hold.is_armed
    gates["left"].open()
    wait_for_status(result, Status.SUCCESSFUL)


def test_a_thread_outlives_any_number_of_timeouts(start: Start) -> None:
    """With run times around the timeout, each task ends in exactly one of the two states."""
    chance = random.Random(1)
    for _ in range(3):
        tasks.spin.using(timeout=0.01, max_attempts=1).enqueue_many(
            [((chance.uniform(0.005, 0.015),), {}) for _ in range(100)]
        )
        tasks.sleep_later.using(timeout=0.01, max_attempts=1).enqueue_many(
            [((chance.uniform(0.005, 0.015),), {}) for _ in range(100)]
        )

    running = start(threads=3, burst=True, async_slots=10)
    running.join(120.0)

    rows = list(Task.objects.all())
    assert {row.status for row in rows} == {Status.SUCCESSFUL, Status.FAILED}
    assert {error["exception_class_path"] for row in rows for error in row.errors} == {TIMED_OUT}
    assert running.loop.outcomes.counts.finished == 600
    assert {row.claim_number for row in rows} <= {1, 2}


def statements(text: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE state = 'active' AND pid <> pg_backend_pid() AND query LIKE %s",
            [f"%{text}%"],
        )
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize(
    "body", [tasks.give_without_end, tasks.give_without_end_later, tasks.give_without_end_atomically]
)
def test_result_is_read_within_the_timeout(start: Start, body: Any) -> None:
    start()

    row = wait_for_status(body.enqueue(), Status.FAILED)

    assert row.errors[-1]["exception_class_path"] == "jobqueue.exceptions.TaskTimeout"


def test_sequence_is_not_read_beyond_the_limit(start: Start, options: Options) -> None:
    """Its len() may be short."""
    options(MAX_PAYLOAD_BYTES=100)
    start()

    row = wait_for_status(tasks.give_without_end.using(timeout=600).enqueue(), Status.FAILED)

    assert "The return value is too large" in row.errors[-1]["message"]
