"""The uses that a scan has found, and an estimate of the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jobqueue.management.migrate_from.systems import EFFECTS, Counterpart

# Minutes of work. A place to change by hand costs FIRST the first time that its kind occurs, then NEXT.
FIRST, NEXT, DIFFERS, IMPORT = 20, 5, 5, 1
NATIVELY, TASK, CANVAS = 2, 10, 20
WITH_SHIM = {
    "same": "works as it is",
    "differs": "works, but differs",
    "rename": "changes",
    "hand": "change by hand",
    "unneeded": "has no effect, and none is needed",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file."""

    file: str  # relative to the folder that was scanned
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class NameUse:
    """One use of a name of the system."""

    kind: str  # task, call, option of a task, ...
    name: str  # as the table, or the site, calls it
    rule: Counterpart  # what becomes of it
    location: Location  # where it is


@dataclass
class Scan:
    """The uses and the problems of a code base."""

    uses: list[NameUse] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # sentences, with file and line
    files: int = 0  # that were read

    def groups(self) -> list[tuple[NameUse, list[Location]]]:
        """Return one use of each kind, name and rule, with its places: tasks first, and what needs hands."""
        groups: dict[tuple[str, str, Counterpart], list[NameUse]] = defaultdict(list)
        for use in self.uses:
            groups[use.kind, use.name, use.rule].append(use)
        kinds = list(dict.fromkeys(["import", "task", *(use.kind for use in self.uses)]))
        ordered = sorted(
            groups.values(),
            key=lambda group: (kinds.index(group[0].kind), EFFECTS.index(group[0].rule.effect), group[0].name),
        )
        return [(group[0], [use.location for use in group]) for group in ordered]

    def by_hand(self) -> list[tuple[NameUse, list[int]]]:
        """Return the uses to change by hand, by file and line, with the lines of the file."""
        lines: dict[tuple[str, str, str], dict[int, NameUse]] = defaultdict(dict)
        for use in self.uses:
            if use.rule.effect == "hand":
                lines[use.location.file, use.kind, use.name][use.location.line] = use
        groups = [(by_line[min(by_line)], sorted(by_line)) for by_line in lines.values()]
        return sorted(groups, key=lambda group: (group[0].location.file, group[1], group[0].name))

    def minutes_with_shim(self) -> int:
        """Estimate the minutes to move to the shim."""
        return self._estimate(lambda use, places: DIFFERS if use.rule.effect == "differs" else 0)

    def minutes_natively(self) -> int:
        """Estimate the minutes to write all uses in this queue's own interface."""
        return self._estimate(_minutes_natively)

    def _estimate(self, minutes_of_others: Callable[[NameUse, int], int]) -> int:
        """Add up the minutes. minutes_of_others: of a use that is neither an import nor by hand, by its places."""
        minutes = 0
        for use, locations in self.groups():
            if use.kind == "import":
                minutes += IMPORT * len({location.file for location in locations})
            elif use.rule.effect == "hand":
                minutes += FIRST + NEXT * (len(locations) - 1)
            else:
                minutes += minutes_of_others(use, len(locations))
        return minutes


def _minutes_natively(use: NameUse, places: int) -> int:
    match use.kind:
        case "task":
            return TASK
        case "canvas":
            return CANVAS * places
    is_nothing = use.rule.effect == "unneeded" or use.rule.natively.startswith("nothing")
    return 0 if is_nothing else NATIVELY * places


def group_fields(group: tuple[NameUse, Iterable[Location]], *, has_shim: bool) -> dict[str, Any]:
    """Return one line of the table for programs."""
    use, locations = group
    rule = use.rule
    shim = {"with_shim": with_shim(rule)} if has_shim else {}
    columns = {"kind": use.kind, "name": use.name, "effect": rule.effect, **shim}
    return {
        **columns,
        "natively": rule.natively,
        "note": rule.note,
        "places": [str(location) for location in locations],
    }


def with_shim(rule: Counterpart) -> str:
    """Return the result of a move to the shim in words."""
    if rule.effect == "unneeded" and rule.note:
        return rule.note
    text = WITH_SHIM[rule.effect]
    return f"{text}: {rule.note}" if rule.note else text


def display_name(name: str) -> str:
    """Return a name of the tables as people write it: `.delay` for `any.delay`."""
    owner, _, attribute = name.partition(".")
    return f".{attribute}" if owner in ("any", "task") and attribute else {"task": "the call of a task"}.get(name, name)


def in_hours(minutes: int) -> str:
    """Return a rough time."""
    if minutes < 60:
        return f"{minutes} minutes"
    hours = round(minutes / 30) / 2
    return f"{hours:g} hour{'s' * (hours != 1)}"
