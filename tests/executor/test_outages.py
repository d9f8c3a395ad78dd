"""The database becomes unreachable and returns. No task is lost, and none succeeds twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue.engine import engine_for
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import (
    Running,
    Start,
    gates,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
)
from tests.factories import TaskFactory
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = [on_postgresql, pytest.mark.slow]


class Trouble:
    """Lets verbs of an executor's engine fail, before or after the database has performed them."""

    def __init__(self, running: Running) -> None:
        self._engine = running.process.engine
        self.times = 0

    def before(self, verb: str, times: int) -> None:
        self._patch(verb, times, lambda *_: True, is_done=False)

    def after(self, verb: str, times: int = 1, *, when: Callable[..., bool] = lambda *_: True) -> None:
        self._patch(verb, times, when, is_done=True)

    def _patch(self, verb: str, times: int, when: Callable[..., bool], *, is_done: bool) -> None:
        owner = next(part for part in (self._engine, *vars(self._engine).values()) if hasattr(part, verb))
        original = getattr(owner, verb)
        self.times = times

        def fail(*arguments: Any, **options: Any) -> Any:
            if not self.times:
                return original(*arguments, **options)
            answer = original(*arguments, **options) if is_done else None
            if is_done and not when(answer, *arguments):
                return answer
            self.times -= 1
            raise OperationalError("server closed the connection unexpectedly")

        setattr(owner, verb, fail)

    @property
    def is_over(self) -> bool:
        return self.times == 0


