"""@task(atomic=True): a body's writes and its completion are one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import DiskFull

from jobqueue.conf.compat import task_finished
from jobqueue.engine import engine_for
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor import atomic_tasks
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
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = on_postgresql


@on_both_databases
def test_both_are_committed(burst: Burst, backend: str) -> None:
    result = atomic_tasks.write_atomically.using(backend=backend).enqueue("fine", backend)

    burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.return_value, row.attempts, row.polls) == (Status.SUCCESSFUL, 7, 0, 1)
    assert len(row.worker_ids) == 1
    assert atomic_tasks.written(backend) == ["fine"]


def test_neither_is_seen_before_the_other(start: Start) -> None:
    result = atomic_tasks.write_and_wait.enqueue("writing", "both")
    start()
    gates["writing"].wait_for()
    assert (atomic_tasks.written(), row_of(result).status) == ([], Status.RUNNING)

    gates["writing"].open()
    wait_for_status(result, Status.SUCCESSFUL)

    assert atomic_tasks.written() == ["both"]


@on_both_databases
@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("error", "builtins.ValueError"),
        ("own commit", "jobqueue.exceptions.GiveUp"),
        ("autocommit", "jobqueue.exceptions.GiveUp"),
        ("leaves a block", "django.db.transaction.TransactionManagementError"),
        ("rollback", "django.db.transaction.TransactionManagementError"),
        ("constraint", "django.db.utils.IntegrityError"),
        ("no result", "jobqueue.exceptions.InvalidResult"),
    ],
)
def test_a_failure_undoes_the_writes_and_counts(burst: Burst, ending: str, error: str, backend: str) -> None:
    result, after = (
        atomic_tasks.write_atomically.using(backend=backend).enqueue(name, backend) for name in (ending, "fine")
    )

    running = burst(backend=backend, threads=1)

    row = row_of(result)
    attempts = 1 if error.startswith("jobqueue.") else 2  # another attempt would end in the same way
    assert (row.status, row.attempts) == (Status.FAILED, attempts)
    assert [entry["exception_class_path"] for entry in row.errors] == [error] * attempts
    assert row_of(after).status == Status.SUCCESSFUL
    assert atomic_tasks.written(backend) == ["fine"]
    assert running.loop.outcomes.counts.lost == 0


@pytest.mark.parametrize("ending", ["swallowed", "terminated", "closed"])
def test_a_broken_connection_or_transaction_is_a_failure(burst: Burst, ending: str) -> None:
    result, after = (atomic_tasks.write_atomically.enqueue(name) for name in (ending, "fine"))

    burst(threads=1)

    row = row_of(result)
    assert (row.status, row.attempts, len(row.errors)) == (Status.FAILED, 2, 2)
    assert row_of(after).status == Status.SUCCESSFUL
    assert atomic_tasks.written() == ["fine"]


def test_a_result_that_the_database_refuses_undoes_the_writes(burst: Burst, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.executor.running.task_runner.encode_result", lambda value, **_: "1" + "0" * 200_000)
    result = atomic_tasks.write_atomically.enqueue("fine")

    burst()

    assert row_of(result).status == Status.FAILED
    assert "The database refused the outcome" in row_of(result).errors[0]["message"]
    assert atomic_tasks.written() == []


@pytest.mark.parametrize("ending", ["hook", "database hook"])
def test_failure_after_the_commit_undoes_nothing(burst: Burst, announced: list[Any], ending: str) -> None:
    result = atomic_tasks.write_atomically.enqueue(ending)

    running = burst()

    assert (row_of(result).status, row_of(result).errors) == (Status.SUCCESSFUL, [])
    assert atomic_tasks.written() == [ending]
    assert [task_result.id for task_result in announced] == [result.id]
    assert (running.loop.outcomes.counts.finished, running.loop.outcomes.counts.lost) == (1, 0)


def test_a_lost_claim_undoes_the_writes(start: Start, announced: list[Any]) -> None:
    result = atomic_tasks.write_and_wait.enqueue("writing", "stale")
    running = start()
    gates["writing"].wait_for()
    Task.objects.filter(pk=result.id).update(claim_number=7)

    gates["writing"].open()
    wait_until(lambda: running.loop.outcomes.counts.lost == 1)

    assert atomic_tasks.written() == []
    assert (row_of(result).status, row_of(result).claim_number) == (Status.RUNNING, 7)
    assert announced == []
    assert running.running_tasks == {}


@pytest.fixture
def cut_at_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Break a worker's connection at its next COMMIT, before or after that takes place."""
    original: Any = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]
    plan: list[bool] = []

    def commit(self: BaseDatabaseWrapper) -> None:
        if not plan or "worker" not in threading.current_thread().name:
            original(self)
            return
        takes_place = plan.pop()
        if takes_place:
            original(self)
        self.connection.close()
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    return plan.append


