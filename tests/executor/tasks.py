"""Bodies for the executor's tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from django.db import connection

from jobqueue import Backoff, GiveUp, Retry, task
from jobqueue.engine import engine_for
from tests.executor.harness import gates

AT_ONCE = Backoff(base=0.0, jitter=0.0)


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def add_later(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


# --- bodies that wait


@task
def wait_at(gate: str, who: Any = None) -> Any:
    gates[gate].pass_through(who)
    return who


@task
async def wait_later(gate: str, who: Any = None) -> Any:
    gates[gate].arrive(who)
    while not gates[gate].is_open.is_set():  # noqa: ASYNC110 - opened by another thread
        await asyncio.sleep(0.005)
    return who


@task
def note(gate: str, who: Any = None) -> None:
    gates[gate].arrive(who)


@task
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@task
async def sleep_later(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def enqueue_another(backend: str, count: int) -> None:
    if count:
        enqueue_another.using(backend=backend).enqueue(backend, count - 1)


# --- bodies that fail


class Weird(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no message for you")


class WeirdExit(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit(3)


class Temporary(Exception):
    pass


class Permanent(Temporary):
    pass


def in_a_circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def nested_groups() -> BaseException:
    group: Exception = ValueError("innermost")
    for depth in range(100):
        group = ExceptionGroup(f"level {depth}", [group, KeyError(depth)])
    return group


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("as asked"),
    "no message": lambda: ValueError(),
    "weird": Weird,
    "weird exit": WeirdExit,
    "circle": in_a_circle,
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "groups": nested_groups,
    "huge": lambda: ValueError("x" * 50_000_000),
    "unstorable": lambda: ValueError("a\x00b\ud800c"),
    "exit": lambda: SystemExit(3),
    "keyboard": lambda: KeyboardInterrupt(),
    "generator": lambda: GeneratorExit(),
    "stop": lambda: StopIteration("enough"),
    "cancelled": lambda: asyncio.CancelledError("by itself"),
    "temporary": Temporary,
    "permanent": Permanent,
}


def raise_one(kind: str) -> NoReturn:
    raise EXCEPTIONS[kind]()


@task(max_attempts=2, backoff=AT_ONCE)
def fail(kind: str = "plain") -> None:
    raise_one(kind)


@task(max_attempts=2, backoff=AT_ONCE)
async def fail_later(kind: str = "plain") -> None:
    await asyncio.sleep(0)
    raise_one(kind)


@task(max_attempts=2, backoff=AT_ONCE)
async def fail_in_a_child(kind: str = "plain") -> None:
    async def child() -> None:
        raise_one(kind)

    await asyncio.gather(asyncio.create_task(child()))


@task(backoff=AT_ONCE)
def fail_by_default() -> None:
    raise_one("plain")


@task(backoff=AT_ONCE, retry_on=Temporary, give_up_on=Permanent)
def fail_selectively(kind: str) -> None:
    raise_one(kind)


@task(max_attempts=2, backoff=Backoff(base=3600.0))
def retry_after(seconds: float, gate: str, *, as_timedelta: bool = False) -> None:
    gates[gate].arrive(engine_for("default").now())
    raise Retry("later", after=timedelta(seconds=seconds) if as_timedelta else seconds)


@task
def retry_much_later() -> None:
    raise Retry("the shop is closed", after=3600)


@task(max_attempts=2, backoff=AT_ONCE, retry_on=Temporary)
def retry_anyway() -> None:
    raise Retry


@task(max_attempts=9)
def give_up() -> None:
    raise GiveUp("the address does not exist")


@task(max_attempts=3, backoff=Backoff(base=0.2, factor=2.0, jitter=0.5))
def fail_with_backoff(backend: str, gate: str) -> None:
    gates[gate].arrive(engine_for(backend).now())
    raise_one("plain")


# --- results


class Unreadable(dict[str, Any]):
    def items(self) -> NoReturn:
        raise RuntimeError("not readable")


RESULTS: dict[str, Callable[[], Any]] = {
    "object": object,
    "nan": lambda: float("nan"),
    "deep": lambda: json.loads("[" * 100 + "]" * 100),
    "long": lambda: 10**5000,
    "large": lambda: "x" * 2_000_000,
    "coroutine": lambda: asyncio.sleep(0),
    "unreadable": lambda: Unreadable(a=1),
    "unstorable": lambda: {"a\x00b": ["\ud800", "\x00"]},
    "tuple": lambda: (1, (2, 3)),
    "none": lambda: None,
}


@task(max_attempts=2, backoff=AT_ONCE)
def give(kind: str) -> Any:
    return RESULTS[kind]()


@task
def session_of_database() -> int:
    """Give the server's process that serves this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])
