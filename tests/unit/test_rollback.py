"""One can go back to the previous release while the tables are those of the newer one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation

CHECKOUT = Path(__file__).parents[2]
# The last migration of the previous release. A release moves it on. Until there is one: the alpha of 28 November.
RELEASED = "0021_journal_permission"
HARMLESS = (
    migrations.AddIndex,
    migrations.AlterModelOptions,
    migrations.CreateModel,
    migrations.RunPython,  # of our SQL functions: test_migrations.py compares their parameters
    AddIndexConcurrently,
)


def newer() -> list[tuple[str, Operation, Any]]:
    """Return the operations since the release, each with its migration and the state before it."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    names = sorted(name for app, name in loader.disk_migrations if app == "jobqueue" and name > RELEASED)
    operations = []
    for name in names:
        migration = loader.disk_migrations["jobqueue", name]
        state = loader.project_state(("jobqueue", name), at_end=False)
        for operation in migration.operations:
            operations.append((name, operation, state.clone()))
            operation.state_forwards("jobqueue", state)
    return operations


def problems(operations: list[tuple[str, Operation, Any]]) -> Iterator[str]:
    """Yield the operations after which the code of the previous release could not work."""
    for name, operation, state in operations:
        match operation:
            case migrations.SeparateDatabaseAndState(database_operations=parts):
                yield from problems([(name, part, state) for part in parts])
            case migrations.AddField(field=field) if field.null or field.has_db_default():
                pass
            case migrations.AlterField(field=field, model_name=model, name=column):
                if not is_wider(state.models["jobqueue", model.lower()].fields[column], field):
                    yield f"{name}: {operation.describe()}"
            case _ if isinstance(operation, HARMLESS):
                pass
            case _:
                yield f"{name}: {operation.describe()}"


def is_wider(before: models.Field[Any, Any], after: models.Field[Any, Any]) -> bool:
    """Return whether a column takes and gives all that it did."""
    takes_null = after.null or not before.null
    has_default = after.null or after.has_db_default() or not (before.null or before.has_db_default())
    is_same = type(after) is type(before) or (
        isinstance(before, models.CharField) and isinstance(after, models.TextField | models.CharField)
    )
    length_before, length_after = (getattr(field, "max_length", None) for field in (before, after))
    is_as_long = length_after is None or (length_before is not None and length_after >= length_before)
    return takes_null and has_default and is_same and is_as_long


def test_migrations_since_the_release_leave_its_code_working() -> None:
    assert list(problems(newer())) == []


def test_changelog_says_from_which_migration_one_can_go_back() -> None:
    assert (CHECKOUT / "jobqueue" / "migrations" / f"{RELEASED}.py").exists()
    changelog = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"go back to the code of the previous release.*migration {RELEASED[:4]}", changelog, re.DOTALL)


SHORT, LONG, TEXT = models.CharField(max_length=9), models.CharField(max_length=99), models.TextField()


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AddField("task", "shard", models.IntegerField()),
        migrations.AddField("task", "shard", models.IntegerField(default=3)),
        migrations.RemoveField("task", "pool"),
        migrations.RenameField("task", "pool", "slot"),
        migrations.DeleteModel("TaskLog"),
        migrations.AlterField("task", "pool", models.CharField(max_length=2)),
        migrations.AlterField("task", "wake_at", models.DateTimeField()),
        migrations.AddConstraint("task", models.CheckConstraint(condition=models.Q(polls=0), name="x")),
        migrations.RunSQL("DROP TABLE jobqueue_task"),
    ],
    ids=lambda operation: operation.describe()[:50],
)
def test_change_that_the_old_code_does_not_survive_is_found(operation: Operation) -> None:
    state = MigrationLoader(None, ignore_no_migrations=True).project_state(("jobqueue", RELEASED))
    assert len(list(problems([("0099_x", operation, state)]))) == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(SHORT, LONG, True), (SHORT, TEXT, True), (LONG, SHORT, False), (TEXT, LONG, False), (SHORT, SHORT, True)],
)
def test_column_may_only_become_wider(before: Any, after: Any, expected: bool) -> None:
    assert is_wider(before, after) is expected
