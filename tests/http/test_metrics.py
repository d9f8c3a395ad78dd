"""metrics/ and metrics.json: their numbers, and which callers may read them."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.engine import queues as portable_queues
from jobqueue.engine.postgres import queues as postgres_queues
from jobqueue.http import metrics
from jobqueue.models import CounterDelta, Task
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, new, outcome
from tests.factories import ago
from tests.http.client import Shop, TaskFactory, person, tasks_setting, token

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

PATHS = ["metrics/", "metrics.json"]


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    settings.TASKS = tasks_setting({"scraper": token(tasks=(), queues=()) | {"metrics": True}})


@pytest.fixture
def scraper(client: Client) -> Shop:
    return Shop(client)


@pytest.fixture(params=["default", "sqlite"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(engine_for(request.param))


def scraped(scraper: Shop) -> dict[tuple[str, ...], float]:
    """Return the samples by their names and label values, in the order of label names."""
    response = scraper.get("metrics/")
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    samples = [
        ((sample.name, *(value for _, value in sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    ]
    assert len(samples) == len(dict(samples))
    return dict(samples)


def work(bench: Bench) -> None:
    """Two tasks are SUCCESSFUL, one is retried, one is FAILED, one READY, one RUNNING."""
    bench.beat(slots=2)
    bench.engine.enqueues.enqueue([new(queue_name="mail", max_attempts=2) for _ in range(5)])
    failed: dict[str, Any] = {"attempts": 1, "worker_id": "w", "error": ERROR}
    first, two, three, four = bench.claim(4, queues=["mail"])
    bench.commit(
        outcome(first, worker_id="w", has_succeeded=True, run_seconds=0.02),
        outcome(two, worker_id="w", has_succeeded=True, run_seconds=0.3),
        outcome(three, Status.SCHEDULED, **failed, wake_after_seconds=60.0, run_seconds=0.3),
        outcome(four, Status.FAILED, **failed, run_seconds=20.0),
    )
    TaskFactory(
        using=bench.engine.database,
        backend=bench.engine.alias,
        queue_name="mail",
        running=True,
        executor_id=bench.executor_id,
    )


@pytest.mark.parametrize("path", PATHS)
def test_metrics_need_a_permission(client: Client, scraper: Shop, settings: Any, path: str) -> None:
    for stranger in (Shop(client, ""), Shop(client, "Bearer wrong")):
        assert (stranger.get(path).status_code, "WWW-Authenticate" in stranger.get(path)) == (401, True)
    assert person("view_task").get(path).status_code == 403
    assert person("view_metrics").get(path).status_code == 200
    assert scraper.get(path).status_code == 200
    assert scraper.client.head(f"/jobqueue/{path}", headers=scraper.headers).status_code == 200
    assert scraper.post(path).status_code == 405
    assert scraper.submit().status_code == 403
    assert not Task.objects.exists()
    settings.TASKS = tasks_setting({"shop": token() | {"metrics": False}})
    assert scraper.get(path).status_code == 403
    settings.TASKS = tasks_setting()
    assert scraper.get(path).status_code == 403


def test_text_has_counters_histograms_and_gauges(scraper: Shop, bench: Bench) -> None:
    work(bench)

    values = scraped(scraper)

    alias = bench.engine.alias
    labels = (alias, "mail", "tests.noop")
    assert {name: values[(f"jobqueue_{name}_total", *labels)] for name in metrics.COUNTER_HELP} == {
        "submitted": 5, "completed": 2, "failed": 2, "retries": 1, "dead": 1, "lost": 0
    }  # fmt: skip
    buckets = {
        edge: values[("jobqueue_run_seconds_bucket", alias, edge, "mail", "tests.noop")]
        for edge in ("0.01", "0.025", "0.25", "0.5", "10.0", "30.0", "3600.0", "+Inf")
    }
    assert list(buckets.values()) == [0, 1, 1, 3, 3, 4, 4, 4]
    assert values[("jobqueue_run_seconds_count", *labels)] == 4
    assert values[("jobqueue_run_seconds_sum", *labels)] == pytest.approx(20.62)
    assert values[("jobqueue_wait_seconds_count", *labels)] == 4
    states = ("READY", "BLOCKED", "SCHEDULED", "RUNNING", "SUSPENDED")
    assert [values[("jobqueue_queue_depth", alias, "mail", state)] for state in states] == [1, 0, 1, 1, 0]
    assert values[("jobqueue_queue_depth_is_estimate", alias, "mail", "READY")] == 0
    assert 0 <= values[("jobqueue_oldest_ready_seconds", alias, "mail")] < 60
    names = ("inflight", "active_workers", "worker_slots", "executors")
    assert [values[(f"jobqueue_{name}", alias)] for name in names] == [1, 1, 2, 1]
    assert values[("jobqueue_oldest_snapshot_seconds", alias)] >= 0


def scheduled_work(bench: Bench) -> None:
    """One tick is enqueued 30 s late, two are skipped, another schedule is paused, and one tick is overdue."""
    schedules, template = bench.engine.schedules, msgspec.to_builtins(new(queue_name="mail"))
    columns = {"task_type": "tests.noop", "new_task": template, "expression": "@every 60"}
    now = bench.engine.db.now()
    schedules.save("report", columns | {"anchor_at": now + timedelta(seconds=30)})
    paused = schedules.save("paused", columns | {"expression": "@every 86400", "anchor_at": now + timedelta(days=1)})[0]
    schedules.pause([paused.pk], paused_at=bench.engine.db.now())
    for _ in range(3):
        bench.time_passes(60)
        bench.engine.ticks.fire()
    bench.time_passes(60)


def test_text_has_ticks_and_schedules(scraper: Shop, bench: Bench) -> None:
    scheduled_work(bench)

    values = scraped(scraper)

    alias = bench.engine.alias
    ticks = {key[2]: value for key, value in values.items() if key[:2] == ("jobqueue_ticks_total", alias)}
    assert ticks == {"enqueued": 1, "overlap": 2, "paused": 0, "missed": 0, "key": 0}
    labels = (alias, "mail", "tests.noop")
    buckets = [values[("jobqueue_tick_lateness_seconds_bucket", alias, edge, *labels[1:])] for edge in ("10.0", "60.0")]
    assert buckets == [0, 1]
    assert 30 <= values[("jobqueue_tick_lateness_seconds_sum", *labels)] < 60
    assert {key[2]: value for key, value in values.items() if key[:2] == ("jobqueue_schedules", alias)} == {
        "active": 1, "paused": 1, "stopped": 0
    }  # fmt: skip
    assert 30 <= values[("jobqueue_schedule_overdue_seconds", alias)] < 60


def test_task_types_without_schedules_have_no_ticks(scraper: Shop, bench: Bench) -> None:
    work(bench)

    names = {name for name, *_ in scraped(scraper)}

    assert "jobqueue_run_seconds_bucket" in names
    assert not {name for name in names if name.startswith("jobqueue_tick")}


def test_empty_queue_shows_zeros(scraper: Shop) -> None:
    values = scraped(scraper)

    assert values[("jobqueue_queue_depth", "default", "named", "READY")] == 0
    assert values[("jobqueue_oldest_ready_seconds", "default", "named")] == 0


def test_depth_of_long_queue_is_an_estimate(scraper: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (portable_queues, postgres_queues):
        monkeypatch.setattr(module, "CAP", 3)
    engine_for("default").enqueues.enqueue([new() for _ in range(5)])

    values = scraped(scraper)
    (queue,) = [queue for queue in scraper.get("metrics.json").json()["queues"] if queue["ready"]]

    assert values[("jobqueue_queue_depth_is_estimate", "default", "default", "READY")] == 1
    assert (queue["queue"], queue["estimated"]) == ("default", ["ready"])


def test_labels_beyond_the_limit_become_other(scraper: Shop, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without QUEUES, callers may use any number of queue names."""
    monkeypatch.setattr(metrics, "MAX_LABELS", 4)
    monkeypatch.setattr(api, "declared_queues", lambda alias: {"z-declared"})
    names = ["a", "b", "other", *(f"q{number}" for number in range(5)), "z-declared"]
    bench.engine.enqueues.enqueue([new(queue_name=name) for name in names])
    TaskFactory(
        using=bench.engine.database, backend=bench.engine.alias, queue_name="q3", rank=ago(60), enqueued_at=ago(60)
    )

    values = scraped(scraper)

    alias = bench.engine.alias
    submitted = {key[2:]: value for key, value in values.items() if key[:2] == ("jobqueue_submitted_total", alias)}
    assert submitted == {(name, "tests.noop"): 1 for name in ("a", "b", "other", "z-declared")} | {
        ("other", "other"): 5
    }
    depths = {
        key[2]: value
        for key, value in values.items()
        if key[:2] == ("jobqueue_queue_depth", alias) and key[3] == "READY"
    }
    assert depths == {"a": 1, "b": 1, "z-declared": 1, "other": 7}
    assert values[("jobqueue_oldest_ready_seconds", alias, "other")] >= 50

    bench.engine.enqueues.enqueue([new(queue_name="a-newcomer")])

    after = scraped(scraper)
    assert after[("jobqueue_submitted_total", alias, "other", "other")] == 6
    assert ("jobqueue_submitted_total", alias, "other", "tests.noop") not in after


