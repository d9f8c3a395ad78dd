"""
GET metrics/ and metrics.json: counters and gauges of all executors, queues and schedules.

Labels are limited, because callers may invent queue names, and Prometheus keeps every label that it has seen.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from msgspec.structs import asdict

from jobqueue import api
from jobqueue.declarations.registry import declared_limits
from jobqueue.engine import Engine, engine_for
from jobqueue.http.auth import Caller
from jobqueue.http.endpoint import endpoint
from jobqueue.http.responses import HttpError, respond
from jobqueue.http.schemas import (
    BackendMetrics,
    Histogram,
    LimitMetrics,
    Metrics,
    QueueMetrics,
    TaskMetrics,
    TickMetrics,
    WorkflowMetrics,
)
from jobqueue.operations.overview.workflows import read_workflows
from jobqueue.values.counters import COUNTERS, EDGES, TICK_OUTCOMES, CounterTotals, Gauges
from jobqueue.values.states import LIVE, LimitKind, Status

if TYPE_CHECKING:
    from prometheus_client import Metric

AGGREGATE_SECONDS = 0.05  # per request; executors or the next request aggregate the rest
AGGREGATE_STEP = 500  # deltas: if each has another name, a step takes 0.1 s
MAX_LABELS = 1000  # queues, and pairs of queue and task type, of each backend
OTHER = "other"
STATES = [status.lower() for status in LIVE]

# Names without the prefix `jobqueue_`, and their help texts. The values are attributes of the types in schemas.py.
COUNTER_HELP = {
    "submitted": "Tasks created.",
    "completed": "Tasks that ended SUCCESSFUL.",
    "failed": "Attempts that failed.",
    "retries": "Failed attempts that are followed by another one.",
    "dead": "Tasks that ended FAILED.",
    "lost": "Times that a task was taken from a lost executor.",
}
HISTOGRAM_HELP = {
    "wait": "Time from READY to the claim, of each attempt.",
    "run": "Run time of the body, of each attempt.",
    "tick_lateness": "Time from the moment when a tick was due to its task, of each tick that became one.",
}
BACKEND_HELP = {
    "inflight": "Tasks that executors have claimed.",
    "active_workers": "Worker threads of active executors that have a task.",
    "slots": "Worker threads of active executors.",
    "executors": "Active executors.",
    "oldest_snapshot_seconds": "Age of the oldest transaction that keeps PostgreSQL from removing dead rows.",
    "schedule_overdue_seconds": "By how much the most overdue schedule is late.",
}


@endpoint("GET", {200: ("Metrics.", str)}, (501,), permission="view_metrics")
def metrics_as_text(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Return the metrics in the text format of Prometheus."""
    try:
        import prometheus_client
    except ImportError:
        raise HttpError(
            501, "Install the extra: pip install django-jobqueue[metrics]. metrics.json works without it."
        ) from None
    registry = prometheus_client.CollectorRegistry(auto_describe=False)  # the site may use the global one
    registry.register(Collector(read_metrics()))
    return HttpResponse(
        prometheus_client.generate_latest(registry),
        content_type=prometheus_client.CONTENT_TYPE_LATEST,
        headers={"Cache-Control": "no-store"},
    )


