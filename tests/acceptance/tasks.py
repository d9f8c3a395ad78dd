"""Bodies that real executors run in the acceptance tests."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue import Backoff, task
from jobqueue.conf.compat import TaskContext, TaskResult, task_enqueued, task_finished, task_started
from tests.models import Effect

STEPS = {"loop": "run_once", "heartbeat": "beat", "watchdog": "_check"}  # of the executor's own threads
SOON = Backoff(base=0.1, cap=1.0, jitter=0.0)


def note(context: TaskContext[..., Any], kind: str) -> None:
    Effect.objects.create(task_id=UUID(context.task_result.id), kind=kind, pid=os.getpid())


def pause(seconds: float) -> None:
    """Sleep in short steps, so that an interruption can end the body."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(0.02, left))


@task
def tiny(number: int = 0) -> int:
    return number


@task(takes_context=True)
def keep_place(context: Any) -> int:
    """Kill the process behind the second checkpoint."""
    for number in range(context.last_checkpoint or 0, 4):
        if number == 2 and context.last_checkpoint is None:
            os.kill(os.getpid(), signal.SIGKILL)
        context.checkpoint(number + 1)
    return int(context.last_checkpoint)


@task(atomic=True, takes_context=True, max_attempts=20, backoff=SOON)
def book(context: TaskContext[..., Any], seconds: float = 0.0) -> None:
    """Commit one effect together with the outcome."""
    note(context, "booked")
    pause(seconds)


@task(takes_context=True, max_attempts=20, backoff=SOON)
def work(context: TaskContext[..., Any], seconds: float = 0.0) -> int:
    """Write an effect, then sleep without the database. An interruption ends it, an unreachable database does not."""
    note(context, "started")
    pause(seconds)
    return os.getpid()


@task(takes_context=True, max_attempts=20, backoff=SOON)
async def work_later(context: TaskContext[..., Any], seconds: float = 0.0) -> int:
    await Effect.objects.acreate(task_id=UUID(context.task_result.id), kind="started", pid=os.getpid())
    await asyncio.sleep(seconds)
    return os.getpid()


@task(max_attempts=1)
def fail() -> None:
    raise ValueError("as asked")


@task
def compute(seconds: float) -> int:
    """Work without any database."""
    pause(seconds)
    return os.getpid()


@task(takes_context=True)
def hang(context: TaskContext[..., Any], seconds: float) -> None:
    """Sleep in one call of C, which no interruption can end."""
    note(context, "started")
    time.sleep(seconds)
    note(context, "woke up")


@task
def doze(seconds: float) -> None:
    """Sleep in one call of C without any database connection that a timeout could close."""
    time.sleep(seconds)


@task(takes_context=True)
def freeze(context: TaskContext[..., Any], seconds: float) -> None:
    """Sleep in one call of C that keeps the GIL. No thread of the process moves."""
    note(context, "started")
    ctypes.PyDLL(None).sleep(int(seconds))


@task(takes_context=True, max_attempts=1)
def start_children(context: TaskContext[..., Any], kind: str) -> None:
    """Start processes of each kind, note their ids, and sleep as a call of C does."""
    if kind == "fork":
        workers = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600.0,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        pids = [worker.pid for worker in workers]
    else:
        pids = [subprocess.Popen(["sh", "-c", "sleep 600 & wait"]).pid]
    for pid in pids:
        note(context, f"child {pid}")
    time.sleep(600.0)


@task(takes_context=True)
async def block_loop(context: TaskContext[..., Any], seconds: float) -> None:
    """Block the event loop and all tasks on it."""
    await Effect.objects.acreate(task_id=UUID(context.task_result.id), kind="started", pid=os.getpid())
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@task(takes_context=True)
def kill_process(context: TaskContext[..., Any]) -> None:
    note(context, "started")
    os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def segfault(context: TaskContext[..., Any]) -> None:
    """Crash as a broken C extension does."""
    note(context, "started")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def leave_child(way: str) -> None:
    match way:
        case "exits":
            sys.exit(3)
        case "raises":
            raise ValueError("in the child")


