"""Each statement of an executor's own threads takes longer than its timeout, one statement after the other."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from verification.faults.checker import RuleViolation
from verification.faults.environment import FaultEnvironment
from verification.faults.figures import Figures
from verification.faults.slow_hook import CHOSEN, SEEN, SLOWED

OFTEN = 3  # notes of a statement, of which there is one a second
TOO_SLOW = "its commit alone took"  # part of the error of an outcome that was given up
UNTRUE = "unreachable"  # what the probes must not say


@dataclass(frozen=True, slots=True)
class SlowPlan:
    """
    How to slow statements.

    sample: how many, chosen by the seed; None: all that the executor was seen to use. learn_seconds: for how long to
    watch it. slow_seconds: for how long one is slow. wait_seconds: how long to wait for one that comes rarely.
    """

    sample: int | None = None
    learn_seconds: float = 20.0
    slow_seconds: float = 6.0
    wait_seconds: float = 6.0


def run_slow_statements(env: FaultEnvironment, seed: int, plan: SlowPlan) -> Figures:
    """
    Slow one statement after the other, and let all tasks end.

    While one is slow, tasks end, or the probe for readiness says what is wrong. Afterwards tasks end again, in the same
    process. No task is lost, and no outcome is doubled.
    """
    began = time.monotonic()
    run = _Run(env, seed, plan)
    slowed = [label for label in run.statements() if run.slow_down(label)]
    env.finish()
    violations = [*run.violations, *ends(env)]
    return Figures(faults=len(slowed), seconds=time.monotonic() - began, tasks=env.count(), violations=violations)


class _Run:
    def __init__(self, env: FaultEnvironment, seed: int, plan: SlowPlan) -> None:
        self.env, self._plan, self._random = env, plan, random.Random(seed)
        self.violations: list[RuleViolation] = []
        self._port = free_port()
        env.start_sender(seed * 100, pause_seconds=0.2)
        env.launch("limiter", seed=seed, max_ready=500, pause_seconds=0.3, keys=5)
        flags = ("--health", str(self._port))
        self._executor = env.start_executor(*flags, slow=str(env.folder), prune_seconds=1.0)
        env.wait_for_work(50)
        env.wait(plan.learn_seconds)
        env.remember_usage(self._executor)

    def statements(self) -> list[str]:
        """Return the statements that the executor has used so far, in the order of the seed."""
        counts = Counter(lines(self.env.folder / SEEN))
        labels = sorted(label for label, count in counts.items() if self._plan.sample is None or count >= OFTEN)
        self._random.shuffle(labels)
        return labels[: self._plan.sample]

    def slow_down(self, label: str) -> bool:
        """Slow a statement for some seconds. Return whether the executor has used it meanwhile."""
        env, selected, before = self.env, self.env.folder / CHOSEN, self._slowed(label)
        selected.write_text(label)
        deadline = time.monotonic() + self._plan.wait_seconds
        while self._slowed(label) == before and time.monotonic() < deadline:
            env.wait(0.05)
        has_met = self._slowed(label) > before
        if has_met:
            self._expect_progress_or_words(label)
        selected.unlink()
        if has_met:
            env.wait_for_work(20)
        if not self._executor.is_alive:
            self._violated("other", f"{self._executor.name} ended while {label!r} was slow")
        return has_met

    def _expect_progress_or_words(self, label: str) -> None:
        """Expect that tasks end, or that the probe says what is wrong, and nothing untrue."""
        ended, words = self.env.ended(), ""
        until = time.monotonic() + self._plan.slow_seconds
        while time.monotonic() < until:
            self.env.wait(0.5)
            words = self._readiness() or words
        is_own_thread = label.startswith("heartbeat: ")  # without heartbeats, it must stop
        if not is_own_thread and UNTRUE in words:
            self._violated("other", f"while {label!r} was slow, the probe answered: {words}")
        if not words and self.env.ended() == ended:
            self._violated("lost", f"no task ended while {label!r} was slow, and the probe was content")

    def _readiness(self) -> str:
        """Return the problems that /readyz names."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10.0)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            text = answer.read().decode()
            return "" if answer.status == 200 else text
        finally:
            connection.close()

    def _slowed(self, label: str) -> int:
        return lines(self.env.folder / SLOWED).count(label)

    def _violated(self, rule: str, what: str) -> None:
        self.violations.append(RuleViolation(rule, what))


def ends(env: FaultEnvironment) -> list[RuleViolation]:
    """Check how the tasks have ended: once, in the process that claimed them, FAILED only for the reason of the run."""
    times = []
    for pk, status, losses, errors in env.query(
        "SELECT id, status, executor_losses, errors::text FROM jobqueue_task"
        " WHERE executor_losses > 0 OR status NOT IN ('SUCCESSFUL', 'FAILED') OR"
        " (status = 'FAILED' AND position(%s IN errors::text) = 0)",
        TOO_SLOW,
    ):
        times.append(RuleViolation("lost", f"task {pk} ended {status}, {losses} losses: {errors[:300]}"))
    for kind, key, count in env.query(
        "SELECT kind, key, count(*) FROM verification_effect GROUP BY 1, 2 HAVING count(*) > 1"
    ):
        times.append(RuleViolation("doubled", f"{count} effects {kind} {key}"))
    return times


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
