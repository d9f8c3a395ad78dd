"""Workflows, steps and messages of the tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobqueue import AsyncWorkflowContext, WorkflowContext, task, workflow


@dataclass
class Shipped:
    tracking: str


@dataclass
class CancelOrder:
    reason: str = ""


@dataclass
class Receipt:
    tracking: str
    weight: int


class OrderCancelled(Exception):
    pass


charges: list[int] = []
refunds: list[str] = []


def charge_card(order_id: int) -> str:
    charges.append(order_id)
    return f"charge-{order_id}"


def refund(charge: str) -> None:
    refunds.append(charge)


@task
def pack(item: int) -> int:
    if item < 0:
        raise ValueError("no such item")
    return item * 10


@workflow(key="order-{order_id}")
def checkout(context: WorkflowContext, order_id: int, items: list[int]) -> Receipt:
    charge = context.step(charge_card, order_id)
    with context.compensate(refund, charge):
        match context.receive(Shipped, CancelOrder, timeout=timedelta(days=3)):
            case Shipped() as shipped:
                pass
            case CancelOrder() | None:
                raise OrderCancelled
    weights = context.gather(*(context.spawn(pack, item) for item in items))
    return Receipt(shipped.tracking, sum(weights))


@workflow
def fib(context: WorkflowContext, n: int) -> int:
    if n <= 2:
        return 1
    a, b = context.gather(context.spawn(fib, n - 1), context.spawn(fib, n - 2))
    return a + b


@workflow
async def later(context: AsyncWorkflowContext, seconds: int) -> int:
    await context.sleep(timedelta(seconds=seconds))
    return await context.step(double, seconds)


async def double(number: int) -> int:
    return number * 2
