"""REDACT: a masked argument is shown nowhere, even if the task's error quotes it."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.dispatch import Signal
from django.test import Client

from jobqueue import Actor, Done, Spawn, Suspend, task
from jobqueue.compat import task_enqueued, task_finished, task_started
from jobqueue.models import InboxMessage, Task
from jobqueue.serialization.redaction import MASK
from tests.edges.cli import jobqueue
from tests.executor.conftest import burst, options, start  # noqa: F401 - fixtures
from tests.executor.harness import Burst, Options
from tests.factories import TaskFactory, make_user

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2-of-anna"
BESIDE = "correct horse"  # not an argument: found by its name


@task(max_attempts=1)
def log_in(name: str, password: str) -> None:
    raise ValueError(f"no login as {name} with {password!r}, token='{BESIDE}'")


@task(max_attempts=1)
async def log_in_later(name: str, *, password: str) -> None:
    raise ValueError(f"no login as {name} with {password!r}, token='{BESIDE}'")


@task(max_attempts=1)
def log_in_as_many(*passwords: str) -> None:
    raise ValueError(f"no login with {passwords}")


@task(max_attempts=1)
def say(password: str) -> None:
    raise ValueError(f"{password} is no login")


@task(max_attempts=1)
def quote(password: str) -> None:
    raise ValueError(f"no login with '{repr(password)[1:-1]}' or {json.dumps(password)}")


@task(max_attempts=1)
def remember(name: str, password: str) -> list[str]:
    return [f"{name} comes with {password}"]


@task(max_attempts=1)
def revoke(tokens: dict[str, int]) -> None:
    raise ValueError(f"no login with {tokens}")


@task(max_attempts=1)
def count_tokens(tokens: dict[str, int]) -> Any:
    return [dict.fromkeys(tokens, "a login"), *tokens.values(), -5, True, {"nested": {**tokens}}]


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


@task(max_attempts=1)
def log_in_with_a_cause(name: str, password: str) -> None:
    try:
        refuse(name, password)
    except ValueError as error:
        raise RuntimeError("no login") from error


class Porter(Actor, max_attempts=1):
    """Lets a child log in, and does not read the outcome."""

    def poll(self, context: Any) -> Any:
        return (Spawn(log_in, "anna", SECRET), Suspend()) if not context.polls else Done()


@pytest.fixture
def failed(burst: Burst) -> list[UUID]:  # noqa: F811
    """Tasks that failed in an executor with errors that quote their password."""
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
    """Return JSON without escapes."""
    return json.dumps(json.loads(text), ensure_ascii=False)


def executor_log(caplog: pytest.LogCaptureFixture) -> str:
    """Return the output of our own loggers. Django's loggers are not masked."""
    records = [record for record in caplog.records if record.name.startswith("jobqueue")]
    return "\n".join(map(caplog.handler.format, records))


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


@pytest.mark.parametrize("body", [log_in, log_in_later, log_in_with_a_cause], ids=lambda body: body.name)
def test_secret_is_not_in_the_executors_log(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
    body: Any,
) -> None:
    body.enqueue("anna", password=SECRET)

    with caplog.at_level("DEBUG", "jobqueue"):
        burst()

    ours = [record for record in caplog.records if record.name.startswith("jobqueue")]
    (failure,) = [record for record in ours if record.levelname == "ERROR"]
    text = caplog.handler.format(failure)
    assert f"ValueError: no login as anna with '{MASK}', token={MASK}" in text
    assert f"in {body.func.__name__}" in text
    assert failure.exc_info is None  # an error tracker would read the message of the exception
    for record in ours:
        assert SECRET not in f"{caplog.handler.format(record)} {vars(record)}"
        assert BESIDE not in f"{caplog.handler.format(record)} {vars(record)}"


@task(max_attempts=1)
def log_in_nowhere(name: str, password: str) -> None:
    raise ValueError(f"no login as {name}")


