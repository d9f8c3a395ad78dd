"""The server's clock is set forward or back: living executors keep their tasks, lost ones are found, rates go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection

from jobqueue.declarations.limits import Rate
from jobqueue.models import AdmissionRequest, Executor, Heartbeat, Task
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Start, gates, on_postgresql, wait_for_status
from tests.factories import ExecutorFactory, TaskFactory
from tests.fixtures import Options
from tests.waiting import wait_until

TIMEOUT = 1.5
# Found before PostgreSQL's own by sessions that begin after it.
CLOCK = """
CREATE SCHEMA set_clock;
CREATE TABLE set_clock.forward AS SELECT interval '0' AS by;
CREATE FUNCTION set_clock.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
    AS 'SELECT pg_catalog.clock_timestamp() + by FROM set_clock.forward';
"""


@pytest.fixture(autouse=True)
def clock(transactional_db: None) -> Iterator[None]:
    """Install a clock of the database that can be set."""
    execute(CLOCK)
    execute(f'ALTER DATABASE "{connection.settings_dict["NAME"]}" SET search_path = set_clock, public, pg_catalog')
    connection.close()
    yield
    execute(f'ALTER DATABASE "{connection.settings_dict["NAME"]}" RESET search_path')
    execute("DROP SCHEMA set_clock CASCADE")
    connection.close()


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def set_clock(forward: timedelta) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE set_clock.forward SET by = by + %s::interval", [str(forward)])


@on_postgresql
@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(seconds=TIMEOUT)], ids=["an hour", "a timeout"])
def test_clock_jump_rescues_only_from_lost_executors(start: Start, options: Options, step: timedelta) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    running = [start(threads=2, poll_interval=0.1) for _ in range(2)]
    alive = list(Executor.objects.values_list("pk", flat=True))
    kept = [tasks.wait_at.enqueue("kept") for _ in range(3)]
    gates["kept"].wait_for(3)
    wait_until(
        lambda: all(executor_run.process._heartbeat.may_rescue for executor_run in running), "executors that may rescue"
    )
    dead = ExecutorFactory.create(heartbeat=running[0].process.engine.db.now())
    orphan = TaskFactory.create(running=True, task_type=tasks.add.task_type, args=[1], executor_id=dead.pk)

    set_clock(step)

    later = running[0].process.engine.db.now() + timedelta(seconds=TIMEOUT)
    rows = Heartbeat.objects.filter(pk__in=alive, at__gt=later)
    wait_until(lambda: rows.count() == 2, "beats for a timeout")
    assert not Task.objects.exclude(pk=orphan.pk).filter(executor_losses__gt=0).exists()
    wait_until(Task.objects.filter(pk=orphan.pk, status=Status.SUCCESSFUL, executor_losses=1).exists, "its end")
    gates.open_all()
    for result in kept:
        assert wait_for_status(result, Status.SUCCESSFUL).executor_losses == 0


@on_postgresql
def test_clock_jump_suspends_rescues_for_a_timeout(start: Start, options: Options) -> None:
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    heart = start(threads=1).process._heartbeat

    def may_rescue() -> bool:
        return heart.may_rescue

    wait_until(may_rescue, "an executor that may rescue")
    assert heart.may_still_rescue()

    set_clock(timedelta(seconds=TIMEOUT))

    assert not heart.may_still_rescue()
    assert heart.reaches_database
    wait_until(may_rescue, "an executor that may rescue again")


@on_postgresql
def test_clock_that_is_set_back_stops_no_rate(start: Start, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    """The planned look at the rate is due an hour later than it was, and nothing else asks for a look."""
    options(HEARTBEAT_TIMEOUT=TIMEOUT)
    rated = tasks.add.using(rate=Rate(1, per=2 * TIMEOUT))
    first, second = rated.enqueue(1), rated.enqueue(2)
    start(threads=1)
    wait_for_status(first, Status.SUCCESSFUL)
    wait_until(AdmissionRequest.objects.filter(number=1).exists, "a planned look")

    set_clock(-timedelta(hours=1))

    wait_for_status(second, Status.SUCCESSFUL)
    assert "clock.jumped ahead_s=-36" in caplog.text
