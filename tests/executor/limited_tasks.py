"""Bodies with limits, for the executor's tests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.db import connection

from jobqueue import Actor, Concurrency, Done, PollContext, Rate, Spawn, Suspend, task
from jobqueue.exceptions import Stale
from tests.executor.harness import gates
from tests.executor.tasks import AT_ONCE

ONE = Concurrency(1, key="{gate}")


@task(concurrency=ONE)
def wait_alone(gate: str, who: Any = None) -> Any:
    gates[gate].pass_through(who)
    return who


@task(atomic=True, concurrency=ONE)
def wait_alone_atomically(gate: str, who: Any = None) -> Any:
    gates[gate].pass_through(who)
    return who


@task(concurrency=Concurrency(1, key="{gate}", count_while_retrying=True), max_attempts=3, backoff=AT_ONCE)
def fail_twice(gate: str, who: str) -> None:
    """Fail in the first two attempts."""
    gates[gate].arrive(who)
    if gates[gate].arrived.count(who) < 3:
        raise ValueError(who)


@task(concurrency=Concurrency(1, key="{gate}", count_while_retrying=True), atomic=True)
def meet_conflict_first(gate: str, who: str) -> None:
    """Meet a conflict in the first run of the first task. No attempt is counted."""
    gates[gate].arrive(who)
    if gates[gate].arrived == ["a"]:
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")


@task(concurrency=Concurrency(1, key="{gate}", count_while_retrying=True))
def be_stale_first(gate: str, who: str) -> None:
    gates[gate].arrive(who)
    if gates[gate].arrived == ["a"]:
        raise Stale


@task(concurrency=Concurrency(1, key="{gate}", count_while_retrying=True))
async def be_stale_first_later(gate: str, who: str) -> None:
    gates[gate].arrive(who)
    if gates[gate].arrived == ["a"]:
        raise Stale


@task(rate=Rate(2, per=0.5, key="{gate}"))
def start_at_a_rate(gate: str) -> None:
    gates[gate].arrive()


class WaitsInTurn(Actor, concurrency=ONE):
    """Suspends once, and does not count in this time. Ends when it is woken."""

    def poll(self, context: PollContext[Any], gate: str, who: str) -> Any:
        gates[gate].arrive(who)
        return Suspend() if context.polls == 0 else Done(who)


class HasLimitedChildren(Actor):
    def poll(self, context: PollContext[Any], gate: str, count: int) -> Any:
        if context.polls == 0:
            return *(Spawn(wait_alone, gate, number) for number in range(count)), Suspend()
        context.state["ended"] = context.state.get("ended", 0) + len([*context.inbox.take()])
        return Done() if context.state["ended"] == count else Suspend()


ONE_AN_HOUR = Rate(1, per=3600, key="{gate}")
THREE = Rate(3, per=0.5, key="{gate}")


def arrive_now(gate: str) -> None:
    gates[gate].arrive(time.monotonic())


@task(rate=ONE_AN_HOUR)
def start_once(gate: str) -> None:
    gates[gate].arrive()


@task(rate=THREE)
def note_start(gate: str) -> None:
    arrive_now(gate)


@task(rate=THREE)
async def note_start_later(gate: str) -> None:
    arrive_now(gate)


@task(rate=THREE, atomic=True)
def note_start_atomically(gate: str) -> None:
    arrive_now(gate)


@task(rate=THREE, max_attempts=3, backoff=AT_ONCE)
def note_start_and_fail(gate: str) -> None:
    arrive_now(gate)
    raise ValueError(gate)


class NotesStarts(Actor, rate=THREE):
    """Polls three times."""

    def poll(self, context: PollContext[Any], gate: str) -> Any:
        arrive_now(gate)
        return None if context.polls < 2 else Done()


@task(rate=Rate(1, per=0.2, key="{gate}"))
def start_and_wait(gate: str) -> None:
    gates[gate].pass_through()


@task(rate=Rate(1, per=0.2, key="{gate}"))
async def start_and_wait_later(gate: str) -> None:
    await asyncio.to_thread(gates[gate].pass_through)
