"""What the migrations create, forward and back."""

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection

from jobqueue.models import Task
from tests.factories import TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)


def storage() -> dict[str, list[str] | None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND relname LIKE 'jobqueue_%%'")
        return dict(cursor.fetchall())


def test_task_table_has_storage_parameters_of_a_queue() -> None:
    options = storage()["jobqueue_task"]

    assert options is not None
    assert {"fillfactor=85", "autovacuum_vacuum_scale_factor=0.01"} <= set(options)


def test_postgresql_migration_runs_again_after_it_was_reversed() -> None:
    before = storage()
    try:
        call_command("migrate", "jobqueue", "0001", verbosity=0)
    finally:
        call_command("migrate", "jobqueue", verbosity=0)

    assert storage() == before


def test_models_match_the_migrations() -> None:
    call_command("makemigrations", "jobqueue", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True, databases=["sqlite"])
def test_sqlite_migrates_back_and_forward() -> None:
    call_command("migrate", "jobqueue", "zero", database="sqlite", verbosity=0)
    call_command("migrate", "jobqueue", database="sqlite", verbosity=0)


@pytest.mark.parametrize("status", ["", "READ", "ready"])
def test_unknown_status_is_refused(status: str) -> None:
    row = TaskFactory.create()

    with pytest.raises(IntegrityError, match="jobqueue_task_status"):
        Task.objects.filter(pk=row.pk).update(status=status)
