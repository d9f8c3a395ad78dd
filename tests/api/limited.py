"""Tasks with limits, and rows that wait for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobqueue import Concurrency, Rate, task
from jobqueue.models import RateStart, Task
from tests.factories import TaskFactory, ago


@task(name="tests.imports", concurrency=Concurrency(1, key="account-{account_id}"))
def imports(account_id: int) -> None: ...


@task(name="tests.reindex", concurrency=Concurrency(5))
def reindex() -> None: ...


@task(name="tests.call_api", rate=Rate(100, per=60, key="api-{account_id}"), allow_http=True)
def call_api(account_id: int) -> None: ...


@task(name="tests.charge", concurrency=Concurrency(1, shared="payments", adjustable=False))
def charge() -> None: ...


def waiting(key: str = "tests.imports:account-42", count: int = 1, **columns: Any) -> list[Task]:
    """Create tasks that wait for a concurrency limit."""
    values: dict[str, Any] = {"task_type": key.partition(":")[0], "concurrency_key": key, "concurrency_limit": 1}
    backend = columns.pop("backend", "default")
    values |= {"status": "BLOCKED", "backend": backend, "using": backend, **columns}
    return [TaskFactory.create(**values) for _ in range(count)]


def rated(key: str = "tests.call_api:api-7", count: int = 1, **columns: Any) -> list[Task]:
    """Create tasks that wait for a rate of 100 a minute."""
    values = {"rate_key": key, "rate_limit": 100, "rate_seconds": 60.0, "concurrency_key": None}
    return waiting(key, count, **{**values, "concurrency_limit": None, **columns})


def started(seconds_ago: float = 10.0, **columns: Any) -> list[Task]:
    """Create tasks that a rate has let start, and the starts that it has counted."""
    at = ago(seconds_ago)
    moments: dict[str, Any] = dict.fromkeys(("started_at", "last_attempted_at", "claimed_at", "start_counted_at"), at)
    tasks = rated(status="RUNNING", claim_number=1, **moments, **columns)
    for row in tasks:
        RateStart.objects.using(row.backend).create(
            backend=row.backend,
            key=row.rate_key or "",
            started_at=at,
            expires_at=at + timedelta(seconds=row.rate_seconds or 0.0),
        )
    return tasks
