"""The examples of docs/how-to.md, run as they stand there: their TestCases are collected from here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to.md"


def example(heading: str, blocks: int = 1) -> str:
    """Give the first blocks of Python in a section."""
    section = HOW_TO.read_text(encoding="utf-8").partition(f"\n## {heading}")[2].partition("\n## ")[0]
    found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(found) >= blocks
    return "\n".join(found[:blocks])


exec(compile(example("… write an actor", 2), HOW_TO, "exec"))
exec(compile(example("… test actors"), HOW_TO, "exec"))


def test_examples_are_collected() -> None:
    found: dict[str, Any] = globals()
    assert "test_is_given_up_after_three_days" in dir(found["AlbumTests"])
    assert "test_reminds_after_a_day" in dir(found["PaymentTests"])
