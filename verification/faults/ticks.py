"""Executors are killed while many schedules fire each second. Each tick must become one task or one record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobqueue.values.policies import MAX_COUNTED
from verification.faults.checker import RuleViolation
from verification.faults.environment import FaultEnvironment
from verification.faults.fault_runner import FaultPlan, FaultRunner
from verification.faults.figures import Figures, TickFigures, check_run

CREATE_SECONDS = 0.15  # for each schedule, on a busy machine
SECOND = timedelta(seconds=1)
# The row of a schedule, its ticks, and the tasks that name it.
TICKS = """
    SELECT schedule.name, schedule.overlap, tick_at, last_at, count, task_id, reason, recorded_at
    FROM jobqueue_scheduletick AS tick JOIN jobqueue_schedule AS schedule ON schedule.id = schedule_id
    ORDER BY schedule.name, tick_at
"""
TASKS = """
    SELECT schedule.name, (task.options ->> 'scheduled_at')::timestamptz, task.id
    FROM jobqueue_task AS task JOIN jobqueue_schedule AS schedule ON schedule.id = schedule_id
"""


@dataclass(frozen=True, slots=True)
class TickPlan:
    """How many schedules fire each second, for how long, and how often an executor is killed."""

    schedules: int = 200
    seconds: int = 120
    gap_seconds: float = 1.0
    strength: int = 4


def run_schedules(env: FaultEnvironment, seed: int, plan: TickPlan) -> Figures:
    """Kill an executor in each gap while the schedules fire. Let all tasks finish, and check each tick."""
    began = time.monotonic()
    flags = ("--threads", "4", "--async-slots", "20")
    runner = FaultRunner(
        env, seed, FaultPlan({}, pause_seconds=3.0, strength=plan.strength, spared=0, behind_proxy=0.0, flags=flags)
    )
    runner.begin()
    ((starts_at,),) = env.query("SELECT date_trunc('second', clock_timestamp())")
    starts_at += (5 + round(plan.schedules * CREATE_SECONDS)) * SECOND
    ends_at = starts_at + (plan.seconds - 1) * SECOND
    env.run("scheduler", count=plan.schedules, starts_at=starts_at.isoformat(), ends_at=ends_at.isoformat())
    assert env.query("SELECT 1 WHERE clock_timestamp() < %s", starts_at), "creating the schedules took too long"
    env.wait_for(lambda: env.query("SELECT 1 WHERE clock_timestamp() > %s", starts_at), "the first tick")
    kills, next_kill = 0, time.monotonic()
    while env.query("SELECT 1 WHERE clock_timestamp() < %s", ends_at):
        runner.kill_executor()
        kills += 1
        runner.start_missing_executors()
        next_kill += plan.gap_seconds
        runner.wait(next_kill - time.monotonic())
    env.wait_for(
        lambda: not env.query("SELECT 1 FROM jobqueue_schedule WHERE due_at IS NOT NULL OR waiting_at IS NOT NULL"),
        "the last tick",
    )
    env.finish()
    figures = check_run(env, kills, began)
    figures.ticks = TickFigures()
    figures.violations += check_ticks(env, plan, starts_at, figures.ticks)
    return figures


def check_ticks(
    env: FaultEnvironment, plan: TickPlan, starts_at: datetime, figures: TickFigures
) -> Iterator[RuleViolation]:
    """Yield each tick that is not in exactly one task or one record. Fill in the figures."""
    accounted: Counter[tuple[str, datetime]] = Counter()
    tasks: set[tuple[str, datetime, UUID]] = set()
    row: Any
    for row in env.query(TICKS):
        name, overlap, tick_at, last_at, count, task_id, reason, recorded_at = row
        number = (last_at - tick_at) // SECOND + 1
        accounted.update((name, tick_at + offset * SECOND) for offset in range(number))
        if count != min(number, MAX_COUNTED):
            yield RuleViolation("ticks", f"{name}: {count} ticks from {tick_at} to {last_at}")
        if task_id is None:
            figures.skipped[reason] += number
            continue
        tasks.add((name, tick_at, task_id))
        figures.enqueued += 1
        if overlap == "allow":
            figures.late_seconds.append((recorded_at - tick_at).total_seconds())
    expected = Counter(
        (f"each-second-{number}", starts_at + second * SECOND)
        for number in range(plan.schedules)
        for second in range(plan.seconds)
    )
    for (name, tick), count in ((accounted - expected) + (expected - accounted)).items():
        yield RuleViolation("ticks", f"{name} at {tick} is accounted for {accounted[name, tick]} times, off by {count}")
    for name, tick, pk in tasks ^ set(env.query(TASKS)):
        yield RuleViolation("ticks", f"task {pk} of {name} at {tick} has no tick, or the tick has no task")
