"""chain(), group() and chord(): results, links that are requeued, options, and calls that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

import jobqueue
from jobqueue import (
    Backoff,
    Batch,
    Concurrency,
    Debounce,
    InvalidArguments,
    PlannedCall,
    Rate,
    chain,
    chord,
    group,
)
from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.stored_calls import decode_call, encode_call
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.workflow import members
from tests.workflow.members import add, succeeded, total, work
from tests.workflow.stage import WorkflowStage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


@pytest.fixture(autouse=True)
def fresh_members() -> Iterator[None]:
    members.broken.clear()
    members.called.clear()
    yield
    members.broken.clear()


def play(stage: WorkflowStage, call: PlannedCall) -> UUID:
    """Enqueue a call and run it until it waits or has ended. Return its id."""
    pk = UUID(call.enqueue().id)
    stage.run()
    return pk


def failed_of(stage: WorkflowStage) -> Task:
    """Return the failed task that is none of this package."""
    return Task.objects.using(stage.database).get(status=Status.FAILED, task_type=work.task_type)


class TestResults:
    def test_chain_puts_each_result_in_front(self, stage: WorkflowStage) -> None:
        pk = play(stage, chain(add.plan(1, 2), add.plan(10), add.plan_only(5), add.plan(second=100)))

        assert stage.result(pk) == 105
        assert [row.args for row in stage.children(pk)] == [[1, 2], [3, 10], [5], [5]]

    def test_group_returns_results_in_order(self, stage: WorkflowStage) -> None:
        assert stage.result(play(stage, group(*(work.plan(number) for number in range(12))))) == [*range(12)]
        assert stage.result(play(stage, group(work.plan(1)))) == [1]
        assert stage.result(play(stage, group())) == []

    def test_chord_calls_with_list_of_results(self, stage: WorkflowStage) -> None:
        assert stage.result(play(stage, chord(group(work.plan(1), work.plan(2)), total))) == 3
        assert stage.result(play(stage, chord([work.plan(number) for number in range(5)], total.plan()))) == 10

    def test_canvas_nests(self, stage: WorkflowStage) -> None:
        inner = chain(add.plan(1), add.plan(2))
        pk = play(stage, chain(work.plan(10), group(add.plan(1), inner), total, group(add.plan(), add.plan(1))))

        assert stage.result(pk) == [24, 25]

    def test_large_group_runs_its_body_few_times(self, stage: WorkflowStage) -> None:
        pk = play(stage, group(*(work.plan(number) for number in range(40))))

        assert stage.row(pk).polls <= 4
        assert stage.result(pk) == [*range(40)]


class TestFailures:
    def test_chain_goes_on_after_requeue_of_failed_link(self, stage: WorkflowStage) -> None:
        members.broken.add(3)
        pk = play(stage, chain(add.plan(1, 2), work.plan(), add.plan(10)))
        assert stage.status(pk) == Status.FAILED
        assert "work" in stage.error(pk)
        members.broken.clear()
        jobqueue.requeue(failed_of(stage).pk)
        stage.run()

        assert stage.result(pk) == 13
        assert len(stage.children(pk)) == 3

    def test_chain_goes_on_after_requeue_of_cancelled_link(self, stage: WorkflowStage) -> None:
        pk = play(stage, chain(add.plan(1, 2), work.using(run_after=timedelta(hours=1)).plan(), add.plan(10)))
        (link,) = [row for row in stage.children(pk) if row.status == Status.SCHEDULED]
        jobqueue.cancel(link.pk)
        stage.run()
        assert stage.status(pk) == Status.FAILED
        jobqueue.requeue(link.pk)
        stage.run()

        assert stage.result(pk) == 13

    def test_nested_canvas_goes_on_after_requeue(self, stage: WorkflowStage) -> None:
        members.broken.add(2)
        pk = play(stage, chain(chord([work.plan(1), work.plan(2), work.plan(3)], total), add.plan(10)))
        assert stage.status(pk) == Status.FAILED
        members.broken.clear()
        jobqueue.requeue(failed_of(stage).pk)
        stage.run()

        assert stage.result(pk) == 16

    def test_batch_goes_on_after_requeue_in_member_that_is_a_chain(self, stage: WorkflowStage) -> None:
        members.broken.add(3)
        with Batch(on_success=succeeded) as batch:
            batch.add(chain(add.plan(1, 2), work.plan()))
        stage.run()
        assert stage.status(batch.pk) == Status.FAILED
        members.broken.clear()
        jobqueue.requeue(failed_of(stage).pk)
        stage.run()

        assert stage.status(batch.pk) == Status.SUCCESSFUL
        assert [name for name, _ in members.called] == ["on_success"]

    def test_chain_can_be_callback_of_batch(self, stage: WorkflowStage) -> None:
        with Batch(on_success=chain(succeeded.plan(), work.plan_only(1))):
            pass
        stage.run()

        assert [name for name, _ in members.called] == ["on_success"]

    def test_result_that_does_not_fit_fails_chain_once(self, stage: WorkflowStage) -> None:
        pk = play(stage, chain(add.plan(1, 2), group(add.plan(1, 2))))

        assert stage.status(pk) == Status.FAILED
        (row,) = Task.objects.using(stage.database).filter(task_type="jobqueue.group")
        (error,) = row.errors
        assert error["message"].startswith("add(): too many positional arguments")

    def test_unknown_task_is_tried_again_with_backoff(self, stage: WorkflowStage) -> None:
        call = chain(add.plan(1))
        call.args[0][0]["task"] = "tests.unknown"
        pk = play(stage, call)

        assert stage.status(pk) == Status.SCHEDULED
        assert stage.error(pk) == (
            "UnknownTask: This executor knows no task 'tests.unknown', to be enqueued next. Deploy its code."
        )


class TestPlans:
    def test_rollback_leaves_nothing(self, stage: WorkflowStage) -> None:
        with transaction.atomic(using=stage.database):
            chain(add.plan(1)).enqueue()
            transaction.set_rollback(True, using=stage.database)

        assert not Task.objects.using(stage.database).exists()

    def test_workflow_has_queue_of_first_call_unless_changed(self, stage: WorkflowStage) -> None:
        call = chain(add.using(queue_name="numbers").plan(1))
        assert stage.row(UUID(call.enqueue().id)).queue_name == "numbers"
        row = stage.row(UUID(call.using(queue_name="others", tags=["nightly"], key="sum").enqueue().id))
        assert (row.queue_name, row.tags, row.key) == ("others", ["nightly"], "sum")

    @pytest.mark.parametrize(
        "options",
        [
            {"priority": 7, "queue_name": "numbers", "key": "one", "tags": ("a", "b"), "metadata": {"a": 1}},
            {"max_attempts": 9, "timeout": 2.5, "backoff": Backoff(base=3.0, cap=9.0)},
            {"run_after": timedelta(minutes=5), "expires": datetime(2031, 5, 1, tzinfo=UTC)},
            {"concurrency": Concurrency(3, key="k-{first}"), "rate": Rate(5, timedelta(minutes=1), shared="api")},
            {"key": "two", "unique_for": timedelta(hours=1), "on_conflict": "replace"},
            {"key": "three", "debounce": Debounce(30, max_wait=timedelta(minutes=5))},
        ],
    )
    def test_options_of_using_are_stored(self, options: dict[str, Any]) -> None:
        call = add.using(**options).plan(1, second=2)
        again = decode_call(encode_call(call))

        seconds = {name: getattr(again.task, name) for name in options}
        assert again.args == (1,)
        assert again.kwargs == {"second": 2}
        assert again.takes_result
        for name, value in options.items():
            kept = seconds[name]
            if name == "rate":
                assert (kept.limit, kept.seconds, kept.shared) == (5, 60.0, "api")
            elif name == "debounce":
                assert (kept.wait_seconds, kept.max_wait_seconds) == (30.0, 300.0)
            elif name == "unique_for":
                assert kept == 3600.0
            else:
                assert kept == value

    def test_key_function_of_limit_is_refused(self) -> None:
        call = add.using(concurrency=Concurrency(1, key=str)).plan(1)
        with pytest.raises(InvalidTask, match="the key of its concurrency is a function"):
            chain(call)

    def test_calls_that_do_not_fit_are_refused_at_once(self) -> None:
        with pytest.raises(InvalidArguments, match=r"add\(\): .*The result of what came before is its first argument"):
            chain(work.plan(1), add.plan(1, 2))
        with pytest.raises(InvalidTask, match="of backend 'sqlite'"):
            group(add.plan(1), add.using(backend="sqlite").plan(1))
        with pytest.raises(TypeError, match=r"made by task\.plan"):
            chain(add.plan(1), print)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"chain\(\) takes at least one call"):
            chain()
        with pytest.raises(InvalidArguments, match=r"calls|args"):
            chain(add.plan({1, 2})).enqueue()
