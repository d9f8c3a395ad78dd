"""Run the examples of docs/how-to.md as printed, with their TestCases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to.md"


def example(heading: str, blocks: int = 1) -> str:
    """Return the first Python blocks of a section."""
    section = HOW_TO.read_text(encoding="utf-8").partition(f"\n## {heading}")[2].partition("\n## ")[0]
    found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(found) >= blocks
    return "\n".join(found[:blocks])


exec(compile(example("Write an actor", 2), HOW_TO, "exec"))
exec(compile(example("Test actors and tasks"), HOW_TO, "exec"))


def test_how_to_examples_are_collected() -> None:
    found: dict[str, Any] = globals()
    assert "test_ends_without_a_decision_after_three_days" in dir(found["AlbumTests"])
    assert "test_reminds_after_a_day" in dir(found["PaymentTests"])
