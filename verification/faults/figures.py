"""The results of a run of faults, as numbers."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from verification.faults.checker import RuleViolation, restarts, violations
from verification.faults.environment import FaultEnvironment
from verification.faults.pages import percentile


@dataclass(slots=True)
class TickFigures:
    """The ticks of a run. late_seconds: from each tick to its task, of schedules whose ticks never wait."""

    enqueued: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    late_seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        late = " / ".join(f"{percentile(self.late_seconds, share):.2f}" for share in (0.5, 0.99, 1.0))
        skips = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.skipped.items())) or "none"
        return f"{self.enqueued:,} ticks enqueued, {late} s late (p50 / p99 / longest); skipped: {skips}"


@dataclass(slots=True)
class Figures:
    """The results of a run. recovery_seconds: see checker.restarts()."""

    faults: int
    seconds: float = 0.0
    tasks: int = 0
    messages: int = 0
    rescued: int = 0
    recovery_seconds: list[float] = field(default_factory=list)
    violations: list[RuleViolation] = field(default_factory=list)
    ticks: TickFigures | None = None  # of the campaigns with schedules


def check_run(env: FaultEnvironment, faults: int, began: float) -> Figures:
    """Read the history of a finished run and check it."""
    history = env.history()
    return Figures(
        faults=faults,
        seconds=time.monotonic() - began,
        tasks=sum(change.before is None for change in history.changes),
        messages=len(history.noted("sent")),
        rescued=sum(change.is_rescue for change in history.changes),
        recovery_seconds=restarts(history),
        violations=violations(history),
    )
