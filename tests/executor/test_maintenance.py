"""When maintenance is due, and when an executor may rescue."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import django.db
import pytest
from msgspec.structs import replace

from jobqueue.api import limits
from jobqueue.api.schedule_deployments import DeclaredSchedules
from jobqueue.engine import engine_for
from jobqueue.executor.budgets import Budgets
from jobqueue.executor.database.connection import DatabaseState
from jobqueue.executor.heartbeat import HeartbeatThread
from jobqueue.executor.maintenance import (
    AGAIN_SECONDS,
    CHECK_SECONDS,
    PRUNE_BATCH,
    PRUNE_GAP_SECONDS,
    PRUNE_SECONDS,
    Maintenance,
)
from jobqueue.executor.running_tasks import RunningTasks
from jobqueue.values.ids import new_id
from jobqueue.values.records import Admitted, FiredSchedules, PendingWork

MORE_THAN_ALL = 1000.0
NOTHING = PendingWork(
    None, None, has_waiting_tick=False, has_running=False, has_messages=False, has_command=False, has_isolated=False
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    made = SettableClock()
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    return made


class SettableClock:
    now = MORE_THAN_ALL


def budgets() -> Budgets:
    connection: Any = SimpleNamespace(restart=lambda: None)
    return Budgets(connection)


@pytest.mark.parametrize(
    ("tasks", "ticks", "gap_seconds"),
    [
        (PRUNE_BATCH, 0, PRUNE_GAP_SECONDS),
        (0, PRUNE_BATCH, PRUNE_GAP_SECONDS),
        (PRUNE_BATCH - 1, PRUNE_BATCH - 1, PRUNE_SECONDS),
    ],
)
def test_prune_continues_soon_after_a_full_batch(
    clock: SettableClock, monkeypatch: pytest.MonkeyPatch, tasks: int, ticks: int, gap_seconds: float
) -> None:
    pruned_at: list[float] = []

    def prune(limit: int) -> int:
        assert limit == PRUNE_BATCH
        pruned_at.append(clock.now)
        return tasks

    engine: Any = SimpleNamespace(
        alias="default",
        tasks=SimpleNamespace(prune=prune),
        counters=SimpleNamespace(aggregate_counters=lambda limit: 0),
        executors=SimpleNamespace(pending_maintenance=lambda executor_id: NOTHING),
        ticks=SimpleNamespace(prune=lambda limit: ticks),
    )
    monkeypatch.setattr(DeclaredSchedules, "synchronize", lambda self, engine: False)
    monkeypatch.setattr(limits, "reset_non_adjustable_limits", lambda engine: 0)
    heart: Any = SimpleNamespace(has_unknown_claims=False, take_set_back_seconds=lambda: 0.0)
    maintenance = Maintenance(
        engine,
        new_id(),
        heart,
        budgets(),
        lambda: None,
        lambda queues: None,
        lambda command: None,
        lambda tasks: None,
        lambda has_waiting: 0,
    )
    deadline = clock.now + 3 * PRUNE_SECONDS
    while len(pruned_at) < 2 and clock.now < deadline:
        clock.now += maintenance.due_in_seconds + 0.001
        maintenance.run_if_due(())

    assert pruned_at[1] - pruned_at[0] == pytest.approx(gap_seconds, abs=0.6)


def test_schedule_that_stays_locked_is_tried_twice_a_second(
    clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired_at: list[float] = []

    def fire(limit: int) -> FiredSchedules:
        fired_at.append(clock.now)
        return FiredSchedules()

    engine: Any = SimpleNamespace(
        alias="default",
        executors=SimpleNamespace(pending_maintenance=lambda executor_id: replace(NOTHING, next_tick_seconds=-1.0)),
        ticks=SimpleNamespace(fire=fire),
    )
    monkeypatch.setattr(DeclaredSchedules, "synchronize", lambda self, engine: False)
    monkeypatch.setattr(limits, "reset_non_adjustable_limits", lambda engine: 0)
    heart: Any = SimpleNamespace(has_unknown_claims=False, take_set_back_seconds=lambda: 0.0)
    maintenance = Maintenance(
        engine,
        new_id(),
        heart,
        budgets(),
        lambda: None,
        lambda queues: None,
        lambda command: None,
        lambda tasks: None,
        lambda has_waiting: 0,
    )
    while len(fired_at) < 10:
        clock.now += maintenance.due_in_seconds + 0.001
        maintenance.run_if_due(())
    gaps = [later - earlier for earlier, later in pairwise(fired_at)]

    assert gaps[0] == pytest.approx(2 * AGAIN_SECONDS, abs=0.01)
    assert gaps[-1] == pytest.approx(CHECK_SECONDS, abs=0.01)


class Refusing:
    """An engine whose calls of some names are always cancelled by the server. It notes all that it is asked for."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.called = set(refused), list[Any]()
        self.alias = "default"
        self.admissions = self.counters = self.executors = self.inbox = self.messages = self
        self.last_brought: list[int | None] = [None]

    def note(self, name: str, *values: Any) -> None:
        self.called.append((name, *values))
        if name in self.refused:
            cancelled = django.db.OperationalError("canceling statement due to statement timeout")
            cancelled.__cause__ = StatementCancelled()
            raise cancelled

    def bring_forward(self, seconds: float, after: int = 0, limit: int = 1) -> int | None:
        self.note("bring_forward", seconds, after)
        return self.last_brought.pop(0)

    def isolate_tasks_of(self, executor_id: Any) -> int:
        self.note("isolate", executor_id)
        return 0

    def admit(self, limit: int) -> Admitted:
        self.note("admit")
        return Admitted()

    def pending_maintenance(self, executor_id: Any) -> PendingWork:
        return replace(NOTHING, next_wake_seconds=-1.0)

    def wake_due(self, limit: int) -> int:
        self.note("wake")
        return 0

    def aggregate_counters(self, limit: int) -> int:
        return 0

    def of(self, name: str) -> list[Any]:
        return [call for call in self.called if call[0] == name]


