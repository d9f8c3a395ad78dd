"""Count the results of one run, in the same way for each queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

EVERYBODY = "*"
Note = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """
    What a run left behind.

    notes: see diary.py. states: waiting, running, succeeded or failed, by number of the task. effects: the
    numbers in the table of effects, one for each row.
    """

    notes: Sequence[Note]
    states: Mapping[int, str]
    effects: Sequence[int]


@dataclass(frozen=True, slots=True)
class TaskCount:
    """
    Of the tasks that were acknowledged.

    lost: have not ended. running: those of the lost that are marked as running. doubled: have more than one effect.
    torn: SUCCESSFUL without their effect, or FAILED with it.
    """

    acknowledged: int
    succeeded: int
    failed: int
    lost: int
    running: int
    doubled: int
    torn: int
    restart_seconds: Sequence[float]


def count(results: Results) -> TaskCount:
    acknowledged = {note["number"] for note in results.notes if note["kind"] == "enqueued"}
    states = Counter(results.states.get(number, "gone") for number in acknowledged)
    effects = Counter(results.effects)
    return TaskCount(
        acknowledged=len(acknowledged),
        succeeded=states["succeeded"],
        failed=states["failed"],
        lost=len(acknowledged) - states["succeeded"] - states["failed"],
        running=states["running"],
        doubled=sum(effects[number] > 1 for number in acknowledged),
        torn=sum(
            (state == "succeeded" and not effects[number]) or (state == "failed" and effects[number] > 0)
            for number, state in results.states.items()
            if number in acknowledged
        ),
        restart_seconds=sorted(restarts(results.notes)),
    )


def restarts(notes: Sequence[Note]) -> Iterator[float]:
    """Return the seconds from a fault of a worker to the next start of each task that it had started."""
    blows = [note for note in notes if note["kind"] == "hurt"]
    starts: dict[int, list[Note]] = defaultdict(list)
    for note in sorted(notes, key=lambda note: note["at"]):
        if note["kind"] == "started":
            starts[note["number"]].append(note)
    for times in starts.values():
        for first, then in pairwise(times):
            moments = [blow["at"] for blow in blows if blow["whom"] in (first["who"], EVERYBODY)]
            if between := [at for at in moments if first["at"] <= at <= then["at"]]:
                yield then["at"] - between[0]
