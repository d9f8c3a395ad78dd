"""GET metrics/ and metrics.json: counters and gauges of all executors and queues."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.engine.engine import Engine
from jobqueue.engine.portable.counters import AGGREGATE_BATCH
from jobqueue.http.auth import authenticate
from jobqueue.http.label_limits import bounded_counts, bounded_gauges, bounded_queues
from jobqueue.http.responses import HttpError, endpoint, respond
from jobqueue.http.schemas import BackendMetrics, Histogram, Metrics, QueueMetrics, TaskMetrics
from jobqueue.metrics import COUNTERS, EDGES, Counted, Depth, Gauges
from jobqueue.records import LIVE

if TYPE_CHECKING:
    from prometheus_client import Metric

AGGREGATE_SECONDS = 0.05  # per request; executors or the next request aggregate the rest
WHAT = {
    "submitted": "Tasks created.",
    "completed": "Tasks that ended SUCCESSFUL.",
    "failed": "Attempts that failed.",
    "retries": "Failed attempts that are followed by another one.",
    "dead": "Tasks that ended FAILED.",
    "lost": "Times that a task was taken from a lost executor.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The numbers of one backend. queues: all known queues, also empty ones."""

    name: str
    queues: Sequence[str]
    counted: Sequence[Counted]
    gauges: Gauges

    def depths(self, queue_name: str) -> Iterator[Depth]:
        """Yield a depth for each live state, also 0."""
        found = {depth.status: depth for depth in self.gauges.depths if depth.queue_name == queue_name}
        for status in LIVE:
            yield found.get(status) or Depth(queue_name=queue_name, status=status, number=0)


@endpoint("GET", "HEAD")
def text(request: HttpRequest) -> HttpResponse:
    """Return the metrics in the text format of Prometheus."""
    authenticate(request, "view_metrics")
    try:
        import prometheus_client
    except ImportError:
        raise HttpError(
            501, "Install the extra: pip install django-jobqueue[metrics]. metrics.json does without."
        ) from None
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(Collector(read()))
    return HttpResponse(
        prometheus_client.generate_latest(registry),
        content_type=prometheus_client.CONTENT_TYPE_LATEST,
        headers={"Cache-Control": "no-store"},
    )


@endpoint("GET", "HEAD")
def as_json(request: HttpRequest) -> HttpResponse:
    """Return the same numbers as JSON."""
    authenticate(request, "view_metrics")
    backends = read()
    return respond(
        Metrics(
            queues=[_queue(backend, name) for backend in backends for name in backend.queues],
            tasks=[_task(backend.name, counted) for backend in backends for counted in backend.counted],
            backends=[
                BackendMetrics(
                    backend=backend.name,
                    inflight=backend.gauges.in_flight,
                    active_workers=backend.gauges.active_workers,
                    slots=backend.gauges.slots,
                    executors=backend.gauges.executors,
                    oldest_snapshot_seconds=backend.gauges.oldest_snapshot_seconds,
                )
                for backend in backends
            ],
        )
    )


def read() -> list[Backend]:
    """Read the numbers of each jobqueue backend."""
    backends = []
    for alias in api.aliases():
        engine = engine_for(alias)
        _fold(engine)
        counted, gauges = engine.counter_totals(), engine.gauges()
        names = {depth.queue_name for depth in gauges.depths} | {one.queue_name for one in counted}
        declared = api.declared_queues(alias)
        queues = bounded_queues(names | declared, declared)
        backends.append(
            Backend(
                name=alias,
                queues=queues,
                counted=bounded_counts(counted, declared),
                gauges=bounded_gauges(gauges, queues),
            )
        )
    return backends


def _fold(engine: Engine) -> None:
    """Aggregate counters that executors have not aggregated yet, because there may be no active executor."""
    until = time.monotonic() + AGGREGATE_SECONDS
    while engine.aggregate_counters() >= AGGREGATE_BATCH and time.monotonic() < until:
        pass


