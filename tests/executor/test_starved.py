"""A process without memory or threads: a task that it cannot start or finish has not failed."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.executor.pools import event_loop, threads
from jobqueue.executor.running import task_runner
from jobqueue.records import Status
from tests.executor import tasks
from tests.executor.harness import Burst, on_postgresql, row_of

pytestmark = on_postgresql


@pytest.mark.parametrize(
    ("body", "owner", "name", "error"),
    [
        (tasks.add, task_runner, "decode", MemoryError()),
        (tasks.add, threads, "poll_in_thread", MemoryError()),
        (tasks.add_later, event_loop, "run_async_task", RuntimeError("can't start new thread")),
    ],
    ids=["before it begins", "in a thread", "on the loop"],
)
def test_task_starts_again_after_a_lack_of_memory_or_threads(
    burst: Burst, monkeypatch: pytest.MonkeyPatch, body: Any, owner: Any, name: str, error: Exception
) -> None:
    original, left = getattr(owner, name), [error] * 2

    def fail_twice(*args: Any, **parameters: Any) -> Any:
        if left:
            raise left.pop()
        return original(*args, **parameters)

    monkeypatch.setattr(owner, name, fail_twice)
    result = body.using(max_attempts=1).enqueue(1)

    burst()

    row = row_of(result)
    assert (row.status, row.attempts, row.errors, left) == (Status.SUCCESSFUL, 0, [], [])
