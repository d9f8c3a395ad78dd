"""The database becomes unreachable and returns. Executors recover without help."""

from __future__ import annotations

import os
import signal
import time

import psycopg
import pytest
from django.db import connection

from jobqueue.models import Heartbeat, Task
from tests.acceptance.conftest import Site
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import book, compute, tiny, work
from tests.models import Effect
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LONG_SECONDS = 3600.0  # longer than any of these tests waits
DOWN_SECONDS = float(os.environ.get("TESTS_AWAY_SECONDS", "1"))  # 300 in a manual run, see docs/reliability.md


def sessions() -> list[int]:
    """Return the sessions of executors: all except this test's own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
        return [pid for (pid,) in cursor.fetchall()]


def running() -> int:
    return Task.objects.running().count()


def test_outage_longer_than_timeout_causes_no_rescue(site: Site) -> None:
    processes = [site.fleet.start("--threads", "8", heartbeat_timeout=2.5) for _ in range(2)]
    started_at = {process.pid: process.row.started_at for process in processes}
    compute.enqueue_many([((LONG_SECONDS,), {}) for _ in range(16)])
    wait_until(lambda: running() == 16, "sixteen running tasks")
    wait_until(
        lambda: all(
            (process.row.heartbeat.at - started_at[process.pid]).total_seconds() > 2.5 for process in processes
        ),
        "both may rescue",
    )
    site.kill()
    for process in processes:
        process.output.wait_for(r"executor\.fenced")
    site.start()
    for process in processes:
        process.output.wait_for(r"database\.reconnected")
    # Long enough for a wrong rescue: both have sent heartbeats for a full timeout again.
    back = {process.pid: process.row.heartbeat.at for process in processes}
    wait_until(
        lambda: all((process.row.heartbeat.at - back[process.pid]).total_seconds() > 4 for process in processes),
        "heartbeats after the outage",
    )
    wait_until(lambda: running() == 16, "the interrupted tasks to run again")
    assert not Task.objects.exclude(executor_losses=0, attempts=0, errors=[]).exists()
    for process in processes:
        assert not process.output.find(r"task\.rescued")
        assert process.stop(signal.SIGQUIT) == 131


def test_each_kind_of_server_stop_is_survived_with_few_log_lines(site: Site) -> None:
    process = site.fleet.start("--threads", "2", "-v", "0", heartbeat_timeout=30)
    tiny.enqueue()
    assert wait_for_end() == {"SUCCESSFUL": 1}
    lines_before = len(process.output.lines)
    # Smart: open sessions stay, and new ones are refused. An atomic body needs a connection of its own.
    site.stop(signal.SIGTERM)
    wait_until(lambda: is_refused(site), "a server that refuses connections")
    book.enqueue()
    result = tiny.enqueue()
    wait_until(Task.objects.filter(pk=result.id).successful().exists, "the end of a task")

    for number, way in enumerate((signal.SIGINT, signal.SIGQUIT), start=1):  # fast, immediate
        site.stop(way)
        connection.close()
        process.output.wait_for(r"database\.unreachable", count=number)
        site.cluster.stop()  # returns once the server has stopped
        time.sleep(DOWN_SECONDS if way is signal.SIGINT else 0)
        site.start()
        process.output.wait_for(r"database\.reconnected", count=number)
        book.enqueue()
        assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}

    assert not Task.objects.exclude(attempts=0, errors=[], executor_losses=0).exists()
    assert Effect.objects.filter(kind="booked").count() == 3
    lines = process.output.lines[lines_before:]
    assert len(lines) <= 10, lines
    assert process.stop() == 0


def is_refused(site: Site) -> bool:
    try:
        psycopg.connect(site.cluster.url).close()
    except psycopg.OperationalError:
        return True
    return False


def test_hung_connections_are_replaced(site: Site) -> None:
    """No data arrives and nothing fails, as in a network that drops packets."""
    process = site.fleet.start(heartbeat_timeout=3)
    tiny.enqueue()
    wait_for_end()  # by now all have connected
    # Of the heartbeat, the listener and the loop.
    hung = wait_until(lambda: hung_sessions if len(hung_sessions := sessions()) == 3 else [], "three sessions")
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        tiny.enqueue()
        assert wait_for_end() == {"SUCCESSFUL": 2}
        process.output.wait_for(r"database\.timed_out connection=loop")
        process.output.wait_for(r"database\.timed_out connection=heartbeat")
        last_heartbeat = process.row.heartbeat.at
        wait_until(lambda: process.row.heartbeat.at > last_heartbeat, "a heartbeat")
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
    assert process.stop() == 0


def test_stop_does_not_wait_for_hung_connections(site: Site) -> None:
    process = site.fleet.start(
        "--shutdown-timeout", "0.5s", heartbeat_timeout=3600
    )  # the timeout that closes hung connections
    compute.enqueue(LONG_SECONDS)
    wait_until(lambda: running() == 1, "a running task")
    hung = wait_until(lambda: hung_sessions if len(hung_sessions := sessions()) == 3 else [], "three sessions")
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert process.stop() == 0
        assert process.output.find(r"ERROR .*executor\.release_failed tasks=1")
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)


def test_sigterm_while_database_is_unreachable_stops_executor(site: Site) -> None:
    idle = site.fleet.start("--queue", "none", heartbeat_timeout=2)
    process = site.fleet.start("--shutdown-timeout", "1s", heartbeat_timeout=2)
    work.enqueue(LONG_SECONDS)
    wait_until(Effect.objects.exists, "a running task")
    site.kill()
    for executor in (idle, process):
        executor.output.wait_for(r"database\.unreachable")
    assert idle.stop() == 0
    assert process.stop() == 0
    site.start()
    other = site.fleet.start(heartbeat_timeout=2)
    wait_until(lambda: Effect.objects.count() == 2, "the rescue")
    assert Task.objects.get().executor_losses == 1
    assert other.stop(signal.SIGQUIT) == 131


def test_start_waits_for_the_database(site: Site) -> None:
    tiny.enqueue()
    site.kill()
    process = site.fleet.launch()
    process.output.wait_for(r"database\.unreachable")
    site.start()
    assert wait_for_end() == {"SUCCESSFUL": 1}
    assert process.stop() == 0
    assert Heartbeat.objects.get().state == "STOPPED"


def test_start_without_database_ends_with_exit_code_69(fleet: Fleet) -> None:
    nowhere = {"DATABASE_URL": "postgresql://postgres@/jobqueue?host=/nonexistent"}
    single = fleet.launch("--connect-timeout", "1s", environment=nowhere)
    supervisor = fleet.launch("--connect-timeout", "1s", "--processes", "2", environment=nowhere)
    assert (single.wait(), supervisor.wait()) == (69, 69)
    single.output.wait_for(r"ERROR .*database.connect_timed_out after_s=1 error=.*connection")
    assert len(single.output.find(r"database\.unreachable")) == 1
