"""Only the engine writes rows of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jobqueue"
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in {"engine", "migrations"}
)
WRITES = {"bulk_create", "bulk_update", "update_or_create", "get_or_create", "_raw_delete"}
EXCEPTIONS = {
    "operations/bulk/audit_log.py": "the log of Django's admin",
    "testing/crashes.py": "lets the executor of a test be lost",
    "testing/schedule_time.py": "moves the stored times of a test back",
}


def writes_in(path: Path) -> Iterator[str]:
    """Yield the calls that write rows: of a queryset, or of a row."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, node.func.value
            if name[:1] == "a" and name[1:] in {*WRITES, "update", "create", "delete", "save"}:
                name = name[1:]  # the async form
            of_rows = not isinstance(owner, ast.Name) or (
                owner.id.islower() and owner.id not in {"api", "form", "schedules"}
            )
            is_write = (
                name in WRITES
                or (name == "update" and node.keywords and not node.args)
                or (name == "create" and node.keywords and of_rows)
                or (name in {"delete", "save"} and not node.args and of_rows)
            )
            if is_write:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node.func)}()"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_the_engine_writes_rows(path: Path) -> None:
    if path.relative_to(PACKAGE).as_posix() not in EXCEPTIONS:
        assert list(writes_in(path)) == []


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_each_exception_writes_rows(name: str) -> None:
    assert list(writes_in(PACKAGE / name)) != []
