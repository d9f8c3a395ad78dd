"""Tasks that tests enqueue and run."""

from __future__ import annotations

import asyncio
from typing import Any

from jobqueue import Backoff, task
from jobqueue.conf.compat import TaskContext


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
def echo(value: Any = None) -> Any:
    return value


@task(max_attempts=2, backoff=Backoff(base=0.01, jitter=0.0))
def fail(message: str = "as asked") -> None:
    raise ValueError(message)


@task(takes_context=True)
def echo_context(context: TaskContext[..., Any], value: int = 0) -> dict[str, Any]:
    return {"attempt": context.attempt, "id": context.task_result.id, "value": value}


@task
async def add_later(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


@task(max_attempts=2, backoff=Backoff(base=0.01, jitter=0.0))
async def fail_later(message: str = "as asked") -> None:
    await asyncio.sleep(0)
    raise ValueError(message)


@task(allow_http=True)
def greet(name: str, *, password: str = "", times: int = 1) -> str:
    return f"hello {name}" * times


@task(name="tests.stable", queue_name="named", priority=7, max_attempts=9, timeout=30)
def named(*parts: str, flag: bool = False, **rest: Any) -> None: ...


from tests.acceptance import tasks as acceptance_tasks  # noqa: E402, F401 - registered with the others


@task(takes_context=True)
def echo_tick(context: Any) -> list[str]:
    return [context.schedule, context.scheduled_at.isoformat()]
