"""Print the counts, and compare them with cost.toml."""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import django
import psycopg

from benchmarks.cost import profiles
from tools.postgres_programs import binaries, run

FILE = Path(__file__).parent / "cost.toml"
HEAD = """\
# What a plain task costs. `make cost` fails when a figure is more than 3 % above its number here. A commit that makes a
# task more expensive changes the number and says why: `make cost ARGS=--write`. So does one that makes it cheaper.
# Instructions are compared only with the programs named in `instructions_of`, the other figures with those of
# `counts_of`.
"""
TOLERANCE = 0.03
SLACK = 0.01  # for what happens once in hundreds of tasks
SLACK_OF = {"drain_async": 0.03}  # the number of batches differs where the event loop runs
INSTRUCTIONS = "instructions"
COLUMNS = {
    "enqueue": "`enqueue()`",
    "enqueue_many": "`enqueue_many()`",
    "drain": "claim, run and commit",
    "drain_without_log": "the same, log off",
    "drain_async": "the same, async",
    "whole": "`enqueue()` and drain",
}
Figures = Mapping[str, Mapping[str, float]]  # of each piece of work, by name


def programs() -> dict[str, str]:
    """Return the versions with which counts are comparable, and the programs with which instructions are."""
    python, server = platform.python_version_tuple(), run(binaries() / "postgres", "--version").stdout.split()[2]
    pair = f"Python {python[0]}.{python[1]}, Django {'.'.join(django.get_version().split('.')[:2])}"
    return {
        "counts_of": f"{pair}, PostgreSQL {server.split('.')[0]}",
        "instructions_of": f"Python {' '.join(sys.version.split())}, Django {django.get_version()}, psycopg "
        f"{psycopg.__version__} ({psycopg.pq.__impl__}), PostgreSQL {server}, {platform.machine()}",
    }


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    columns = [name for name in COLUMNS if name in figures]
    yield f"| for each plain task | {' | '.join(COLUMNS[name] for name in columns)} |"
    yield "|---|" + "---:|" * len(columns)
    for figure in figures[columns[0]]:
        yield f"| {figure} | {' | '.join(rounded_text(figures[name][figure]) for name in columns)} |"


def rounded_text(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def functions(name: str, calls: Mapping[str, float], times: Mapping[str, float]) -> Iterator[str]:
    """Yield how often a task calls each function of Python, and its CPU time with what it calls."""
    yield f"\n{COLUMNS[name]}: calls and us of CPU of functions of Python for each task"
    dearest = sorted(calls, key=lambda function: (-times.get(function, 0.0), -calls[function]))
    for function in dearest[: profiles.ENTRIES]:
        yield f"{calls[function]:8.3g} {times.get(function, 0.0):8.3g} {function}"


def functions_of_server(name: str, file: Path) -> Iterator[str]:
    """Yield the instructions of PostgreSQL's functions in the busiest session, with what they call."""
    yield f"\n{COLUMNS[name]}: instructions of functions of PostgreSQL, in percent"
    for function, part in islice(profiles.functions_of_server(file), profiles.ENTRIES):
        yield f"{100 * part:6.1f} {function}"


def stored() -> tuple[dict[str, str], Figures]:
    """Return the programs and the figures of cost.toml."""
    content = tomllib.loads(FILE.read_text())
    return content.pop("made_with"), content


def complaints(figures: Figures) -> Iterator[str]:
    """Yield a line for each figure that is more than 3 % worse than its number in cost.toml."""
    made_with, numbers = stored()
    now = programs()
    for name, of_work in numbers.items():
        slack = SLACK_OF.get(name, SLACK)
        for figure, number in of_work.items():
            is_of = "instructions_of" if figure.startswith(INSTRUCTIONS) else "counts_of"
            value = figures[name].get(figure)
            if value is not None and made_with[is_of] == now[is_of] and value > number * (1 + TOLERANCE) + slack:
                counted, bound = rounded_text(value), rounded_text(number)
                yield f"{COLUMNS[name]}: {counted} {figure}, more than 3 % above {bound} in cost.toml."


def not_compared() -> Iterator[str]:
    """Yield why figures of cost.toml are not compared."""
    made_with, _ = stored()
    now = programs()
    for what in ("instructions_of", "counts_of"):
        if made_with[what] != now[what]:
            kind = what.removesuffix("_of").capitalize()
            yield f"{kind} are not compared: these are of {now[what]}, those in cost.toml of {made_with[what]}."


def write(figures: Figures) -> None:
    lines = [HEAD, "[made_with]", *(f'{name} = "{value}"' for name, value in programs().items())]
    for name, of_work in figures.items():
        lines += ["", f"[{name}]", *(f'"{figure}" = {rounded(number)}' for figure, number in of_work.items())]
    FILE.write_text("\n".join(lines) + "\n")


def rounded(number: float) -> float:
    return round(number) if number >= 100 else float(f"{number:.3g}")