@task(max_attempts=1)
def fork_child(way: str) -> int:
    """Fork a child that leaves the body in the given way. Return its exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    leave_child(way)
    return 0


@task(max_attempts=1)
async def fork_child_later(way: str) -> int:
    if pid := os.fork():
        return os.waitstatus_to_exitcode(await asyncio.to_thread(lambda: os.waitpid(pid, 0)[1]))
    if way == "awaits":
        await asyncio.sleep(0)
    leave_child(way)
    return 0


def fork_and_return() -> None:
    os.fork()


@task(atomic=True, max_attempts=1)
def fork_after_the_commit() -> None:
    transaction.on_commit(fork_and_return)


@task(max_attempts=1)
async def fork_in_threads() -> None:
    await asyncio.to_thread(fork_and_return)
    await sync_to_async(fork_and_return)()


@task
def allow_memory(more_bytes: int) -> None:
    """Limit the address space of this process to its present size plus more_bytes."""
    with open("/proc/self/statm") as numbers:
        used = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, resource.RLIM_INFINITY))


@task(max_attempts=2, backoff=SOON)
def eat_memory(piece_bytes: int) -> None:
    """Allocate memory in pieces until none is left."""
    pieces = []
    while True:
        pieces.append(bytearray(piece_bytes))


@task
def count_logged_queries() -> int:
    """Return the number of queries that Django keeps with DEBUG on, on all connections of this process."""
    gc.unfreeze()
    wrappers = [thing for thing in gc.get_objects() if isinstance(thing, BaseDatabaseWrapper)]
    return sum(len(wrapper.queries_log) for wrapper in wrappers)


@task(takes_context=True)
def exit_with(context: TaskContext[..., Any], code: int) -> None:
    """End the process as C code can, with an exit code that means something to a supervisor."""
    note(context, "started")
    os._exit(code)


@task
def leave_a_thread(kind: str) -> None:
    """End before a thread that Python joins at exit."""

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
def register_slow_exit(path: str) -> None:
    """Register a function of atexit that takes longer than the executor waits for threads."""
    from jobqueue.executor.exit_status import LINGER_SECONDS  # a web process must not load the executor

    def finish() -> None:
        time.sleep(LINGER_SECONDS + 0.5)
        Path(path).touch()

    atexit.register(finish)


@task
def break_thread(name: str, how: str) -> None:
    """Let a thread of the executor fail, stall or run out of memory at its next step."""

    def fail(*_: object) -> None:
        match how:
            case "fails":
                raise RuntimeError(f"{name} fails, as asked")
            case "stalls":
                threading.Event().wait()
            case "starves":
                delattr(thread, step)  # later steps run as usual
                raise MemoryError

    step = STEPS[name]
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    setattr(thread, step, fail)


if "TESTS_IMPORT" in os.environ:
    importlib.import_module(os.environ["TESTS_IMPORT"])  # a module that a test edits

if "TESTS_NEWS_WITHOUT_TITLE" in os.environ:

    @task(name="tests.news")
    def news() -> str:
        """Stand for code of an older deployment."""
        return "known"

elif "TESTS_WITHOUT_NEWS" not in os.environ:

    @task(name="tests.news")
    def news(title: str = "") -> str:
        """Stand for code of a newer deployment."""
        return "known"


def log_signals(path: str) -> None:
    """Write a line for each signal that receivers get in this process."""

    def write(event: str, task_result: TaskResult[..., Any], **_: Any) -> None:
        moments = {name: getattr(task_result, name) for name in ("enqueued_at", "started_at", "finished_at")}
        with Path(path).open("a") as lines:
            lines.write(json.dumps({"word": event, "id": task_result.id, **moments}, default=str) + "\n")

    for event, task_signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):
        task_signal.connect(partial(write, event), weak=False)


if "TESTS_TOLD" in os.environ:
    log_signals(os.environ["TESTS_TOLD"])
