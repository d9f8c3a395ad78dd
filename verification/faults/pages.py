"""docs/reliability-results.md: its chapters and tables. Each command replaces only the chapters that it measured."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from string import Formatter

import django

from tools.postgres_programs import major_version

PAGE = Path(__file__).parents[2] / "docs/reliability-results.md"
TEMPLATE = Path(__file__).with_name("page.md")
MEMORY_GIB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def chapters(text: str) -> dict[str, str]:
    """Split a page into chapters, by heading. Each one starts with its heading."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {part[: part.find("\n\n") + 2]: part.rstrip() + "\n\n" for part in parts if part}


def filled(values: Mapping[str, object], before: str) -> str:
    """Fill in the template. A chapter with an unknown value keeps the text that it has on the page."""
    old, new = chapters(before), []
    for heading, text in chapters(TEMPLATE.read_text()).items():
        names = {name for _, name, _, _ in Formatter().parse(text) if name}
        kept = old.get(heading, f"{heading}Not run yet.\n\n")
        new.append(text.format(**values) if names <= values.keys() else kept)
    return "".join(new).rstrip() + "\n"


def write(values: Mapping[str, object]) -> None:
    PAGE.write_text(filled(values, PAGE.read_text()))


def cells_of(page: str) -> Iterator[list[str]]:
    """Return the cells of each line of each table."""
    for line in page.splitlines():
        if line.startswith("| "):
            yield line.removeprefix("| ").removesuffix(" |").split(" | ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Format a table. The columns from this one on hold numbers."""
    rule = ["---" if number < numbers_from else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def machine() -> str:
    kernel = platform.release().partition("-")[0]
    return (
        f"{os.cpu_count()} cores, {MEMORY_GIB:.0f} GiB, Linux {kernel}, PostgreSQL {major_version()},"
        f" Python {platform.python_version()}, Django {django.get_version()}"
    )
