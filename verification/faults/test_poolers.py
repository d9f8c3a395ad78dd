"""
A pooler that gives each transaction another session: executors work, and `doctor` reports the limits.

test_isolation.py runs the conformance suite behind one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import QuerySet

from jobqueue.api.schedules import create
from jobqueue.declarations.schedules import Declaration
from jobqueue.models import ScheduleTick, Task
from jobqueue.schedules.expressions import Every
from tests.acceptance.harness import CHECKOUT, Fleet
from tests.acceptance.tasks import tiny
from tests.waiting import wait_until
from verification.faults.burst import SERVED, run_burst
from verification.faults.pgbouncer import PROGRAM, Pooler, run_pooler

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed"),
    pytest.mark.django_db(transaction=True),
]

CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[Pooler]:
    """Start PgBouncer before the test server, with fewer sessions than the executors have connections."""
    with run_pooler(connection.settings_dict, mode="transaction", sessions=5) as pooler:
        yield pooler


@pytest.fixture
def url(pooler: Pooler) -> str:
    return pooler.url_for(str(connection.settings_dict["NAME"]))


def test_executors_work_through_fewer_sessions_than_they_have_connections(fleet: Fleet, url: str) -> None:
    outputs = run_burst(fleet, url)

    # A name stands for different statements on each session, so executors must not prepare any.
    assert sum("database.pooler_detected connection=loop" in output for output in outputs) == SERVED
    assert not [line for output in outputs for line in output.splitlines() if "database.unreachable" in line]
    with connection.cursor() as cursor:
        cursor.execute(CLIENTS)
        assert cursor.fetchone()[0] <= 5 + 1


def test_executor_logs_missing_notifications_and_polls(fleet: Fleet, url: str) -> None:
    executor = fleet.start(environment={"DATABASE_URL": url}, poll_interval=0.3)

    match = executor.output.wait_for(r"listener\.disabled poll_interval_s=0\.3")

    assert "WARNING" in match.string
    run_burst(fleet, url)


def test_schedules_fire_through_a_pooler(fleet: Fleet, url: str) -> None:
    """Each transaction may get another session: locks of schedules and the wait for a key are transaction-local."""
    for number, (overlap, options) in enumerate([("allow", {}), ("allow", {"key": "k"}), ("cancel_running", {})]):
        create(Declaration(f"each-second-{number}", tiny, Every(seconds=1), "", overlap=overlap, task_options=options))
    executors = [fleet.start(environment={"DATABASE_URL": url}, poll_interval=0.2) for _ in range(2)]
    wait_until(lambda: min(parse_ticks(number).count() for number in range(3)) >= 5, "five ticks of each schedule")
    assert [executor.stop() for executor in executors] == [0, 0]

    for number in range(3):
        recorded = list(parse_ticks(number).order_by("tick_at"))
        seconds = [tick.tick_at + timedelta(seconds=offset) for tick in recorded for offset in range(tick.count)]
        assert seconds == [seconds[0] + timedelta(seconds=offset) for offset in range(len(seconds))]
        assert {*Task.objects.filter(schedule__name=f"each-second-{number}").values_list("pk", flat=True)} == {
            tick.task_id for tick in recorded if tick.task_id
        }
    lines = [line for executor in executors for line in executor.output.lines]
    assert not [line for line in lines if "schedule.stopped" in line or "database.unreachable" in line]


def parse_ticks(number: int) -> QuerySet[ScheduleTick]:
    return ScheduleTick.objects.filter(schedule__name=f"each-second-{number}")


def test_doctor_reports_missing_notifications(process_environment: dict[str, str], url: str) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "jobqueue", "doctor", "--backend", "default", "--json"],
        cwd=CHECKOUT,
        env=process_environment | {"DATABASE_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    (finding,) = [entry for entry in json.loads(done.stdout) if "notifications" in entry["text"]]
    assert finding["level"] == "warning"
    assert "notifications do not arrive (a pooler in transaction mode?)" in finding["text"]
