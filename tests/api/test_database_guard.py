"""Django forbids a test the databases that its class does not name: no verb of ours goes around that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections
from django.test import SimpleTestCase
from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]
from django.utils import timezone

import jobqueue
from jobqueue import Cron, api, testing
from jobqueue.api import limits, schedules
from jobqueue.backend import EnqueueRequest
from jobqueue.conf.compat import task_backends
from jobqueue.declarations.schedules import Declaration
from jobqueue.models import Task
from jobqueue.values.states import Command
from tests import tasks
from tests.actors import Diary
from tests.cli.commands import BOTH

pytestmark = BOTH


class Guarded(SimpleTestCase):
    """May use no database."""


@pytest.fixture
def backend_object(backend: str) -> Any:
    return task_backends[backend]


@pytest.fixture
def ids(backend: str) -> dict[str, Any]:
    """Rows that exist before the guard, and an open connection."""
    schedules.create(Declaration("nightly", tasks.add.using(backend=backend), Cron("0 3 * * *"), "", args=(1,)))
    return {
        "task": tasks.add.using(backend=backend).enqueue(1),
        "actor": Diary.task.using(backend=backend).enqueue(),
        "count": Task.objects.using(backend).count(),
    }


@pytest.fixture
def guard(ids: dict[str, Any]) -> Iterator[None]:
    Guarded.setUpClass()
    try:
        yield
    finally:
        Guarded.tearDownClass()
        Guarded.doClassCleanups()


Verb = Callable[[Any, str, dict[str, Any]], object]
VERBS: dict[str, Verb] = {
    "enqueue": lambda add, backend, ids: add.enqueue(1),
    "aenqueue": lambda add, backend, ids: async_to_sync(add.aenqueue)(1),
    "enqueue_many": lambda add, backend, ids: add.enqueue_many([((1,), {})]),
    "key": lambda add, backend, ids: add.using(key="k").enqueue(1),
    "replace": lambda add, backend, ids: add.using(key="k", on_conflict="replace").enqueue(1),
    "submit": lambda add, backend, ids: task_backends[backend].submit([EnqueueRequest(task=add, args=[1])]),  # type: ignore[attr-defined]
    "get_result": lambda add, backend, ids: add.get_result(ids["task"].id),
    "refresh": lambda add, backend, ids: ids["task"].refresh(),
    "send": lambda add, backend, ids: jobqueue.send(ids["actor"].id, "hello", backend=backend),
    "cancel": lambda add, backend, ids: jobqueue.cancel(ids["task"].id, backend=backend),
    "requeue": lambda add, backend, ids: jobqueue.requeue(ids["task"].id, backend=backend),
    "run_now": lambda add, backend, ids: api.run_now(ids["task"].id, backend=backend),
    "wake": lambda add, backend, ids: api.wake(ids["task"].id, backend=backend),
    "delete": lambda add, backend, ids: api.delete(ids["task"].id, backend=backend),
    "pause": lambda add, backend, ids: api.pause("q", backend=backend),
    "resume": lambda add, backend, ids: api.resume("q", backend=backend),
    "limit_queue": lambda add, backend, ids: api.limit_queue("q", 1, backend=backend),
    "command": lambda add, backend, ids: api.command([ids["task"].id], Command.STOP, backend=backend),
    "set_limit": lambda add, backend, ids: limits.set_limit("rate", "x", 1, backend=backend),
    "reset_limit": lambda add, backend, ids: limits.reset_limit("rate", "x", backend=backend),
    "schedules.run": lambda add, backend, ids: schedules.run("nightly", backend=backend),
    "schedules.pause": lambda add, backend, ids: schedules.pause("nightly", backend=backend),
    "schedules.create": lambda add, backend, ids: schedules.create(
        Declaration("daily", add, Cron("0 3 * * *"), "", args=(1,))
    ),
    "run_until_idle": lambda add, backend, ids: testing.run_until_idle(backend=backend),
    "poll_once": lambda add, backend, ids: testing.poll_once(ids["task"]),
    "advance": lambda add, backend, ids: testing.advance(timedelta(minutes=1), backend=backend),
    "set_time": lambda add, backend, ids: testing.set_time(timezone.now(), backend=backend),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_verb_on_a_forbidden_database_raises_as_the_orm(
    backend: str, verb: Verb, ids: dict[str, Any], guard: None
) -> None:
    with pytest.raises(DatabaseOperationForbidden, match=f"queries to '{backend}' are not allowed"):
        verb(tasks.add.using(backend=backend), backend, ids)


def test_forbidden_enqueue_leaves_no_row(backend: str, ids: dict[str, Any]) -> None:
    Guarded.setUpClass()
    try:
        for verb in ("enqueue", "enqueue_many", "key"):
            with pytest.raises(DatabaseOperationForbidden):
                VERBS[verb](tasks.add.using(backend=backend), backend, ids)
    finally:
        Guarded.tearDownClass()
        Guarded.doClassCleanups()
    assert Task.objects.using(backend).count() == ids["count"]


def test_connection_with_a_patched_cursor_still_enqueues(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tools do that show the queries of a page."""
    monkeypatch.setattr(connection, "cursor", connection.cursor)
    assert "cursor" in vars(connections["default"])

    assert tasks.add.enqueue(1).id
