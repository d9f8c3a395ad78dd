"""Another session locks the row of a live executor: its heartbeats have a table of their own, and it stays alive."""

import pytest

from jobqueue.engine import engine_for
from jobqueue.values.records import ExecutorInfo
from tests.cli.commands import jobqueue
from tests.engine.sessions import session
from tests.factories import ExecutorFactory, TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def backend():
    return "default"


@pytest.fixture
def locked():
    row = ExecutorFactory.create(lost=True)
    columns = ("name", "host", "pid", "versions", "queues", "slots")
    info = ExecutorInfo(executor_id=row.pk, **{column: getattr(row, column) for column in columns})
    with session() as other:
        other.run("SELECT FROM jobqueue_executor WHERE id = %s FOR UPDATE", row.pk)
        engine_for("default").executors.heartbeat(info)
        yield row


@pytest.mark.parametrize("page", ["executor/", "executor/{}/change/", ""])
def test_executor_with_a_locked_row_is_alive_on_pages(locked, show, page):
    content = show(page.format(locked.pk))

    assert "</span>Alive</span>" in content
    assert "Not responding" not in content
    assert "60 min ago" not in content


def test_tasks_of_an_executor_with_a_locked_row_are_explained(locked, show):
    assert f"on {locked.name} (attempt 1 of" in show(TaskFactory.create(running=True, executor_id=locked.pk))
    assert "No executor" not in show(TaskFactory.create())


def test_doctor_finds_an_executor_with_a_locked_row_alive(locked):
    TaskFactory.create(running=True, executor_id=locked.pk)

    texts = [entry["text"] for entry in jobqueue("doctor", "--backend", "default", "--json").json]

    assert any("1 executor alive" in text for text in texts)
    assert not any(locked.name in text for text in texts)


def test_queue_of_an_executor_with_a_locked_row_is_served(locked):
    TaskFactory.create()

    (queue,) = engine_for("default").queues.queue_latency()

    assert queue.is_served
