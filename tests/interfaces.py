"""Fixtures of tests/admin, cli, http and api. Those of the admin exist for the queue in each database."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from jobqueue.models import Executor, Task
from tests.admin.pages import task_url
from tests.factories import ExecutorFactory, TaskFactory, make_user
from tests.http.client import Shop

PERMISSIONS = (
    "view_task", "view_payload", "requeue_task", "cancel_task", "wake_task", "delete_task", "enqueue_task",
    "send_message", "view_executor", "command_executor", "view_queue", "pause_queue", "view_schedule",
    "pause_schedule", "run_schedule", "view_limit", "change_limit", "change_journal",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove COLUMNS, which test runners set: without a terminal, lines have no width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def shop(client: Client) -> Shop:
    """A program or a person that calls the queue over HTTP."""
    return Shop(client)


@pytest.fixture(params=["default", pytest.param("sqlite", marks=pytest.mark.slow)])
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


@pytest.fixture
def staff(client: Client) -> Any:
    """A logged-in user with every permission of the admin's pages, but no superuser."""
    user = make_user(*PERMISSIONS)
    client.force_login(user)
    return user


@pytest.fixture
def show(client: Client, staff: Any, backend: str) -> Callable[..., str]:
    """GET a page of the admin, of a task or by its path. Return its HTML."""

    def get(page: Task | str, **query: Any) -> str:
        path = task_url(page) if isinstance(page, Task) else f"/admin/jobqueue/{page}"
        response = client.get(path, {"backend": backend, **query})
        assert response.status_code == 200
        return response.content.decode()

    return get
