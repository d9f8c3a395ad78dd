"""The workflow that benchmarks run: ten steps, which are plain functions."""

from __future__ import annotations

from jobqueue import WorkflowContext, workflow

STEPS = 10


def add_one(total: int) -> int:
    return total + 1


@workflow
def ten_steps(context: WorkflowContext, total: int) -> int:
    for _ in range(STEPS):
        total = context.step(add_one, total)
    return total
