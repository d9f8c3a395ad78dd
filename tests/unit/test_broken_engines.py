"""
Each broken engine of verification/ is still broken: what it replaces exists.

Without this, a race runs for minutes before it finds a repaired engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getsource, isclass, isfunction
from pathlib import Path
from typing import Any

import pytest

import jobqueue.engine
from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.connection import statement
from verification.interleavings import limit_mutants, mutants, schedule_mutants
from verification.interleavings.mutants import RewrittenDatabase
from verification.schedules import mutants as mutants_of_schedules

MODULES = (mutants, limit_mutants, schedule_mutants, mutants_of_schedules)
BROKEN = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isclass(kind) and issubclass(kind, Engine) and kind.__module__ == module.__name__
]
CODE = "".join(path.read_text() for path in Path(jobqueue.engine.__file__).parent.rglob("*.py"))


def parts_of(kind: type[Engine]) -> Iterator[tuple[str, type[Any]]]:
    """Yield the parts that a broken engine replaces, by the attribute from which the engine makes them."""
    return ((name, value) for name, value in vars(kind).items() if isclass(value) and name.endswith("_class"))


def methods_of(part: type[Any]) -> list[str]:
    return [name for name, value in vars(part).items() if isfunction(value)]


REWRITTEN = [(kind, part) for kind in BROKEN for _, part in parts_of(kind) if issubclass(part, RewrittenDatabase)]


@pytest.mark.parametrize(("kind", "part"), REWRITTEN, ids=[kind.__name__ for kind, _ in REWRITTEN])
def test_words_that_a_broken_engine_replaces_are_in_its_statement(
    kind: type[Engine], part: type[RewrittenDatabase]
) -> None:
    assert part.words[0] in statement(part.name), f"{kind.__name__}: {part.name}.sql has other words now"
    assert f'"{part.name}"' in CODE, f"{kind.__name__}: no code runs {part.name}.sql any more"


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_parts_and_methods_that_a_broken_engine_replaces_exist(kind: type[Engine]) -> None:
    is_changed = False
    for attribute, part in parts_of(kind):
        assert hasattr(kind.__mro__[1], attribute), f"engines have no {attribute} any more"
        inherited = {name for other in part.__mro__[1:] for name in vars(other)}
        for method in methods_of(part):
            is_called_here = f".{method}(" in getsource(part)
            assert method in inherited or is_called_here, f"{attribute}: nothing calls {method}() any more"
            is_changed |= method in inherited
        is_changed |= issubclass(part, RewrittenDatabase)
    for method in methods_of(kind):
        inherited = {name for other in kind.__mro__[1:] for name in vars(other)}
        assert method in inherited or f".{method}" in getsource(kind), f"engines have no {method}() any more"
        is_changed |= method in inherited
    assert is_changed
