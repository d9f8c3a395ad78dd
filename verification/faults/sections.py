"""Sections of docs/reliability.md, each written by a command of its own, which leaves the others as they are."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
PEERS = "Beside procrastinate and django-tasks-db"
LAST = "Do it again"


def section(page: str, title: str) -> str:
    """Give a section with its heading, and the empty line after it; nothing where there is none."""
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def with_section(page: str, title: str, text: str) -> str:
    """Put a section in the place of the one with its title, or before the last."""
    text = text.rstrip("\n") + "\n\n"
    if old := section(page, title):
        return page.replace(old, text)
    return page.replace(f"## {LAST}\n", f"{text}## {LAST}\n")
