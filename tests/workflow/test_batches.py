"""Batches: members, callbacks, progress, and what people do with members."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

import jobqueue
from jobqueue import Batch, InvalidArguments, TaskFinished, TaskNotFound, api
from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.members import open_blocks
from jobqueue.engine import engine_for
from jobqueue.exceptions import DuplicateKey
from jobqueue.models import InboxMessage, JournalEntry, Task
from jobqueue.values.states import Status
from tests.actor.stage import Stage
from tests.workflow import members
from tests.workflow.members import add, ended, failed, split, succeeded, take_nothing, work, work_alone, work_later

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def fresh_members() -> Iterator[None]:
    members.broken.clear()
    members.called.clear()
    yield
    assert not open_blocks


def batch_of(*numbers: Any, **options: Any) -> Batch:
    with Batch(on_success=succeeded, on_failure=failed, on_end=ended, **options) as batch:
        for number in numbers:
            work.enqueue(number)
    return batch


def numbers_of(batch: Batch) -> tuple[int, int, int, int, int]:
    progress = batch.progress()
    return progress.total, progress.successful, progress.failed, progress.cancelled, progress.running


def calls() -> list[str]:
    return [name for name, _ in members.called]


class TestEnd:
    def test_successful_batch_calls_on_success_and_on_end_once(self, stage: Stage) -> None:
        batch = batch_of(1, 2, 3)
        assert numbers_of(batch) == (3, 0, 0, 0, 3)
        stage.run()

        numbers = {"id": batch.id, "total": 3, "successful": 3, "failed": 0, "cancelled": 0}
        assert members.called == [("on_success", numbers), ("on_end", numbers)]
        assert stage.result(batch.pk) == numbers
        assert numbers_of(batch) == (3, 3, 0, 0, 0)
        assert stage.unread(batch.pk) == []

    def test_empty_batch_ends_at_once(self, stage: Stage) -> None:
        batch = batch_of()
        stage.run()

        assert calls() == ["on_success", "on_end"]
        assert numbers_of(batch) == (0, 0, 0, 0, 0)

    def test_failed_member_fails_batch_after_its_callbacks(self, stage: Stage) -> None:
        members.broken.add(2)
        batch = batch_of(1, 2, 3)
        stage.run()

        assert calls() == ["on_failure", "on_end"]
        assert stage.status(batch.pk) == Status.FAILED
        assert stage.error(batch.pk) == (
            "MembersFailed: Of 3 members: 1 failed. When these are requeued, the batch goes on."
        )
        assert numbers_of(batch) == (3, 2, 1, 0, 0)
        (entry,) = JournalEntry.objects.using(stage.database).filter(task_id=batch.pk)
        assert stage.row(UUID(str(entry.child_id))).args == [2]

    def test_many_ends_are_counted_in_few_polls(self, stage: Stage) -> None:
        members.broken.update(range(0, 60, 3))
        batch = batch_of(*range(60))
        stage.run()

        assert numbers_of(batch) == (60, 40, 20, 0, 0)
        assert stage.row(batch.pk).polls <= 5
        assert calls() == ["on_failure", "on_end"]

    def test_callback_without_result_gets_its_own_arguments_only(self, stage: Stage) -> None:
        with Batch(on_end=take_nothing.plan_only()):
            work.enqueue(1)
        stage.run()

        assert calls() == ["take_nothing"]

    def test_callback_keeps_options_of_using(self, stage: Stage) -> None:
        task = ended.using(priority=7, queue_name="reports", key="report", tags=["end"], timeout=3.0)
        with Batch(on_end=task.plan("more")):
            pass
        stage.run()

        (row,) = Task.objects.using(stage.database).filter(task_type=ended.task_type)
        assert (row.priority, row.queue_name, row.key, row.tags) == (7, "reports", "report", ["end"])
        assert (row.args[1:], row.options, row.parent_id) == (["more"], {"timeout": 3.0}, None)


class TestRequeue:
    def test_requeued_member_lets_failed_batch_succeed(self, stage: Stage) -> None:
        members.broken.add(2)
        batch = batch_of(1, 2)
        stage.run()
        members.broken.clear()
        (member,) = [row for row in stage.children(batch.pk) if row.status == Status.FAILED]
        assert jobqueue.requeue(member.pk).requeued == 1
        assert stage.status(batch.pk) == Status.READY
        stage.run()

        assert calls() == ["on_failure", "on_end", "on_success"]
        assert stage.status(batch.pk) == Status.SUCCESSFUL
        assert numbers_of(batch) == (2, 2, 0, 0, 0)
        assert not JournalEntry.objects.using(stage.database).filter(task_id=batch.pk).exists()

    def test_member_that_fails_again_repeats_no_callback(self, stage: Stage) -> None:
        members.broken.add(2)
        batch = batch_of(1, 2)
        stage.run()
        for _ in range(2):
            jobqueue.requeue([row.pk for row in stage.children(batch.pk)])
            stage.run()

        assert calls() == ["on_failure", "on_end"]
        assert stage.status(batch.pk) == Status.FAILED
        assert numbers_of(batch) == (2, 1, 1, 0, 0)

    def test_batch_waits_for_member_that_was_requeued_while_it_ran(self, stage: Stage) -> None:
        members.broken.add(1)
        with Batch(on_success=succeeded, on_failure=failed, on_end=ended) as batch:
            first = work.enqueue(1)
            later = work.using(queue_name="other").enqueue(2)
        jobqueue.testing.poll_once(first)
        jobqueue.testing.poll_once(batch.pk)
        assert numbers_of(batch) == (2, 0, 1, 0, 1)
        members.broken.clear()
        jobqueue.requeue(first.id)
        jobqueue.testing.poll_once(later)
        stage.change(UUID(first.id), status=Status.SCHEDULED, wake_at=None)
        stage.run()
        assert numbers_of(batch) == (2, 1, 0, 0, 1)
        assert calls() == []
        api.run_now(first.id)
        stage.run()

        assert calls() == ["on_success", "on_end"]
        assert numbers_of(batch) == (2, 2, 0, 0, 0)

    def test_requeue_of_failed_batch_requeues_its_failed_members(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobqueue.api.batches.CHUNK", 2)
        members.broken.update(range(5))
        batch = batch_of(*range(7))
        jobqueue.cancel(stage.children(batch.pk)[6].pk)
        stage.run()
        assert numbers_of(batch) == (7, 1, 5, 1, 0)
        members.broken.difference_update(range(4))
        assert jobqueue.requeue(batch.pk).requeued == 1
        stage.run()
        assert numbers_of(batch) == (7, 6, 1, 0, 0)
        members.broken.clear()
        jobqueue.requeue(batch.pk)
        stage.run()

        assert stage.status(batch.pk) == Status.SUCCESSFUL
        assert calls() == ["on_failure", "on_end", "on_success"]

    def test_member_that_failed_after_the_requeue_is_not_requeued_by_it(self, stage: Stage) -> None:
        members.broken.update(range(3))
        batch = batch_of(*range(3))
        stage.run()
        entries = JournalEntry.objects.using(stage.database).filter(task_id=batch.pk).order_by("pk")
        first, second, _ = entries.values_list("pk", flat=True)

        with transaction.atomic(using=stage.database):
            assert engine_for("default").batches.requeue_members(batch.pk, first, second, 10) is None
        assert [row.status for row in stage.children(batch.pk)].count(Status.READY) == 1

    def test_requeue_stops_the_poll_that_is_about_to_fail_the_batch(self, stage: Stage) -> None:
        """That poll has read its inbox already."""
        members.broken.add(1)
        batch = batch_of(1)
        stage.run()
        stage.change(batch.pk, status=Status.RUNNING, finished_at=None, executor_id=uuid4())
        members.broken.clear()
        (member,) = stage.children(batch.pk)
        jobqueue.requeue(member.pk)
        assert stage.status(batch.pk) == Status.READY
        stage.run()

        assert stage.status(batch.pk) == Status.SUCCESSFUL
        assert calls() == ["on_failure", "on_end", "on_success"]

    def test_requeue_of_failed_batch_without_its_members_fails_it_again(self, stage: Stage) -> None:
        members.broken.add(2)
        batch = batch_of(1, 2)
        stage.run()
        api.delete([row.pk for row in stage.children(batch.pk)])
        jobqueue.requeue(batch.pk)
        stage.run()

        assert stage.status(batch.pk) == Status.FAILED
        assert calls() == ["on_failure", "on_end"]

    def test_outer_batch_goes_on_with_member_of_inner_batch(self, stage: Stage) -> None:
        members.broken.add("inner")
        with Batch(on_success=succeeded, on_failure=failed) as outer:
            work.enqueue("outer")
            with Batch() as inner:
                work.enqueue("inner")
        stage.run()
        assert (stage.status(inner.pk), stage.status(outer.pk)) == (Status.FAILED, Status.FAILED)
        assert numbers_of(outer) == (2, 1, 1, 0, 0)
        members.broken.clear()
        (member,) = stage.children(inner.pk)
        jobqueue.requeue(member.pk)
        stage.run()

        assert (stage.status(inner.pk), stage.status(outer.pk)) == (Status.SUCCESSFUL, Status.SUCCESSFUL)
        assert calls() == ["on_failure", "on_success"]


class TestCancel:
    def test_cancel_of_batch_cancels_members_and_calls_nothing(self, stage: Stage) -> None:
        batch = batch_of(*range(5))
        report = batch.cancel()
        assert (report.cancelled, report.requested) == (0, 1)
        polled = stage.run()

        assert [poll.task_type for poll in polled] == ["jobqueue.batch"] * 2
        assert {row.status for row in stage.children(batch.pk)} == {Status.CANCELLED}
        assert stage.status(batch.pk) == Status.CANCELLED
        assert numbers_of(batch) == (5, 0, 0, 5, 0)
        assert calls() == []
        assert jobqueue.requeue(batch.pk).skipped == 1  # it counts its members no more

    def test_large_family_is_cancelled_in_parts(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.api.batches.CHUNK", 10)
        batch = batch_of(*range(25))
        jobqueue.cancel(batch.pk, tree=True)
        polled = stage.run()

        assert [poll.status for poll in polled] == [Status.READY, Status.READY, Status.READY, Status.CANCELLED]
        assert {row.status for row in stage.children(batch.pk)} == {Status.CANCELLED}

    def test_member_with_id_of_a_slow_clock_is_cancelled(self, stage: Stage) -> None:
        batch = batch_of(1, 2)
        stage.change(stage.children(batch.pk)[0].pk, id=UUID(int=1))
        batch.cancel()
        stage.run()

        assert [row.status for row in stage.children(batch.pk)] == [Status.CANCELLED, Status.CANCELLED]
        assert stage.status(batch.pk) == Status.CANCELLED

    def test_cancel_passes_tasks_that_are_no_members(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.engine.batches.WINDOW", 4)
        with Batch() as batch:
            for number in range(6):
                work.enqueue(number)
                with Batch() as other:
                    work.enqueue(number)
        jobqueue.cancel([row.pk for row in stage.children(batch.pk) if row.task_type == "jobqueue.batch"][:1])
        batch.cancel()
        alone = work.using(run_after=timedelta(hours=1)).enqueue("alone")
        stage.run()

        assert {row.status for row in stage.children(batch.pk)} == {Status.CANCELLED}
        assert [row.status for row in stage.children(other.pk)] == [Status.CANCELLED]
        assert stage.status(UUID(alone.id)) == Status.SCHEDULED

    def test_cancel_of_outer_batch_reaches_inner_members(self, stage: Stage) -> None:
        with Batch() as outer, Batch() as inner:
            work.enqueue(1)
        outer.cancel()
        stage.run()

        assert (stage.status(inner.pk), stage.status(outer.pk)) == (Status.CANCELLED, Status.CANCELLED)
        assert [row.status for row in stage.children(inner.pk)] == [Status.CANCELLED]

    def test_cancelled_member_counts_as_not_successful(self, stage: Stage) -> None:
        batch = batch_of(1, 2)
        jobqueue.cancel(stage.children(batch.pk)[0].pk)
        stage.run()

        assert numbers_of(batch) == (2, 1, 0, 1, 0)
        assert calls() == ["on_failure", "on_end"]
        assert stage.error(batch.pk).startswith("MembersFailed: Of 2 members: 1 cancelled.")

    def test_batch_takes_no_members_within_block_of_another(self, stage: Stage) -> None:
        with Batch() as outer:
            work.enqueue(1)
            with Batch() as inner, pytest.raises(InvalidTask, match=f"in a block of batch {inner.id}, within a block"):
                outer.add(work.plan(2))
            outer.add(work.plan(3))
        stage.run()
        assert numbers_of(outer) == (3, 3, 0, 0, 0)

    def test_cancelled_batch_takes_no_members(self, stage: Stage) -> None:
        batch = batch_of(1)
        batch.cancel()
        stage.run()

        with pytest.raises(TaskFinished, match="or it was cancelled"):
            batch.add(work.plan(2))
        assert len(stage.children(batch.pk)) == 1


class TestMembers:
    def test_rollback_leaves_nothing(self, stage: Stage) -> None:
        def enqueue_and_fail() -> None:
            with Batch():
                work.enqueue(1)
                raise ZeroDivisionError

        with transaction.atomic(using=stage.database):
            batch_of(1, 2)
            transaction.set_rollback(True, using=stage.database)
        with pytest.raises(ZeroDivisionError):
            enqueue_and_fail()

        assert not Task.objects.using(stage.database).exists()
        work.enqueue(1)
        assert Task.objects.using(stage.database).get().parent_id is None

    def test_nested_block_is_member_of_outer_one(self, stage: Stage) -> None:
        with Batch() as outer:
            work.enqueue(1)
            with Batch() as inner:
                work.enqueue(2)
            work.enqueue(3)
        alone = work.enqueue(4)

        assert stage.row(inner.pk).parent_id == outer.pk
        assert [row.args for row in stage.children(inner.pk)] == [[2]]
        assert [row.args for row in stage.children(outer.pk) if row.pk != inner.pk] == [[1], [3]]
        assert stage.row(UUID(alone.id)).parent_id is None
        assert outer.progress().total == 3

    def test_blocks_of_two_backends_have_members_of_their_own(self, stage: Stage) -> None:
        with Batch() as batch, Batch(backend="sqlite") as other:
            work.enqueue(1)
            work.using(backend="sqlite").enqueue(2)

        assert [row.args for row in stage.children(batch.pk)] == [[1]]
        rows = Task.objects.using("sqlite").filter(parent_id=other.pk)
        assert [(row.args, row.backend) for row in rows] == [([2], "sqlite")]
        assert Task.objects.using("sqlite").get(pk=other.pk).parent_id is None

    def test_members_have_keys_limits_and_later_starts(self, stage: Stage) -> None:
        holder = work.using(key="taken").enqueue("elsewhere")
        with Batch(on_success=succeeded) as batch:
            assert work.using(key="taken").enqueue(0).id == holder.id
            work.using(key="own", unique_for=60).enqueue(1)
            work.using(key="own", unique_for=60).enqueue(1)
            work_alone.enqueue_many([((number,), {}) for number in range(3)])
            work.using(run_after=timedelta(seconds=60)).enqueue(2)
            async_to_sync(work_later.aenqueue)(3)
        stage.run()
        assert numbers_of(batch) == (6, 5, 0, 0, 1)
        stage.advance(60)
        stage.run()

        assert numbers_of(batch) == (6, 6, 0, 0, 0)
        assert calls() == ["on_success"]

    def test_queue_of_batch_is_that_of_first_member(self, stage: Stage) -> None:
        with Batch() as batch:
            work.using(queue_name="imports").enqueue(1)
        with Batch(queue_name="others", tags=["nightly"], metadata={"a": 1}) as other:
            work.using(queue_name="imports").enqueue(1)

        assert stage.row(batch.pk).queue_name == "imports"
        row = stage.row(other.pk)
        assert (row.queue_name, row.tags, row.metadata) == ("others", ["nightly"], {"a": 1})

    def test_second_live_batch_with_key_leaves_nothing(self, stage: Stage) -> None:
        batch = batch_of(1, key="import")
        with pytest.raises(DuplicateKey):
            batch_of(2, key="import")

        assert [row.args for row in Task.objects.using(stage.database).exclude(pk=batch.pk)] == [[1]]

    def test_add_many_takes_any_number_and_returns_it(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.api.batches.CHUNK", 10)
        with Batch(on_end=ended) as batch:
            assert batch.add_many(work, (((number,), {}) for number in range(35))) == 35
        assert batch.add_many(work.using(priority=3, key="same"), [((1,), {}), ((2,), {})]) == 1
        stage.run()

        assert numbers_of(batch) == (36, 36, 0, 0, 0)
        assert stage.row(batch.pk).polls <= 6
        assert calls() == ["on_end"]

    def test_invalid_call_is_named_by_its_number_and_leaves_nothing(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobqueue.api.batches.CHUNK", 10)
        batch = batch_of(1)
        with pytest.raises(InvalidArguments, match=r"work\(\), call 13: argument 'number'"):
            batch.add_many(work, (((number if number < 13 else {1},), {}) for number in range(20)))

        assert len(stage.children(batch.pk)) == 1

    def test_members_add_members_while_batch_runs(self, stage: Stage) -> None:
        with Batch(on_success=succeeded) as batch:
            split.enqueue(batch.id, 3)
        stage.run()

        assert numbers_of(batch) == (1 + 3 + 6 + 6, 16, 0, 0, 0)
        assert calls() == ["on_success"]

    def test_ended_batch_takes_no_members(self, stage: Stage) -> None:
        members.broken.add(2)
        for batch in (batch_of(1), batch_of(2)):
            stage.run()
            with pytest.raises(TaskFinished, match=r"All members of batch .* have ended"):
                batch.add(work.plan(3))
            assert len(stage.children(batch.pk)) == 1

    def test_batch_that_calls_back_takes_no_members(self, stage: Stage) -> None:
        members.broken.add(1)
        batch = batch_of(1)
        (member,) = stage.children(batch.pk)
        jobqueue.testing.poll_once(member)
        jobqueue.testing.poll_once(batch.pk)
        assert stage.status(batch.pk) == Status.READY  # it is FAILED by its next poll

        with pytest.raises(TaskFinished):
            batch.add(work.plan(3))

    def test_unknown_batch_is_not_found(self, stage: Stage) -> None:
        with pytest.raises(TaskNotFound, match="There is no batch"):
            Batch.get(work.enqueue(1).id)
        with pytest.raises(TaskNotFound, match="Its with-block enqueues it"):
            Batch().progress()

    def test_calls_that_do_not_fit_are_refused_at_once(self, stage: Stage) -> None:
        with pytest.raises(InvalidArguments, match=r"take_nothing\(\): .*plan_only\(\) leaves it out"):
            Batch(on_end=take_nothing)
        with pytest.raises(TypeError, match=r"made by task\.plan"):
            Batch(on_end=print)  # type: ignore[arg-type]
        with pytest.raises(InvalidTask, match="of backend 'sqlite'"):
            Batch(on_end=ended.using(backend="sqlite"))
        with pytest.raises(InvalidArguments, match=r"add\(\)"):
            add.plan(1, 2, 3, 4)
        with pytest.raises(InvalidArguments, match=r"add\(\)"):
            add.plan_only()  # type: ignore[call-arg]


class TestAsync:
    def test_async_block_adds_members_of_its_tasks(self, stage: Stage) -> None:
        async def make() -> Batch:
            async with Batch(on_success=succeeded, on_end=ended) as batch:
                await asyncio.gather(*(work.aenqueue(number) for number in range(5)))
            await work.aenqueue(5)
            return batch

        batch = async_to_sync(make)()
        stage.run()

        assert numbers_of(batch) == (5, 5, 0, 0, 0)
        assert calls() == ["on_success", "on_end"]

    def test_open_async_block_keeps_batch_from_ending(self, stage: Stage) -> None:
        batch = Batch(on_success=succeeded)

        running: list[Status] = []

        def run() -> None:
            stage.run()
            running.append(stage.status(batch.pk))

        async def make() -> None:
            async with batch:
                await work.aenqueue(1)
                await batch.aadd(work.plan(2))
                await sync_to_async(run)()

        async_to_sync(make)()
        stage.run()

        assert running == [Status.SUSPENDED]
        assert numbers_of(batch) == (2, 2, 0, 0, 0)

    def test_error_in_async_block_cancels_batch(self, stage: Stage) -> None:
        batch = Batch(on_end=ended)

        async def make() -> None:
            async with batch:
                await work.aenqueue(1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async_to_sync(make)()
        stage.run()

        assert numbers_of(batch) == (1, 0, 0, 1, 0)
        assert calls() == []

    def test_task_that_outlives_block_enqueues_no_member(self, stage: Stage) -> None:
        async def make() -> str:
            is_over = asyncio.Event()

            async def later() -> str:
                await is_over.wait()
                return (await work.aenqueue(2)).id

            async with Batch():
                task = asyncio.ensure_future(later())
                await work.aenqueue(1)
            is_over.set()
            return await task

        assert stage.row(UUID(async_to_sync(make)())).parent_id is None


def test_messages_to_batch_are_few(stage: Stage) -> None:
    batch = batch_of(1, 2)
    batch.add(work.plan(3))
    messages = InboxMessage.objects.using(stage.database).filter(task_id=batch.pk)
    assert [message.body for message in messages] == [{"added": 1}]
