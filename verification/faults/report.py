"""Write docs/reliability-results.md: the figures behind the promise."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from verification.faults import pages
from verification.faults.checker import RULES
from verification.faults.environment import OPTIONS
from verification.faults.figures import Figures
from verification.faults.pages import cells_of, percentile, table

TIMEOUT_SECONDS = float(OPTIONS["HEARTBEAT_TIMEOUT"])
LATEST_SECONDS = TIMEOUT_SECONDS + 2.0  # the promise about restarts

OLD_CHAPTER = re.compile(
    r"^## Campaigns\n\nMachine: (?P<machine>.*?)\.\s`HEARTBEAT_TIMEOUT` is \S+ s\.\s(?P<remark>.*?)\n\n\|",
    re.MULTILINE | re.DOTALL,
)
HEAD = ["fault", "times", "tasks", "messages", "rescued", "lost", "doubled", "stolen", "other", "restart, s", "seeds"]


@dataclass(slots=True)
class CampaignRow:
    """The sum of all runs of one campaign. is_measured: show the restarts. stalled: runs that did not finish."""

    title: str
    is_measured: bool = True
    faults: int = 0
    tasks: int = 0
    messages: int = 0
    rescued: int = 0
    stalled: int = 0
    seeds: list[int] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    recovery_seconds: list[float] = field(default_factory=list)

    def add(self, figures: Figures | None, seed: int) -> None:
        """Count a run. A run that did not finish has no figures."""
        self.seeds.append(seed)
        if figures is None:
            self.stalled += 1
            return
        self.faults += figures.faults
        self.tasks += figures.tasks
        self.messages += figures.messages
        self.rescued += figures.rescued
        self.recovery_seconds += figures.recovery_seconds
        for violation in figures.violations:
            self.broken[violation.rule] += 1

    def percentile(self, share: float) -> float:
        return percentile(self.recovery_seconds, share)

    def seed_text(self) -> str:
        first, *others = self.seeds
        if others and self.seeds == list(range(first, first + len(self.seeds))):
            return f"{first} to {others[-1]}"
        return ", ".join(map(str, self.seeds))

    def cells(self) -> list[str]:
        lost = sum(self.broken[rule] for rule in ("lost", "stuck", "failed", "lingering", "contradicted"))
        doubled = self.broken["doubled"] + self.broken["torn"] + self.broken["fenced"]
        recovery = "-"
        if self.is_measured and self.recovery_seconds:
            recovery = " / ".join(f"{self.percentile(share):.1f}" for share in (0.5, 0.99, 1.0))
        counts = (self.faults, self.tasks, self.messages, self.rescued, lost, doubled, self.broken["stolen"])
        others = ("miscounted", "unexplained", "exceeded", "deadlock")
        other = sum(self.broken[rule] for rule in others) + self.stalled
        return [self.title, *(f"{count:,}" for count in counts), str(other), recovery]


def chapter_of(
    rows: Iterable[CampaignRow], titles: Sequence[str], before: str, *, minutes: float, remark: str
) -> dict[str, object]:
    """
    Return the values for the chapter about campaigns.

    titles: the titles of all campaigns, in order. before: the old page. If only some campaigns ran, the chapter keeps
    the rows of the others, its machine and its remark.
    """
    machine, text = pages.machine(), f"All took {minutes:.0f} minutes. {remark}".rstrip()
    new = {row.title: [*row.cells(), f"{pages.today()}, {row.seed_text()}"] for row in rows}
    old = {cells[0]: cells for cells in cells_of(before) if len(cells) == len(HEAD)}
    if (was := OLD_CHAPTER.search(before)) and not new.keys() >= old.keys() & set(titles):
        if was["machine"] != machine:
            new = {title: [*cells[:-1], f"{cells[-1]}; {machine}"] for title, cells in new.items()}
        machine, text = was["machine"], was["remark"]
    figures = old | new
    return {
        "machine": machine,
        "remark": text,
        "table": table(HEAD, [figures[title] for title in titles if title in figures]),
    }


def write(figures: Mapping[str, object]) -> None:
    """Write the chapters whose values are known, and the rules."""
    rules = "\n".join(bullet(f"* **{name}**: {rule.__doc__}") for name, rule in RULES.items())
    pages.write({"timeout": TIMEOUT_SECONDS, "promised": LATEST_SECONDS, "rules": rules, **figures})


def bullet(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 100, subsequent_indent="  ", break_on_hyphens=False)
