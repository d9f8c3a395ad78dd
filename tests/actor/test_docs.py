"""The example of docs/how-to.md, run as it stands there: its TestCase is collected from here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to.md"


def example(heading: str) -> str:
    """Give the Python of a section."""
    section = HOW_TO.read_text(encoding="utf-8").partition(f"\n## {heading}")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(code)


exec(compile(example("… test actors"), HOW_TO, "exec"))


def test_example_is_collected() -> None:
    found: dict[str, Any] = globals()
    assert "test_reminds_after_a_day" in dir(found["PaymentTests"])
