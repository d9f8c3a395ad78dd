"""The types of the context's calls. mypy checks this file; the test runs its functions as declarations only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from jobqueue import Actor, ChildFailed, Handle, WorkflowContext, step, task, workflow
from jobqueue.declarations.registry import pool_for
from jobqueue.declarations.workflow_context import AsyncWorkflowContext
from jobqueue.values.states import PoolName
from tests.workflow.workflows import CancelOrder, Receipt, Shipped, checkout


def plain(number: int, *, name: str = "") -> str:
    return name * number


async def asynchronous(number: int) -> bytes:
    return b"" * number


@step(max_attempts=3, atomic=True)
def declared_step(number: int) -> float:
    return float(number)


@task
def declared_task(number: int) -> list[int]:
    return [number]


class Sink(Actor):
    def poll(self, context: Any) -> Any:
        return None


def steps(context: WorkflowContext) -> None:
    assert_type(context.step(plain, 1, name="a"), str)
    assert_type(context.step(asynchronous, 1), bytes)
    assert_type(context.step(declared_step, 1), float)
    assert_type(context.step(declared_step.using(name="other"), 1), float)
    assert_type(context.step(declared_task, 1), list[int])
    assert_type(context.step(checkout, 1, [2]), Receipt)
    context.step(plain, "1")  # type: ignore[call-overload]
    context.step(declared_task)  # type: ignore[call-overload]
    context.step(checkout, 1)  # type: ignore[call-overload]


def waits(context: WorkflowContext) -> None:
    assert_type(context.receive(Shipped), Shipped)
    assert_type(context.receive(Shipped, CancelOrder), Shipped | CancelOrder)
    assert_type(context.receive(Shipped, timeout=timedelta(1)), Shipped | None)
    assert_type(context.receive(Shipped, CancelOrder, timeout=timedelta(1)), Shipped | CancelOrder | None)
    assert_type(context.uuid(), UUID)
    assert_type(context.patched("pricing"), bool)


def children(context: WorkflowContext) -> None:
    first, second = context.spawn(declared_task, 1), context.spawn(checkout, 1, [2])
    assert_type(first, Handle[list[int]])
    assert_type(second, Handle[Receipt])
    assert_type(context.spawn(Sink), Handle[Any])
    assert_type(context.gather(first, second), tuple[list[int], Receipt])
    assert_type(context.gather(*[first, first, first, first]), list[list[int]])
    assert_type(context.gather(first, first, first, first, return_exceptions=True), list[list[int] | ChildFailed])
    assert_type(context.wait(first, first), list[Handle[list[int]]])
    context.spawn(plain, 1)  # type: ignore[call-overload]


@workflow
def declared_workflow(context: WorkflowContext, number: int) -> str:
    return "a" * number


async def awaited(context: AsyncWorkflowContext) -> None:
    assert_type(await context.step(plain, 1), str)
    assert_type(await context.step(asynchronous, 1), bytes)
    assert_type(await context.receive(Shipped, timeout=timedelta(1)), Shipped | None)
    assert_type(await context.gather(context.spawn(declared_task, 1)), list[list[int]])
    assert_type(context.now(), datetime)


@workflow(key="a-{number}")
async def declared_coroutine(context: AsyncWorkflowContext, number: int) -> str:
    await context.sleep(timedelta(1))
    return "a"


def enqueues() -> None:
    declared_workflow.enqueue(1)
    declared_workflow.enqueue("1")  # type: ignore[arg-type]
    declared_coroutine.enqueue()  # type: ignore[call-arg]


def test_async_workflow_is_a_plain_function_for_executors() -> None:
    assert pool_for(declared_coroutine.func) is PoolName.THREADS
