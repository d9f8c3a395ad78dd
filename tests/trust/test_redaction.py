"""REDACT: an argument that it names is read nowhere, though the task's error quotes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.test import Client

from jobqueue import Actor, Done, Spawn, Suspend, task
from jobqueue.models import InboxMessage, Task
from jobqueue.redact import MASK
from tests.edges.cli import jobqueue
from tests.executor.conftest import burst, options, start  # noqa: F401 - fixtures
from tests.executor.harness import Burst
from tests.factories import make_user

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2-of-anna"
BESIDE = "correct horse"  # not an argument: told by its name


@task(max_attempts=1)
def log_in(name: str, password: str) -> None:
    raise ValueError(f"no login as {name} with {password!r}, token='{BESIDE}'")


@task(max_attempts=1)
async def log_in_later(name: str, *, password: str) -> None:
    raise ValueError(f"no login as {name} with {password!r}, token='{BESIDE}'")


@task(max_attempts=1)
def remember(name: str, password: str) -> list[str]:
    return [f"{name} comes with {password}"]


class Keeper(Actor, max_attempts=1):
    @dataclass
    class State:
        seen: list[str] = field(default_factory=list)

    def poll(self, context: Any, name: str, password: str) -> Any:
        context.state.seen.append(f"{name} comes with {password}")
        return Done(context.state.seen)


def refuse(name: str, password: str) -> None:
    raise ValueError(f"no login as {name} with {password!r}, token='{BESIDE}'")


@task(max_attempts=1, atomic=True)
def log_in_after_the_commit(name: str, password: str) -> None:
    transaction.on_commit(partial(refuse, name, password))


class Porter(Actor, max_attempts=1):
    """Lets a child log in, and does not read what came of it."""

    def poll(self, context: Any) -> Any:
        return (Spawn(log_in, "anna", SECRET), Suspend()) if not context.polls else Done()


@pytest.fixture
def failed(burst: Burst) -> list[UUID]:  # noqa: F811
    """Tasks that have failed in an executor, and whose errors quote their password."""
    log_in.enqueue("anna", SECRET)
    log_in_later.enqueue("anna", password=SECRET)
    burst()
    rows = list(Task.objects.all())
    for row in rows:
        assert SECRET in row.errors[0]["message"]
        assert SECRET in row.errors[0]["traceback"]
    return [row.pk for row in rows]


def page(path: str) -> str:
    client = Client()
    client.force_login(make_user(is_superuser=True))
    return client.get(path).content.decode()


def readable(text: str) -> str:
    """Give JSON without escapes."""
    return json.dumps(json.loads(text), ensure_ascii=False)


SHOWN: dict[str, Callable[[UUID], str]] = {
    "admin's page": lambda pk: page(f"/admin/jobqueue/task/{pk}/change/"),
    "admin's list": lambda _: page("/admin/jobqueue/task/"),
    "API": lambda pk: readable(page(f"/jobqueue/tasks/{pk}/")),
    "show": lambda pk: jobqueue("show", pk).out,
    "show --json": lambda pk: readable(jobqueue("show", pk, "--json").out),
    "tail": lambda _: jobqueue("tail", "--backend", "default").out,
    "tail --json": lambda _: "\n".join(
        map(readable, jobqueue("tail", "--backend", "default", "--json").out.splitlines())
    ),
}


@pytest.mark.parametrize("where", SHOWN)
def test_masked_argument_is_not_shown_by_the(failed: list[UUID], where: str) -> None:
    for pk in failed:
        text = SHOWN[where](pk)

        assert "no login as anna with" in text
        assert MASK in text
        assert SECRET not in text
        assert BESIDE not in text


def test_masked_argument_is_not_logged(caplog: pytest.LogCaptureFixture, burst: Burst) -> None:  # noqa: F811
    log_in.enqueue("anna", SECRET)
    log_in_later.enqueue("anna", password=SECRET)

    with caplog.at_level("DEBUG", "jobqueue"):
        burst()

    ours = [record for record in caplog.records if record.name.startswith("jobqueue")]
    lines = [record.getMessage() for record in ours if record.levelname == "ERROR"]
    assert len(lines) == 2
    for line in lines:
        assert f"ValueError: no login as anna with '{MASK}', token={MASK}" in line
    for record in ours:
        assert record.exc_info is None
        assert SECRET not in f"{record.getMessage()} {vars(record)}"


def test_masked_argument_is_not_logged_with_what_fails_after_the_commit(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    log_in_after_the_commit.enqueue("anna", SECRET)

    with caplog.at_level("DEBUG", "jobqueue"):
        burst()

    assert f"ValueError: no login as anna with '{MASK}', token={MASK}" in caplog.text
    assert "in refuse" in caplog.text  # its traceback is kept nowhere else
    assert SECRET not in caplog.text
    assert BESIDE not in caplog.text


@pytest.mark.parametrize("where", ["admin's page", "show", "show --json"])
def test_masked_argument_of_a_child_is_not_shown_in_the_inbox_of_its_parent(burst: Burst, where: str) -> None:  # noqa: F811
    parent = UUID(Porter.enqueue().id)
    burst()
    letter = InboxMessage.objects.get(task_id=parent, eof="FAILED")
    assert SECRET in json.dumps(letter.body)

    text = SHOWN[where](parent)

    assert "no login as anna with" in text
    assert MASK in text
    assert SECRET not in text
    assert BESIDE not in text


@pytest.mark.parametrize("body", [remember, Keeper], ids=lambda body: body.__name__ if body is Keeper else "remember")
@pytest.mark.parametrize("where", ["admin's page", "API", "show", "show --json"])
def test_masked_argument_is_not_shown_in_a_result_or_state_that_repeats_it(
    burst: Burst,  # noqa: F811
    where: str,
    body: Any,
) -> None:
    pk = UUID(body.enqueue("anna", SECRET).id)
    burst()
    assert Task.objects.get(pk=pk).return_value == [f"anna comes with {SECRET}"]

    text = SHOWN[where](pk)

    assert f"anna comes with {MASK}" in text
    assert SECRET not in text