def _queue(backend: Backend, name: str) -> QueueMetrics:
    depths = list(backend.depths(name))
    return QueueMetrics(
        backend=backend.name,
        queue=name,
        **{depth.status.lower(): depth.number for depth in depths},
        estimated=[depth.status.lower() for depth in depths if depth.is_estimate],
        oldest_ready_seconds=backend.gauges.oldest_ready_seconds.get(name, 0.0),
    )


def _task(backend: str, counted: Counted) -> TaskMetrics:
    return TaskMetrics(
        backend=backend,
        queue=counted.queue_name,
        task_type=counted.task_type,
        **{name: getattr(counted, name) for name in COUNTERS},
        wait=_histogram(counted.waits, counted.wait_seconds),
        run=_histogram(counted.runs, counted.run_seconds),
    )


def _histogram(counts: Sequence[int], seconds: float) -> Histogram:
    below = dict(_buckets(counts))
    return Histogram(count=below.pop("+Inf"), seconds=seconds, at_most=below)


def _buckets(counts: Sequence[int]) -> Iterable[tuple[str, int]]:
    """Return a histogram in the form of Prometheus: how many took at most so long."""
    return zip([*map(str, EDGES), "+Inf"], accumulate(counts), strict=True)


class Collector:
    """The numbers as metrics of Prometheus, for a registry of its own, because a site may have another one."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._histograms()
        yield from self._queues()
        yield from self._workers()

    def _counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        for name, what in WHAT.items():
            family = CounterMetricFamily(f"jobqueue_{name}", what, labels=("backend", "queue", "task_type"))
            for labels, counted in self._tasks():
                family.add_metric(labels, getattr(counted, name))
            yield family

    def _histograms(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        names = ("backend", "queue", "task_type")
        waits = HistogramMetricFamily(
            "jobqueue_wait_seconds", "Time from READY to the claim, of each attempt.", labels=names
        )
        runs = HistogramMetricFamily("jobqueue_run_seconds", "Run time of the body, of each attempt.", labels=names)
        for labels, counted in self._tasks():
            waits.add_metric(labels, list(_buckets(counted.waits)), counted.wait_seconds)
            runs.add_metric(labels, list(_buckets(counted.runs)), counted.run_seconds)
        yield from (waits, runs)

    def _tasks(self) -> Iterator[tuple[Sequence[str], Counted]]:
        for backend in self._backends:
            for counted in backend.counted:
                yield (backend.name, counted.queue_name, counted.task_type), counted

    def _queues(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        by_status = ("backend", "queue", "status")
        depth = GaugeMetricFamily("jobqueue_queue_depth", "Tasks that have not ended.", labels=by_status)
        estimate = GaugeMetricFamily(
            "jobqueue_queue_depth_is_estimate",
            "1 where the depth, above 10,000, is an estimate.",
            labels=by_status,
        )
        oldest = GaugeMetricFamily(
            "jobqueue_oldest_ready_seconds",
            "How long the oldest of the next READY tasks has waited.",
            labels=("backend", "queue"),
        )
        for backend in self._backends:
            for name in backend.queues:
                oldest.add_metric((backend.name, name), backend.gauges.oldest_ready_seconds.get(name, 0.0))
                for found in backend.depths(name):
                    labels = (backend.name, name, found.status)
                    depth.add_metric(labels, found.number)
                    estimate.add_metric(labels, found.is_estimate)
        yield from (depth, estimate, oldest)

    def _workers(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        of: Mapping[str, tuple[str, str]] = {
            "inflight": ("in_flight", "Tasks that executors have claimed."),
            "active_workers": ("active_workers", "Slots of active executors that have a task."),
            "worker_slots": ("slots", "Slots of active executors."),
            "executors": ("executors", "Active executors."),
            "oldest_snapshot_seconds": (
                "oldest_snapshot_seconds",
                "Age of the oldest transaction that keeps dead rows.",
            ),
        }
        for name, (attribute, what) in of.items():
            family = GaugeMetricFamily(f"jobqueue_{name}", what, labels=("backend",))
            for backend in self._backends:
                family.add_metric((backend.name,), getattr(backend.gauges, attribute))
            yield family
