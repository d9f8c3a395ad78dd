"""An error that a body answers with Retry, GiveUp or Stale is the one that people see."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from jobqueue import Actor, Backoff, GiveUp, Retry, Stale, task
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.executor.harness import Burst, on_both_databases, on_postgresql, row_of

OPTIONS: dict[str, Any] = {"max_attempts": 2, "backoff": Backoff(base=0.0, jitter=0.0)}
REFUSED = ConnectionError("refused")


def answer(how: str, reply: BaseException, reason: BaseException = REFUSED) -> None:
    """Raise one error while another is handled."""
    try:
        raise reason
    except BaseException as error:
        match how:
            case "from":
                raise reply from error
            case "from None":
                raise reply from None
            case _:
                raise reply  # noqa: B904 - as a body may


@task(**OPTIONS)
def retry(how: str, text: str | None = None) -> None:
    answer(how, Retry(text, after=0), ConnectionError("refused by 10.0.0.1"))


@task(**OPTIONS)
async def retry_later(how: str, text: str | None = None) -> None:
    retry.func(how, text)


class Retries(Actor, **OPTIONS):
    def poll(self, context: Any, how: str, text: str | None = None) -> Any:
        retry.func(how, text)


@on_both_databases
@pytest.mark.parametrize("body", [retry, retry_later, Retries])
@pytest.mark.parametrize("how", ["from", "bare"])
def test_retry_shows_the_error_that_it_answers(
    burst: Burst, caplog: pytest.LogCaptureFixture, body: Any, how: str, backend: str
) -> None:
    caplog.set_level(logging.INFO, "jobqueue")
    result = body.using(backend=backend).enqueue(how)

    burst(backend=backend)

    row = row_of(result)
    assert (row.status, row.attempts) == (Status.FAILED, 2)
    assert {entry["exception_class_path"] for entry in row.errors} == {"builtins.ConnectionError"}
    assert {entry["message"] for entry in row.errors} == {"refused by 10.0.0.1"}
    assert all("Retry: The task asked for a retry." in entry["traceback"] for entry in row.errors)
    records = {record.getMessage().split()[0]: record for record in caplog.records if "executor" in record.name}
    for event in ("task.retried", "task.failed"):
        assert "error=ConnectionError: refused by 10.0.0.1" in records[event].getMessage()
    assert records["task.failed"].exc_info is not None
    assert records["task.failed"].exc_info[0] is ConnectionError


@on_postgresql
def test_retries_are_grouped_by_the_error_that_they_answer(burst: Burst) -> None:
    retry.enqueue("from")
    retry.enqueue("bare")
    retry.enqueue("from None")
    retry.enqueue("from", "bank down")
    retry.enqueue("from None", "bank down")

    burst()

    causes = list(Task.objects.order_by("enqueued_at").values_list("cause", flat=True))
    assert causes[0] == causes[1]
    assert len(set(causes)) == 4


def error_of(how: str, reply: BaseException, reason: BaseException = REFUSED) -> BaseException:
    try:
        answer(how, reply, reason)
    except BaseException as error:  # noqa: BLE001 - any kind
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("reply", "how", "line"),
    [
        (Retry, "from", "ConnectionError: refused"),
        (Retry, "bare", "ConnectionError: refused"),
        (Retry, "from None", "Retry: The task asked for a retry."),
        (lambda: Retry("bank down"), "from", "ConnectionError: bank down: refused"),
        (lambda: Retry("bank down"), "from None", "Retry: bank down"),
        (lambda: Retry("bank: refused"), "from", "ConnectionError: bank: refused"),
        (GiveUp, "from", "GiveUp: ConnectionError: refused"),
        (GiveUp, "bare", "GiveUp: ConnectionError: refused"),
        (lambda: GiveUp("no bank"), "from", "GiveUp: no bank: ConnectionError: refused"),
        (lambda: GiveUp("no bank"), "from None", "GiveUp: no bank"),
        (Stale, "from", "Stale: ConnectionError: refused"),
        (lambda: ValueError("other"), "from", "ValueError: other"),
    ],
)
def test_answer_is_shown_with_what_it_answers(reply: Any, how: str, line: str) -> None:
    assert format_first_line(error_of(how, reply())) == line


def test_answers_in_a_row_are_shown_once() -> None:
    inner = error_of("from", GiveUp("no bank"))
    assert (
        format_first_line(error_of("from", Retry("later"), inner)) == "GiveUp: later: no bank: ConnectionError: refused"
    )
    assert format_first_line(error_of("from", Retry(), ValueError())) == "ValueError"
    assert format_first_line(error_of("from", GiveUp(), ValueError())) == "GiveUp: ValueError"


def test_answers_in_a_circle_end() -> None:
    first, second = Retry("first"), GiveUp("second")
    first.__cause__, second.__cause__ = second, first

    assert format_first_line(first) == "GiveUp: first: second"
