"""REDACT: a masked argument is shown nowhere, even if the task's error quotes it."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.dispatch import Signal

from jobqueue import Actor, Done, Spawn, Suspend, task
from jobqueue.conf.compat import task_enqueued, task_finished, task_started
from jobqueue.models import InboxMessage, Task
from jobqueue.values.redaction import MASK
from tests.cli.commands import jobqueue
from tests.executor.conftest import burst, start  # noqa: F401 - fixtures
from tests.executor.harness import Burst
from tests.factories import TaskFactory
from tests.fixtures import Options
from tests.http.client import person

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2-of-anna"
BESIDE = "correct horse"  # not an argument: found by its name


NUMBER = 41111234
MASKED = f"no login as anna with '{MASK}', token={MASK}"


def refuse(name: str, password: str) -> None:
    raise ValueError(f"no login as {name} with {password!r}, token='{BESIDE}'")


@task(max_attempts=1)
def log_in(name: str, password: str) -> None:
    refuse(name, password)


@task(max_attempts=1)
async def log_in_later(name: str, *, password: str) -> None:
    refuse(name, password)


@task(max_attempts=1)
def log_in_with_a_cause(name: str, password: str) -> None:
    try:
        refuse(name, password)
    except ValueError as error:
        raise RuntimeError("no login") from error


@task(max_attempts=1, atomic=True)
def log_in_after_the_commit(name: str, password: str) -> None:
    transaction.on_commit(partial(refuse, name, password))


@task(max_attempts=1)
def log_in_nowhere(name: str, password: str) -> None:
    raise ValueError(f"no login as {name}")


@task(max_attempts=1)
def log_in_as_many(*passwords: str) -> None:
    raise ValueError(f"no login with {passwords}")


@task(max_attempts=1)
def quote(password: str) -> None:
    raise ValueError(f"no login with '{repr(password)[1:-1]}' or {json.dumps(password)}")


@task(max_attempts=1)
def revoke(tokens: dict[str, int]) -> None:
    raise ValueError(f"no login with {tokens}")


@task(max_attempts=1)
def remember(name: str, password: str) -> list[str]:
    return [f"{name} comes with {password}"]


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


class Porter(Actor, max_attempts=1):
    """Lets a child log in, and does not read the outcome."""

    def poll(self, context: Any) -> Any:
        return (Spawn(log_in, "anna", SECRET), Suspend()) if not context.polls else Done()


class Refusal(BaseException):
    """An exception that Django's dispatcher does not catch."""


def page(path: str) -> str:
    return person(is_superuser=True).client.get(path).content.decode()


def readable(text: str) -> str:
    """Return JSON without escapes."""
    return json.dumps(json.loads(text), ensure_ascii=False)


def executor_log(caplog: pytest.LogCaptureFixture) -> str:
    """Return the output of our own loggers. Django's loggers are not masked."""
    records = [record for record in caplog.records if record.name.startswith("jobqueue")]
    return "\n".join(map(caplog.handler.format, records))


OF_A_TASK: dict[str, Callable[[UUID], str]] = {
    "admin's page": lambda pk: page(f"/admin/jobqueue/task/{pk}/change/"),
    "show": lambda pk: jobqueue("show", pk).out,
    "show --json": lambda pk: readable(jobqueue("show", pk, "--json").out),
}
WITH_RESULTS = OF_A_TASK | {"API": lambda pk: readable(page(f"/jobqueue/tasks/{pk}/"))}
SHOWN = WITH_RESULTS | {
    "admin's list": lambda _: page("/admin/jobqueue/task/"),
    "tail": lambda _: jobqueue("tail", "--backend", "default").out,
    "tail --json": lambda _: "\n".join(
        map(readable, jobqueue("tail", "--backend", "default", "--json").out.splitlines())
    ),
}


@pytest.mark.parametrize(
    ("body", "args", "kwargs", "words", "secrets"),
    [
        (log_in, ["anna", SECRET], {}, f"no login as anna with '{MASK}', token={MASK}", [SECRET, BESIDE]),
        (
            log_in_later,
            ["anna"],
            {"password": SECRET},
            f"no login as anna with '{MASK}', token={MASK}",
            [SECRET, BESIDE],
        ),
        (log_in_as_many, ["horse", SECRET], {}, "no login with", [SECRET]),
        (revoke, [{SECRET: NUMBER}], {}, "no login with", [SECRET, str(NUMBER)]),
        (quote, ["a'b\"c\\d"], {}, f"'{MASK}' or", ["c\\\\d"]),
        (quote, ["Grüße, Ängström"], {}, f"'{MASK}' or", ["ngstr"]),
        (quote, ["-----KEY-----\nabcdef\n"], {}, f"'{MASK}' or", ["abcdef"]),
    ],
)
def test_secret_of_an_argument_is_shown_and_logged_nowhere(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
    body: Any,
    args: Any,
    kwargs: Any,
    words: str,
    secrets: list[str],
) -> None:
    pk = UUID(body.enqueue(*args, **kwargs).id)
    with caplog.at_level("INFO"):
        burst()
    assert MASK not in Task.objects.get(pk=pk).errors[0]["traceback"]

    for where, text in [*((where, read(pk)) for where, read in SHOWN.items()), ("log", executor_log(caplog))]:
        text = html.unescape(text)
        assert words in text, where
        assert MASK in text, where
        assert not any(secret in text for secret in secrets), where


