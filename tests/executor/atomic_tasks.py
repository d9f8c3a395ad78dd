"""Bodies for tests of atomic tasks, whose writes and completion are one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.db import Error, OperationalError, connection, connections, transaction

from jobqueue import Actor, Done, PollContext, task
from jobqueue.models import InboxMessage
from tests.executor.harness import gates
from tests.executor.tasks import AT_ONCE, raise_one, spin_at
from tests.models import Effect


def write(kind: str, database: str = "default") -> None:
    Effect.objects.using(database).create(task_id=uuid4(), kind=kind, pid=0)


def written(database: str = "default") -> list[str]:
    return list(Effect.objects.using(database).order_by("pk").values_list("kind", flat=True))


@task
def write_one(kind: str) -> None:
    write(kind)


@task(atomic=True, max_attempts=2, backoff=AT_ONCE)
def write_atomically(ending: str, database: str = "default") -> Any:
    write(ending, database)
    return ATOMIC_ENDINGS[ending](database)


@task(atomic=True)
def add_atomically(a: int, b: int = 1) -> int:
    return a + b


@task(atomic=True)
def write_and_spin(gate: str) -> None:
    write("unfinished")
    spin_at.func(gate)


@task(atomic=True)
def write_and_wait(gate: str, kind: str) -> None:
    write(kind)
    gates[gate].pass_through()


@task(atomic=True, max_attempts=1)
def look_then_write(gate: str, ending: str) -> str:
    """Read, wait at the gate, write. The test's other transaction causes a conflict in between."""
    level = isolation_level()
    seen = Effect.objects.count()
    gates[gate].pass_through(seen)
    ISOLATION_ENDINGS[ending](seen)
    return level


def isolation_level() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        (level,) = cursor.fetchone()
    return str(level)


def meet_a_conflict(_: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001' USING MESSAGE = 'could not serialize access'; END $$")


ISOLATION_ENDINGS: dict[str, Callable[[int], Any]] = {
    "changes a row": lambda _: Effect.objects.filter(kind="shared").update(pid=0),
    "conflict": meet_a_conflict,
    "adds a row": lambda seen: write(f"saw {seen}"),
}


def break_a_deferred_constraint(database: str) -> None:
    InboxMessage.objects.using(database).create(task_id=uuid4(), body=None, sent_at="2020-01-01T00:00:00Z")


def swallow_a_database_error(database: str) -> None:
    with suppress(Error), connections[database].cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def fail_after_the_commit(database: str) -> None:
    transaction.on_commit(lambda: raise_one("plain"), using=database)


def fail_in_the_database_after_the_commit(database: str) -> None:
    def fail() -> None:
        raise OperationalError("the connection went away")

    transaction.on_commit(fail, using=database)


def terminate_own_session(database: str) -> None:
    with suppress(Error), connections[database].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


ATOMIC_ENDINGS: dict[str, Callable[[str], Any]] = {
    "fine": lambda _: 7,
    "error": lambda _: raise_one("plain"),
    "no result": lambda _: object(),
    "constraint": break_a_deferred_constraint,
    "swallowed": swallow_a_database_error,
    "rollback": lambda database: transaction.set_rollback(True, using=database),
    "hook": fail_after_the_commit,
    "database hook": fail_in_the_database_after_the_commit,
    "terminated": terminate_own_session,
    "closed": lambda database: connections[database].close(),
    "own commit": lambda database: transaction.commit(using=database),
    "autocommit": lambda database: transaction.set_autocommit(False, using=database),
    "leaves a block": lambda database: transaction.atomic(using=database).__enter__(),
}


def end_durably() -> None:
    with transaction.atomic(durable=True):
        pass


def vacuum() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")


NEVER_IN_TRANSACTION: dict[str, Callable[[], object]] = {
    "durable": end_durably,
    "commit": transaction.commit,
    "rollback": transaction.rollback,
    "autocommit": lambda: transaction.set_autocommit(False),
    "vacuum": vacuum,
}


@task(atomic=True, max_attempts=4, backoff=AT_ONCE)
def forbidden(what: str) -> None:
    write(what)
    NEVER_IN_TRANSACTION[what]()


@task(max_attempts=2, backoff=AT_ONCE)
def forbidden_by_its_own_transaction() -> None:
    with transaction.atomic():
        end_durably()


class ForbiddenFunction(Actor, max_attempts=4, backoff=AT_ONCE):
    def poll(self, context: PollContext[Any], what: str) -> Any:
        return NEVER_IN_TRANSACTION[what]


@task(atomic=True, max_attempts=2, backoff=AT_ONCE)
def change_setting(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


class ChangesSetting(Actor, max_attempts=2, backoff=AT_ONCE):
    """Changes a setting in the transaction of its outcome."""

    def poll(self, context: PollContext[Any], statement: str = "") -> Any:
        def commit() -> Done:
            with connection.cursor() as cursor:
                cursor.execute(statement)
            return Done()

        return commit
