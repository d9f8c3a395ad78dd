"""Each test of this package runs on both databases, in a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from jobqueue.engine import engine_for
from jobqueue.engine.portable.commit import Committer
from jobqueue.records import CommitResult, Outcome
from tests.actor.stage import Stage, parts

Options = Callable[..., None]


@pytest.fixture
def options(settings: Any) -> Options:
    """Change OPTIONS of the backends."""

    def options(**changes: Any) -> None:
        settings.TASKS = {
            alias: {**backend, "OPTIONS": {**backend["OPTIONS"], **changes}}
            for alias, backend in settings.TASKS.items()
        }

    return options


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, options: Options) -> str:
    """The alias of the database that holds the queue of backend `default`."""
    if request.param == "sqlite":
        options(DATABASE="sqlite")
        return "sqlite"
    return "default"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float | None]]:
    """Collect the seconds that each commit asks to wait, which no busy machine stretches."""
    asked: list[float | None] = []
    commit = Committer.commit

    def noted(committer: Committer, outcomes: Sequence[Outcome], **options: Any) -> CommitResult:
        for outcome in outcomes:
            waits = [wait for wait in (outcome.wake_after_seconds, outcome.look_after_seconds) if wait is not None]
            asked.append(min(waits, default=None))
        return commit(committer, outcomes, **options)

    monkeypatch.setattr(Committer, "commit", noted)
    engine_for.cache_clear()  # an engine binds the methods of its parts when it is made
    yield asked
    engine_for.cache_clear()


@pytest.fixture
def stage(database: str, db: None) -> Iterator[Stage]:
    """Where actors play what a test gives them."""
    yield Stage(database)
    parts.clear()
