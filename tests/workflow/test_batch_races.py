"""Batches beside other sessions: members that are added while a batch ends."""

from __future__ import annotations

import contextvars

import pytest

from jobqueue import Batch, TaskFinished, testing
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.engine.sessions import session, threads
from tests.waiting import wait_until
from tests.workflow import members
from tests.workflow.members import ended, work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(autouse=True)
def fresh_members() -> None:
    members.called.clear()


def status_of(batch: Batch) -> Status:
    return Status(Task.objects.get(pk=batch.pk).status)


def test_batch_does_not_end_beside_open_transaction_that_adds_members() -> None:
    with Batch(on_end=ended) as batch:
        member = work.enqueue(1)
    with session() as other:
        other.run(
            "INSERT INTO jobqueue_task (id, backend, queue_name, task_type, priority, rank, args, kwargs, options,"
            " metadata, status, claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors,"
            " enqueued_at, pool, parent_id) SELECT gen_random_uuid(), backend, queue_name, task_type, priority, rank,"
            " '[2]', kwargs, options, metadata, 'READY', 0, '[]', 0, 1, 0, 0, '[]', now(), pool, parent_id"
            " FROM jobqueue_task WHERE parent_id = %s",
            batch.pk,
        )
        other.write_to(batch.pk, '{"added": 1}')
        testing.poll_once(member)
        testing.poll_once(batch.pk)
        assert status_of(batch) == Status.SCHEDULED
        assert members.called == []
        other.commit()
    testing.run_until_idle()

    assert status_of(batch) == Status.SUCCESSFUL
    assert batch.progress().total == 2
    assert [name for name, _ in members.called] == ["on_end"]


def test_member_added_beside_the_poll_that_ends_a_batch_is_refused() -> None:
    with Batch() as batch:
        work.enqueue(1)

    def add() -> None:
        batch.add(work.plan(2))

    with session() as poll, threads(1) as start:
        poll.lock(batch.pk, strength="UPDATE")
        adding = start(add)
        wait_until(lambda: bool(poll.run("SELECT 1 FROM pg_locks WHERE NOT granted")))
        poll.run("UPDATE jobqueue_task SET status = 'SUCCESSFUL', finished_at = now() WHERE id = %s", batch.pk)
        poll.commit()
        with pytest.raises(TaskFinished):
            adding.result()

    assert Task.objects.filter(parent_id=batch.pk).count() == 1


def test_task_that_another_thread_enqueues_is_no_member() -> None:
    with threads(1) as start, Batch() as batch:
        context = contextvars.copy_context()
        elsewhere = start(context.run, work.enqueue, 1).result()
        work.enqueue(2)

    assert Task.objects.get(pk=elsewhere.id).parent_id is None
    assert [row.args for row in Task.objects.filter(parent_id=batch.pk)] == [[2]]