def test_positional_arguments_of_an_unknown_task_are_masked(burst: Burst) -> None:  # noqa: F811
    """In a process that does not declare the task."""
    pk = UUID(log_in.enqueue("anna", SECRET).id)
    burst()
    Task.objects.update(task_type="shop.tasks.gone", return_value=f"anna comes with {SECRET}")

    for where, read in SHOWN.items():
        text = read(pk)
        assert "no login as" in text, where
        assert SECRET not in text, where
        assert BESIDE not in text, where


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
    assert f"ValueError: {MASKED}" in text
    assert f"in {body.func.__name__}" in text
    assert failure.exc_info is None  # an error tracker would read the message of the exception
    for record in ours:
        assert SECRET not in f"{caplog.handler.format(record)} {vars(record)}"
        assert BESIDE not in f"{caplog.handler.format(record)} {vars(record)}"


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


@pytest.mark.parametrize(
    "signal", [task_enqueued, task_started, task_finished], ids=["enqueued", "started", "finished"]
)
def test_secret_is_not_logged_with_a_failing_receiver(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
    signal: Signal,
) -> None:
    """The executor enqueues the child, so it sends task_enqueued, too."""

    def receive(task_result: Any, **_: Any) -> None:
        if task_result.args:
            raise Refusal(f"cannot tell of {task_result.args}")

    Porter.enqueue()
    signal.connect(receive)
    try:
        burst()
    finally:
        signal.disconnect(receive)

    (failure,) = [record for record in caplog.records if record.getMessage().startswith("receiver.failed")]
    text = caplog.handler.format(failure)
    assert f"cannot tell of ['anna', '{MASK}']" in text
    assert SECRET not in text


def test_secret_is_not_logged_with_a_failing_hook_of_the_commit(
    caplog: pytest.LogCaptureFixture,
    burst: Burst,  # noqa: F811
) -> None:
    log_in_after_the_commit.enqueue("anna", SECRET)

    with caplog.at_level("DEBUG", "jobqueue"):
        burst()

    assert f"ValueError: {MASKED}" in executor_log(caplog)
    assert "in refuse" in executor_log(caplog)  # its traceback is kept nowhere else
    assert SECRET not in executor_log(caplog)
    assert BESIDE not in executor_log(caplog)


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


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_secret_of_a_child_is_not_shown_in_its_parents_inbox(burst: Burst, is_known: bool) -> None:  # noqa: F811
    parent = UUID(Porter.enqueue().id)
    burst()
    if not is_known:
        Task.objects.filter(parent_id=parent).update(task_type="shop.tasks.gone")
    message = InboxMessage.objects.get(task_id=parent, child_status="FAILED")
    assert SECRET in json.dumps(message.body)

    for where, read in OF_A_TASK.items():
        text = read(parent)
        assert f"no login as {'anna' if is_known else MASK} with" in text, where
        assert SECRET not in text, where
        assert BESIDE not in text, where


@pytest.mark.parametrize(
    ("body", "args", "words", "secrets"),
    [
        (remember, ["anna", SECRET], [f"anna comes with {MASK}"], [SECRET]),
        (Keeper, ["anna", SECRET], [f"anna comes with {MASK}"], [SECRET]),
        (count_tokens, [{SECRET: NUMBER}], [f'"{MASK}": "a login"', "-5", "true"], [SECRET, str(NUMBER)]),
    ],
    ids=["result", "state", "nested"],
)
def test_secret_is_not_shown_in_a_result_or_state(
    burst: Burst,  # noqa: F811
    body: Any,
    args: Any,
    words: list[str],
    secrets: list[str],
) -> None:
    pk = UUID(body.enqueue(*args).id)
    burst()
    assert SECRET in json.dumps(Task.objects.get(pk=pk).return_value)

    for where, read in WITH_RESULTS.items():
        text = html.unescape(read(pk))
        assert all(word in text for word in words), where
        assert not any(secret in text for secret in secrets), where


@pytest.mark.parametrize("where", OF_A_TASK)
def test_reason_for_masking_is_shown(where: str) -> None:
    named = TaskFactory.create(task_type="shop.tasks.gone", kwargs={"name": "anna"})
    unnamed = TaskFactory.create(task_type="shop.tasks.gone", args=["anna", NUMBER])
    surplus = TaskFactory.create(task_type=remember.task_type, args=["anna", SECRET, str(NUMBER)])

    texts = [" ".join(OF_A_TASK[where](row.pk).split()) for row in (named, unnamed, surplus)]

    reason = "the function of the task is unknown here"
    assert [reason in text for text in texts] == [False, True, False]
    assert "the function of the task takes fewer" in texts[2]
    assert ["anna" in text for text in texts] == [True, False, True]
    assert not any(str(NUMBER) in text for text in texts)


def test_without_redact_nothing_is_masked(options: Options) -> None:
    options(REDACT=[])
    row = TaskFactory.create(task_type="shop.tasks.gone", args=["anna", SECRET])

    for where, read in OF_A_TASK.items():
        assert SECRET in read(row.pk), where
