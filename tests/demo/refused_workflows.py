"""Workflows that break a rule of docs/workflows.md, by the beginning of the rule's row in its table of refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

import jobqueue
from jobqueue import WorkflowContext
from jobqueue.declarations.workflow_context import AsyncWorkflowContext
from jobqueue.models import Task

HOUR = timedelta(hours=1)
refused: dict[str, Any] = {}
runs = 0  # of the workflow that a test has enqueued


def run() -> int:
    """Return the number of this run."""
    global runs
    runs += 1
    return runs


def refuse(row: str) -> Callable[[Any], Any]:
    def declare(function: Any) -> Any:
        refused[row] = jobqueue.workflow(max_attempts=1)(function)
        return refused[row]

    return declare


def charge(order_id: Any) -> Any:
    return order_id


def charge_in_detail(order_id: Any) -> dict[str, int]:
    return {"order": order_id}


@refuse("a query outside")
def query(context: WorkflowContext) -> None:
    Task.objects.count()


@refuse("`datetime.now()`")
def clock(context: WorkflowContext) -> None:
    datetime.now()


@refuse("a foreign `await`")
async def foreign(context: AsyncWorkflowContext) -> None:
    await asyncio.sleep(1)


@refuse("a recorded call with")
def other_arguments(context: WorkflowContext) -> None:
    context.step(charge, run())
    context.sleep(HOUR)


@refuse("another call under")
def other_kind(context: WorkflowContext) -> None:
    if run() == 1:
        context.step(jobqueue.step(name="sleep")(charge), 1)
        context.receive(timeout=HOUR)
    context.sleep(HOUR)


@refuse("another type")
def other_type(context: WorkflowContext) -> None:
    context.step(jobqueue.step(name="charge")(charge if run() == 1 else charge_in_detail), 1)
    context.sleep(HOUR)


@refuse("a call of the context in a step")
def call_in_step(context: WorkflowContext) -> None:
    context.step(jobqueue.step(name="outer", max_attempts=1)(context.sleep), HOUR)


@refuse("a call of the context in `transaction")
def call_in_transaction(context: WorkflowContext) -> None:
    with transaction.atomic():
        context.sleep(HOUR)


@refuse("more than 10,000")
def long_journal(context: WorkflowContext) -> None:
    for _ in range(10_001):
        context.random()


@refuse("a step that returns no JSON")
def no_json(context: WorkflowContext) -> None:
    context.step(charge, object())


@refuse("a step that returns too much")
def too_much(context: WorkflowContext) -> None:
    context.step(charge, "x" * 2_000_000)


@refuse("a step without a name")
def no_name(context: WorkflowContext) -> None:
    context.step(lambda: 1)


@refuse("`spawn()` of")
def spawned_function(context: WorkflowContext) -> None:
    context.spawn(charge, 1)  # type: ignore[call-overload]


@refuse("`continue_as_new()` in")
def new_journal_in_block(context: WorkflowContext) -> None:
    with context.compensate(charge, 1):
        context.continue_as_new()
