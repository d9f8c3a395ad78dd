"""A failure outside of a body, as by a lack of memory, uses no attempt: the task starts again."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.executor.pools import event_loop, threads
from jobqueue.executor.running import task_runner
from jobqueue.values.states import Status
from tests.executor import tasks
from tests.executor.harness import Burst, on_postgresql, row_of

pytestmark = on_postgresql


@pytest.mark.parametrize(
    ("body", "owner", "name", "error"),
    [
        (tasks.add, task_runner, "decode", MemoryError()),
        (tasks.add, threads, "poll_in_thread", MemoryError()),
        (tasks.add, threads, "poll_in_thread", RuntimeError("a mistake of ours")),
        (tasks.add_later, event_loop, "AsyncRun", RuntimeError("can't start new thread")),
        (tasks.add_later, event_loop, "AsyncRun", RuntimeError("a mistake of ours")),
    ],
    ids=["before it begins", "in a thread", "a mistake in a thread", "on the loop", "a mistake on the loop"],
)
def test_failure_outside_of_a_body_is_no_attempt(
    burst: Burst,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    body: Any,
    owner: Any,
    name: str,
    error: Exception,
) -> None:
    original, failures = getattr(owner, name), [error] * 3

    def fail_at_first(*args: Any, **parameters: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args, **parameters)

    monkeypatch.setattr(owner, name, fail_at_first)
    results = body.using(max_attempts=1).enqueue_many([((number,), {}) for number in range(2)])

    burst(threads=1, async_slots=1)

    rows = [row_of(result) for result in results]
    assert [(row.status, row.attempts, row.errors) for row in rows] == [(Status.SUCCESSFUL, 0, [])] * 2
    assert not failures
    assert caplog.text.count("task.aborted task=") == (3 if "mistake" in str(error) else 0)
