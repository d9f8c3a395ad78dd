"""Every log event of the package is in the table of docs/reference.md, with its levels and fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import jobqueue
from jobqueue.executor.running.events import EVENTS

PACKAGE = Path(jobqueue.__file__).parent
REFERENCE = PACKAGE.parent / "docs" / "reference.md"
ROW = re.compile(r"^\| `(?P<name>[a-z_.]+)` \| (?P<levels>[A-Z, ]+) \| (?P<fields>.*?) \|.*\|.*\|$", re.MULTILINE)
LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
ANY_LEVEL = "LOG"


@dataclass
class LogEvent:
    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def calls(tree: ast.Module) -> list[tuple[str, str]]:
    """Return the method and the text of each call of a module's logger."""
    logged = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            if not isinstance(node.func.value, ast.Name) or node.func.value.id != "logger":
                continue
            template = next((arg for arg in node.args if isinstance(arg, ast.Constant | ast.JoinedStr)), None)
            if template is None:  # the name comes from EVENTS
                continue
            parts = template.values if isinstance(template, ast.JoinedStr) else [template]
            constants = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
            logged.append((node.func.attr, "".join(constants)))
    return logged


@pytest.fixture(scope="module")
def events() -> dict[str, LogEvent]:
    by_name: dict[str, LogEvent] = defaultdict(LogEvent)
    for name, _ in EVENTS.values():
        by_name[name].levels.add(ANY_LEVEL)
    for path in PACKAGE.rglob("*.py"):
        for method, text in calls(ast.parse(path.read_text())):
            event = by_name[text.partition(" ")[0]]
            event.levels.add("ERROR" if method == "exception" else method.upper())
            event.fields |= set(re.findall(r"(?<= )(\w+)=", text)) - {"hint"}
    return by_name


def test_event_names_follow_the_grammar(events: dict[str, LogEvent]) -> None:
    grammar = r"[a-z_]+\.([a-z_]+_)?([a-z]+ed|lost|stuck|timed_out)"
    assert [name for name in events if not re.fullmatch(grammar, name)] == ["database.unreachable"]


def test_reference_lists_exactly_all_events(events: dict[str, LogEvent]) -> None:
    rows = [row["name"] for row in ROW.finditer(REFERENCE.read_text())]

    assert sorted(rows) == sorted(events)
    assert rows == sorted(rows)


def test_reference_has_levels_and_fields_of_events(events: dict[str, LogEvent]) -> None:
    for row in ROW.finditer(REFERENCE.read_text()):
        event = events[row["name"]]
        levels, fields = set(row["levels"].split(", ")), set(re.findall(r"`(\w+)`", row["fields"]))
        assert event.levels - {ANY_LEVEL} <= levels, row["name"]
        assert levels == event.levels or ANY_LEVEL in event.levels, row["name"]
        assert event.fields <= fields, row["name"]
