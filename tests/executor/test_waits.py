"""wait_for_result() and await_result() beside an executor."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from jobqueue import api, task
from jobqueue.api import await_result, wait_for_result, waits
from jobqueue.conf.compat import TaskResultStatus
from jobqueue.engine import engine_for
from jobqueue.exceptions import TaskNotFound
from tests.executor.harness import Burst, Start, gates, on_both_databases, on_postgresql
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = on_postgresql


@task(max_attempts=1)
def answer(gate: str, number: int) -> int:
    gates[gate].pass_through()
    return 42 // number


def ways() -> Any:
    return pytest.mark.parametrize("wait", [wait_for_result, async_to_sync(await_result)], ids=["sync", "async"])


@ways()
@on_both_databases
def test_wait_returns_the_result_at_the_end(start: Start, backend: str, wait: Any) -> None:
    result = answer.using(backend=backend).enqueue("answer", 2)
    start(backend=backend)
    gates["answer"].wait_for()
    gates["answer"].open()

    ended = wait(result, timeout=timedelta(seconds=60))

    assert (ended.status, ended.return_value) == (TaskResultStatus.SUCCESSFUL, 21)
    assert wait(result.id, timeout=0, backend=backend).return_value == 21


@ways()
def test_executor_notifies_a_wait_of_the_end(start: Start, wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_WAIT_SECONDS", "LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(waits, name, 3 * DEADLINE_SECONDS)  # between two looks
    result = answer.enqueue("heard", 2)
    running = start()
    gates["heard"].wait_for()
    outcomes = running.loop.outcomes

    def open_gate() -> None:
        wait_until(lambda: outcomes.awaited, "an awaited task")
        gates["heard"].open()

    opener = threading.Thread(target=open_gate)
    opener.start()

    began_at = time.monotonic()
    assert wait(result, timeout=6 * DEADLINE_SECONDS).return_value == 21
    opener.join()

    assert time.monotonic() - began_at < 2 * DEADLINE_SECONDS
    assert outcomes.awaited == {}


def test_failed_and_cancelled_tasks_are_returned(burst: Burst) -> None:
    failed, cancelled = answer.enqueue("no", 0), answer.enqueue("no", 1)
    api.cancel(cancelled.id)
    gates["no"].open()
    burst()

    assert [wait_for_result(result, timeout=0).status for result in (failed, cancelled)] == [
        TaskResultStatus.FAILED
    ] * 2


@ways()
def test_wait_raises_timeout_error_with_the_state(wait: Any) -> None:
    result = answer.enqueue("late", 1)

    with pytest.raises(TimeoutError, match=rf"Task {result.id} has not ended within 0.05 s: it is READY\."):
        wait(result, timeout=0.05)


def test_event_loop_goes_on_during_a_wait() -> None:
    result = answer.enqueue("late", 1)

    async def count() -> int:
        waiting = asyncio.create_task(await_result(result, timeout=0.2))
        turns = 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0)
        assert isinstance(waiting.exception(), TimeoutError)
        return turns

    assert async_to_sync(count)() > 10


def test_wait_in_a_transaction_is_refused_unless_the_task_has_ended(burst: Burst) -> None:
    ended = answer.enqueue("done", 1)
    gates["done"].open()
    burst()

    with transaction.atomic():
        assert wait_for_result(ended, timeout=1).return_value == 42
        began_at = time.monotonic()
        with pytest.raises(RuntimeError, match="Call it outside the transaction"):
            wait_for_result(answer.enqueue("done", 1), timeout=60)
        assert time.monotonic() - began_at < 30


@ways()
def test_wait_for_a_task_that_does_not_exist_raises(wait: Any) -> None:
    with pytest.raises(TaskNotFound, match="Was it deleted"):
        wait(uuid4(), timeout=1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_process_has_none_of_the_waits_of_its_parent() -> None:
    engine = engine_for("default")
    listener = waits._listener_of(engine)
    with listener._lock:  # another thread of the parent has it
        if (child := os.fork()) == 0:
            os._exit(int(waits._listener_of(engine) is listener))
    assert os.waitpid(child, 0)[1] == 0
    assert waits._listener_of(engine) is listener