def test_error_without_a_secret_keeps_its_exception(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    log_in_nowhere.enqueue("anna", SECRET)

    burst()

    (failure,) = [record for record in caplog.records if record.levelname == "ERROR" and "jobqueue" in record.name]
    assert failure.exc_info is not None
    assert isinstance(failure.exc_info[1], ValueError)
    assert (failure.__dict__["task"], failure.__dict__["attempt"]) == (log_in_nowhere.task_type, 1)


class Refusal(BaseException):
    """An exception that Django's dispatcher does not catch."""


@pytest.mark.parametrize("told", [task_enqueued, task_started, task_finished], ids=["enqueued", "started", "finished"])
def test_secret_is_not_logged_with_a_failing_receiver(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
    told: Signal,
) -> None:
    """The executor enqueues the child, so it sends task_enqueued, too."""

    def receive(task_result: Any, **_: Any) -> None:
        if task_result.args:
            raise Refusal(f"cannot tell of {task_result.args}")

    Porter.enqueue()
    told.connect(receive)
    try:
        burst()
    finally:
        told.disconnect(receive)

    (failure,) = [record for record in caplog.records if record.getMessage().startswith("receiver.failed")]
    text = caplog.handler.format(failure)
    assert f"cannot tell of ['anna', '{MASK}']" in text
    assert SECRET not in text


def test_secret_of_several_lines_is_masked_before_the_log_line_is_cut(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    say.enqueue(f"{SECRET}\nand more")

    with caplog.at_level("INFO"):
        burst()

    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("task.failed")]
    assert f"ValueError: {MASK} is no login" in line
    assert SECRET not in line


def test_error_that_repeats_many_secrets_is_logged_soon(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    """An earlier search took a minute."""
    for _ in range(5):
        log_in_as_many.enqueue(*map(str, range(10_000_000, 10_020_000)))
    begun = time.process_time()

    with caplog.at_level("INFO"):
        burst()

    assert time.process_time() - begun < 20
    assert "masked whole" in executor_log(caplog)
    assert "10000000" not in executor_log(caplog)


def test_secret_is_not_logged_with_a_failing_hook_of_the_commit(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    log_in_after_the_commit.enqueue("anna", SECRET)

    with caplog.at_level("DEBUG", "jobqueue"):
        burst()

    assert f"ValueError: no login as anna with '{MASK}', token={MASK}" in executor_log(caplog)
    assert "in refuse" in executor_log(caplog)  # its traceback is kept nowhere else
    assert SECRET not in executor_log(caplog)
    assert BESIDE not in executor_log(caplog)


@pytest.mark.parametrize("where", ["admin's page", "show", "show --json"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_secret_of_a_child_is_not_shown_in_its_parents_inbox(
    burst: Burst,  # noqa: F811
    where: str,
    is_known: bool,
) -> None:
    parent = UUID(Porter.enqueue().id)
    burst()
    if not is_known:
        Task.objects.filter(parent_id=parent).update(task_type="shop.tasks.gone")
    letter = InboxMessage.objects.get(task_id=parent, child_status="FAILED")
    assert SECRET in json.dumps(letter.body)

    text = SHOWN[where](parent)

    assert f"no login as {'anna' if is_known else MASK} with" in text
    assert MASK in text
    assert SECRET not in text
    assert BESIDE not in text


@pytest.mark.parametrize("body", [remember, Keeper], ids=lambda body: body.__name__ if body is Keeper else "remember")
@pytest.mark.parametrize("where", ["admin's page", "API", "show", "show --json"])
def test_secret_is_not_shown_in_a_result_or_state_that_repeats_it(
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


NUMBER = 41111234


def test_nested_names_and_numbers_are_masked_in_errors(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    pk = UUID(revoke.enqueue({SECRET: NUMBER}).id)
    with caplog.at_level("INFO"):
        burst()

    for where, text in [*((where, shown(pk)) for where, shown in SHOWN.items()), ("log", executor_log(caplog))]:
        assert "no login with" in text, where
        assert SECRET not in text, where
        assert str(NUMBER) not in text, where


@pytest.mark.parametrize("where", ["admin's page", "API", "show", "show --json"])
def test_nested_names_and_numbers_are_masked_in_results(
    burst: Burst,  # noqa: F811
    where: str,
) -> None:
    pk = UUID(count_tokens.enqueue({SECRET: NUMBER}).id)
    burst()
    assert SECRET in json.dumps(Task.objects.get(pk=pk).return_value)

    text = html.unescape(SHOWN[where](pk))

    assert f'"{MASK}": "a login"' in text
    assert "-5" in text
    assert "true" in text
    assert SECRET not in text
    assert str(NUMBER) not in text


@pytest.fixture
def unknown(failed: list[UUID]) -> list[UUID]:
    """The same tasks in a process that does not declare them."""
    Task.objects.update(task_type="shop.tasks.gone", return_value=f"anna comes with {SECRET}")
    return failed


def test_positional_arguments_of_an_unknown_task_are_masked(unknown: list[UUID]) -> None:
    for pk, where in product(unknown, SHOWN):
        text = SHOWN[where](pk)

        assert "no login as" in text, where
        assert SECRET not in text, where
        assert BESIDE not in text, where


@pytest.mark.parametrize("where", ["admin's page", "show", "show --json"])
def test_reason_for_masking_is_shown_by_the(where: str) -> None:
    why = "the function of the task is unknown here"
    named = TaskFactory.create(task_type="shop.tasks.gone", kwargs={"name": "anna"})
    unnamed = TaskFactory.create(task_type="shop.tasks.gone", args=["anna", 4711])

    assert "anna" not in SHOWN[where](unnamed.pk)
    assert "4711" not in SHOWN[where](unnamed.pk)
    assert why in " ".join(SHOWN[where](unnamed.pk).split())
    assert "anna" in SHOWN[where](named.pk)
    assert why not in SHOWN[where](named.pk)


@pytest.mark.parametrize("where", ["admin's page", "show", "show --json"])
def test_surplus_arguments_are_masked_by_the(where: str) -> None:
    row = TaskFactory.create(task_type=remember.task_type, args=["anna", SECRET, "4711"])

    text = SHOWN[where](row.pk)

    assert "anna" in text
    assert "4711" not in text
    assert "the function of the task takes fewer" in " ".join(text.split())


@pytest.mark.parametrize("where", ["admin's page", "show", "show --json"])
def test_without_redact_nothing_is_masked_by_the(options: Options, where: str) -> None:  # noqa: F811
    options(REDACT=[])
    row = TaskFactory.create(task_type="shop.tasks.gone", args=["anna", SECRET])

    assert SECRET in SHOWN[where](row.pk)


def test_arguments_of_a_masked_star_are_not_shown(burst: Burst) -> None:  # noqa: F811
    pk = UUID(log_in_as_many.enqueue("horse", SECRET).id)
    burst()

    for where, shown in SHOWN.items():
        text = shown(pk)
        assert "no login with" in text, where
        assert SECRET not in text, where


@pytest.mark.parametrize("secret", ["a'b\"c\\d", "Grüße, Änne", "-----KEY-----\nabcdef\n"])
def test_secret_is_not_shown_if_an_error_quotes_it_with_escapes(burst: Burst, secret: str) -> None:  # noqa: F811
    pk = UUID(quote.enqueue(secret).id)
    burst()

    for where, shown in SHOWN.items():
        text = html.unescape(shown(pk))
        assert f"'{MASK}' or" in text, where
        assert not any(part in text for part in ("c\\\\d", "nne", "abcdef")), where
