"""Fixtures of the edges' tests."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from jobqueue.models import Executor, Task
from tests.factories import ExecutorFactory, TaskFactory
from tests.http import Shop


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove COLUMNS, which test runners set: without a terminal, lines have no width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def shop(client: Client) -> Shop:
    """A program or a person that calls the queue over HTTP."""
    return Shop(client)


@pytest.fixture(params=["default", "sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    """The queue in PostgreSQL, and in a database that is not Django's default one."""
    return str(request.param)


@pytest.fixture
def make(backend: str) -> Callable[..., Task]:
    """Create a task, READY unless a trait says otherwise."""

    def create(**columns: Any) -> Task:
        return TaskFactory.create(backend=backend, using=backend, **columns)

    return create


@pytest.fixture
def make_executor(backend: str) -> Callable[..., Executor]:
    def create(**columns: Any) -> Executor:
        return ExecutorFactory.create(backend=backend, using=backend, **columns)

    return create
