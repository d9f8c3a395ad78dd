"""docs/reliability.md: the promise, and what was done to try it."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import django

from demo_project.postgres_programs import major_version
from tests.trust.checker import RULES
from tests.trust.rig import OPTIONS
from tests.trust.sections import PAGE, PEERS, section
from tests.trust.storm import Figures

TEMPLATE = Path(__file__).with_name("page.md")
TIMEOUT_SECONDS = float(OPTIONS["HEARTBEAT_TIMEOUT"])
RESTART_SECONDS = 2.0  # promised, on top of the timeout


@dataclass(slots=True)
class Row:
    """What all runs of one campaign came to. is_measured: its restarts. stalled: runs that did not come to an end."""

    title: str
    is_measured: bool = True
    faults: int = 0
    tasks: int = 0
    messages: int = 0
    rescued: int = 0
    stalled: int = 0
    broken: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    recovery_seconds: list[float] = field(default_factory=list)

    def add(self, figures: Figures) -> None:
        self.faults += figures.faults
        self.tasks += figures.tasks
        self.messages += figures.messages
        self.rescued += figures.rescued
        self.recovery_seconds += figures.recovery_seconds
        for violation in figures.violations:
            self.broken[violation.rule] += 1

    def percentile(self, share: float) -> float:
        ordered = sorted(self.recovery_seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def cells(self) -> list[str]:
        lost = self.broken["lost"] + self.broken["stuck"] + self.broken["failed"]
        doubled = self.broken["doubled"] + self.broken["torn"] + self.broken["fenced"]
        recovery = "-"
        if self.is_measured and self.recovery_seconds:
            recovery = " / ".join(f"{self.percentile(share):.1f}" for share in (0.5, 0.99, 1.0))
        counts = (self.faults, self.tasks, self.messages, self.rescued, lost, doubled, self.broken["stolen"])
        other = self.broken["miscounted"] + self.stalled
        return [self.title, *(f"{count:,}" for count in counts), str(other), recovery]


def page(rows: Iterable[Row], *, date: str, seeds: Sequence[int], minutes: float, remark: str) -> str:
    head = ["fault", "times", "tasks", "messages", "rescued", "lost", "doubled", "stolen", "other", "restart, s"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *(row.cells() for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    chosen = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    rules = "\n".join(f"* **{name}**: {' '.join((rule.__doc__ or '').split())}" for name, rule in RULES.items())
    return TEMPLATE.read_text().format(
        cores=os.cpu_count(),
        postgresql=major_version(),
        python=platform.python_version(),
        django=django.get_version(),
        timeout=TIMEOUT_SECONDS,
        promised=TIMEOUT_SECONDS + RESTART_SECONDS,
        date=date,
        chosen=chosen,
        minutes=minutes,
        remark=remark,
        table=table,
        rules=rules,
        peers=section(PAGE.read_text(), PEERS),
    )


def write(rows: Iterable[Row], *, date: str, seeds: Sequence[int], minutes: float, remark: str) -> None:
    PAGE.write_text(page(rows, date=date, seeds=seeds, minutes=minutes, remark=remark))
