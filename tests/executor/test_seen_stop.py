"""A body that asks `context.cancelled` learns at once that its executor stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group

from jobqueue import Actor, Done, GiveUp, task
from jobqueue.exceptions import TaskTimeout
from jobqueue.models import Executor
from jobqueue.values.states import Command, Status
from tests.executor.harness import Burst, Running, Start, gates, on_both_databases, on_postgresql, row_of
from tests.waiting import wait_until

pytestmark = on_postgresql


def end_early(ending: str) -> Any:
    match ending:
        case "raise":
            raise RuntimeError("half of it")
        case "give up":
            raise GiveUp("half of it")
    return "half of it"


@task(takes_context=True, max_attempts=1)
def work(context: Any, gate: str, ending: str) -> Any:
    gates[gate].arrive()
    while not gates[gate].is_open.is_set():
        if context.cancelled:
            return end_early(ending)
        time.sleep(0.005)
    return "all of it"


@task(takes_context=True, max_attempts=1)
async def work_later(context: Any, gate: str, ending: str) -> Any:
    gates[gate].arrive()
    while not gates[gate].is_open.is_set():
        if context.cancelled:
            return end_early(ending)
        await asyncio.sleep(0.005)
    return "all of it"


@task(takes_context=True, max_attempts=1, atomic=True)
def work_atomically(context: Any, gate: str, ending: str) -> Any:
    Group.objects.create(name=f"{gate} {len(gates[gate].arrived)}")
    return work.func(context, gate, ending)


@task(takes_context=True, max_attempts=1)
def finish_all_the_same(context: Any, gate: str) -> str:
    """Does not ask before its end."""
    gates[gate].pass_through()
    return "all of it"


@task(takes_context=True, max_attempts=1, timeout=0.1)
def return_after_the_timeout(context: Any) -> str:
    try:
        while True:
            time.sleep(0.005)
    except TaskTimeout:
        return "cancelled" if context.cancelled else "not cancelled"


class Import(Actor, max_attempts=1):
    """Keeps its place in its state."""

    def poll(self, context: Any, gate: str) -> Any:
        gates[gate].arrive(context.state.get("row", 0))
        while not gates[gate].is_open.is_set():
            context.state["row"] = context.state.get("row", 0) + 1
            if context.cancelled:
                return []
            time.sleep(0.005)
        return Done(context.state["row"])


class ImportLater(Actor, max_attempts=1):
    async def poll(self, context: Any, gate: str) -> Any:
        gates[gate].arrive(context.state.get("row", 0))
        while not gates[gate].is_open.is_set():
            context.state["row"] = context.state.get("row", 0) + 1
            if context.cancelled:
                return []
            await asyncio.sleep(0.005)
        return Done(context.state["row"])


@on_both_databases
@pytest.mark.parametrize("body", [work, work_later])
@pytest.mark.parametrize("ending", ["return", "raise", "give up"])
def test_body_that_ends_early_for_a_stop_starts_again(
    start: Start, burst: Burst, body: Any, ending: str, backend: str
) -> None:
    """Not SUCCESSFUL with a half of its work, and without an attempt."""
    result = body.using(backend=backend).enqueue("work", ending)
    running = start(backend=backend, shutdown_timeout=3600.0)
    gates["work"].wait_for()

    running.stop()

    row = row_of(result)
    assert (row.status, row.attempts, row.executor_losses, row.errors) == (Status.READY, 0, 0, [])
    gates["work"].open()
    burst(backend=backend)
    assert (row_of(result).status, row_of(result).return_value) == (Status.SUCCESSFUL, "all of it")


def test_atomic_body_that_ends_early_for_a_stop_writes_nothing(start: Start, burst: Burst) -> None:
    result = work_atomically.enqueue("work", "return")
    running = start(shutdown_timeout=3600.0)
    gates["work"].wait_for()

    running.stop()

    assert (row_of(result).status, Group.objects.count()) == (Status.READY, 0)
    gates["work"].open()
    burst()
    assert (row_of(result).status, Group.objects.count()) == (Status.SUCCESSFUL, 1)


def replace(running: Running) -> None:
    running.process.replace()


def command_stop(running: Running) -> None:
    running.process.handle_command(Command.STOP)


@pytest.mark.parametrize("stop", [replace, command_stop])
def test_each_way_to_stop_is_seen(start: Start, stop: Callable[[Running], None]) -> None:
    result = work.enqueue("work", "return")
    running = start(shutdown_timeout=3600.0)
    gates["work"].wait_for()

    stop(running)

    running.join()
    assert (row_of(result).status, row_of(result).attempts) == (Status.READY, 0)


def test_pause_and_stop_of_another_process_are_not_seen(start: Start) -> None:
    result = work.enqueue("work", "return")
    running, other = start(), start()
    gates["work"].wait_for()
    if not running.running_tasks:
        running, other = other, running

    other.stop()
    running.loop.set_paused(True)
    wait_until(lambda: running.loop.is_paused)
    gates["work"].open()

    wait_until(lambda: row_of(result).status == Status.SUCCESSFUL)
    assert row_of(result).return_value == "all of it"


def test_body_that_does_not_ask_ends_as_without_a_stop(start: Start) -> None:
    result = finish_all_the_same.enqueue("work")
    running = start(shutdown_timeout=3600.0)
    gates["work"].wait_for()

    running.process.stop()
    gates["work"].open()
    running.join()

    assert (row_of(result).status, row_of(result).return_value) == (Status.SUCCESSFUL, "all of it")


def test_result_after_a_timeout_counts(burst: Burst) -> None:
    result = return_after_the_timeout.enqueue()

    burst()

    assert (row_of(result).status, row_of(result).return_value) == (Status.SUCCESSFUL, "cancelled")


@on_both_databases
@pytest.mark.parametrize("actor", [Import, ImportLater])
def test_actor_that_returns_for_a_stop_keeps_its_place(start: Start, burst: Burst, actor: Any, backend: str) -> None:
    result = actor.using(backend=backend).enqueue("import")
    running = start(backend=backend, shutdown_timeout=3600.0)
    gates["import"].wait_for()

    running.stop()

    row: Any = row_of(result)
    assert (row.status, row.attempts, row.polls) == (Status.READY, 0, 1)
    row_number = row.inner_state["row"]
    gates["import"].open()
    burst(backend=backend)
    assert gates["import"].arrived == [0, row_number]
    assert (row_of(result).status, row_of(result).return_value) == (Status.SUCCESSFUL, row_number)
    assert not Executor.objects.using(backend).filter(heartbeat__state="RUNNING").exists()
