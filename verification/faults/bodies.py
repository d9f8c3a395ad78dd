"""
The tasks of a campaign: each kind of body. Where it can, a body writes an effect in the transaction of its outcome.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection

from jobqueue import Actor, Backoff, Concurrency, Done, PollContext, Suspend, task
from jobqueue.declarations.context import Context
from jobqueue.models import Task
from verification.faults.diary import note

SOON = Backoff(base=0.05, cap=0.5, jitter=0.5)
MANY = 1000  # attempts: faults of the database fail bodies, but must never fail a task
END = "end"


def enter(kind: str, key: str, task_id: str) -> None:
    """Write an effect in the open transaction."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO verification_effect (kind, key, task_id) VALUES (%s, %s, %s)", [kind, key, task_id])


@task(atomic=True, takes_context=True, max_attempts=MANY, backoff=SOON)
def pay(context: Context, seconds: float = 0.0) -> str:
    """Commit one effect together with the outcome."""
    enter("paid", context.idempotency_key, context.task_result.id)
    time.sleep(seconds)
    return "paid"


@task(max_attempts=MANY, backoff=SOON)
def work(number: int, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return number


@task(max_attempts=MANY, backoff=SOON)
def poison() -> None:
    """Kill the process, as the system does with a body that needs too much memory."""
    note("hurt", whom=os.environ["PGAPPNAME"], how="poisoned")
    os.kill(os.getpid(), signal.SIGKILL)


@task(max_attempts=MANY, backoff=SOON)
def wait_for(path: str) -> None:
    """Run until this file exists."""
    while not Path(path).exists():
        time.sleep(0.02)


@task(concurrency=Concurrency(1, key="{turn}"), max_attempts=MANY, backoff=SOON)
def take_turns(turn: int, number: int) -> int:
    """Run alone among the tasks of this turn."""
    return number


@task(max_attempts=MANY, backoff=SOON)
async def work_later(number: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return number


@task(takes_context=True, max_attempts=MANY, backoff=SOON)
def look(context: Context, number: int, seconds: float = 0.0) -> int:
    """Use the ORM before and after a pause, on Django's connection of this thread."""
    row = Task.objects.filter(pk=context.task_result.id)
    row.get()
    time.sleep(seconds)
    row.get()
    return number


@task(takes_context=True, max_attempts=MANY, backoff=SOON)
async def look_later(context: Context, number: int, seconds: float = 0.0) -> int:
    """Use the ORM before and after a pause, from the event loop."""
    row = Task.objects.filter(pk=context.task_result.id)
    await row.aget()
    await asyncio.sleep(seconds)
    await row.aget()
    return number


@task(takes_context=True, max_attempts=MANY, backoff=SOON)
def stumble(context: Context, number: int) -> int:
    """Fail twice, so that the task is retried after a delay."""
    if context.attempt < 3:
        raise RuntimeError("as asked")
    return number


@task(takes_context=True, max_attempts=MANY, backoff=SOON)
def begin(context: Context, number: int, seconds: float = 0.0) -> int:
    """Note when the body begins, which is what a rate limits."""
    note("begun", task=context.task_result.id)
    time.sleep(seconds)
    return number


@task(takes_context=True, max_attempts=MANY, backoff=SOON)
async def begin_later(context: Context, number: int, seconds: float = 0.0) -> int:
    note("begun", task=context.task_result.id)
    await asyncio.sleep(seconds)
    return number


class NumberCollector(Actor, max_attempts=MANY, backoff=SOON):
    """Keeps every received number in its state. Every other poll also writes it in a commit function's effects."""

    @dataclass
    class State:
        seen: list[int] = field(default_factory=list)

    def poll(self, context: PollContext[State]) -> Any:
        received = [message.body for message in context.inbox.take()]
        context.state.seen += [body for body in received if body != END]
        action = Done(context.state.seen) if END in received else Suspend()
        if context.polls % 2:
            return action

        def commit() -> Any:
            for body in received:
                enter("entered", f"{context.key}:{body}", str(context.id))
            return action

        return commit
