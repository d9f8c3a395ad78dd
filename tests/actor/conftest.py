"""Each test of this package runs on both databases, in a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jobqueue import Actor
from jobqueue.engine import engine_for
from jobqueue.engine.commit import Commits
from jobqueue.values.records import CommitResult, Outcome
from tests.actor.stage import AsyncPuppet, Puppet, Stage, parts
from tests.fixtures import Options


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, options: Options) -> str:
    """Return the alias of the database with the queue of backend `default`."""
    if request.param == "sqlite":
        options(DATABASE="sqlite")
        return "sqlite"
    return "default"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float | None]]:
    """Collect the waits that commits request, which a slow machine does not change."""
    seconds: list[float | None] = []
    commit = Commits.commit

    def recording_commit(committer: Commits, outcomes: Sequence[Outcome], **options: Any) -> CommitResult:
        for outcome in outcomes:
            waits = [wait for wait in (outcome.wake_after_seconds, outcome.recheck_seconds) if wait is not None]
            seconds.append(min(waits, default=None))
        return commit(committer, outcomes, **options)

    monkeypatch.setattr(Commits, "commit", recording_commit)
    engine_for.cache_clear()  # the engine keeps references to methods of its parts
    yield seconds
    engine_for.cache_clear()


@pytest.fixture(params=[Puppet, AsyncPuppet])
def actor(request: pytest.FixtureRequest) -> type[Actor[Any]]:
    """Return the actor of threads, then the actor of the event loop."""
    actor_class: type[Actor[Any]] = request.param
    return actor_class


@pytest.fixture
def stage(database: str, db: None) -> Iterator[Stage]:
    """Return a Stage on each database."""
    yield Stage(database)
    parts.clear()
