"""Executors with clocks that are wrong by an hour: only the database's clock counts."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from jobqueue.models import Heartbeat, Task
from jobqueue.models.clock import iso_utc, read_clock
from jobqueue.operations.payloads import read_moment
from tests.acceptance.harness import Fleet, Process
from tests.acceptance.tasks import book, compute, fail, hang, tiny
from tests.actors import Fibonacci
from tests.factories import TaskFactory, make_user
from tests.waiting import wait_until

HOUR = 3600
WRONG_CLOCK = Path(__file__).parent / "wrong_clock"
TIMEOUT = 4.0
NEAR = timedelta(minutes=10)

pytestmark = pytest.mark.django_db(transaction=True)


def start(fleet: Fleet, off: int, **environment: str) -> Process:
    """Start an executor with a wrong wall clock. Its monotonic clock is right."""
    environment |= {"PYTHONPATH": str(WRONG_CLOCK), "TESTS_CLOCK_OFF": str(off)}
    return fleet.start("--threads", "2", environment=environment, heartbeat_timeout=TIMEOUT, poll_interval=0.2)


def test_the_clock_is_wrong_at_all(fleet: Fleet) -> None:
    """Without this, the other tests of this file would prove nothing."""
    compute.enqueue_many([((1.0,), {})] * 30)  # enough for an executor that starts slowly
    executors = [start(fleet, off) for off in (HOUR, -HOUR)]

    early, late = (
        int(executor.output.wait_for(r"^[\d-]+ (\d\d):\d\d:\d\d \w+ INFO +task.succeeded")[1]) for executor in executors
    )

    assert (early - late) % 24 in (1, 2, 3)


def test_work_of_every_kind_is_done_and_reported_when_due(fleet: Fleet, tmp_path: Path) -> None:
    tiny.enqueue_many([((number,), {}) for number in range(50)])
    book.enqueue_many([((), {})] * 20)
    later = tiny.using(run_after=timedelta(seconds=5)).enqueue()
    tomorrow = tiny.using(run_after=timedelta(minutes=30)).enqueue()
    in_time = [tiny.using(expires=timedelta(minutes=30)).enqueue() for _ in range(5)]
    number = Fibonacci.enqueue(7)
    fail.enqueue_many([((), {})] * 20)
    executors = [start(fleet, off, TESTS_TOLD=str(tmp_path / "signals")) for off in (HOUR, -HOUR)]

    wait_until(lambda: not Task.objects.exclude(pk=tomorrow.id).filter(finished_at=None).exists(), "the end")
    assert set(
        Task.objects.exclude(pk=tomorrow.id).exclude(status="SUCCESSFUL").values_list("task_type", flat=True)
    ) == {fail.task_type}

    assert Task.objects.get(pk=number.id).return_value == 13
    assert Task.objects.filter(pk__in=[result.id for result in in_time], status="SUCCESSFUL").count() == 5
    row = Task.objects.get(pk=later.id)
    assert row.started_at is not None
    assert row.started_at - row.enqueued_at >= timedelta(seconds=5)
    assert Task.objects.get(pk=tomorrow.id).status == "SCHEDULED"
    assert not Task.objects.filter(executor_losses__gt=0).exists()
    assert [executor.stop() for executor in executors] == [0, 0]
    check_reports((tmp_path / "signals").read_text().splitlines())


def check_reports(lines: list[str]) -> None:
    """Errors, and the results that receivers of signals get, have the database's time."""
    rows = {str(row.pk): row for row in Task.objects.all()}
    for row in rows.values():
        for error in row.errors:
            assert row.finished_at is not None
            assert abs(datetime.fromisoformat(error["at"]) - row.finished_at) < NEAR
    heard = [json.loads(line) for line in lines]
    assert {"enqueued", "started", "finished"} == {line["word"] for line in heard}
    assert {line["id"] for line in heard if line["word"] == "finished"} >= {pk for pk in rows if rows[pk].finished_at}
    for line in heard:
        for name in ("enqueued_at", "started_at", "finished_at"):
            if line[name] is not None:
                assert abs(datetime.fromisoformat(line[name]) - getattr(rows[line["id"]], name)) < NEAR, line


@pytest.mark.parametrize(("of_the_dead", "of_the_living"), [(HOUR, -HOUR), (-HOUR, HOUR)])
def test_tasks_of_the_dead_are_rescued_and_those_of_the_living_are_not(
    fleet: Fleet, of_the_dead: int, of_the_living: int
) -> None:
    living = start(fleet, of_the_living)
    kept = hang.enqueue(3 * TIMEOUT)
    wait_until(lambda: Task.objects.filter(pk=kept.id, status="RUNNING").exists(), "the living one's task")
    dying = start(fleet, of_the_dead)
    taken = [book.enqueue(60.0) for _ in range(3)]
    held_by_it = Task.objects.filter(status="RUNNING", executor_id=dying.row.pk)
    wait_until(held_by_it.exists, "a task of the one that is to die")
    dying.kill()

    wait_until(lambda: Task.objects.filter(executor_losses=1).exists(), "the rescue")

    assert not Task.objects.filter(pk=kept.id, executor_losses__gt=0).exists()
    assert Heartbeat.objects.get(pk=living.row.pk).state == "RUNNING"
    lost = Task.objects.filter(executor_losses__gt=0).values_list("pk", flat=True)
    assert {str(pk) for pk in lost} <= {result.id for result in taken}
    wait_until(lambda: Task.objects.filter(pk=kept.id, status="SUCCESSFUL", executor_losses=0).exists(), "its end")


@pytest.mark.parametrize("address", ["/admin/jobqueue/task/{}/requeue/", "/jobqueue/tasks/{}/requeue/"])
def test_history_of_a_task_has_the_databases_time(
    client: Client, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The page shows the age by the database's clock."""
    moment = LogEntry._meta.get_field("action_time")
    monkeypatch.setattr(moment, "_get_default", lambda: timezone.now() + timedelta(seconds=HOUR))
    client.force_login(make_user(is_superuser=True))
    row = TaskFactory.create(failed=True)

    client.post(address.format(row.pk), content_type="application/json")

    assert abs(LogEntry.objects.get().action_time - read_clock("default")) < NEAR


def test_time_of_an_error_is_read_as_it_was_written_without_time_zones(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    nine = datetime(2026, 1, 1, 9)

    assert iso_utc(nine) == "2026-01-01T00:00:00.000+00:00"
    assert read_moment(iso_utc(nine)) == nine
