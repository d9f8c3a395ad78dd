"""Notifications save waiting time, but nothing depends on them."""

from __future__ import annotations

import pytest
from django.db import connection

from jobqueue.api import cancel
from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import tiny, work
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NEVER = ("--poll-interval", "1h")  # longer than any of these tests waits


def listeners() -> list[int]:
    """Return the sessions of executors that wait for notifications."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
            " AND state = 'idle' AND pid <> pg_backend_pid()",
            ["LISTEN%"],
        )
        return [pid for (pid,) in cursor.fetchall()]


def run(count: int) -> None:
    """Enqueue tasks, each when the one before has ended."""
    for _ in range(count):
        tiny.enqueue()
        assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}


def test_new_task_starts_at_once(fleet: Fleet) -> None:
    process = fleet.start(*NEVER)
    wait_until(listeners, "LISTEN")
    run(10)
    assert process.stop() == 0


def test_new_task_without_notification_is_found_by_polling(fleet: Fleet) -> None:
    process = fleet.start("--poll-interval", "0.2s", notify=False)
    run(3)
    assert not listeners()
    assert process.stop() == 0


def test_lost_listener_reconnects_and_finds_missed_tasks(fleet: Fleet) -> None:
    process = fleet.start(*NEVER)
    (pid,) = wait_until(listeners, "LISTEN")
    run(3)  # it has received a notification
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    run(3)
    process.output.wait_for("listener.disconnected")
    assert wait_until(listeners, "LISTEN again") != [pid]
    run(10)
    assert not process.output.find("database.unreachable")
    assert process.stop() == 0


def test_cancel_reaches_running_task_before_next_heartbeat(fleet: Fleet) -> None:
    process = fleet.start(*NEVER, heartbeat_timeout=86_400)
    wait_until(listeners, "LISTEN")
    result = work.enqueue(3600)
    wait_until(Effect.objects.exists, "a running task")
    assert cancel(result.id, backend="default").requested == 1
    assert wait_for_end() == {"CANCELLED": 1}
    assert process.stop() == 0
