"""The section of docs/reliability-results.md that compares this queue with others."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import django

from demo_project.postgres_programs import major_version
from verification.faults.peers.count import percentile
from verification.faults.peers.crew import QUIET_SECONDS
from verification.faults.peers.faults import FAULTS, Figures
from verification.faults.peers.sides import SIDES
from verification.faults.peers.timing import TIMEOUT_SECONDS

TEMPLATE = Path(__file__).with_name("section.md")
HEAD = ["fault", "queue", "times", "tasks", "failed", "lost", "doubled", "torn", "exits", "restart, s"]
Results = Mapping[tuple[str, str], Figures]  # by fault and side


def cells(figures: Figures) -> list[str]:
    count = figures.count
    lost = f"{count.lost:,}" + (f" ({count.running:,})" if count.running else "")
    restart = "-"
    if count.restart_seconds:
        restart = " / ".join(f"{percentile(count.restart_seconds, share):.1f}" for share in (0.5, 0.99))
    numbers = (f"{number:,}" for number in (figures.times, count.acknowledged, count.failed))
    return [*numbers, lost, f"{count.doubled:,}", f"{count.torn:,}", f"{figures.exits:,}", restart]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> str:
    """Format a table. The first columns hold words, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def text(results: Results, *, date: str, seed: int, minutes: float, remark: str) -> str:
    named = [name for name in SIDES if any(side == name for _, side in results)]
    sides = [(side.name, side.version, side.settings, side.promise) for side in map(SIDES.__getitem__, named)]
    rows = [
        [fault.title, SIDES[side].name, *cells(results[name, side])]
        for name, fault in FAULTS.items()
        for side in named
        if (name, side) in results
    ]
    return TEMPLATE.read_text().format(
        timeout=TIMEOUT_SECONDS,
        quiet=QUIET_SECONDS,
        sides=table(["queue", "version", "settings", "what it promises"], sides, words=4),
        table=table(HEAD, rows, words=2),
        date=date,
        seed=seed,
        cores=os.cpu_count(),
        postgresql=major_version(),
        python=platform.python_version(),
        django=django.get_version(),
        minutes=minutes,
        remark=remark,
    )
