"""Bodies that real executors run in the acceptance tests."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from jobqueue import Backoff, task
from jobqueue.compat import TaskContext
from tests.models import Effect

SOON = Backoff(base=0.1, cap=1.0, jitter=0.0)


def note(context: TaskContext[..., Any], kind: str) -> None:
    Effect.objects.create(task_id=UUID(context.task_result.id), kind=kind, pid=os.getpid())


def pause(seconds: float) -> None:
    """Sleep so that an interruption gets through."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(0.02, left))


@task
def tiny(number: int = 0) -> int:
    return number


@task(atomic=True, takes_context=True, max_attempts=20, backoff=SOON)
def book(context: TaskContext[..., Any], seconds: float = 0.0) -> None:
    """Commit one effect together with the outcome."""
    note(context, "booked")
    pause(seconds)


@task(takes_context=True, max_attempts=20, backoff=SOON)
def work(context: TaskContext[..., Any], seconds: float = 0.0) -> int:
    """Work without the database in between: an interruption ends it, an outage does not."""
    note(context, "started")
    pause(seconds)
    return os.getpid()


@task(takes_context=True, max_attempts=20, backoff=SOON)
async def work_later(context: TaskContext[..., Any], seconds: float = 0.0) -> int:
    await Effect.objects.acreate(task_id=UUID(context.task_result.id), kind="started", pid=os.getpid())
    await asyncio.sleep(seconds)
    return os.getpid()


@task
def compute(seconds: float) -> int:
    """Work without any database."""
    pause(seconds)
    return os.getpid()


@task(takes_context=True)
def hang(context: TaskContext[..., Any], seconds: float) -> None:
    """Sleep in one call of C, deaf to interruptions."""
    note(context, "started")
    time.sleep(seconds)
    note(context, "woke up")


@task(takes_context=True)
async def block_loop(context: TaskContext[..., Any], seconds: float) -> None:
    """Keep the event loop, and everybody on it, from going on."""
    await Effect.objects.acreate(task_id=UUID(context.task_result.id), kind="started", pid=os.getpid())
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@task(takes_context=True)
def kill_process(context: TaskContext[..., Any]) -> None:
    note(context, "started")
    os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def exit_with(context: TaskContext[..., Any], code: int) -> None:
    """End the process as C code may, with a code that means something to a supervisor."""
    note(context, "started")
    os._exit(code)


@task
def leave_a_thread(kind: str) -> None:
    """End before a thread does that Python waits for."""

    def work() -> None:
        Effect.objects.count()
        began.set()
        threading.Event().wait()

    began = threading.Event()
    if kind == "pool":
        ThreadPoolExecutor(1, thread_name_prefix="left-behind").submit(work)
    else:
        threading.Thread(target=work, name="left-behind", daemon=False).start()
    began.wait()


@task
def break_thread(name: str) -> None:
    """Make a thread of the executor itself fail at its next step."""

    def fail(*_: object) -> None:
        raise RuntimeError(f"{name} fails, as asked")

    replace_step(name, fail)


@task
def stall_thread(name: str) -> None:
    """Make a thread of the executor itself wait for ever at its next step."""
    replace_step(name, lambda *_: threading.Event().wait())


def replace_step(name: str, by: Callable[..., object]) -> None:
    step = {"pulse": "_turn", "heartbeat": "beat", "watchdog": "_look"}[name]
    for thread in threading.enumerate():
        if thread.name == name:
            setattr(thread, step, by)


if "TESTS_IMPORT" in os.environ:
    importlib.import_module(os.environ["TESTS_IMPORT"])  # code that a test edits

if "TESTS_WITHOUT_NEWS" not in os.environ:

    @task(name="tests.news")
    def news() -> str:
        """Stands for code that only a newer deployment has."""
        return "known"
