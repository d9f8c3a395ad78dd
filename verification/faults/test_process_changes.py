"""Test bodies that change their process: the executor keeps working and still reacts to signals."""

from __future__ import annotations

import os
import signal

import pytest

from jobqueue.models import Executor, Heartbeat, Task
from tests.acceptance.harness import Fleet, session_of, wait_for_end
from tests.acceptance.tasks import book, tiny, work_later
from tests.actors import Fibonacci
from tests.waiting import wait_until
from verification.faults import process_changes

pytestmark = pytest.mark.django_db(transaction=True)
IMPORTED = {"TESTS_IMPORT": process_changes.__name__}


def test_executor_survives_each_change_of_its_process(fleet: Fleet) -> None:
    """One process survives all changes. Its work after each change shows which one it did not survive."""
    process = fleet.start("--threads", "2", heartbeat_timeout=6, environment=IMPORTED)
    for change in process_changes.CHANGES:
        done = process_changes.do.enqueue(change)
        wait_for_end()
        done.refresh()
        assert done.status == "SUCCESSFUL", (change, done.errors)
        for body in (tiny, book, work_later, process_changes.query_on_new_connection):
            body.enqueue_many([((), {})] * 3)
        assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}, change

    Fibonacci.enqueue(5)
    assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}
    assert not Task.objects.filter(executor_losses__gt=0).exists()
    before = Heartbeat.objects.get().at
    wait_until(lambda: Heartbeat.objects.get().at > before, "another beat")
    assert process.stop() == 0
    for pid in session_of(process.pid):  # programs that bodies have left
        os.kill(pid, signal.SIGKILL)


def test_signals_are_not_for_bodies(fleet: Fleet) -> None:
    process = fleet.start(environment=IMPORTED)
    process_changes.set_signal_handler.enqueue()

    assert wait_for_end() == {"FAILED": 1}

    (error,) = Task.objects.get().errors
    assert "main thread" in error["message"]
    assert process.stop() == 0


def test_closed_standard_streams_become_no_connection(fleet: Fleet) -> None:
    process = fleet.start("--threads", "1", heartbeat_timeout=6, environment=IMPORTED)
    for then_connect in (False, True):
        process_changes.close_standard_streams.enqueue_many([((then_connect,), {}), ((then_connect,), {})])
        process_changes.write_to_stderr.enqueue_many([((), {})] * 10)

        assert wait_for_end() == {"SUCCESSFUL": Task.objects.count()}, [*Task.objects.failed().values("errors")]

    assert process.stop() == 0
    assert process.output.find(r"executor\.stopped")


def test_closed_descriptors_cost_the_process_but_no_other_task(fleet: Fleet) -> None:
    """Nothing is left to go on with; a supervisor starts another, and the third loss is the end of it."""
    supervisor = fleet.start("--processes", "2", heartbeat_timeout=1.5, environment=IMPORTED)
    guilty = process_changes.close_descriptors.enqueue()
    book.enqueue_many([((0.05,), {})] * 60)
    work_later.enqueue_many([((0.05,), {})] * 20)

    wait_for_end()

    assert not Task.objects.exclude(pk=guilty.id).exclude(status="SUCCESSFUL").exists()
    assert supervisor.is_alive
    hit = {*Executor.objects.filter(pk__in=Task.objects.get(pk=guilty.id).worker_ids).values_list("pid", flat=True)}
    assert hit
    wait_until(lambda: not hit & {*supervisor.children()}, "the end of all that were hit")
    assert supervisor.stop() == 0
