"""No row holds a moment that Python has no word for: PostgreSQL refuses it, and the migration mends older rows."""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction

from jobqueue.migrations import _online
from jobqueue.models import Executor, InboxMessage, Queue, Task
from tests.engine.sessions import session, threads, wait_until_somebody_waits
from tests.factories import ExecutorFactory, MessageFactory, QueueFactory, TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)

FIRST, LAST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9899, 12, 31, tzinfo=UTC)
TOO_EARLY = ["-infinity", "4000-01-01 BC", "0001-01-01", "0999-12-31 23:59:59.999999+00"]
TOO_LATE = ["infinity", "20000-01-01", "9999-12-31", "9900-01-01 00:00:00+00"]
READABLE = ["1000-01-01 00:00:00+00", "9899-12-31 23:59:59.999999+00"]
MOMENTS = [
    (model, field.name)
    for model in (Task, InboxMessage, Queue, Executor)
    for field in model._meta.get_fields()
    if isinstance(field, models.DateTimeField)
]
numbers = itertools.count()


def row_of(model: type[models.Model]) -> Any:
    if model is InboxMessage:
        return MessageFactory.create(task=TaskFactory.create())
    if model is Queue:
        return QueueFactory.create(name=f"queue-{next(numbers)}")
    return TaskFactory.create() if model is Task else ExecutorFactory.create()


def write(row: Any, column: str, moment: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE {row._meta.db_table} SET {column} = %s::timestamptz WHERE id = %s", [moment, row.pk])


@pytest.mark.parametrize(("model", "column"), MOMENTS, ids=lambda of: getattr(of, "__name__", of))
def test_moment_that_python_cannot_read_is_refused(model: type[models.Model], column: str) -> None:
    row = row_of(model)
    before = model._default_manager.values().get(pk=row.pk)

    for moment in (*TOO_EARLY, *TOO_LATE):
        with pytest.raises(IntegrityError, match=f"{row._meta.db_table}_moments_of_years_1000_to_9899"):
            write(row, column, moment)

    assert model._default_manager.values().get(pk=row.pk) == before
    for moment in READABLE:
        write(row, column, moment)
        assert getattr(model._default_manager.get(pk=row.pk), column)


@pytest.mark.parametrize("status", ["", "READ", "ready"])
def test_status_that_is_none_is_refused(status: str) -> None:
    row = TaskFactory.create()

    with pytest.raises(IntegrityError, match="jobqueue_task_status"):
        Task.objects.filter(pk=row.pk).update(status=status)


@pytest.fixture
def go_back(transactional_db: None) -> Iterator[Callable[[], object]]:
    """Give what brings back the schema before; rows are made first, since the models are of the newest one."""
    yield lambda: call_command("migrate", "jobqueue", "0011", verbosity=0)
    migrate()


def migrate() -> None:
    call_command("migrate", "jobqueue", verbosity=0)


def constraints() -> dict[str, bool]:
    """Name those that the migration makes, and whether all rows are known to keep to them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname, convalidated FROM pg_constraint"
            " WHERE conname ~ '^jobqueue_.*_moments_' OR conname = 'jobqueue_task_status'"
        )
        return dict(cursor.fetchall())


NEVER = {"wake_at", "expires_at", "resume_at"}  # where NULL says so


def test_migration_moves_moments_to_the_nearest_that_can_be_read(go_back: Callable[[], object]) -> None:
    moments = (*TOO_EARLY, *TOO_LATE)
    written = [(row_of(model), column, moment) for model, column in MOMENTS for moment in moments]
    go_back()
    for row, column, moment in written:
        write(row, column, moment)

    migrate()

    for row, column, moment in written:
        after = type(row)._default_manager.values().get(pk=row.pk)
        nearest = FIRST if moment in TOO_EARLY else LAST
        assert after.pop(column) == (None if nearest == LAST and column in NEVER else nearest)
        assert after.items() <= vars(row).items()
    assert list(constraints().values()) == [True] * 5


def test_migration_leaves_a_scheduled_task_its_alarm(go_back: Callable[[], object]) -> None:
    """Without one nothing would ever wake it, not even somebody who looks for what is overdue."""
    row = TaskFactory.create(scheduled=True)
    go_back()
    write(row, "wake_at", "infinity")

    migrate()

    assert Task.objects.get(pk=row.pk).wake_at == LAST


@pytest.mark.parametrize("steps", [2, 6, 10, 14])
def test_migration_that_was_killed_halfway_is_run_again(
    go_back: Callable[[], object], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    row = TaskFactory.create()
    go_back()
    write(row, "rank", "-infinity")
    left, go = itertools.count(steps, -1), _online.patiently

    def killed(*args: Any) -> None:
        if not next(left):
            raise KeyboardInterrupt
        go(*args)

    with monkeypatch.context() as patch:
        patch.setattr(_online, "patiently", killed)
        with pytest.raises(KeyboardInterrupt):
            migrate()
    assert list(constraints().values()) != [True] * 5

    migrate()

    assert list(constraints().values()) == [True] * 5
    assert Task.objects.get(pk=row.pk).rank == FIRST


def test_migration_waits_for_the_holder_of_a_row_and_nobody_for_the_migration(
    go_back: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_online, "PAUSE_SECONDS", 0.1)
    held, other = TaskFactory.create(), TaskFactory.create()
    go_back()
    write(held, "rank", "infinity")
    with threads(1) as start, session() as holder, session(autocommit=True) as writer:
        holder.lock(held.pk)
        migration = start(migrate)
        wait_until_somebody_waits()
        writer.run("SET statement_timeout = '20s'")
        writer.run("UPDATE jobqueue_task SET priority = 1 WHERE id = %s", other.pk)
        assert not migration.done()
        holder.commit()
        migration.result(120)

    assert Task.objects.get(pk=held.pk).rank == LAST
    assert list(constraints().values()) == [True] * 5
