"""A read-only server, one with numbers beyond four bytes, and one with a full notification queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

import jobqueue
from jobqueue.engine import engine_for
from jobqueue.engine.postgres.connection import notify_from_elsewhere
from jobqueue.models import Heartbeat, Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, tiny, work
from tests.actors import Diary, Fibonacci
from tests.fixtures import FEW_PAGES
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
FAR = 2**40


@pytest.fixture
def read_only(transactional_db: None) -> Iterator[Callable[[bool], None]]:
    """Change it, and end all sessions but ours."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])

    def alter(is_on: bool) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")
            cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {'on' if is_on else 'off'}")
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    yield alter
    alter(False)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def test_executor_waits_while_the_database_only_reads(fleet: Fleet, read_only: Callable[[bool], None]) -> None:
    process = fleet.start("--threads", "4", heartbeat_timeout=2)
    executor = process.row
    running = work.enqueue(1.0)
    wait_until(lambda: Task.objects.running().exists(), "a task that runs")
    read_only(True)
    process.output.wait_for("database.unreachable")
    for _ in range(10):
        book.enqueue()
    tiny.enqueue_many([((number,), {}) for number in range(10)])
    before = Heartbeat.objects.get(pk=executor.pk).at
    process.output.wait_for("executor.fenced")

    assert not Effect.objects.filter(kind="booked").exists()
    assert Heartbeat.objects.get(pk=executor.pk).at == before

    read_only(False)

    assert wait_for_end() == {"SUCCESSFUL": 21}
    process.output.wait_for("database.reconnected")
    assert Effect.objects.filter(kind="booked").count() == 10
    assert Task.objects.get(pk=running.id).executor_losses == 0
    assert process.stop() == 0


def test_numbers_beyond_four_bytes_are_as_good_as_small_ones(fleet: Fleet) -> None:
    diary = Diary.enqueue("far")
    tiny.enqueue_many([((number,), {}) for number in range(10)])
    Task.objects.update(claim_number=F("claim_number") + FAR, polls=FAR)
    with connection.cursor() as cursor:
        for table in ("jobqueue_inboxmessage", "jobqueue_counterdelta", "jobqueue_counter"):
            cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, FAR])
    number = Fibonacci.enqueue(6)
    process = fleet.start()

    wait_until(lambda: Task.objects.filter(pk=diary.id, status="SUSPENDED").exists(), "an actor that waits")
    assert (jobqueue.send(diary.id, "dear diary") or 0) > FAR
    jobqueue.cancel(diary.id)

    assert wait_for_end()["SUCCESSFUL"] == Task.objects.count() - 1
    number.refresh()
    assert number.return_value == 8
    assert set(Task.objects.filter(task_type=tiny.task_type).values_list("claim_number", "polls")) == {
        (FAR + 1, FAR + 1)
    }
    assert process.stop() == 0
    assert not process.output.find("ERROR|WARNING (?!task.cancelled)")


@pytest.fixture
def full_notification_queue(transactional_db: None) -> Iterator[Callable[[], None]]:
    """Fill the server's notification queue with a LISTEN in an open transaction. Return a function that ends it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('max_notify_queue_pages', true)")
        if (cursor.fetchone() or [None])[0] != FEW_PAGES:
            pytest.skip("the notification queue is too long to be filled, or this server is older than 17")
        connection.ensure_connection()
        with psycopg.connect(connection.connection.info.dsn, autocommit=True) as idler:
            idler.execute("LISTEN elsewhere")
            idler.execute("BEGIN")
            idler.execute("SELECT 1")
            with suppress(OperationalError):  # too many notifications
                while True:
                    cursor.execute("SELECT pg_notify('elsewhere', gen_random_uuid() || repeat('x', 7000))")
            yield idler.close


def test_full_notification_queue_is_logged_once_and_costs_nothing_else(
    fleet: Fleet, full_notification_queue: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    process = fleet.start("--poll-interval", "0.2s")
    with caplog.at_level("WARNING"):
        tiny.enqueue_many([((number,), {}) for number in range(3)])
        with transaction.atomic():
            tiny.enqueue(3)
        number = Fibonacci.enqueue(6)  # the executor sends the notifications of its children
        for _ in range(2):
            engine_for("default").queues.notify(["default"])
        assert wait_for_end()["SUCCESSFUL"] == Task.objects.count()

    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["notification.rejected"]
    number.refresh()
    assert number.return_value == 8
    full_notification_queue()

    def is_heard_again() -> bool:
        engine_for("default").queues.notify(["default"])  # a full queue stays full until a session reads it
        notify_from_elsewhere("default", "whoever listens")
        return True

    wait_until(is_heard_again, "room for notifications")
    assert process.stop() == 0
    assert len(process.output.find("notification.rejected")) <= 1
    assert not process.output.find("ERROR|database.unreachable")
