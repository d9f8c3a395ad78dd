"""What must hold of a play, along the way and when it is over: by the record of the server, and by the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from django.db import connections

from jobqueue.models import Tally, TallyDelta
from tests.interleavings import invariants
from tests.interleavings.invariants import Seen
from tests.simulation.stage import COUNTED, Stage
from tests.trust import history
from tests.trust.checker import RULES
from tests.trust.history import Beat, Change, History, Mail

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
    """Give what the server wrote down: the rules of `make trust` are the judge of it."""
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
    good = Counter(pk for (pk, _), how in endings.items() if "committed" in how)
    for row in seen.tasks:
        if row.polls != good[row.id]:
            yield f"{COUNTED}: {row.polls} polls of {seen.world.names[row.id]}, of which {good[row.id]} were good"


def tally(stage: Stage) -> Iterator[str]:
    rows = Tally.objects.filter(backend=stage.engine.alias, minute__isnull=True)
    deltas = TallyDelta.objects.filter(backend=stage.engine.alias)
    sums: dict[str, Counter[str]] = {}
    row: Any
    for row in chain(rows, deltas):
        numbers = {name: getattr(row, name) or 0 for name in COUNTERS}
        numbers["attempts"] = (sum(row.waits) if isinstance(row, Tally) else row.attempts) or 0
        sums.setdefault(row.queue_name, Counter()).update(numbers)
    for queue in stage.counted.keys() | sums.keys():
        was, right = sums.get(queue, Counter()), stage.counted.get(queue, Counter())
        if +was != +right:
            yield f"{COUNTED}: the tally of {queue} is {dict(was)}, of which happened {dict(right)}"
