"""The past and the waiting tasks of a new demo."""

from __future__ import annotations

import pytest

from demo_project.photos import history
from demo_project.photos.models import Album
from jobqueue.engine import engine_for
from jobqueue.models import CounterPeriod, Executor, Task
from jobqueue.operations.overview.periods import Range, read_counter_series
from jobqueue.testing import run_until_idle
from jobqueue.values.counters import Scope
from tests.factories import make_user

pytestmark = [pytest.mark.slow, pytest.mark.django_db(databases=["default", "sqlite"])]


@pytest.fixture(autouse=True)
def no_past(db):
    """A new demo has counted nothing. Processes of earlier tests may have, after these had ended."""
    CounterPeriod.objects.all().delete()
    Executor.objects.all().delete()


def test_new_demo_has_full_charts_states_and_lost_executors(client):
    history.fill()
    run_until_idle()

    for chart_range in Range:
        timeline = read_counter_series(engine_for("default"), chart_range, Scope.BACKEND)
        assert sum(not point.attempts for point in timeline.points) <= 2, chart_range
        assert timeline.total.retries
        assert timeline.total.dead
        assert sum(timeline.total.waits) == sum(timeline.total.runs) == timeline.total.attempts
    assert {"BLOCKED", "FAILED", "SCHEDULED", "SUCCESSFUL", "SUSPENDED"} <= {task.status for task in Task.objects.all()}
    assert Album.objects.get().state == Album.State.WAITING
    client.force_login(make_user(is_superuser=True))
    overview = client.get("/admin/jobqueue/").content.decode()
    assert "died without shutting down in the last 24 h: photos-2.7" in overview
    assert "The archive did not answer." in overview
    killed = Executor.objects.get(name="photos-2.7")
    assert "jobqueue 0.0.9" in client.get(f"/admin/jobqueue/executor/{killed.pk}/change/").content.decode()


def test_demo_gets_its_past_once():
    for _ in range(2):
        history.fill()

    assert Executor.objects.count() == 2
    assert Album.objects.count() == 1


def test_demo_that_ran_for_days_gets_no_past():
    now = engine_for("default").db.now()
    CounterPeriod.objects.bulk_create(
        CounterPeriod(backend="default", scope=Scope.BACKEND, length="hour", start=now - n * history.HOUR)
        for n in range(history.ENOUGH_HOURS + 1)
    )

    history.fill()

    assert not Task.objects.exists()
