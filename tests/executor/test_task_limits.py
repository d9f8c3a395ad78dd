"""Tasks with limits in real executors: every kind of task obeys, and what people do keeps its meaning."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction

from jobqueue import Concurrency, api
from jobqueue.declarations.schedules import schedule
from jobqueue.engine import engine_for
from jobqueue.engine.admissions import Admissions
from jobqueue.models import Heartbeat, Task
from jobqueue.schedules.expressions import Every
from jobqueue.values.records import ClaimRequest, ExecutorInfo
from jobqueue.values.states import LimitKind, Status
from tests.executor import limited_tasks, tasks
from tests.executor.harness import (
    Burst,
    Start,
    gates,
    on_both_databases,
    on_postgresql,
    row_of,
    wait_for_status,
    wait_for_turns,
)
from tests.waiting import wait_until

pytestmark = on_postgresql

EXPIRED = "jobqueue.exceptions.Expired"


def rows(backend: str) -> Any:
    return Task.objects.using(backend)


def create(gate: str, number: int) -> None:
    """Create a task by SQL, which knows nothing of limits."""
    with connection.cursor() as cursor:
        call = "SELECT jobqueue_create_task(NULL, 'tests.executor.limited_tasks.wait_alone', args => %s)"
        cursor.execute(call, [f'["{gate}", {number}]'])


def wait_for_blocked(count: int, backend: str = "default") -> None:
    wait_until(lambda: rows(backend).blocked().count() == count, f"{count} blocked tasks")


@pytest.mark.parametrize(
    "body", [tasks.wait_at, tasks.wait_later, limited_tasks.wait_alone_atomically], ids=["threads", "async", "atomic"]
)
@on_both_databases
def test_two_executors_together_run_no_more_than_the_limit(start: Start, body: Any, backend: str) -> None:
    limited = body.using(concurrency=Concurrency(2, key="{gate}"), backend=backend)
    if body is limited_tasks.wait_alone_atomically and backend == "sqlite":
        pytest.skip("SQLite has one writer, so one atomic body at a time")
    limited.enqueue_many([(("gate", number), {}) for number in range(6)])
    executors = [start(threads=6, async_slots=6, backend=backend) for _ in range(2 if backend == "default" else 1)]
    gates["gate"].wait_for(2)
    other = tasks.add.using(backend=backend, queue_name="other").enqueue(1)
    wait_for_status(other, Status.SUCCESSFUL)
    for executor in executors:
        wait_for_turns(executor)

    assert len(gates["gate"].arrived) == 2
    assert rows(backend).blocked().count() == 4

    gates["gate"].open()
    wait_until(lambda: rows(backend).successful().count() == 7)


@on_both_databases
def test_tasks_of_a_key_run_one_after_the_other_by_priority(start: Start, backend: str) -> None:
    limited = limited_tasks.wait_alone.using(backend=backend)
    with transaction.atomic(using=backend):
        limited.using(priority=10).enqueue("gate", "first")
        limited.using(priority=0).enqueue("gate", "third")
        limited.using(priority=5).enqueue("gate", "second")
    start(threads=4, backend=backend)
    gates["gate"].wait_for()
    gates["gate"].open()
    wait_until(lambda: rows(backend).successful().count() == 3)

    assert gates["gate"].arrived == ["first", "second", "third"]


@on_both_databases
def test_starts_keep_to_the_rate(burst: Burst, backend: str) -> None:
    limited_tasks.start_at_a_rate.using(backend=backend).enqueue_many([(("gate",), {}) for _ in range(5)])

    burst(backend=backend, threads=4)

    starts = sorted(rows(backend).values_list("last_attempted_at", flat=True))
    assert len(gates["gate"].arrived) == 5
    for first, third in zip(starts, starts[2:], strict=False):
        assert third - first >= timedelta(seconds=0.5)


@on_both_databases
def test_actor_does_not_count_while_it_is_suspended(start: Start, backend: str) -> None:
    actor = limited_tasks.WaitsInTurn.using(backend=backend)
    first, second = actor.enqueue("gate", "first"), actor.enqueue("gate", "second")
    start(backend=backend)
    gates["gate"].wait_for(2)
    wait_for_status(second, Status.SUSPENDED)

    api.wake([first.id, second.id], backend=backend)

    wait_for_status(first, Status.SUCCESSFUL)
    wait_for_status(second, Status.SUCCESSFUL)


@on_both_databases
def test_children_with_a_limit_run_one_after_the_other(start: Start, backend: str) -> None:
    parent = limited_tasks.HasLimitedChildren.using(backend=backend).enqueue("gate", 3)
    executor = start(threads=4, backend=backend)
    gates["gate"].wait_for()
    wait_for_turns(executor)
    assert rows(backend).blocked().count() == 2

    gates["gate"].open()

    wait_for_status(parent, Status.SUCCESSFUL)
    assert sorted(gates["gate"].arrived) == [0, 1, 2]


@on_both_databases
@pytest.mark.usefixtures("own_schedules")
def test_ticks_of_a_schedule_obey_the_limit(start: Start, backend: str) -> None:
    schedule("each-second", limited_tasks.wait_alone, Every(seconds=1), args=["gate"], overlap="allow", backend=backend)
    start(threads=4, backend=backend)
    gates["gate"].wait_for()
    wait_until(lambda: rows(backend).blocked().count() >= 1, "a blocked tick")

    assert len(gates["gate"].arrived) == 1


def test_tasks_that_sql_has_made_obey_the_limit_of_their_code(start: Start) -> None:
    for number in range(3):
        create("gate", number)
    executor = start(threads=4)
    gates["gate"].wait_for()
    wait_for_blocked(2)
    wait_for_turns(executor)
    assert len(gates["gate"].arrived) == 1

    gates["gate"].open()
    wait_until(lambda: rows("default").successful().count() == 3)


def test_task_that_sql_has_made_does_not_run_without_its_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session has locked its row, so that its limit cannot be written at first."""
    apply, tries = Admissions.impose_limits, []

    def apply_to_locked_rows(self: Admissions, claims: Any) -> set[UUID]:
        tries.append(claims)
        return set() if len(tries) == 1 else apply(self, claims)

    monkeypatch.setattr(Admissions, "impose_limits", apply_to_locked_rows)
    limited_tasks.wait_alone.using(priority=1).enqueue("gate", 0)
    executor = start(threads=4)
    gates["gate"].wait_for()

    create("gate", 1)

    wait_for_blocked(1)
    wait_for_turns(executor)
    assert gates["gate"].arrived == [0]
    gates["gate"].open()
    wait_until(lambda: rows("default").successful().count() == 2)


