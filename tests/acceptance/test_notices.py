"""Notices save waiting; nothing depends on them."""

from __future__ import annotations

import statistics

from django.db import connection

from jobqueue.api import cancel
from jobqueue.models import Task
from tests.acceptance.harness import Fleet, wait_for_end, wait_until
from tests.acceptance.tasks import tiny, work
from tests.models import Effect

RARELY = ("--poll-interval", "30")


def listeners() -> list[int]:
    """Backends of executors that wait for notices."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"
            " AND state = 'idle' AND pid <> pg_backend_pid()",
            ["LISTEN%"],
        )
        return [pid for (pid,) in cursor.fetchall()]


def latencies(count: int = 10) -> list[float]:
    """Enqueue tasks one after the other; returns seconds from each insert to its start."""
    found = []
    for _ in range(count):
        result = tiny.enqueue()
        wait_for_end()
        row = Task.objects.get(pk=result.id)
        assert row.started_at is not None
        found.append((row.started_at - row.enqueued_at).total_seconds())
    return found


def test_new_task_starts_at_once(fleet: Fleet) -> None:
    process = fleet.start(*RARELY)
    wait_until(listeners, "LISTEN")
    found = latencies()
    assert statistics.median(found) < 0.5
    assert max(found) < 10
    assert process.stop() == 0


def test_without_notices_polling_finds_it(fleet: Fleet) -> None:
    process = fleet.start("--poll-interval", "0.2", notify=False)
    assert max(latencies(3)) < 10
    assert not listeners()
    assert process.stop() == 0


def test_lost_listener_comes_back_and_looks_for_what_it_missed(fleet: Fleet) -> None:
    process = fleet.start(*RARELY)
    (pid,) = wait_until(listeners, "LISTEN")
    assert max(latencies(3)) < 10  # it has heard something
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    assert max(latencies(3)) < 10
    process.output.wait_for("listener.away")
    assert wait_until(listeners, "LISTEN again") != [pid]
    assert statistics.median(latencies()) < 0.5
    assert not process.output.find("database.away")
    assert process.stop() == 0


def test_cancel_reaches_a_running_task_before_the_next_beat(fleet: Fleet) -> None:
    process = fleet.start(*RARELY, heartbeat_timeout=300)
    wait_until(listeners, "LISTEN")
    result = work.enqueue(300)
    wait_until(Effect.objects.exists, "a running task")
    assert cancel(result.id, backend="default").requested == 1
    assert wait_for_end() == {"CANCELLED": 1}
    assert process.stop() == 0
