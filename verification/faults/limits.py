"""Executors are killed while tasks of many keys wait for each other. No limit is exceeded, nothing stays blocked."""

from __future__ import annotations

import time
from dataclasses import dataclass

from verification.faults.environment import FaultEnvironment
from verification.faults.fault_runner import FaultPlan, FaultRunner
from verification.faults.figures import Figures, check_run

MAX_WAITING = 3_000  # tasks: then the sender of limited tasks pauses


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """How many keys there are, for how long tasks come, and how often an executor is killed."""

    keys: int = 200
    seconds: float = 120.0
    gap_seconds: float = 1.0
    strength: int = 5


def run_limits(env: FaultEnvironment, seed: int, plan: LimitPlan) -> Figures:
    """Kill an executor in each gap while tasks with limits come. Let all tasks finish. The rule `exceeded` judges."""
    began = time.monotonic()
    flags = ("--threads", "8", "--async-slots", "40")
    runner = FaultRunner(
        env, seed, FaultPlan({}, pause_seconds=3.0, strength=plan.strength, behind_proxy=0.0, flags=flags)
    )
    limiter = env.launch("limiter", seed=seed, max_ready=MAX_WAITING, pause_seconds=0.1, keys=plan.keys)
    runner.begin()
    kills, next_kill = 0, time.monotonic()
    until = next_kill + plan.seconds
    while time.monotonic() < until:
        runner.kill_executor()
        kills += 1
        runner.start_missing_executors()
        next_kill += plan.gap_seconds
        runner.wait(next_kill - time.monotonic())
    env.stop(limiter)
    env.finish()
    return check_run(env, kills, began)