@on_both_databases
def test_rescued_task_runs_before_the_next_of_its_key(start: Start, backend: str) -> None:
    first = limited_tasks.wait_alone.using(backend=backend).enqueue("gate", "first")
    second = limited_tasks.wait_alone.using(backend=backend).enqueue("gate", "second")
    engine = engine_for(backend)
    engine.admissions.admit()
    lost = ExecutorInfo(executor_id=uuid4(), name="lost", host="", pid=1, versions={}, queues=[], slots=1)
    engine.executors.heartbeat(lost)
    (claimed,) = engine.claims.claim(ClaimRequest(executor_id=lost.executor_id, queues=["default"], limit=1))
    assert str(claimed.id) == first.id
    long_ago = engine.db.now() - timedelta(days=1)
    rows(backend).filter(pk=first.id).update(claimed_at=long_ago)
    Heartbeat.objects.using(backend).filter(pk=lost.executor_id).update(at=long_ago)
    gates["gate"].open()

    assert len(engine.executors.rescue()) == 1
    start(backend=backend)

    assert wait_for_status(first, Status.SUCCESSFUL).executor_losses == 1
    wait_for_status(second, Status.SUCCESSFUL)
    assert gates["gate"].arrived == ["first", "second"]


@on_both_databases
def test_retries_that_still_count_keep_the_order(burst: Burst, backend: str) -> None:
    limited_tasks.fail_twice.using(backend=backend).enqueue_many([(("gate", name), {}) for name in ("a", "b")])

    burst(backend=backend, threads=4)

    assert gates["gate"].arrived == ["a", "a", "a", "b", "b", "b"]


@pytest.mark.parametrize(
    "body",
    [limited_tasks.meet_conflict_first, limited_tasks.be_stale_first, limited_tasks.be_stale_first_later],
    ids=["conflict", "stale", "async"],
)
@on_both_databases
def test_runs_that_are_not_counted_keep_the_order(burst: Burst, body: Any, backend: str) -> None:
    if body is limited_tasks.meet_conflict_first and backend == "sqlite":
        pytest.skip("SQLite has no conflicts")
    body.using(backend=backend).enqueue_many([(("gate", name), {}) for name in ("a", "b", "c")])

    burst(backend=backend, threads=4)

    assert gates["gate"].arrived == ["a", "a", "b", "c"]


