"""
The tables of all systems: what becomes of their names and options.

The tables are systems/*.toml. A name in them is a dotted path, or `app.x`, `task.x` and `any.x` for an attribute of an
app, of a task, and of anything.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "systems"
EFFECTS = ("hand", "differs", "rename", "same", "unneeded")


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The future of a name."""

    effect: str  # one of EFFECTS
    natively: str  # what it becomes with @task of jobqueue
    note: str = ""  # a sentence


Counterparts = Mapping[str, Counterpart]


@dataclass(frozen=True)
class System:
    """
    A system that sites come from.

    It has more than 15 attributes because each member of a table is one.
    """

    title: str  # its name as people write it
    modules: Sequence[str]  # packages that it and its companions are imported from
    words: Sequence[str]  # a file without any of them is not read
    names: Mapping[str, Counterparts]  # by kind
    options: Sequence[Mapping[str, Any]]  # kind, of (the names that take them) and names
    shim: str = ""  # the module with its interface on this queue; empty: there is none
    apps: Sequence[str] = ()  # objects whose attributes are `app.x`
    app_classes: Sequence[str] = ()  # classes of such objects
    conf_prefix: str = ""  # of the settings that `app.conf.x` stands for
    declares: Sequence[str] = ()  # decorators that make a function a task
    task_classes: Sequence[str] = ()  # base classes of tasks
    must_be_declared: bool = False  # whether a task that is called by its name must be declared with a decorator
    call_enqueues: bool = False  # whether the call of a task enqueues it
    beat: Sequence[str] = ()  # settings with a dict of periodic tasks
    targets: Mapping[str, int] = field(default_factory=dict)  # which argument of a call is a function or its name
    aliases: Mapping[str, str] = field(default_factory=dict)  # other paths of names
    settings: Counterparts = field(default_factory=dict)  # also "NAME.key" of a dict
    strings: Counterparts = field(default_factory=dict)  # texts in settings and code

    def rule_of(self, name: str) -> tuple[str, str, Counterpart] | None:
        """Return the kind, the known name and the rule that describes most of a dotted path."""
        best: tuple[str, str, Counterpart] | None = None
        longest = -1
        for kind, rules in self.names.items():
            for pattern, rule in rules.items():
                is_match = fnmatchcase(name, pattern) or f"{name}.".startswith(f"{pattern}.")
                if is_match and len(literal := pattern.replace("*", "")) > longest:
                    best, longest = (kind, _shown(name, pattern), rule), len(literal)
        return best

    def option_rules(self, name: str) -> tuple[str, Counterparts]:
        """Return the kind of the options of a call, and their rules."""
        for group in self.options:
            if name in group["of"]:
                return group["kind"], group["names"]
        return "", {}


def _shown(name: str, pattern: str) -> str:
    """Return a name for the table: without what follows the known part."""
    size = pattern.count(".") + 1 + pattern.endswith("*")
    return ".".join(name.split(".")[:size])


def find_rule(rules: Counterparts, name: str, value: object = None) -> Counterpart | None:
    """Return the rule of a name with a value, such as `serializer=json`, else of the name, else of a pattern."""
    for key in (f"{name}={value}", name):
        if key in rules:
            return rules[key]
    return next((rule for pattern, rule in rules.items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def system_names() -> list[str]:
    """Return the names of all systems, sorted."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


@cache
def system_named(name: str) -> System:
    """Read the table of a system."""
    table = tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))
    table["names"] = {kind: _rules(rules) for kind, rules in table["names"].items()}
    table["options"] = [{**group, "names": _rules(group["names"])} for group in table.get("options", ())]
    for part in ("settings", "strings"):
        table[part] = _rules(table.get(part, {}))
    return System(**table)


def _rules(rows: Mapping[str, list[str]]) -> Counterparts:
    return {name: Counterpart(*row) for name, row in rows.items()}
