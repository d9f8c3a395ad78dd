"""Payloads, inboxes, tracebacks and names that are far too large: refused with a message, or processed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

import jobqueue
from jobqueue import Actor, Done, InvalidArguments, PollContext, Suspend, task
from jobqueue.compat import InvalidTask
from jobqueue.executor.telemetry.errors import TRACEBACK_CHARACTERS
from jobqueue.models import InboxMessage, Task
from jobqueue.records import Status
from tests.executor.conftest import options, start  # noqa: F401 - fixtures
from tests.executor.harness import Options, Start, on_postgresql, wait_until

pytestmark = on_postgresql

MEGABYTE = 1_000_000
HUGE = 100 * MEGABYTE
WANTED = 20 * MEGABYTE  # a hundred, on a busy machine: 40 s
LETTERS = 50_000
PATIENCE_SECONDS = 120.0


@task(max_attempts=1)
def mirror(text: str) -> str:
    return text


@task(max_attempts=1)
def produce(characters: int) -> str:
    return "x" * characters


@task(max_attempts=1)
def fume(characters: int) -> None:
    raise ValueError("x" * characters)


class Reader(Actor, max_attempts=1):
    """Reads all messages of any length, and returns their size."""

    @dataclass
    class State:
        letters: int = 0
        total: int = 0

    def poll(self, context: PollContext[Any]) -> Any:
        for message in context.inbox.take():
            if message.body == "end":
                return Done([context.state.letters, context.state.total])
            context.state.letters += 1
            context.state.total += message.body if isinstance(message.body, int) else len(message.body)
        return Suspend()


class Hoarder(Actor, max_attempts=1):
    """Stores a state that is too large."""

    @dataclass
    class State:
        text: str = ""

    def poll(self, context: PollContext[Any], characters: int) -> Any:
        context.state.text = "x" * characters
        return Suspend()


@pytest.mark.parametrize("characters", [2 * MEGABYTE, HUGE, 3 * HUGE])
def test_too_much_is_refused_before_anything_is_written(characters: int) -> None:
    reader = Reader.enqueue()
    text = "x" * characters

    with pytest.raises(InvalidArguments, match=r"MAX_PAYLOAD_BYTES") as refused:
        mirror.enqueue(text)
    assert len(str(refused.value)) < 500
    with pytest.raises(InvalidArguments, match=r"MAX_PAYLOAD_BYTES"):
        jobqueue.send(reader.id, text)
    assert Task.objects.count() == 1
    assert not InboxMessage.objects.exists()


@pytest.mark.parametrize("body", [produce, Hoarder], ids=["result", "state"])
@pytest.mark.parametrize("characters", [2 * MEGABYTE, HUGE])
def test_too_much_from_a_body_fails_it_in_words(start: Start, body: Any, characters: int) -> None:  # noqa: F811
    start(threads=1)

    row = wait_until(body.enqueue(characters), Status.FAILED)

    assert "MAX_PAYLOAD_BYTES" in row.errors[-1]["message"]
    assert len(str(row.errors)) < 2 * TRACEBACK_CHARACTERS
    wait_until(mirror.enqueue("and now?"), Status.SUCCESSFUL)


def test_megabytes_go_there_and_back_where_a_site_wants_them(start: Start, options: Options) -> None:  # noqa: F811
    options(MAX_PAYLOAD_BYTES=2 * WANTED, HEARTBEAT_TIMEOUT=30.0)
    start(threads=1)
    text = "x" * WANTED

    assert wait_until(mirror.enqueue(text), Status.SUCCESSFUL, PATIENCE_SECONDS).return_value == text
    reader = Reader.enqueue()
    jobqueue.send_many([jobqueue.Send(UUID(reader.id), body) for body in (text, "end")])
    assert wait_until(reader, Status.SUCCESSFUL, PATIENCE_SECONDS).return_value == [1, WANTED]


def test_a_message_of_five_megabytes_in_an_error_is_cut(start: Start) -> None:  # noqa: F811
    start(threads=1)

    (error,) = wait_until(fume.enqueue(5 * MEGABYTE), Status.FAILED).errors

    assert len(error["message"]) + len(error["traceback"]) < 2 * TRACEBACK_CHARACTERS
    assert error["message"].startswith("xxx")


def test_a_full_inbox_is_read_in_order_and_to_its_end(start: Start) -> None:  # noqa: F811
    """It takes several polls. A million messages took three and a half minutes on a busy machine."""
    reader = Reader.enqueue()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_inboxmessage (task_id, body, sent_at)"
            " SELECT %s, to_json(number)::jsonb, clock_timestamp() FROM generate_series(1, %s) AS number",
            [reader.id, LETTERS],
        )
    jobqueue.send(reader.id, "end")
    start(threads=1)

    row = wait_until(reader, Status.SUCCESSFUL, PATIENCE_SECONDS)

    assert row.return_value == [LETTERS, LETTERS * (LETTERS + 1) // 2]


def nothing() -> None:
    """A function that is not a task."""


def test_a_name_of_ten_thousand_characters_is_refused_where_it_is_declared() -> None:
    with pytest.raises(InvalidTask, match=r"task_type must be a text of 1 to 500 characters") as refused:
        task(name="x" * 10_000)(nothing)
    assert len(str(refused.value)) < 1_000
