"""Run each fault at each failpoint: the process that reaches it dies, freezes, fails or waits, or the server fails."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from jobqueue.values.failpoints import POINTS
from verification.faults import server_faults
from verification.faults.environment import FaultEnvironment, LaunchedProcess
from verification.faults.fault_runner import FaultRunner
from verification.faults.figures import Figures, check_run

TOGETHER = 4  # points at once
# Those that these tasks pass: none is a workflow. checkouts.py kills executors that record steps.
PASSED = tuple(point for point in POINTS if not point.startswith("record."))
# Failpoints that make other points reachable.
BEFORE: Mapping[str, str] = {"release.before": "claim.after=raise", "release.after": "claim.after=raise"}
IN_RESCUE = ("rescue.before", "rescue.after")
IN_SENDERS = ("wake.before", "wake.after")
RETENTION = {"SUCCESSFUL": 2.0, "CANCELLED": 2.0, "FAILED": None}
PRUNE_SECONDS = 1.0
# A tick a second. The schedule is paused, so that its ticks add no tasks to the history.
ADD_SCHEDULE = """
INSERT INTO jobqueue_schedule (
    backend, name, task_type, new_task, expression, timezone, jitter_seconds, overlap, catch_up, max_catch_up,
    declared_at, paused_at, paused_by, pause_reason, next_at, due_at, created_at, updated_at)
SELECT 'default', 'each second', 'none', '{}', '@every 1', '', 0, 'skip', 'latest', 1,
    '', now, 'a test', '', date_trunc('second', now), date_trunc('second', now), now, now FROM now()
"""
COUNT_TICKS = """
SELECT sum(count), extract(epoch FROM max(last_at) - min(tick_at)) + 1 FROM jobqueue_scheduletick
"""
MIN_CLAIMED = 3  # tasks: some may finish before their executor dies


def run_at_points(env: FaultEnvironment, seed: int, fault: str, points: Iterable[str] = PASSED) -> Figures:
    """Run one fault of a failpoint or of the server at each of the points, while other executors work."""
    began, runner, wanted = time.monotonic(), FaultRunner(env, seed), list(points)
    env.query(ADD_SCHEDULE)
    runner.begin()
    env.note("fault", fault=fault)
    ordinary = [point for point in wanted if point not in IN_RESCUE]
    size = 1 if fault in server_faults.LASTING else TOGETHER
    groups = [ordinary[start : start + size] for start in range(0, len(ordinary), size)]
    before: Iterable[LaunchedProcess] = ()
    for group in [*groups, *([point] for point in wanted if point in IN_RESCUE)]:
        armed = {point: _arm(runner, point, fault) for point in group}
        _do(runner, fault, armed)
        env.stop(*(process for process in before if process.is_alive))  # keep the number of processes small
        before = armed.values()
        runner.start_missing_executors()
    env.finish()
    ((ticks, expected),) = env.query(COUNT_TICKS)
    assert ticks == expected, f"{ticks} ticks are recorded, not {expected}"
    return check_run(env, len(wanted), began)


def _arm(runner: FaultRunner, point: str, fault: str) -> LaunchedProcess:
    env = runner.env
    at_point = "freeze" if fault in server_faults.ALL else fault
    seconds = f":{env.timeout_seconds * 1.5:g}" if fault == "delay" else ""
    plan: dict[str, Any] = {"failpoints": f"{BEFORE.get(point, '')} {point}={at_point}{seconds}"}
    if fault in server_faults.THROUGH_PROXY:
        plan["through"] = env.new_proxy()
    if point in IN_SENDERS:
        process = env.start_sender(runner.random.randrange(1_000, 1_000_000), **plan)
    else:
        process = env.start_executor(prune_seconds=PRUNE_SECONDS, **plan)
    # A process that was stopped or got an error keeps its claims: a rescue from it is a violation.
    if fault in ("kill", "freeze") or (fault == "delay" and point.startswith("heartbeat")):
        env.note_harm(process, f"{fault} at {point}")
    return process


def _do(runner: FaultRunner, fault: str, armed: Mapping[str, LaunchedProcess]) -> None:
    env = runner.env
    for point, process in armed.items():
        if point in IN_RESCUE:
            _create_tasks_to_rescue(runner, process)
    if server_fault := server_faults.ALL.get(fault):
        _run_on_stopped_processes(runner, server_fault, armed)
        return
    for point, process in armed.items():
        env.wait_for_line(process, f"failpoint {point}:")
    match fault:
        case "kill" | "term":
            for point, process in armed.items():
                env.wait_for(process.ended.is_set, f"the end of {process.name} at {point}")
                assert process.code == (-signal.SIGKILL if fault == "kill" else 0), (point, process.code)
        case "freeze":
            for process in armed.values():
                env.wait_for(lambda process=process: process.state == "T", f"{process.name} to freeze")  # type: ignore[misc]
            runner.wait(env.timeout_seconds * 1.5)
            for process in armed.values():
                process.send(signal.SIGCONT)


def _run_on_stopped_processes(
    runner: FaultRunner, server_fault: server_faults.ServerFault, armed: Mapping[str, LaunchedProcess]
) -> None:
    """Run the fault as soon as a process stops. After a longer stop it would rightly lose its tasks."""
    env, left = runner.env, dict(armed)
    while left:
        stopped = env.wait_for(
            lambda: {point: process for point, process in left.items() if process.state == "T"},
            f"a process to stop at {list(left)}",
        )
        with server_fault(runner, list(stopped.values())):
            for point, process in stopped.items():
                process.send(signal.SIGCONT)
                del left[point]


def _create_tasks_to_rescue(runner: FaultRunner, rescuer: LaunchedProcess) -> None:
    """Kill all other executors once this one can rescue, so that no other is faster."""
    env = runner.env
    env.wait_for_first_heartbeat(rescuer)
    runner.wait(env.timeout_seconds * 1.2)
    others = [process for process in env.alive() if process is not rescuer]
    names = [process.name for process in others]
    env.wait_for(lambda: env.count_claimed_by(names) >= MIN_CLAIMED, "tasks claimed by others")
    for process in others:
        env.note_harm(process, "killed")
    env.kill(*others)