def test_json_has_the_same_numbers_as_text(scraper: Shop, bench: Bench) -> None:
    work(bench)

    body = scraper.get("metrics.json").json()

    (queue,) = [
        queue for queue in body["queues"] if queue["backend"] == bench.engine.alias and queue["queue"] == "mail"
    ]
    (task,) = body["tasks"]
    (backend,) = [backend for backend in body["backends"] if backend["backend"] == bench.engine.alias]
    assert {name: queue[name] for name in ("ready", "scheduled", "running", "suspended", "estimated")} == {
        "ready": 1, "scheduled": 1, "running": 1, "suspended": 0, "estimated": []
    }  # fmt: skip
    assert (task["submitted"], task["completed"], task["dead"]) == (5, 2, 1)
    assert (task["run"]["count"], task["run"]["at_most"]["0.5"]) == (4, 3)
    assert (set(task["ticks"].values()), task["tick_lateness"]["count"]) == ({0}, 0)
    assert backend == {
        "backend": bench.engine.alias, "inflight": 1, "active_workers": 1, "slots": 2, "executors": 1,
        "oldest_snapshot_seconds": 0.0, "schedules_active": 0, "schedules_paused": 0, "schedules_stopped": 0,
        "schedule_overdue_seconds": 0.0,
    }  # fmt: skip


