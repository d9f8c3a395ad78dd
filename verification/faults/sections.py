"""Sections of docs/reliability-results.md. Each is written by its own command, which keeps the others unchanged."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reliability-results.md"
PEERS = "Compared with procrastinate and django-tasks-db"
LAST = "Repeat a result"


def section(page: str, title: str) -> str:
    """Return a section with its heading and the empty line after it, or an empty string."""
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def with_section(page: str, title: str, text: str) -> str:
    """Replace the section with this title, or insert it before the last section."""
    text = text.rstrip("\n") + "\n\n"
    if old := section(page, title):
        return page.replace(old, text)
    return page.replace(f"## {LAST}\n", f"{text}## {LAST}\n")