@on_both_databases
def test_task_released_at_the_end_of_an_executor_is_the_first_again(start: Start, backend: str) -> None:
    limited = limited_tasks.wait_alone.using(backend=backend, queue_name="limited")
    first, second = limited.enqueue("gate", "first"), limited.enqueue("gate", "second")
    executor = start(backend=backend, threads=1, shutdown_timeout=0.0)
    gates["gate"].wait_for()
    executor.stop()
    assert [row_of(result).status for result in (first, second)] == ["READY", "BLOCKED"]

    gates["gate"].open()
    start(backend=backend)

    wait_for_status(second, Status.SUCCESSFUL)
    assert gates["gate"].arrived == ["first", "first", "second"]


def cancel(result: Any) -> None:
    api.cancel(result.id, backend=result.backend)


def expire(result: Any) -> None:
    rows(result.backend).filter(pk=result.id).update(expires_at=engine_for(result.backend).db.now())
    gates["gate"].open()


@on_both_databases
def test_next_task_starts_after_a_cancelled_one(start: Start, backend: str) -> None:
    limited = limited_tasks.wait_alone.using(backend=backend)
    first, second, third = (limited.enqueue("gate", number) for number in range(3))
    start(backend=backend)
    gates["gate"].wait_for()

    cancel(second)
    cancel(first)
    gates["gate"].open()

    wait_for_status(second, Status.CANCELLED)
    wait_for_status(third, Status.SUCCESSFUL)
    assert row_of(first).status in (Status.CANCELLED, Status.SUCCESSFUL)
    assert 1 not in gates["gate"].arrived


@on_both_databases
def test_task_that_expires_while_it_is_blocked_does_not_run(start: Start, backend: str) -> None:
    limited = limited_tasks.wait_alone.using(backend=backend)
    first, second, third = (limited.enqueue("gate", number) for number in range(3))
    start(backend=backend)
    gates["gate"].wait_for()

    expire(second)

    wait_for_status(first, Status.SUCCESSFUL)
    failed = wait_for_status(second, Status.FAILED)
    assert failed.errors[-1]["exception_class_path"] == EXPIRED
    wait_for_status(third, Status.SUCCESSFUL)
    assert gates["gate"].arrived == [0, 2]


@on_both_databases
def test_task_of_a_paused_queue_starts_after_it_is_resumed(start: Start, backend: str) -> None:
    limited = limited_tasks.wait_alone.using(backend=backend, queue_name="limited")
    api.pause("limited", backend=backend)
    first, second = limited.enqueue("gate", "first"), limited.enqueue("gate", "second")
    executor = start(backend=backend)
    wait_for_turns(executor)
    assert gates["gate"].arrived == []

    api.resume("limited", backend=backend)
    gates["gate"].open()

    wait_for_status(first, Status.SUCCESSFUL)
    wait_for_status(second, Status.SUCCESSFUL)


@on_both_databases
def test_requeued_task_is_blocked_first(start: Start, backend: str) -> None:
    limited = limited_tasks.wait_alone.using(backend=backend)
    again = limited.enqueue("gate", "again")
    cancel(again)
    first = limited.enqueue("gate", "first")
    start(backend=backend, threads=4)
    gates["gate"].wait_for()

    api.requeue(again.id, backend=backend)
    wait_for_blocked(1, backend)
    gates["gate"].open()

    wait_for_status(first, Status.SUCCESSFUL)
    wait_for_status(again, Status.SUCCESSFUL)
    assert gates["gate"].arrived == ["first", "again"]


@on_both_databases
def test_raised_number_lets_blocked_tasks_start(start: Start, backend: str) -> None:
    limited_tasks.wait_alone.using(backend=backend).enqueue_many([(("gate", number), {}) for number in range(3)])
    start(backend=backend, threads=4)
    gates["gate"].wait_for()
    wait_for_blocked(2, backend)

    (key,) = {row.concurrency_key for row in rows(backend).all()}
    engine_for(backend).limits.set(LimitKind.CONCURRENCY, str(key), 3)

    assert sorted(gates["gate"].wait_for(3)) == [0, 1, 2]
