"""What any executor does for the whole queue: how soon it goes on where there is more to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue.executor.heartbeat import PRUNE_BATCH, PRUNE_GAP_SECONDS, PRUNE_SECONDS, Housekeeping

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
