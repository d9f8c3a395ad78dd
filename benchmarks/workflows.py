"""The workflows that benchmarks run: ten steps, which are plain functions, and a parent of many children."""

from __future__ import annotations

from benchmarks.tasks import noop
from jobqueue import WorkflowContext, workflow

STEPS = 10


def add_one(total: int) -> int:
    return total + 1


@workflow
def ten_steps(context: WorkflowContext, total: int) -> int:
    for _ in range(STEPS):
        total = context.step(add_one, total)
    return total


@workflow
def fan_out(context: WorkflowContext, children: int) -> int:
    return len(context.gather(*[context.spawn(noop) for _ in range(children)]))
