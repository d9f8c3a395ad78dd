"""What bodies log: kept for the pages of their tasks, while they run and after their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from jobqueue import Actor, Backoff, Done, Sleep, task
from jobqueue.conf.compat import task_started
from jobqueue.executor.reports import BodyLogHandler
from jobqueue.executor.running.attempt import running_here
from jobqueue.models import TaskLog
from jobqueue.values.reports import parse_lines
from jobqueue.values.states import Status
from tests.executor.harness import (
    Burst,
    Start,
    connected,
    database_of,
    gates,
    make_running,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
)
from tests.fixtures import Options
from tests.waiting import wait_until

pytestmark = on_postgresql
logger = logging.getLogger("shop.mail")


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(logging.NOTSET)


@task
def log_some(gate: str) -> None:
    logger.info("first %s", 1)
    gates[gate].pass_through()
    logger.debug("hidden")
    logging.getLogger("jobqueue.body").warning("ours")
    logger.warning("second\nline")


@task
async def log_some_later(gate: str) -> None:
    logger.info("first %s", 1)
    gates[gate].pass_through()
    await asyncio.to_thread(logger.info, "in a thread")
    await sync_to_async(logger.warning)("for the ORM")
    await asyncio.create_task(log_from_child())


async def log_from_child() -> None:
    logger.error("child")


@task(max_attempts=2, backoff=Backoff(base=0.0, jitter=0.0))
def log_and_fail(number: int) -> None:
    for line in range(number):
        logger.info("line %d", line)
    try:
        raise KeyError("order")
    except KeyError:
        logger.exception("it failed")
    raise ValueError("why")


@task(atomic=True)
def log_in_transaction() -> None:
    logger.info("in the transaction")
    transaction.on_commit(lambda: logger.info("after it"))


@task(timeout=0.2)
def log_until_interrupted() -> None:
    while True:
        logger.info("still here")


class Talker(Actor):
    async def poll(self, context: Any) -> Any:
        logger.info("poll %d", context.polls)
        return Done() if context.polls == 2 else Sleep(timedelta(0))


def logs_of(result: Any) -> dict[int, list[str]]:
    """Return the messages of a task by claim number."""
    rows = TaskLog.objects.using(database_of(result)).filter(task_id=result.id).order_by("claim_number")
    return {row.claim_number: [line.message for line in parse_lines(row.lines)] for row in rows}


def test_lines_are_written_while_the_body_runs_and_at_its_end(start: Start) -> None:
    result = log_some.enqueue("logging")
    start()

    wait_until(lambda: logs_of(result) == {1: ["first 1"]}, "the first line")
    gates["logging"].open()

    wait_for_status(result, Status.SUCCESSFUL)
    wait_until(lambda: logs_of(result) == {1: ["first 1", r"second\nline"]}, "the last line")
    (row,) = TaskLog.objects.filter(task_id=result.id)
    first, second = parse_lines(row.lines)
    assert (first.level, first.logger, second.level) == ("INFO", "shop.mail", "WARNING")
    started_at = row_of(result).started_at
    assert started_at is not None
    assert round(started_at.timestamp(), 3) <= first.at < started_at.timestamp() + 60  # it has milliseconds


def test_async_body_is_heard_from_its_children_and_threads(burst: Burst) -> None:
    gates["open"].open()
    result = log_some_later.enqueue("open")

    burst()

    assert logs_of(result) == {1: ["first 1", "in a thread", "for the ORM", "child"]}


@on_both_databases
def test_each_attempt_keeps_its_newest_lines(burst: Burst, backend: str) -> None:
    result = log_and_fail.using(backend=backend).enqueue(60)

    burst(backend=backend)

    logs = logs_of(result)
    newest = [*(f"line {number}" for number in range(11, 60)), "it failed KeyError: 'order'"]
    assert logs == {1: newest, 2: newest}
    rows = TaskLog.objects.using(database_of(result)).filter(task_id=result.id)
    assert set(rows.values_list("dropped", flat=True)) == {11}
    errors = row_of(result).errors
    assert [error["claim_number"] for error in errors] == [1, 2]


def test_each_poll_of_an_actor_has_its_lines(burst: Burst) -> None:
    result = Talker.task.enqueue()

    burst()

    assert logs_of(result) == {1: ["poll 0"], 2: ["poll 1"], 3: ["poll 2"]}


def test_hooks_of_the_commit_are_heard(burst: Burst) -> None:
    result = log_in_transaction.enqueue()

    burst()

    assert logs_of(result) == {1: ["in the transaction", "after it"]}


@pytest.mark.usefixtures("no_collection")
def test_interrupted_body_keeps_its_lines(burst: Burst) -> None:
    result = log_until_interrupted.enqueue()

    burst(max_tasks=1)

    assert logs_of(result)[1] == ["still here"] * 50
    assert row_of(result).errors[0]["exception_class_path"] == "jobqueue.exceptions.TaskTimeout"


def test_receivers_and_code_outside_bodies_are_not_heard(burst: Burst) -> None:
    gates["open"].open()

    def receiver(**_: Any) -> None:
        logger.warning("from a receiver")

    with connected(receiver, task_started):
        result = log_some.enqueue("open")
        burst()
    logger.warning("from a test")

    assert logs_of(result) == {1: ["first 1", r"second\nline"]}


def test_zero_lines_install_no_handler(burst: Burst, options: Options) -> None:
    gates["open"].open()
    options(KEEP_LOG_LINES=0)
    handlers: list[logging.Handler] = []

    def receiver(**_: Any) -> None:
        handlers.extend(handler for handler in logging.root.handlers if isinstance(handler, BodyLogHandler))

    with connected(receiver, task_started):
        result = log_some.enqueue("open")
        burst()

    assert handlers == []
    assert logs_of(result) == {}


def test_long_line_is_cut_and_its_secret_masked_before(burst: Burst) -> None:
    result = log_secret.enqueue(token="hunter22")

    burst()

    (message,) = logs_of(result)[1]
    assert len(message) == 500
    assert "hunt" not in message


@task
def log_secret(token: str) -> None:
    logger.info("x" * 495 + token + "y" * 1000)


class Hostile(str):
    def __str__(self) -> str:
        raise ValueError("cannot be shown")


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"msg": "not %d numbers", "args": ("a",)}, ["not %d numbers"]),
        ({"msg": "hostile %s", "args": (Hostile(),)}, ["hostile %s"]),
        ({"msg": Hostile()}, []),
        ({"msg": "no error", "exc_info": (None, None, None)}, ["no error"]),
        ({"msg": "surrogate \ud800 and \x00"}, [r"surrogate \ud800 and \x00"]),
    ],
)
def test_record_that_cannot_be_shown_harms_no_body(values: dict[str, Any], messages: list[str]) -> None:
    running = make_running()
    running.start(None)
    handler = BodyLogHandler(running.identity.reports, running.identity.log_of_caller)
    token = running_here.set(running)

    handler.handle(logging.makeLogRecord({"name": "shop", "levelname": "INFO"} | values))

    running_here.reset(token)
    engine = Mock()
    running.identity.reports.write(engine, is_last=True)
    written = [line.message for log in engine.reports.write.call_args.args[1] for line in log.lines] if messages else []
    assert written == messages


def test_handler_is_gone_when_the_executor_has_ended(burst: Burst) -> None:
    burst()

    assert not [handler for handler in logging.root.handlers if isinstance(handler, BodyLogHandler)]


def test_warning_is_printed_as_without_the_handler(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gates["open"].open()
    monkeypatch.setattr(logging.root, "handlers", [])
    log_some.enqueue("open")

    burst()

    printed = capsys.readouterr().err
    assert "second\nline" in printed
    assert "first" not in printed
