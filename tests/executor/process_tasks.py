"""Tasks that run in child processes."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from jobqueue import GiveUp, Retry, task
from jobqueue.declarations.context import Context
from jobqueue.models import Task

logger = logging.getLogger("shop")
leaked: list[bytes] = []


class Unpicklable(Exception):
    """An error that pickle cannot make again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


@task(process=True)
def show_process(value: Any) -> dict[str, Any]:
    return {"pid": os.getpid(), "parent": os.getppid(), "value": value}


@task(process=True, takes_context=True)
def report(context: Context) -> list[Any]:
    context.progress(3, 5, "three of five")
    logger.warning("half %s", "done")
    return [str(context.task_result.id), context.attempt, context.idempotency_key]


@task(process=True)
def count_tasks() -> int:
    return Task.objects.count()


@task(process=True)
def leave_transaction() -> None:
    transaction.set_autocommit(False)
    Task.objects.count()


@task(process=True, max_attempts=1)
def fail() -> None:
    raise Unpicklable(5, "boom")


@task(process=True, max_attempts=1)
def read_missing_file() -> None:
    Path("/nowhere/at/all").read_text()


@task(process=True, max_attempts=1)
def connect_to_wrong_port() -> int:
    """Get no connection in the first attempt of this process."""
    if "was_refused" in globals():
        return Task.objects.count()
    globals()["was_refused"] = True
    settings = connection.settings_dict
    right = settings["HOST"], settings["PORT"]
    settings["HOST"], settings["PORT"] = "127.0.0.1", "1"
    try:
        return Task.objects.count()
    finally:
        settings["HOST"], settings["PORT"] = right


@task(process=True, max_attempts=2)
def answer(kind: str) -> None:
    try:
        raise KeyError("the reason")
    except KeyError as error:
        raise (Retry(after=0.0) if kind == "retry" else GiveUp()) from error


@task(process=True, max_attempts=1)
def crash(how: str) -> None:
    if how == "exit":
        os._exit(7)
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), 9)


@task(process=True, max_attempts=1)
def crash_after_fork(path: str) -> None:
    """Leave a program that keeps the socket of this process open."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    Path(path).write_text(str(pid))
    os._exit(7)


@task(process=True, max_attempts=1, timeout=0.5)
def keep_gil() -> None:
    ctypes.PyDLL(None).sleep(60)


@task(process=True, takes_context=True)
def sleep(context: Context) -> None:
    context.progress(1)
    while True:
        time.sleep(0.01)


@task(process=True, takes_context=True)
def wait_for_stop(context: Context) -> None:
    context.progress(1)
    while not context.cancelled:
        time.sleep(0.01)


@task(process=True, max_attempts=1, max_memory=150)
def grow() -> None:
    kept = [bytes([1]) * 1_000_000 for _ in range(200)]
    time.sleep(60)
    kept.clear()


@task(process=True)
def leak() -> int:
    leaked.append(b"1" * 150_000_000)
    return os.getpid()


@task(process=True, max_attempts=1, max_memory=150)
def show_limited_process() -> int:
    return os.getpid()


@task(process=True, takes_context=True)
def keep_place(context: Context) -> Any:
    if context.last_checkpoint is None:
        context.checkpoint({"place": 5})
        raise Retry(after=0.0)
    return context.last_checkpoint