@endpoint("GET", {200: ("Metrics.", Metrics)}, permission="view_metrics")
def metrics_as_json(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Return the metrics as JSON."""
    return respond(read_metrics())


def read_metrics() -> Metrics:
    """Read the numbers of all jobqueue backends."""
    metrics = Metrics(queues=[], tasks=[], limits=[], backends=[], workflows=[])
    for alias in api.aliases():
        engine = engine_for(alias)
        _aggregate(engine)
        counted, gauges, schedules = engine.counters.counter_totals(), engine.queues.gauges(), engine.schedules.gauges()
        declared = api.declared_queues(alias)
        metrics.queues += _queues(alias, gauges, declared | {totals.queue_name for totals in counted}, declared)
        metrics.tasks += _tasks(alias, counted, declared)
        metrics.limits += _limits(alias, engine)
        metrics.workflows += _workflows(alias, engine)
        metrics.backends.append(
            BackendMetrics(
                backend=alias,
                inflight=gauges.in_flight,
                active_workers=gauges.active_workers,
                slots=gauges.slots,
                executors=gauges.executors,
                oldest_snapshot_seconds=gauges.oldest_snapshot_seconds,
                schedules_active=schedules.active,
                schedules_paused=schedules.paused,
                schedules_stopped=schedules.stopped,
                schedule_overdue_seconds=schedules.overdue_seconds,
            )
        )
    return metrics


def _aggregate(engine: Engine) -> None:
    """Aggregate counters that executors have not aggregated yet, because there may be no active executor."""
    until = time.monotonic() + AGGREGATE_SECONDS
    while engine.counters.aggregate_counters(AGGREGATE_STEP) >= AGGREGATE_STEP and time.monotonic() < until:
        pass


def _queues(alias: str, gauges: Gauges, used: Collection[str], declared: Collection[str]) -> Iterable[QueueMetrics]:
    """Return the gauges of each queue, 0 for those that are only known."""
    names = {*used, *gauges.oldest_ready_seconds, *(depth.queue_name for depth in gauges.depths)}
    labels = {name: label for (name,), (label,) in _labels({(name,) for name in names}, declared).items()}
    queues = {
        label: QueueMetrics(
            backend=alias, queue=label, **dict.fromkeys(STATES, 0), estimated=[], oldest_ready_seconds=0.0
        )
        for label in sorted(set(labels.values()))
    }
    for depth in gauges.depths:
        queue, state = queues[labels[depth.queue_name]], depth.status.lower()
        setattr(queue, state, getattr(queue, state) + depth.number)
        if depth.is_estimate and state not in queue.estimated:
            queue.estimated.append(state)
    for name, seconds in gauges.oldest_ready_seconds.items():
        queue = queues[labels[name]]
        queue.oldest_ready_seconds = max(queue.oldest_ready_seconds, seconds)
    return queues.values()


def _tasks(alias: str, counted: Sequence[CounterTotals], declared: Collection[str]) -> Iterator[TaskMetrics]:
    """Yield the counters of each pair of queue and task type."""
    labels = _labels({(totals.queue_name, totals.task_type) for totals in counted}, declared)
    groups: dict[tuple[str, ...], list[CounterTotals]] = defaultdict(list)
    for totals in counted:
        groups[labels[totals.queue_name, totals.task_type]].append(totals)
    for (queue, task_type), group in groups.items():
        yield TaskMetrics(
            backend=alias,
            queue=queue,
            task_type=task_type,
            **{name: sum(getattr(totals, name) for totals in group) for name in COUNTERS},
            wait=_histogram([totals.waits for totals in group], sum(totals.wait_seconds for totals in group)),
            run=_histogram([totals.runs for totals in group], sum(totals.run_seconds for totals in group)),
            ticks=TickMetrics(
                **{name: sum(getattr(totals, f"ticks_{name}") for totals in group) for name in TICK_OUTCOMES}
            ),
            tick_lateness=_histogram(
                [totals.lateness for totals in group], sum(totals.lateness_seconds for totals in group)
            ),
        )


def _limits(alias: str, engine: Engine) -> Iterator[LimitMetrics]:
    """Yield the gauges of each limit, 0 for those that are only declared."""
    by_limit = {(limit_gauges.kind, limit_gauges.name): limit_gauges for limit_gauges in engine.limits.gauges()}
    for kind, name in sorted({*by_limit, *declared_limits()}):
        gauges = by_limit.get((kind, name))
        yield LimitMetrics(
            backend=alias,
            kind="rate" if kind is LimitKind.RATE else "concurrency",
            limit=name,
            blocked=gauges.blocked if gauges else 0,
            oldest_blocked_seconds=gauges.oldest_seconds if gauges else 0.0,
        )


def _workflows(alias: str, engine: Engine) -> Iterator[WorkflowMetrics]:
    """Yield how many workflows run on each version of the code. No other labels: code makes few of them."""
    numbers: dict[tuple[str, str], dict[Status, int]] = defaultdict(lambda: defaultdict(int))
    for group in read_workflows(engine, (Status.SUSPENDED, Status.RUNNING)):
        if group.code:
            numbers[group.task_type, group.code][group.status] += group.count.number
    for (task_type, code), by_status in sorted(numbers.items())[:MAX_LABELS]:
        yield WorkflowMetrics(
            backend=alias,
            task_type=task_type,
            code=code,
            waiting=by_status[Status.SUSPENDED],
            running=by_status[Status.RUNNING],
        )


def _labels(names: Collection[tuple[str, ...]], declared: Collection[str]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """
    Return the labels of queues, or of queues and task types. Beyond MAX_LABELS each is OTHER, of declared queues last.

    A new name can only push others out of this order, so the counters of OTHER never decrease.
    """
    ranked = sorted(names, key=lambda name: (name[0] not in declared, name))
    return {name: name if index < MAX_LABELS else (OTHER,) * len(name) for index, name in enumerate(ranked)}


def _histogram(several: Sequence[Sequence[int]], seconds: float) -> Histogram:
    """Return the sum of the counts of buckets."""
    *below, count = accumulate(map(sum, zip(*several, strict=True)))
    return Histogram(count=count, seconds=seconds, at_most=dict(zip(map(str, EDGES), below, strict=True)))


class Collector:
    """The numbers for a registry of Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ("backend", "queue", "task_type")
        for name, what in COUNTER_HELP.items():
            counter = CounterMetricFamily(f"jobqueue_{name}", what, labels=labels)
            for task in self._metrics.tasks:
                counter.add_metric((task.backend, task.queue, task.task_type), getattr(task, name))
            yield counter
        # Without schedules, the series of ticks would all be 0.
        scheduled = [task for task in self._metrics.tasks if any(asdict(task.ticks).values())]
        ticks = CounterMetricFamily("jobqueue_ticks", "Ticks of schedules.", labels=(*labels, "outcome"))
        for task in scheduled:
            for outcome, number in asdict(task.ticks).items():
                ticks.add_metric((task.backend, task.queue, task.task_type, outcome), number)
        yield ticks
        for name, what in HISTOGRAM_HELP.items():
            family = HistogramMetricFamily(f"jobqueue_{name}_seconds", what, labels=labels)
            for task in scheduled if name == "tick_lateness" else self._metrics.tasks:
                counted: Histogram = getattr(task, name)
                buckets = [*counted.at_most.items(), ("+Inf", counted.count)]
                family.add_metric((task.backend, task.queue, task.task_type), buckets, counted.seconds)
            yield family

        labels = ("backend", "queue", "status")
        depth = GaugeMetricFamily("jobqueue_queue_depth", "Tasks that have not ended.", labels=labels)
        estimate = GaugeMetricFamily(
            "jobqueue_queue_depth_is_estimate", "1 if the depth is above 10,000, and so an estimate.", labels=labels
        )
        oldest = GaugeMetricFamily(
            "jobqueue_oldest_ready_seconds",
            "How long the oldest of the next READY tasks has waited.",
            labels=("backend", "queue"),
        )
        for queue in self._metrics.queues:
            oldest.add_metric((queue.backend, queue.queue), queue.oldest_ready_seconds)
            for state in STATES:
                depth.add_metric((queue.backend, queue.queue, state.upper()), getattr(queue, state))
                estimate.add_metric((queue.backend, queue.queue, state.upper()), state in queue.estimated)
        yield from (depth, estimate, oldest)

        labels = ("backend", "kind", "limit")
        blocked = GaugeMetricFamily("jobqueue_limit_blocked", "Tasks that wait for a limit.", labels=labels)
        oldest = GaugeMetricFamily(
            "jobqueue_limit_oldest_blocked_seconds", "How long the best task by rank has waited.", labels=labels
        )
        for limit in self._metrics.limits:
            blocked.add_metric((limit.backend, limit.kind, limit.limit), limit.blocked)
            oldest.add_metric((limit.backend, limit.kind, limit.limit), limit.oldest_blocked_seconds)
        yield from (blocked, oldest)

        by_code = ("backend", "task_type", "code", "status")
        workflows = GaugeMetricFamily("jobqueue_workflows", "Workflows by the version of their code.", labels=by_code)
        for workflow in self._metrics.workflows:
            names = (workflow.backend, workflow.task_type, workflow.code)
            workflows.add_metric((*names, "SUSPENDED"), workflow.waiting)
            workflows.add_metric((*names, "RUNNING"), workflow.running)
        yield workflows

        states = GaugeMetricFamily("jobqueue_schedules", "Schedules.", labels=("backend", "state"))
        for backend in self._metrics.backends:
            for state in ("active", "paused", "stopped"):
                states.add_metric((backend.backend, state), getattr(backend, f"schedules_{state}"))
        yield states

        for name, what in BACKEND_HELP.items():
            label = "worker_slots" if name == "slots" else name
            gauge = GaugeMetricFamily(f"jobqueue_{label}", what, labels=("backend",))
            for backend in self._metrics.backends:
                gauge.add_metric((backend.backend,), getattr(backend, name))
            yield gauge
