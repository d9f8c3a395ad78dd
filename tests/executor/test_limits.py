"""Queues of which only so many tasks run at once, with real executors."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connection

from jobqueue import Concurrency, api
from jobqueue.api import limits
from jobqueue.engine import engine_for
from jobqueue.models import Executor, Limit, Queue, Task
from jobqueue.values.states import LimitKind, Status
from tests.executor import atomic_tasks, tasks
from tests.executor.harness import Start, gates, on_both_databases, on_postgresql, wait_for_status
from tests.waiting import DEADLINE_SECONDS, wait_until


def running(queue: str, backend: str) -> int:
    return Task.objects.using(backend).running().filter(queue_name=queue).count()


@on_both_databases
def test_two_executors_together_run_no_more_than_the_limit(start: Start, backend: str) -> None:
    api.limit_queue("limited", 3, backend=backend)
    limited = tasks.wait_at.using(queue_name="limited", backend=backend)
    limited.enqueue_many([(("gate", number), {}) for number in range(8)])
    executors = [start(threads=8, backend=backend) for _ in range(2 if backend == "default" else 1)]
    gates["gate"].wait_for(3)
    other = tasks.add.using(queue_name="other", backend=backend).enqueue(1)
    wait_for_status(other, Status.SUCCESSFUL)

    assert running("limited", backend) == len(gates["gate"].arrived) == 3

    gates["gate"].open()
    wait_until(lambda: Task.objects.using(backend).successful().count() == 9)
    assert wait_until(lambda: sum(executor.loop.outcomes.counts.finished for executor in executors) == 9)


@on_both_databases
def test_process_respects_its_own_queue_limit(start: Start, backend: str) -> None:
    limited = tasks.wait_at.using(queue_name="limited", backend=backend)
    limited.enqueue_many([(("gate", number), {}) for number in range(8)])
    start(threads=8, backend=backend, queues=("limited", "other"), queue_limits={"limited": 2})
    gates["gate"].wait_for(2)
    other = tasks.add.using(queue_name="other", backend=backend).enqueue(1)
    wait_for_status(other, Status.SUCCESSFUL)

    assert running("limited", backend) == 2
    assert Executor.objects.using(backend).get().queue_limits == {"limited": 2}

    gates["gate"].open()
    wait_until(lambda: Task.objects.using(backend).successful().count() == 9)


@on_postgresql
def test_short_tasks_of_a_limited_queue_are_not_claimed_ahead(start: Start) -> None:
    """No batch waits for the next poll."""
    api.limit_queue("limited", 2)
    largest: Counter[str] = Counter()
    is_over = threading.Event()

    def watch() -> None:
        try:
            while not is_over.is_set():
                largest["running"] = max(largest["running"], running("limited", "default"))
        finally:
            connection.close()

    tasks.add.using(queue_name="limited").enqueue_many([((number,), {}) for number in range(200)])
    tasks.add.enqueue_many([((number,), {}) for number in range(200)])
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        start(threads=8, poll_interval=600.0)
        wait_until(lambda: Task.objects.successful().count() == 400, "the end of all")
    finally:
        is_over.set()
        thread.join(DEADLINE_SECONDS)

    assert 0 < largest["running"] <= 2


@on_postgresql
def test_task_that_one_executor_cannot_claim_is_claimed_by_another(start: Start) -> None:
    api.limit_queue("limited", 1)
    first = tasks.wait_at.using(queue_name="limited").enqueue("first")
    busy = start(threads=1, poll_interval=600.0)
    gates["first"].wait_for()
    idle = start(threads=1, poll_interval=600.0)
    wait_until(lambda: idle.process.listener is not None and idle.process.listener.is_listening)
    second = tasks.add.using(queue_name="limited").enqueue(1)
    busy.loop.set_paused(True)
    wait_until(lambda: busy.process.loop.is_paused, "a pause")

    gates["first"].open()

    wait_for_status(first, Status.SUCCESSFUL)
    assert wait_for_status(second, Status.SUCCESSFUL).executor_id is None
    wait_until(lambda: idle.loop.outcomes.counts.finished == 1)  # counted after the commit


@on_postgresql
def test_atomic_task_counts_for_its_queue_until_its_end(start: Start) -> None:
    api.limit_queue("limited", 1)
    atomic_tasks.add_atomically.using(queue_name="limited").enqueue_many([((number,), {}) for number in range(20)])

    start(threads=4, poll_interval=600.0)

    wait_until(lambda: Task.objects.successful().count() == 20, "the end of all")


@on_both_databases
def test_limit_is_seen_within_a_second(start: Start, backend: str) -> None:
    limited = tasks.wait_at.using(queue_name="limited", backend=backend)
    start(threads=8, backend=backend)
    api.limit_queue("limited", 1, backend=backend)
    limited.enqueue_many([(("gate", number), {}) for number in range(4)])
    gates["gate"].wait_for(1)
    assert running("limited", backend) == 1

    api.limit_queue("limited", 3, backend=backend)
    gates["gate"].wait_for(3)
    api.limit_queue("limited", None, backend=backend)
    gates["gate"].wait_for(4)
    assert Queue.objects.using(backend).get().max_running is None


@pytest.mark.parametrize("limit", [0, -1, True, "3", 2.5, 2_147_483_648])
@pytest.mark.django_db
def test_odd_limits_are_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_running"):
        api.limit_queue("emails", limit)
    assert not Queue.objects.exists()


@on_both_databases
def test_number_that_people_set_takes_effect_at_once(start: Start, backend: str) -> None:
    limited = tasks.wait_at.using(backend=backend, concurrency=Concurrency(1))
    limited.enqueue_many([(("gate", number), {}) for number in range(5)])
    # On SQLite nothing notifies.
    start(threads=8, backend=backend, poll_interval=600.0 if backend == "default" else 0.05)
    gates["gate"].wait_for(1)

    limits.set_limit("concurrency", limited.task_type, 3, backend=backend)
    gates["gate"].wait_for(3)

    assert Task.objects.using(backend).running().count() == 3
    assert Task.objects.using(backend).blocked().count() == 2
    gates["gate"].open()
    wait_until(lambda: Task.objects.using(backend).successful().count() == 5)


@on_both_databases
def test_number_of_a_limit_that_code_has_fixed_is_removed_at_the_start(
    start: Start, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_for(backend).limits.set(LimitKind.CONCURRENCY, "fixed:", 3)
    fixed = {(LimitKind.CONCURRENCY, "fixed"): [Concurrency(1, shared="fixed", adjustable=False)]}
    monkeypatch.setattr(limits, "declared_limits", lambda: fixed)
    limited = tasks.wait_at.using(backend=backend, concurrency=Concurrency(1, shared="fixed"))
    limited.enqueue_many([(("gate", number), {}) for number in range(3)])

    start(threads=8, backend=backend)
    gates["gate"].wait_for(1)

    wait_until(lambda: not Limit.objects.using(backend).exists())
    gates["gate"].open()
    wait_until(lambda: Task.objects.using(backend).successful().count() == 3)
