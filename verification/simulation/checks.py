"""The invariants of a simulation: checked by the server's record of changes and by the answers of the engine."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from itertools import chain
from typing import Any

from django.db import connections

from jobqueue.models import Counter, CounterDelta
from verification.faults import history
from verification.faults.checker import RULES
from verification.faults.history import Change, HeartbeatRecord, History, MessageEvent
from verification.interleavings import invariants
from verification.interleavings.invariants import Snapshot
from verification.simulation.simulated_backend import COUNTED, SimulatedBackend

ALONG_THE_WAY = ("doubled", "fenced", "miscounted", "exceeded")
AT_THE_END = (*ALONG_THE_WAY, "lost", "stuck")
COUNTERS = ("submitted", "completed", "failed", "retries", "dead", "lost")


def problems(backend: SimulatedBackend, *, is_over: bool = False) -> Iterator[str]:
    backend.read_ended()
    yield from invariants.problems(snapshot := Snapshot(backend))
    yield from polls(snapshot)
    recorded = record(backend)
    for rule in AT_THE_END if is_over else ALONG_THE_WAY:
        yield from (f"{rule}: {text}" for text in RULES[rule](recorded))
    if is_over:
        yield from counters(backend)


def record(backend: SimulatedBackend) -> History:
    """Return the server's record of changes, for the rules of `make verify`."""
    raw = connections["default"].connection
    limits = {pk: {"limit": limit} for pk, limit in backend.limits_of.items()}
    enqueued = [{"kind": "enqueued", "task": str(pk), **limits.get(pk, {})} for pk in backend.names]
    return History(
        timeout_seconds=backend.engine.options.heartbeat_timeout,
        notes=enqueued,
        changes=history.rows(raw, Change, "verification_change"),
        beats=history.rows(raw, HeartbeatRecord, "verification_beat"),
        messages=history.rows(raw, MessageEvent, "verification_message"),
    )


def polls(snapshot: Snapshot) -> Iterator[str]:
    endings = snapshot.backend.records.endings
    good = collections.Counter(pk for (pk, _), how in endings.items() if "committed" in how)
    for row in snapshot.tasks:
        if row.polls != good[row.id]:
            yield f"{COUNTED}: {row.polls} polls of {snapshot.backend.names[row.id]}, of which {good[row.id]} were good"


def counters(backend: SimulatedBackend) -> Iterator[str]:
    rows = Counter.objects.filter(backend=backend.engine.alias)
    deltas = CounterDelta.objects.filter(backend=backend.engine.alias)
    sums: dict[str, collections.Counter[str]] = {}
    row: Any
    for row in chain(rows, deltas):
        numbers = {name: getattr(row, name) or 0 for name in COUNTERS}
        numbers["attempts"] = (sum(row.waits) if isinstance(row, Counter) else row.attempts) or 0
        sums.setdefault(row.queue_name, collections.Counter()).update(numbers)
    for queue in backend.expected_counters.keys() | sums.keys():
        was, right = sums.get(queue, collections.Counter()), backend.expected_counters.get(queue, collections.Counter())
        if +was != +right:
            yield f"{COUNTED}: the counters of {queue} are {dict(was)}, expected {dict(right)}"
