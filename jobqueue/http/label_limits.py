"""Limits for the labels of metrics. Callers may invent queue names, and Prometheus keeps every label it has seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from jobqueue.metrics import COUNTERS, Counted, Depth, Gauges
from jobqueue.records import LIVE

OTHER = "other"
MAX_LABELS = 1000  # queues, and pairs of queue and task type, of each backend


def bounded_queues(names: Iterable[str], first: Collection[str]) -> list[str]:
    """
    Return the queues that keep their names, those of `first` before others.

    A new queue can only push others out of this order, so the counters of OTHER never decrease.
    """
    ranked = sorted(names, key=lambda name: (name not in first, name))
    return sorted({*ranked[:MAX_LABELS], OTHER}) if len(ranked) > MAX_LABELS else sorted(ranked)


def bounded_counts(counted: Sequence[Counted], first: Collection[str]) -> Sequence[Counted]:
    """Add up the counts of pairs beyond MAX_LABELS as OTHER, in the same order."""
    if len(counted) <= MAX_LABELS:
        return counted
    ranked = sorted(counted, key=lambda one: (one.queue_name not in first, one.queue_name, one.task_type))
    kept, rest = ranked[:MAX_LABELS], ranked[MAX_LABELS:]
    others = [one for one in kept if (one.queue_name, one.task_type) == (OTHER, OTHER)]
    return [*(one for one in kept if one not in others), _sum([*others, *rest])]


def bounded_gauges(gauges: Gauges, queues: Collection[str]) -> Gauges:
    """Add up the numbers of queues that do not keep their names as OTHER."""
    if all(depth.queue_name in queues for depth in gauges.depths):
        return gauges
    own = [depth for depth in gauges.depths if depth.queue_name in queues and depth.queue_name != OTHER]
    rest = [depth for depth in gauges.depths if depth.queue_name not in queues or depth.queue_name == OTHER]
    oldest: dict[str, float] = {}
    for name, seconds in gauges.oldest_ready_seconds.items():
        label = name if name in queues else OTHER
        oldest[label] = max(seconds, oldest.get(label, 0.0))
    total = [
        Depth(
            queue_name=OTHER,
            status=status,
            number=sum(depth.number for depth in rest if depth.status is status),
            is_estimate=any(depth.is_estimate for depth in rest if depth.status is status),
        )
        for status in LIVE
    ]
    return replace(gauges, depths=[*own, *total], oldest_ready_seconds=oldest)


def _sum(several: Sequence[Counted]) -> Counted:
    numbers = {name: sum(getattr(one, name) for one in several) for name in (*COUNTERS, "wait_seconds", "run_seconds")}
    return Counted(
        queue_name=OTHER,
        task_type=OTHER,
        **numbers,
        waits=[sum(counts) for counts in zip_longest(*(one.waits for one in several), fillvalue=0)],
        runs=[sum(counts) for counts in zip_longest(*(one.runs for one in several), fillvalue=0)],
    )
