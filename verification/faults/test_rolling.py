"""
A release that rolls out: migrations come first, and executors of the release before run on the new tables.

Migrations only add. So code must ignore columns, tables and migrations that it does not know.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, tiny, work, work_later
from tests.actors import Fibonacci
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
NEWER_MIGRATION = "9999_newer"


@pytest.fixture
def newer_tables(transactional_db: None) -> Iterator[None]:
    """Extend each table as the migrations of a later release may."""
    tables = [model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()]
    recorder = MigrationRecorder(connection)
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(
                f"ALTER TABLE {table} ADD COLUMN newer_text text, ADD COLUMN newer_number int NOT NULL DEFAULT 7"
            )
        cursor.execute("CREATE TABLE jobqueue_newer (id int)")
    recorder.record_applied("jobqueue", NEWER_MIGRATION)
    yield
    recorder.record_unapplied("jobqueue", NEWER_MIGRATION)
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DROP COLUMN newer_text, DROP COLUMN newer_number")
        cursor.execute("DROP TABLE jobqueue_newer")


def test_every_kind_of_task_succeeds_on_newer_tables(newer_tables: None, fleet: Fleet) -> None:
    process = fleet.start()
    for task in (tiny, book, work, work_later):
        task.enqueue_many([((), {})] * 10)
    tiny.using(priority=5, key="late", max_attempts=2, metadata={"a": 1}).enqueue(1)
    parent = Fibonacci.enqueue(5)
    with connection.cursor() as cursor:
        cursor.execute("SELECT jobqueue_create_task(NULL, %s)", [tiny.task_type])

    assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}

    parent.refresh()
    assert parent.return_value == 5
    assert Effect.objects.filter(kind="booked").count() == 10
    assert process.stop() == 0
    assert not process.output.find("Traceback|ERROR|CRITICAL")


def test_lost_tasks_are_rescued_on_newer_tables(newer_tables: None, fleet: Fleet) -> None:
    first = fleet.start(heartbeat_timeout=1.5)
    book.enqueue_many([((3.0,), {})] * 4)
    work.enqueue_many([((3.0,), {})] * 4)
    wait_until(lambda: Task.objects.running().count() == 8, "eight running tasks")
    first.send(signal.SIGKILL)

    second = fleet.start(heartbeat_timeout=1.5)

    assert wait_for_end() == {"SUCCESSFUL": 8}
    assert set(Task.objects.values_list("executor_losses", flat=True)) == {1}
    assert Effect.objects.filter(kind="booked").count() == 4
    assert second.stop() == 0


def test_executor_claims_nothing_before_its_migrations_are_applied(fleet: Fleet) -> None:
    """A claim may work on older tables while its commit does not: bodies would then run again and again."""
    work.enqueue_many([((0.0,), {})] * 20)
    book.enqueue_many([((0.0,), {})] * 20)
    call_command("migrate", "jobqueue", "0001", verbosity=0)
    connection.close()
    try:
        process = fleet.launch("--connect-timeout", "60s")
        first_error = process.output.wait_for("ERROR").string
        hasty = fleet.launch("--connect-timeout", "0.5s")
        assert hasty.wait() == 69
    finally:
        call_command("migrate", "jobqueue", verbosity=0)
    assert "schema.outdated hint=The database 'default' lacks migrations (0002_postgresql, " in first_error
    assert not Effect.objects.exists()
    assert set(Task.objects.values_list("status", "claim_number")) == {("READY", 0)}

    process.wait_until_ready()

    assert wait_for_end() == {"SUCCESSFUL": 40}
    assert set(Task.objects.values_list("claim_number", flat=True)) == {1}
    assert process.stop() == 0
    # The error is logged once for each list of missing migrations, not at each look.
    lines = [match.string[len("12:34:56 ") :] for match in process.output.find("ERROR|WARNING")]
    assert len(set(lines)) == len(lines)
    assert all("Run: manage.py migrate" in line for line in lines), lines
