"""What must hold of a play, along the way and when it is over: by the record of the server, and by the ledger."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from itertools import chain
from typing import Any

from django.db import connections

from jobqueue.models import Counter, CounterDelta
from verification.faults import history
from verification.faults.checker import RULES
from verification.faults.history import Beat, Change, History, Mail
from verification.interleavings import invariants
from verification.interleavings.invariants import Seen
from verification.simulation.stage import COUNTED, Stage

ALONG_THE_WAY = ("doubled", "fenced", "miscounted")
AT_THE_END = (*ALONG_THE_WAY, "lost", "stuck")
COUNTERS = ("submitted", "completed", "failed", "retries", "dead", "lost")


def problems(stage: Stage, *, is_over: bool = False) -> Iterator[str]:
    stage.read_ended()
    yield from invariants.problems(seen := Seen(stage))
    yield from polls(seen)
    recorded = record(stage)
    for rule in AT_THE_END if is_over else ALONG_THE_WAY:
        yield from (f"{rule}: {text}" for text in RULES[rule](recorded))
    if is_over:
        yield from tally(stage)


def record(stage: Stage) -> History:
    """Give what the server wrote down: the rules of `make verify` are the judge of it."""
    raw = connections["default"].connection
    enqueued = [{"kind": "enqueued", "task": str(pk)} for pk in stage.names]
    return History(
        timeout_seconds=stage.engine.options.heartbeat_timeout,
        notes=enqueued,
        changes=history.rows(raw, Change, "trust_change"),
        beats=history.rows(raw, Beat, "trust_beat"),
        mail=history.rows(raw, Mail, "trust_mail"),
    )


def polls(seen: Seen) -> Iterator[str]:
    endings = seen.world.ledger.endings
    good = collections.Counter(pk for (pk, _), how in endings.items() if "committed" in how)
    for row in seen.tasks:
        if row.polls != good[row.id]:
            yield f"{COUNTED}: {row.polls} polls of {seen.world.names[row.id]}, of which {good[row.id]} were good"


def tally(stage: Stage) -> Iterator[str]:
    rows = Counter.objects.filter(backend=stage.engine.alias, minute__isnull=True)
    deltas = CounterDelta.objects.filter(backend=stage.engine.alias)
    sums: dict[str, collections.Counter[str]] = {}
    row: Any
    for row in chain(rows, deltas):
        numbers = {name: getattr(row, name) or 0 for name in COUNTERS}
        numbers["attempts"] = (sum(row.waits) if isinstance(row, Counter) else row.attempts) or 0
        sums.setdefault(row.queue_name, collections.Counter()).update(numbers)
    for queue in stage.counted.keys() | sums.keys():
        was, right = sums.get(queue, collections.Counter()), stage.counted.get(queue, collections.Counter())
        if +was != +right:
            yield f"{COUNTED}: the tally of {queue} is {dict(was)}, of which happened {dict(right)}"
