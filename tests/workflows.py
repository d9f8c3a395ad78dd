"""Workflows that tests show and start."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue import WorkflowContext, workflow


@dataclass
class Approval:
    """The answer of a person."""

    by: str
    amount: int = 1


@workflow
def approve(context: WorkflowContext, order_id: int) -> int:
    """Wait for a person."""
    approval = context.receive(Approval)
    return approval.amount