def test_counters_outlive_pruned_tasks(scraper: Shop, bench: Bench) -> None:
    work(bench)
    before = {key: value for key, value in scraped(scraper).items() if key[0].endswith("_total")}
    bench.engine.db.tasks.finished()._raw_delete(bench.engine.database)

    after = scraped(scraper)

    assert before
    assert {key: after[key] for key in before} == before


def test_counters_are_current_without_executors(scraper: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more than one batch."""
    monkeypatch.setattr(metrics, "AGGREGATE_STEP", 2)
    monkeypatch.setattr(metrics, "AGGREGATE_SECONDS", 60.0)
    for _ in range(5):
        engine_for("default").enqueues.enqueue([new()])

    assert scraped(scraper)[("jobqueue_submitted_total", "default", "default", "tests.noop")] == 5
    assert not CounterDelta.objects.exists()


def test_request_aggregates_one_small_step_beside_many_names(scraper: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "AGGREGATE_STEP", 2)
    monkeypatch.setattr(metrics, "AGGREGATE_SECONDS", 0.0)
    for number in range(5):
        engine_for("default").enqueues.enqueue([new(queue_name=f"queue-{number}")])

    scraped(scraper)

    assert CounterDelta.objects.count() == 3


def test_label_values_are_escaped(scraper: Shop) -> None:
    name = 'fünf "queues"\\\n'
    engine_for("default").enqueues.enqueue([new(queue_name=name)])

    assert scraped(scraper)[("jobqueue_submitted_total", "default", name, "tests.noop")] == 1


def test_missing_extra_is_named(scraper: Shop, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    response = scraper.get("metrics/")

    assert response.status_code == 501
    assert "django-jobqueue[metrics]" in response.json()[0]["what"]
    assert scraper.get("metrics.json").status_code == 200
    assert client.get("/jobqueue/metrics/").status_code == 401  # strangers do not learn of it


@pytest.mark.parametrize("path", PATHS)
def test_unreachable_database_answers_503(scraper: Shop, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def away() -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(engine_for("default").counters, "counter_totals", away)

    response = scraper.get(path)

    assert response.status_code == 503
    assert response["Retry-After"]
