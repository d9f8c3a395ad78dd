"""Journals of workflows in any state, as rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobqueue.models import JournalEntry, Task
from tests.factories import EntryFactory, TaskFactory, ago, error, now

CHECKOUT = "shop.tasks.checkout"
SECRET = "4111-1111"


def make_checkout(backend: str = "default", *, status: str = "SUSPENDED", **columns: Any) -> Task:
    """Create a workflow that waits for Shipped or CancelOrder: two steps, a compensation, and a child."""
    until = now() + timedelta(days=3)
    waiting = {"name": "receive", "kind": "receive", "types": ["Shipped", "CancelOrder"], "until": until.isoformat()}
    values = {"code": "3f2a9c01", "waiting": waiting} if status == "SUSPENDED" else {"code": "3f2a9c01"}
    trait = {"SUSPENDED": "suspended", "RUNNING": "running", "FAILED": "failed"}[status]
    task = TaskFactory.create(
        **{"backend": backend, "using": backend, "task_type": CHECKOUT, "inner_state": values, trait: True, **columns}
    )
    card = {"order_id": 42, "card": {"number": SECRET, "token": SECRET}}
    add(task, "charge_card", arguments=card, value={"charge": "ch_42", "note": f"paid with {SECRET}"}, attempts=2)
    add(task, "refund", kind="COMPENSATION", status="WAITING", arguments={"charge": "ch_42"}, attempts=0)
    child = TaskFactory.create(
        backend=backend, using=backend, running=True, task_type="shop.tasks.pack", parent_id=task.pk
    )
    add(task, "pack", kind="SPAWN", status="WAITING", child_id=child.pk, attempts=0)
    add(
        task, "notify", status="RETRYING", arguments={"to": "anna"}, attempts=1,
        error=error(f"no answer for {SECRET}"), due_at=now() + timedelta(minutes=3),
    )  # fmt: skip
    add(task, "sleep", kind="SLEEP", attempts=0, started_at=ago(9000), finished_at=ago(1000))
    add(task, "receive", kind="RECEIVE", status="WAITING", due_at=until, attempts=0)
    return task


def add(task: Task, name: str, **columns: Any) -> JournalEntry:
    return EntryFactory.create(using=task.backend, task_id=task.pk, name=name, **columns)
