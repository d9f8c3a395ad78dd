"""Payloads and inboxes that are far too large: refused with a reason, or processed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

import jobqueue
from jobqueue import Actor, Done, InvalidArguments, PollContext, Suspend, task
from jobqueue.executor.telemetry.errors import TRACEBACK_CHARACTERS
from jobqueue.models import InboxMessage, Task
from jobqueue.values.states import Status
from tests.executor.conftest import start  # noqa: F401 - fixtures
from tests.executor.harness import Start, on_postgresql, wait_for_status
from tests.fixtures import Options

pytestmark = on_postgresql

MEGABYTE = 1_000_000
HUGE = 100 * MEGABYTE
WANTED = 20 * MEGABYTE  # a hundred, on a busy machine: 40 s
MESSAGES = 50_000
PATIENCE_SECONDS = 120.0


@task(max_attempts=1)
def mirror(text: str) -> str:
    return text


@task(max_attempts=1)
def produce(characters: int) -> str:
    return "x" * characters


class Reader(Actor, max_attempts=1):
    """Reads all messages of any length, and returns their size."""

    @dataclass
    class State:
        messages: int = 0
        total: int = 0

    def poll(self, context: PollContext[Any]) -> Any:
        for message in context.inbox.take():
            if message.body == "end":
                return Done([context.state.messages, context.state.total])
            context.state.messages += 1
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


def test_too_much_is_refused_before_anything_is_written() -> None:
    reader = Reader.enqueue()
    text = "x" * HUGE

    for send in (mirror.enqueue, partial(jobqueue.send, reader.id)):
        with pytest.raises(InvalidArguments, match=r"MAX_PAYLOAD_BYTES") as refused:
            send(text)
        assert len(str(refused.value)) < 500
    assert Task.objects.count() == 1
    assert not InboxMessage.objects.exists()


@pytest.mark.parametrize("body", [produce, Hoarder], ids=["result", "state"])
def test_too_much_from_a_body_fails_its_task_with_a_reason(start: Start, body: Any) -> None:  # noqa: F811
    start(threads=1)

    row = wait_for_status(body.enqueue(HUGE), Status.FAILED)

    assert "MAX_PAYLOAD_BYTES" in row.errors[-1]["message"]
    assert len(str(row.errors)) < 2 * TRACEBACK_CHARACTERS
    wait_for_status(mirror.enqueue("and now?"), Status.SUCCESSFUL)


def test_megabytes_go_there_and_back_where_a_site_wants_them(start: Start, options: Options) -> None:  # noqa: F811
    options(MAX_PAYLOAD_BYTES=2 * WANTED, HEARTBEAT_TIMEOUT=30.0)
    start(threads=1)
    text = "x" * WANTED

    assert wait_for_status(mirror.enqueue(text), Status.SUCCESSFUL, PATIENCE_SECONDS).return_value == text
    reader = Reader.enqueue()
    jobqueue.send_many([jobqueue.Send(UUID(reader.id), body) for body in (text, "end")])
    assert wait_for_status(reader, Status.SUCCESSFUL, PATIENCE_SECONDS).return_value == [1, WANTED]


def test_a_full_inbox_is_read_in_order_and_to_its_end(start: Start) -> None:  # noqa: F811
    """It takes several polls. A million messages took three and a half minutes on a busy machine."""
    reader = Reader.enqueue()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_inboxmessage (task_id, body, sent_at)"
            " SELECT %s, to_json(number)::jsonb, clock_timestamp() FROM generate_series(1, %s) AS number",
            [reader.id, MESSAGES],
        )
    jobqueue.send(reader.id, "end")
    start(threads=1)

    row = wait_for_status(reader, Status.SUCCESSFUL, PATIENCE_SECONDS)

    assert row.return_value == [MESSAGES, MESSAGES * (MESSAGES + 1) // 2]
