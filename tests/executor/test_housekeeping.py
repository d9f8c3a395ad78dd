"""What any executor does for the whole queue: how soon it goes on where there is more to do."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue.executor.heartbeat import PRUNE_BATCH, PRUNE_GAP_SECONDS, PRUNE_SECONDS, Heart, Housekeeping
from jobqueue.executor.outage import Outage

MORE_THAN_ALL = 1000.0


@pytest.mark.parametrize(
    ("pruned", "due", "again"),
    [(PRUNE_BATCH, PRUNE_GAP_SECONDS, True), (PRUNE_BATCH - 1, PRUNE_SECONDS, False)],
)
def test_full_batch_of_what_is_old_is_followed_by_the_next_one_at_once(
    monkeypatch: pytest.MonkeyPatch, pruned: int, due: float, again: bool
) -> None:
    now = [MORE_THAN_ALL]
    monkeypatch.setattr("jobqueue.executor.heartbeat.time.monotonic", lambda: now[0])
    asked: list[int] = []

    def prune(limit: int) -> int:
        asked.append(limit)
        return pruned

    engine: Any = SimpleNamespace(sweep=lambda: 0, fold=lambda: 0, prune=prune)
    heart: Any = SimpleNamespace(may_rescue=False)
    housekeeping = Housekeeping(engine, heart)
    now[0] += PRUNE_SECONDS
    housekeeping.run_if_due()

    assert asked == [PRUNE_BATCH]
    assert housekeeping.due_in_seconds == pytest.approx(due)
    now[0] += PRUNE_GAP_SECONDS
    housekeeping.run_if_due()
    assert len(asked) == 1 + again


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("jobqueue.executor.heartbeat.time.monotonic", lambda: made.now)
    return made


class Clock:
    now = MORE_THAN_ALL


def test_only_who_beats_in_time_may_rescue(clock: Clock) -> None:
    """Who stood still knows nothing of an outage that passed meanwhile, after which the living look silent."""
    options = SimpleNamespace(heartbeat_timeout=3.0)
    engine: Any = SimpleNamespace(options=options, heartbeat=lambda sign: [], now=datetime.now)
    sign: Any = SimpleNamespace(executor_id=None)
    line: Any = nullcontext()
    outage = Outage()
    heart = Heart(engine, lambda: sign, {}, outage, line)

    def may_rescue(*, beats_after: tuple[float, ...] = (), later: float = 0.0) -> bool:
        for gap_seconds in beats_after:
            clock.now += gap_seconds
            heart.beat()
        clock.now += later
        return heart.may_rescue

    assert not may_rescue(beats_after=(0.0, 1.0, 1.0))
    assert may_rescue(beats_after=(1.0, 1.4))
    assert may_rescue(later=1.4)
    assert not may_rescue(later=0.2)
    assert not may_rescue(beats_after=(0.0, 1.0, 1.0))
    assert may_rescue(beats_after=(1.0,))

    outage.begin("pulse", OSError("the connection is gone"))  # a backup may have been restored since the last beat
    assert not may_rescue(later=0.2)
    assert may_rescue(beats_after=(0.5,))