@pytest.fixture(autouse=True)
def own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each executor has an engine of its own, which only its test takes apart."""
    monkeypatch.setattr("jobqueue.executor.process.engine_for", engine_for.__wrapped__)


@on_both_databases
@pytest.mark.parametrize(("verb", "times"), [("commit_and_claim", 2), ("pending_maintenance", 2), ("sweep", 1)])
def test_outcomes_are_kept_until_the_database_is_back(start: Start, verb: str, times: int, backend: str) -> None:
    results = tasks.wait_at.using(backend=backend).enqueue_many([(("before",), {})] * 2)
    running = start(backend=backend)
    gates["before"].wait_for(2)
    trouble = Trouble(running)

    trouble.before(verb, times)
    gates["before"].open()
    running.loop.check_everything_soon()

    wait_until(lambda: trouble.is_over)
    for result in results:
        wait_for_status(result, Status.SUCCESSFUL)
    wait_for_status(tasks.add.using(backend=backend).enqueue(1), Status.SUCCESSFUL)
    assert {row_of(result).claim_number for result in results} == {1}
    wait_until(lambda: not running.running_tasks)
    assert running.loop.outcomes.counts.lost == 0


def test_outage_is_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start()
    trouble = Trouble(running)
    trouble.before("commit_and_claim", 3)

    wait_for_status(tasks.add.enqueue(1), Status.SUCCESSFUL)

    assert trouble.is_over
    words = [record.getMessage() for record in caplog.records if "database." in record.getMessage()]
    assert [word.partition(" ")[0] for word in words] == ["database.unreachable", "database.reconnected"]


@on_both_databases
def test_claim_without_an_answer_is_released(start: Start, backend: str) -> None:
    running = start(backend=backend)
    trouble = Trouble(running)
    trouble.after("commit_and_claim", when=lambda answer, *_: bool(answer[1]))
    results = tasks.add.using(backend=backend).enqueue_many([((number,), {}) for number in range(5)])

    rows = [wait_for_status(result, Status.SUCCESSFUL) for result in results]

    assert trouble.is_over
    assert max(row.claim_number for row in rows) == 2
    assert {row.attempts for row in rows} == {0}


@on_both_databases
def test_claim_without_an_answer_is_released_before_the_end(start: Start, backend: str) -> None:
    """Otherwise the task waits for a rescue, and a loss is counted."""
    running = start(backend=backend)
    claim, release = Trouble(running), Trouble(running)

    def stop(answer: Any, *_: Any) -> bool:
        if answer[1]:
            running.process.stop()
        return bool(answer[1])

    claim.after("commit_and_claim", when=stop)
    release.before("release_unknown_claims", 4)  # a server that starts again takes a second or two
    result = tasks.add.using(backend=backend).enqueue(1)

    assert running.join() == 0

    assert claim.is_over
    assert release.is_over
    assert (row_of(result).status, row_of(result).executor_losses, row_of(result).attempts) == (Status.READY, 0, 0)


@pytest.mark.parametrize("has_failed", [False, True], ids=["at once", "after a failure of the database"])
def test_unknown_claim_is_released_when_it_appears(start: Start, options: Options, has_failed: bool) -> None:
    """A claim without an answer may come true late. No other executor takes it while this one sends heartbeats."""
    options(HEARTBEAT_TIMEOUT=20 if has_failed else 1)
    running = start()
    if has_failed:
        Trouble(running).before("commit_and_claim", 1)
        wait_for_status(tasks.add.enqueue(1), Status.SUCCESSFUL)
    row = TaskFactory.create(
        running=True, executor_id=running.process.executor_id, task_type=tasks.add.task_type, args=[1]
    )

    wait_until(Task.objects.filter(pk=row.pk, status=Status.SUCCESSFUL, attempts=0, executor_losses=0).exists)


@on_both_databases
@pytest.mark.parametrize("body", [tasks.add, tasks.add_later])
def test_commit_without_an_answer_is_announced_once(
    start: Start, announced: list[Any], caplog: pytest.LogCaptureFixture, body: Any, backend: str
) -> None:
    running = start(backend=backend)
    trouble = Trouble(running)
    trouble.after("commit_and_claim", when=lambda answer, *_: bool(answer[0].done))
    results = body.using(backend=backend).enqueue_many([((number,), {}) for number in range(20)])

    wait_until(lambda: len(announced) == 20)

    assert sorted(task_result.id for task_result in announced) == sorted(result.id for result in results)
    assert {row_of(result).status for result in results} == {Status.SUCCESSFUL}
    assert trouble.is_over
    assert (running.loop.outcomes.counts.finished, running.loop.outcomes.counts.lost) == (20, 0)
    assert "commit_rejected" not in caplog.text


@pytest.mark.parametrize("body", [tasks.fail, tasks.fail_later])
def test_retry_without_an_answer_counts_once(start: Start, announced: list[Any], body: Any) -> None:
    """When the loop reads the row, the task is due again, or claimed again."""
    running = start()
    trouble = Trouble(running)
    trouble.after("commit_and_claim", 5, when=lambda answer, *_: bool(answer[0].done))
    results = body.enqueue_many([((), {})] * 10)

    wait_until(lambda: len(announced) == 10)

    assert {(row_of(result).status, row_of(result).attempts) for result in results} == {(Status.FAILED, 2)}
    assert {len(row_of(result).errors) for result in results} == {2}
    assert running.loop.outcomes.counts.finished == 10
    assert running.loop.outcomes.counts.lost == 0


def test_the_outcome_of_a_replaced_claim_is_dropped(
    start: Start, announced: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    result = tasks.wait_at.enqueue("stale")
    running = start()
    gates["stale"].wait_for()
    Task.objects.filter(pk=result.id).update(claim_number=7)

    gates["stale"].open()
    wait_until(lambda: running.loop.outcomes.counts.lost == 1)

    assert (row_of(result).status, row_of(result).return_value) == (Status.RUNNING, None)
    assert (announced, running.running_tasks) == ([], {})
    (record,) = [record for record in caplog.records if "commit_rejected" in record.getMessage()]
    assert (record.levelno, record.__dict__["task_id"]) == (logging.WARNING, result.id)


@pytest.mark.parametrize(
    "change", [{"executor_losses": 1}, {"claim_number": 0}], ids=["it lost its claim", "a backup was restored"]
)
@pytest.mark.parametrize("order", [("again 1", "again 2"), ("again 2", "again 1")], ids=["first", "last"])
def test_outcome_of_an_earlier_claim_of_this_process_is_dropped(
    start: Start, announced: list[Any], order: tuple[str, str], change: dict[str, int]
) -> None:
    """This process claims the task again, while its first body still runs."""
    result = tasks.wait_at_one_of.enqueue("again")
    running = start(threads=2, poll_interval=0.05)
    gates["again"].wait_for(1)
    Task.objects.filter(pk=result.id).update(status=Status.READY, executor_id=None, claimed_at=None, **change)
    gates["again"].wait_for(2)
    counts = running.loop.outcomes.counts

    for ended, name in enumerate(order, 1):
        gates[name].open()
        wait_until(lambda ended=ended: counts.lost + counts.finished == ended)  # type: ignore[misc]

    assert wait_for_status(result, Status.SUCCESSFUL).return_value == 2
    assert (counts.lost, counts.finished, running.running_tasks) == (1, 1, {})
    wait_until(lambda: len(announced) == 1)


def test_sessions_terminated_repeatedly_lose_nothing(start: Start, announced: list[Any]) -> None:
    running = start(threads=4, poll_interval=0.05)
    results = tasks.add.enqueue_many([((number,), {}) for number in range(400)])
    results += tasks.add_later.enqueue_many([((number,), {}) for number in range(100)])

    while running.loop.outcomes.counts.finished < 500:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
            )
        finished = running.loop.outcomes.counts.finished
        wait_until(lambda finished=finished: running.loop.outcomes.counts.finished > finished or finished == 500)  # type: ignore[misc]

    wait_until(lambda: len(announced) >= 500)
    assert {row_of(result).status for result in results} == {Status.SUCCESSFUL}
    assert len({task_result.id for task_result in announced}) == len(announced) == 500
    assert {row_of(result).attempts for result in results} == {0}


def test_process_with_a_crashed_loop_logs_it(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start()

    def die(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    running.process.engine.executors.pending_maintenance = die  # type: ignore[assignment]
    wait_until(lambda: running.exit_code is not None)

    assert running.exit_code == 70
    assert "executor.loop_crashed" in caplog.text
    running.loop.failure = None  # as expected


def test_locked_row_delays_only_its_own_task(start: Start) -> None:
    held, others = tasks.wait_at.enqueue("held"), [tasks.wait_at.enqueue("others") for _ in range(3)]
    running = start(threads=4)
    gates["held"].wait_for(1)
    gates["others"].wait_for(3)

    with transaction.atomic():
        Task.objects.select_for_update().get(pk=held.id)
        gates["held"].open()
        gates["others"].open()
        for result in others:
            wait_for_status(result, Status.SUCCESSFUL)
        wait_until(lambda: running.loop.outcomes.counts.finished == 3)

    wait_for_status(held, Status.SUCCESSFUL)


def test_pooler_that_loses_prepared_statements_turns_them_off(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Change the session as another client of a pooler in transaction mode does."""
    running = start(poll_interval=0.05)
    engine = running.loop.engine
    take = engine.claims.take

    def after_another_client(demand: Any) -> Any:
        connection.connection.pgconn.exec_(b"DEALLOCATE ALL")  # behind the back of psycopg
        return take(demand)

    for number in range(3):
        wait_for_status(tasks.add.enqueue(number), Status.SUCCESSFUL)
    with patch.object(engine.claims, "take", after_another_client):
        for number in range(5):
            wait_for_status(tasks.add.enqueue(number), Status.SUCCESSFUL)

    assert caplog.text.count("database.pooler_detected") == 1