class StatementCancelled(Exception):
    sqlstate = "57014"


def maintenance_with(engine: Any, monkeypatch: pytest.MonkeyPatch, set_back: list[float]) -> Maintenance:
    """Make the maintenance of an executor that sees each of these steps of the clock in a turn of its own."""
    monkeypatch.setattr(DeclaredSchedules, "synchronize", lambda self, engine: False)
    monkeypatch.setattr(limits, "reset_non_adjustable_limits", lambda engine: 0)
    heart: Any = SimpleNamespace(
        has_unknown_claims=False, take_set_back_seconds=lambda: set_back.pop(0) if set_back else 0.0
    )
    connection: Any = SimpleNamespace(restart=lambda: None, has_timed_out=lambda error: False, is_open=True)
    return Maintenance(
        engine,
        new_id(),
        heart,
        Budgets(connection),
        lambda: None,
        lambda queues: None,
        lambda command: None,
        lambda tasks: None,
        lambda has_waiting: 0,
    )


@pytest.mark.parametrize("refused", ["isolate", "bring_forward"])
def test_call_that_always_fails_does_not_stop_wakes(
    clock: SettableClock, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    engine = Refusing(refused)
    maintenance = maintenance_with(engine, monkeypatch, [3600.0])
    maintenance.isolate_tasks_of(new_id())

    for _ in range(10):
        clock.now += CHECK_SECONDS
        maintenance.run_if_due(())

    assert len(engine.of("wake")) == 10
    assert 1 < len(engine.of(refused)) < 10


def test_frozen_executor_is_kept_until_its_tasks_are_isolated(
    clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Refusing("isolate")
    maintenance, frozen = maintenance_with(engine, monkeypatch, []), new_id()
    maintenance.isolate_tasks_of(frozen)

    maintenance.run_if_due(())
    engine.refused.clear()
    for _ in range(3):
        clock.now += CHECK_SECONDS + 0.1
        maintenance.run_if_due(())

    assert engine.of("isolate") == [("isolate", frozen)] * 2


def test_step_of_the_clock_is_kept_until_all_requests_moved(
    clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Refusing("bring_forward")
    engine.last_brought = [1000, None]
    maintenance = maintenance_with(engine, monkeypatch, [3600.0])

    maintenance.run_if_due(())
    engine.refused.clear()
    for _ in range(4):
        clock.now += CHECK_SECONDS + 0.1
        maintenance.run_if_due(())

    moves = [("bring_forward", 3600.0, after) for after in (0, 0, 1000)]
    assert engine.of("bring_forward") == moves


def test_rescue_needs_punctual_heartbeats(clock: SettableClock) -> None:
    """A process that stood still may have missed an outage, after which living executors look silent."""
    options = SimpleNamespace(heartbeat_timeout=3.0)
    engine: Any = SimpleNamespace(
        options=options,
        executors=SimpleNamespace(heartbeat=lambda info: []),
        db=SimpleNamespace(now=datetime.now),
    )
    info: Any = SimpleNamespace(executor_id=None)
    line: Any = nullcontext()
    state = DatabaseState()
    heart = HeartbeatThread(engine, lambda: info, RunningTasks(engine_for("default")), state, line)

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

    state.lost("loop", OSError("the connection is gone"))  # a backup may have been restored since the last beat
    assert not may_rescue(later=0.2)
    assert may_rescue(beats_after=(0.5,))
