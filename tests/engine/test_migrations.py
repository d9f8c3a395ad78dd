"""The migrations, forward and back."""

import pytest
from django.core.management import call_command
from django.db import connection

pytestmark = pytest.mark.django_db(transaction=True)


def storage() -> dict[str, list[str] | None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND relname LIKE 'jobqueue_%%'")
        return dict(cursor.fetchall())


def test_tables_have_the_storage_parameters_of_a_queue() -> None:
    options = storage()["jobqueue_task"]

    assert options is not None
    assert {"fillfactor=85", "autovacuum_vacuum_scale_factor=0.01"} <= set(options)


def test_storage_parameters_can_be_taken_back_and_set_again() -> None:
    before = storage()
    try:
        call_command("migrate", "jobqueue", "0001", verbosity=0)
        assert set(storage().values()) == {None}
    finally:
        call_command("migrate", "jobqueue", verbosity=0)

    assert storage() == before


def test_no_model_is_ahead_of_its_migrations() -> None:
    call_command("makemigrations", "jobqueue", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True, databases=["sqlite"])
def test_other_databases_do_without() -> None:
    call_command("migrate", "jobqueue", "0001", database="sqlite", verbosity=0)
    call_command("migrate", "jobqueue", database="sqlite", verbosity=0)
