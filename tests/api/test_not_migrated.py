"""A database without our tables or functions: each way to enqueue says in one sentence what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connection, connections, transaction

import jobqueue as queue
from jobqueue import Cron, testing
from jobqueue.api import schedules
from jobqueue.backend import EnqueueRequest
from jobqueue.conf.compat import task_backends
from jobqueue.declarations.schedules import Declaration
from jobqueue.engine.schema import known_migrations, schema_problem
from jobqueue.exceptions import NotMigrated
from tests import tasks
from tests.actors import Fibonacci
from tests.cli.commands import BOTH, jobqueue

pytestmark = BOTH

CALLS: dict[str, Callable[[Any], object]] = {
    "enqueue": lambda add: add.enqueue(1),
    "aenqueue": lambda add: async_to_sync(add.aenqueue)(1),
    "enqueue_many": lambda add: add.enqueue_many([((1,), {})]),
    "key": lambda add: add.using(key="k").enqueue(1),
    "unique_for": lambda add: add.using(key="k", unique_for=60).enqueue(1),
    "replace": lambda add: add.using(key="k", on_conflict="replace").enqueue(1),
    "run_after": lambda add: add.using(run_after=timedelta(hours=1)).enqueue(1),
}


def lose_tables(backend: str) -> None:
    with connections[backend].cursor() as cursor:
        for table in ("jobqueue_task", "jobqueue_keyreservation"):
            cursor.execute(f"DROP TABLE {table}" + (" CASCADE" if backend == "default" else ""))


def lose_functions() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION jobqueue_enqueue, jobqueue_enqueue_plain")


def check_sentence(error: BaseException, database: str = "default") -> None:
    newest = max(known_migrations())
    assert isinstance(error, NotMigrated)
    assert isinstance(error, DatabaseError)
    text = str(error)
    assert f"manage.py migrate jobqueue --database {database}; in a data migration, add" in text
    assert f'("jobqueue", "{newest}") to its dependencies.' in text
    assert "type casts" not in text
    assert "\n" not in text


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("lost", ["tables", "functions"])
def test_enqueue_without_tables_or_functions_says_migrate(
    backend: str, lost: str, call: Callable[[Any], object]
) -> None:
    if lost == "functions" and backend == "sqlite":
        pytest.skip("SQLite has no functions")
    lose_tables(backend) if lost == "tables" else lose_functions()

    with pytest.raises(NotMigrated) as caught, transaction.atomic(using=backend):
        call(tasks.add.using(backend=backend))

    check_sentence(caught.value, backend)


def test_submissions_and_cancels_without_tables_say_migrate(backend: str) -> None:
    queue_backend: Any = task_backends[backend]
    task = tasks.add.using(backend=backend)
    pk = task.enqueue(1).id
    lose_tables(backend)

    for call in (
        lambda: queue_backend.submit([EnqueueRequest(task=task, args=[1], idempotency_key="i")]),
        lambda: queue.cancel(pk, backend=backend),
    ):
        with pytest.raises(NotMigrated) as caught, transaction.atomic(using=backend):
            call()
        check_sentence(caught.value, backend)


def test_command_line_without_functions_says_migrate() -> None:
    lose_functions()

    result = jobqueue("submit", "tests.tasks.add", "--args", "[1]")

    assert result.code == 1
    assert "run manage.py migrate jobqueue" in result.err


def test_tick_without_functions_says_migrate(own_schedules: object) -> None:
    schedules.create(Declaration("nightly", tasks.add, Cron("0 3 * * *"), "", args=(1,)))
    lose_functions()

    for call in (lambda: schedules.run("nightly"), lambda: testing.advance(timedelta(days=2))):
        with pytest.raises(NotMigrated) as caught, transaction.atomic():
            call()
        check_sentence(caught.value)


def test_spawn_without_functions_says_migrate() -> None:
    Fibonacci.enqueue(5)
    lose_functions()

    with pytest.raises(NotMigrated) as caught, transaction.atomic():
        testing.run_until_idle()
    check_sentence(caught.value)


def test_errors_of_other_tables_are_left_alone() -> None:
    """A trigger of the site may lack a table of the site."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION shop_note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO shop_note VALUES (1); RETURN NEW; END $$;"
            "CREATE TRIGGER shop_note AFTER INSERT ON jobqueue_task FOR EACH ROW EXECUTE FUNCTION shop_note()"
        )
    with pytest.raises(DatabaseError, match="shop_note") as caught, transaction.atomic():
        tasks.add.enqueue(1)
    assert not isinstance(caught.value, NotMigrated)


def test_executor_and_doctor_miss_functions() -> None:
    assert schema_problem("default") == ""
    lose_functions()

    assert schema_problem("default") == (
        "The database 'default' lacks functions (jobqueue_enqueue(), jobqueue_enqueue_plain()). "
        "Run: manage.py migrate jobqueue --database default"
    )
    assert (
        "lacks functions (jobqueue_enqueue(), jobqueue_enqueue_plain())"
        in jobqueue("doctor", "--backend", "default").out
    )
