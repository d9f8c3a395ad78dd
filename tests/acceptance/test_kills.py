"""Executors that die, freeze or are killed by their own tasks."""

from __future__ import annotations

import random
import signal
from collections import Counter
from datetime import timedelta
from typing import Any

from jobqueue.exceptions import ExecutorLost
from jobqueue.models import Executor, Task
from tests.acceptance import history
from tests.acceptance.harness import Fleet, ended, wait_for_end, wait_for_ended, wait_until
from tests.acceptance.tasks import book, compute, hang, kill_process, work
from tests.models import Effect


def test_twenty_kills_in_two_thousand_tasks_lose_nothing(fleet: Fleet) -> None:
    """Half of the tasks commit an effect with their outcome: exactly one each. The others end exactly once."""
    options: dict[str, Any] = {"heartbeat_timeout": 1.5, "max_losses": 1000}
    chance = random.Random(1)
    with history.recorded():
        for body in (book, work):
            body.enqueue_many([((0.02,), {}) for _ in range(1000)])
        processes = [fleet.start("--threads", "6", **options) for _ in range(3)]
        for _ in range(20):
            wait_for_ended(ended() + 20)
            number = chance.randrange(len(processes))
            processes[number].kill()
            processes[number] = fleet.launch("--threads", "6", **options)
        assert Task.objects.live().exists(), "the last kill came too late to matter"
        assert wait_for_end(seconds=120) == {"SUCCESSFUL": 2000}
        history.assert_sound()
    booked = Effect.objects.filter(kind="booked").values_list("task_id", flat=True)
    assert Counter(Counter(booked).values()) == {1: 1000}
    assert Task.objects.filter(lost_count__gt=0).count() >= 20
    for process in processes:
        assert process.stop() == 0


def test_tasks_of_a_killed_executor_start_elsewhere_within_the_promised_time(fleet: Fleet) -> None:
    timeout = 2.0
    with history.recorded():
        rescuer = fleet.start("--queue", "none", heartbeat_timeout=timeout)
        victim = fleet.start("--threads", "100", heartbeat_timeout=timeout)
        work.enqueue_many([((600,), {}) for _ in range(150)])
        wait_until(lambda: Effect.objects.count() >= 100, "a hundred running tasks")
        helper = fleet.start("--threads", "200", heartbeat_timeout=timeout)
        born = helper.row.started_at
        wait_until(
            lambda: Executor.objects.get(pid=helper.pid).heartbeat > born + timedelta(seconds=timeout), "its right"
        )
        victim.kill()
        last = Executor.objects.get(pid=victim.pid)
        wait_until(lambda: not Task.objects.running().filter(executor_id=last.pk).exists(), "the rescue")
        wait_until(lambda: Task.objects.running().count() == 150, "the second start")
        restarts = [
            (change.at - last.heartbeat).total_seconds()
            for story in history.changes().values()
            for change in story
            if change.after == "RUNNING" and change.claim_number == 2
        ]
    assert restarts
    assert timeout < min(restarts)
    assert max(restarts) < timeout + 2
    assert rescuer.is_alive


def test_task_that_kills_its_process_ends_failed_and_harms_nobody(fleet: Fleet) -> None:
    supervisor = fleet.start("--processes", "2", "--threads", "4", heartbeat_timeout=1.0)
    killer = kill_process.enqueue()
    compute.enqueue_many([((0.3,), {}) for _ in range(40)])
    assert wait_for_end(seconds=120) == {"SUCCESSFUL": 40, "FAILED": 1}
    row = Task.objects.get(pk=killer.id)
    assert row.lost_count == 3
    assert row.errors[-1]["exception_class_path"] == f"{ExecutorLost.__module__}.{ExecutorLost.__qualname__}"
    assert row.attempts == 0
    assert Effect.objects.filter(task_id=killer.id).count() == 3
    assert supervisor.stop() == 0


def test_frozen_executor_does_not_overwrite_what_another_did_meanwhile(fleet: Fleet) -> None:
    timeout = 1.5
    result = work.enqueue(2.5)
    frozen = fleet.start(heartbeat_timeout=timeout)
    wait_until(lambda: Effect.objects.exists(), "a running task")
    frozen.send(signal.SIGSTOP)
    other = fleet.start(heartbeat_timeout=timeout)
    wait_until(lambda: Effect.objects.count() == 2, "the rescue")
    frozen.send(signal.SIGCONT)
    frozen.output.wait_for("task.(outcome_dropped|lost)")
    assert wait_for_end() == {"SUCCESSFUL": 1}
    row = Task.objects.get(pk=result.id)
    assert row.return_value == other.pid
    assert (row.claim_number, row.lost_count, row.attempts) == (2, 1, 0)
    frozen.output.wait_for("task.outcome_dropped")
    assert frozen.stop() == 0
    assert frozen.output.find(r"executor\.stopped .* lost=1")
    assert other.stop() == 0


def test_deaf_body_of_a_frozen_executor_ends_in_vain(fleet: Fleet) -> None:
    """It cannot even be interrupted: only the number of its claim keeps its outcome out."""
    result = hang.enqueue(3.0)
    frozen = fleet.start(heartbeat_timeout=1.0)
    wait_until(lambda: Effect.objects.exists(), "a running task")
    frozen.send(signal.SIGSTOP)
    other = fleet.start(heartbeat_timeout=1.0)
    wait_until(lambda: Effect.objects.count() == 2, "the rescue")
    frozen.send(signal.SIGCONT)
    frozen.output.wait_for("task.outcome_dropped")
    wait_for_end()
    assert Task.objects.get(pk=result.id).worker_ids[-1] == str(other.row.pk)
