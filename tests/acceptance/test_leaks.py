"""Resources of an executor: they do not grow with the number of tasks, and an idle executor needs little."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.db import connection

from jobqueue.models import Task
from tests.acceptance.harness import Fleet, Process, cpu_seconds, memory_bytes, threads, wait_for_ended
from tests.acceptance.tasks import book, count_logged_queries, tiny, work
from tests.tasks import add_later, fail, fail_later
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

MEGABYTE = 1_000_000
DEBUG_LOT = 2_000
DEBUG_LOTS = int(os.environ.get("TESTS_DEBUG_LOTS", "1"))  # 500 lots are a million tasks, see docs/reliability.md


@dataclass(frozen=True, slots=True)
class Use:
    memory_bytes: int
    threads: int
    descriptors: int
    connections: int


def use(process: Process) -> Use:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        sessions = int(cursor.fetchone()[0])
    descriptors = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    return Use(memory_bytes(process.pid), threads(process.pid), descriptors, sessions)


def enqueue_of_each_kind(count: int) -> None:
    """Enqueue tasks for threads and the event loop, with and without database, successes and failures."""
    tiny.enqueue_many([((number,), {}) for number in range(count - 600)])
    add_later.enqueue_many([((number,), {}) for number in range(200)])
    fail_later.using(max_attempts=1).enqueue_many([((), {})] * 50)
    fail.using(max_attempts=1).enqueue_many([((), {})] * 250)
    book.enqueue_many([((), {})] * 50)
    work.enqueue_many([((), {})] * 50)


def test_executor_uses_no_more_after_100000_tasks(fleet: Fleet) -> None:
    process = fleet.start("-v", "0")
    for number in range(10):
        enqueue_of_each_kind(10_000)
        if number == 0:
            wait_for_ended(10_000)
            before = use(process)
    wait_for_ended(100_000, seconds=240)
    wait_until(lambda: use(process).connections <= before.connections, "no more connections than before")
    wait_until(lambda: use(process).threads <= before.threads, "no more threads than before")
    after = use(process)
    assert after.descriptors <= before.descriptors
    assert after.memory_bytes < before.memory_bytes + 16 * MEGABYTE
    assert process.stop() == 0


def test_executor_with_debug_keeps_no_logged_queries(fleet: Fleet) -> None:
    """With DEBUG, Django keeps the last 9,000 queries of each connection with their parameters."""
    process = fleet.start("-v", "0", environment={"TESTS_DEBUG": "1"}, heartbeat_timeout=1.5)
    for lot in range(1, DEBUG_LOTS + 1):
        enqueue_of_each_kind(DEBUG_LOT)
        wait_for_ended(lot * DEBUG_LOT, seconds=240)
        if lot == 1:
            before = use(process)

    counts = []
    for number in range(1, 6):  # one of them may run during a heartbeat, whose queries are not cleared yet
        counts.append(count_logged_queries.enqueue())
        wait_for_ended(DEBUG_LOTS * DEBUG_LOT + number)
    assert 0 in {Task.objects.get(pk=count.id).return_value for count in counts}
    wait_until(lambda: use(process).connections <= before.connections, "no more connections than before")
    assert use(process).memory_bytes < before.memory_bytes + 16 * MEGABYTE
    assert process.stop() == 0


def test_idle_executor_uses_little_cpu(fleet: Fleet) -> None:
    process = fleet.start()
    began, used = time.monotonic(), cpu_seconds(process.pid)
    wait_until(lambda: time.monotonic() - began > 3, "three idle seconds")
    share = (cpu_seconds(process.pid) - used) / (time.monotonic() - began)
    assert share < 0.1
    assert process.stop() == 0