def test_atomic_commit_without_an_answer_is_a_success(
    burst: Burst, announced: list[Any], cut_at_commit: Callable[[bool], None]
) -> None:
    cut_at_commit(True)
    result = atomic_tasks.write_atomically.enqueue("fine")

    running = burst()

    assert (row_of(result).status, row_of(result).claim_number) == (Status.SUCCESSFUL, 1)
    assert atomic_tasks.written() == ["fine"]
    assert [task_result.id for task_result in announced] == [result.id]
    assert (running.loop.outcomes.counts.finished, running.loop.outcomes.counts.lost) == (1, 0)


def test_a_commit_that_did_not_take_place_is_made_up_for(
    burst: Burst, announced: list[Any], cut_at_commit: Callable[[bool], None]
) -> None:
    cut_at_commit(False)
    result = atomic_tasks.write_atomically.using(max_attempts=1).enqueue("fine")

    running = burst()

    row = row_of(result)
    assert (row.status, row.claim_number, row.attempts, row.errors) == (Status.SUCCESSFUL, 2, 0, [])
    assert atomic_tasks.written() == ["fine"]
    assert [task_result.id for task_result in announced] == [result.id]
    assert running.loop.outcomes.counts.finished == 1


def no_room(*_: Any, **__: Any) -> None:
    raise OperationalError("could not extend file: No space left on device") from DiskFull()


@pytest.mark.parametrize("where", ["begin", "outcome", "COMMIT"])
def test_server_without_disk_space_spends_no_attempt(burst: Burst, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    owner: Any
    owner, name = {
        "begin": (transaction.Atomic, "__enter__"),
        "outcome": (engine_for("default").commits, "commit"),
        "COMMIT": (BaseDatabaseWrapper, "_commit"),
    }[where]
    original, left = getattr(owner, name), [no_room] * 2

    def fail_twice(*args: Any, **parameters: Any) -> Any:
        is_workers = "worker" in threading.current_thread().name
        return (left.pop() if is_workers and left else original)(*args, **parameters)

    monkeypatch.setattr(owner, name, fail_twice)
    result = atomic_tasks.write_atomically.using(max_attempts=1).enqueue("fine")

    burst()

    row = row_of(result)
    assert (row.status, row.claim_number, row.attempts, row.errors) == (Status.SUCCESSFUL, 3, 0, [])
    assert atomic_tasks.written() == ["fine"]
    assert not left


def test_receivers_see_what_was_committed(burst: Burst) -> None:
    seen: list[int] = []

    def receiver(**_: Any) -> None:
        seen.append(Effect.objects.count())

    atomic_tasks.write_atomically.enqueue("fine")
    with connected(receiver, task_finished):
        burst()

    assert seen == [1]


@pytest.mark.parametrize("what", atomic_tasks.NEVER_IN_TRANSACTION)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (atomic_tasks.forbidden, "atomic=True runs the body in the transaction of its outcome"),
        (atomic_tasks.ForbiddenFunction, "The function that a poll returned runs in the transaction of its outcome"),
    ],
)
def test_what_no_transaction_allows_fails_at_once(burst: Burst, what: str, body: Any, words: str) -> None:
    result = body.enqueue(what)

    burst()

    row = row_of(result)
    assert (row.status, row.attempts) == (Status.FAILED, 1)
    assert words in row.errors[-1]["message"]
    assert "durable=True, commit(), rollback(), set_autocommit()" in row.errors[-1]["message"]
    assert atomic_tasks.written() == []


def test_durable_block_in_the_bodys_own_transaction_is_retried(burst: Burst) -> None:
    result = atomic_tasks.forbidden_by_its_own_transaction.enqueue()

    burst()

    assert (row_of(result).status, row_of(result).attempts) == (Status.FAILED, 2)


SETTINGS = {
    "role": "SET LOCAL ROLE jobqueue_tenant",
    "search_path": "SET LOCAL search_path TO pg_catalog",
    "statement_timeout": "SET LOCAL statement_timeout TO 1",
    "transaction_read_only": "SET LOCAL transaction_read_only TO on",
}


@pytest.mark.parametrize("kind", ["change_setting", "ChangesSetting"])
@pytest.mark.parametrize("name", SETTINGS)
def test_setting_that_prevents_the_outcome_is_named(burst: Burst, name: str, kind: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS jobqueue_tenant")
        cursor.execute("CREATE ROLE jobqueue_tenant")
    with slow_writes():
        result = getattr(atomic_tasks, kind).enqueue(statement=SETTINGS[name])

        burst()

    row = row_of(result)
    assert (row.status, row.attempts, row.claim_number) == (Status.FAILED, 2, 2)
    assert f"The body has changed {name} in the transaction" in row.errors[-1]["message"]


@contextmanager
def slow_writes() -> Iterator[None]:
    """Let a commit take some milliseconds, so that a statement_timeout of one ends it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION slow_write() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$;"
            "CREATE TRIGGER slow_write BEFORE UPDATE ON jobqueue_task FOR EACH ROW WHEN (NEW.status = 'SUCCESSFUL')"
            " EXECUTE FUNCTION slow_write()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION slow_write() CASCADE")
