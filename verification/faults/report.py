"""Write docs/reliability-results.md: the figures behind the promise."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter

import django

from demo_project.postgres_programs import major_version
from verification.faults.checker import RULES
from verification.faults.environment import OPTIONS
from verification.faults.fault_runner import Figures
from verification.faults.sections import PAGE

MEMORY_GIB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
TEMPLATE = Path(__file__).with_name("page.md")
TIMEOUT_SECONDS = float(OPTIONS["HEARTBEAT_TIMEOUT"])
RESTART_SECONDS = 2.0  # the promise, in addition to the timeout
LATEST_SECONDS = TIMEOUT_SECONDS + RESTART_SECONDS


SEEN = re.compile(
    r"^## Campaigns\n\nMachine: (?P<machine>.*?)\.\s`HEARTBEAT_TIMEOUT` .*?\n(?P<remark>.*?)\n\n\|",
    re.MULTILINE | re.DOTALL,
)
HEAD = ["fault", "times", "tasks", "messages", "rescued", "lost", "doubled", "stolen", "other", "restart, s", "seeds"]


@dataclass(slots=True)
class Row:
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

    def seen_with(self) -> str:
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
        other = self.broken["miscounted"] + self.broken["unexplained"] + self.broken["deadlock"] + self.stalled
        return [self.title, *(f"{count:,}" for count in counts), str(other), recovery]


def percentile(seconds: Iterable[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def seen(
    rows: Iterable[Row],
    titles: Sequence[str],
    before: str,
    *,
    date: str,
    minutes: float,
    remark: str,
) -> dict[str, object]:
    """
    Return the values for the chapter about campaigns.

    titles: the titles of all campaigns, in order. before: the old page. If only some campaigns ran, the chapter keeps
    the rows of the others, its machine and its remark.
    """
    here, said = machine(), f"All took {minutes:.0f} minutes. {remark}".rstrip()
    new = {row.title: [*row.cells(), f"{date}, {row.seen_with()}"] for row in rows}
    old = {cells[0]: cells for cells in cells_of(before) if len(cells) == len(HEAD)}
    if (was := SEEN.search(before)) and not new.keys() >= old.keys() & set(titles):
        if was["machine"] != here:
            new = {title: [*cells[:-1], f"{cells[-1]}; {here}"] for title, cells in new.items()}
        here, said = was["machine"], was["remark"]
    known = old | new
    return {"machine": here, "remark": said, "table": table(HEAD, [known[one] for one in titles if one in known])}


def cells_of(page: str) -> Iterator[list[str]]:
    """Return the cells of each line of each table."""
    for line in page.splitlines():
        if line.startswith("| "):
            yield line.removeprefix("| ").removesuffix(" |").split(" | ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    rule = ["---" if number < numbers_from else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def page(known: Mapping[str, object], before: str = "") -> str:
    """
    Fill in the template.

    A chapter with an unknown value keeps its old text. So does a chapter that another command writes.
    """
    values = {**standing(), **known}
    was = chapters(before)
    filled = []
    templates = chapters(TEMPLATE.read_text())
    for heading, text in templates.items():
        wanted = {name for _, name, _, _ in Formatter().parse(text) if name}
        filled.append(
            text.format(**values) if wanted <= values.keys() else was.get(heading, f"{heading}Not run yet.\n\n")
        )
    others = [text for heading, text in was.items() if heading not in templates]
    return "".join([*filled[:-1], *others, filled[-1]]).rstrip() + "\n"


def chapters(text: str) -> dict[str, str]:
    """Split a page into chapters. Each one starts with its heading."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {part[: part.find("\n\n") + 2]: part.rstrip() + "\n\n" for part in parts if part}


def machine() -> str:
    kernel = platform.release().partition("-")[0]
    return (
        f"{os.cpu_count()} cores, {MEMORY_GIB:.0f} GiB, Linux {kernel}, PostgreSQL {major_version()},"
        f" Python {platform.python_version()}, Django {django.get_version()}"
    )


def standing() -> dict[str, object]:
    """Return the values that need no run."""
    return {
        "timeout": TIMEOUT_SECONDS,
        "promised": TIMEOUT_SECONDS + RESTART_SECONDS,
        "rules": "\n".join(bullet(f"* **{name}**: {rule.__doc__}") for name, rule in RULES.items()),
    }


def bullet(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 100, subsequent_indent="  ", break_on_hyphens=False)


def write(known: Mapping[str, object]) -> None:
    PAGE.write_text(page(known, PAGE.read_text() if PAGE.exists() else ""))
