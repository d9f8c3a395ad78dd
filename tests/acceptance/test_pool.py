"""Django's connection pool: children do not share the parent's pool, and terminated sessions fail no task."""

from __future__ import annotations

import pytest
from django.db import connection

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, tiny
from tests.models import Effect

pytestmark = pytest.mark.slow

POOL = {"TESTS_POOL": "1"}
END_ALL = """
    SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def assert_at_first_try() -> None:
    assert not list(
        Task.objects.exclude(attempts=0, executor_losses=0, errors=[]).values("attempts", "executor_losses", "errors")
    )


@pytest.mark.parametrize("flags", [(), ("--processes", "3")], ids=["one process", "three processes"])
def test_executors_work_with_djangos_pool(fleet: Fleet, flags: tuple[str, ...]) -> None:
    process = fleet.start(*flags, "--threads", "2", environment=POOL)
    tiny.enqueue_many([((number,), {}) for number in range(300)])
    book.enqueue_many([((), {}) for _ in range(30)])

    assert wait_for_end() == {"SUCCESSFUL": 330}
    assert Effect.objects.count() == 30
    assert_at_first_try()
    assert process.stop() == 0
    assert not process.output.find("Traceback")


def test_terminated_pool_sessions_fail_no_task(fleet: Fleet) -> None:
    process = fleet.start("--threads", "2", environment=POOL)
    book.enqueue_many([((), {}) for _ in range(10)])
    assert wait_for_end() == {"SUCCESSFUL": 10}

    with connection.cursor() as cursor:
        cursor.execute(END_ALL)
        assert cursor.fetchone()[0] >= 3  # loop, heartbeat, listener, and the pooled sessions
    book.enqueue_many([((), {}) for _ in range(30)])

    assert wait_for_end() == {"SUCCESSFUL": 40}
    assert Effect.objects.count() == 40
    assert_at_first_try()
    assert process.stop() == 0
