"""cancel, requeue and prune, on every engine."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import Model

from jobqueue.models import CounterPeriod, Executor, Heartbeat, InboxMessage, KeyReservation, RateStart
from jobqueue.values.changes import CancelReport, RequeueReport
from jobqueue.values.ids import new_id
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

DAY = 86_400.0


class TestCancel:
    @pytest.mark.parametrize("make", [Bench.add, Bench.suspended, lambda bench: bench.add(wake_after_seconds=60.0)])
    def test_cancel_ends_waiting_task_at_once(self, bench: Bench, make) -> None:
        pk = make(bench)

        assert bench.engine.tasks.cancel([pk]) == CancelReport(cancelled=1)
        row = bench.row(pk)
        assert (row.status, row.wake_at) == ("CANCELLED", None)
        assert row.finished_at is not None

    def test_second_cancel_of_running_task_keeps_time_of_first(self, bench: Bench) -> None:
        claimed = bench.running()
        assert bench.engine.tasks.cancel([claimed.id]) == CancelReport(requested=1)
        bench.time_passes(10)
        row = bench.row(claimed.id)
        assert (row.status, row.finished_at, row.executor_id) == ("RUNNING", None, bench.executor_id)

        assert bench.engine.tasks.cancel([claimed.id]) == CancelReport(requested=1)
        assert row.cancel_requested_at is not None
        assert bench.row(claimed.id).cancel_requested_at == row.cancel_requested_at

    def test_cancel_reports_count_of_each_effect(self, bench: Bench) -> None:
        queued, running, ended = bench.add(), bench.running(), bench.ended()

        report = bench.engine.tasks.cancel([queued, running.id, ended, new_id(), queued])

        assert report == CancelReport(cancelled=1, requested=1, skipped=2)

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_cancel_does_not_change_finished_task(self, bench: Bench, status: Status) -> None:
        pk = bench.ended(status)
        before = bench.engine.db.tasks.filter(pk=pk).values().get()

        assert bench.engine.tasks.cancel([pk]) == CancelReport(skipped=1)
        assert bench.engine.db.tasks.filter(pk=pk).values().get() == before


class TestRequeue:
    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
    def test_requeue_resets_failed_or_cancelled_task(self, bench: Bench, status: Status) -> None:
        claimed = bench.running(expires_after_seconds=60.0)
        bench.set(claimed.id, executor_losses=2)
        bench.send(claimed.id, "message")
        bench.engine.tasks.cancel([claimed.id])
        bench.commit(
            outcome(
                claimed,
                status,
                attempts=4,
                error=ERROR,
                worker_id="w",
                inner_state='{"a": 1}',
                has_succeeded=True,
                return_value="1",
            )
        )
        bench.time_passes(100)
        before = bench.engine.db.now()

        assert bench.engine.tasks.requeue([claimed.id]) == RequeueReport(requeued=1)

        row = bench.row(claimed.id)
        assert (row.status, row.attempts, row.executor_losses) == ("READY", 0, 0)
        assert (row.finished_at, row.cancel_requested_at, row.wake_at, row.expires_at) == (None, None, None, None)
        assert row.return_value is None
        assert (row.inner_state, row.polls, row.worker_ids, len(row.errors)) == ({"a": 1}, 1, ["w"], 1)
        assert bench.bodies(claimed.id) == ["message"]
        assert before <= row.rank <= bench.engine.db.now()
        assert bench.claim(queues=[claimed.queue_name])[0].claim_number == 2

    def test_requeue_skips_other_states(self, bench: Bench) -> None:
        ids = [bench.add(), bench.add(wake_after_seconds=60.0), bench.running().id, bench.suspended(), bench.ended()]
        before = [bench.status(pk) for pk in ids]

        assert bench.engine.tasks.requeue([*ids, new_id()]) == RequeueReport(skipped=6)
        assert [bench.status(pk) for pk in ids] == before

    def test_requeue_skips_task_whose_key_is_taken(self, bench: Bench) -> None:
        failed = bench.ended(Status.FAILED, key="k")
        other = bench.ended(Status.FAILED, key="free")
        holder = bench.add(key="k")

        assert bench.engine.tasks.requeue([failed, other]) == RequeueReport(requeued=1, key_taken=1)
        assert [bench.status(pk) for pk in (failed, other)] == ["FAILED", "READY"]

        bench.engine.tasks.cancel([holder])
        assert bench.engine.tasks.requeue([failed]) == RequeueReport(requeued=1)

    def test_requeue_of_two_tasks_with_one_key_requeues_one(self, bench: Bench) -> None:
        ids = [bench.ended(Status.FAILED, key="k"), bench.ended(Status.CANCELLED, key="k")]

        assert bench.engine.tasks.requeue(ids) == RequeueReport(requeued=1, key_taken=1)


def old_starts(bench: Bench, number: int) -> type[Model]:
    at = bench.engine.db.now() - timedelta(days=2)
    RateStart.objects.using(bench.engine.database).bulk_create(
        RateStart(backend=bench.engine.alias, key="api:", started_at=at, expires_at=at) for _ in range(number)
    )
    return RateStart


def old_reservations(bench: Bench, number: int) -> type[Model]:
    at = bench.engine.db.now() - timedelta(days=2)
    KeyReservation.objects.using(bench.engine.database).bulk_create(
        KeyReservation(backend=bench.engine.alias, key=str(n), task_id=new_id(), expires_at=at) for n in range(number)
    )
    return KeyReservation


def old_executors(bench: Bench, number: int) -> type[Model]:
    for _ in range(number):
        Bench(bench.engine).beat()
    bench.time_passes(DAY + 1)
    return Executor


def old_heartbeats(bench: Bench, number: int) -> type[Model]:
    at = bench.engine.db.now() - timedelta(days=2)
    bench.engine.db.heartbeats.bulk_create(Heartbeat(executor_id=new_id(), at=at) for _ in range(number))
    return Heartbeat


class TestPrune:
    def test_prune_keeps_each_status_for_its_retention(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 10.0, "CANCELLED": 100.0, "FAILED": 1000.0})
        ids = [bench.ended(status) for status in (Status.SUCCESSFUL, Status.CANCELLED, Status.FAILED)]
        live = [bench.add(), bench.suspended(), bench.running().id]

        left = []
        for seconds in (5, 10, 100, 1000):
            bench.time_passes(seconds)
            bench.engine.tasks.prune()
            left.append(bench.engine.db.tasks.filter(pk__in=ids).count())

        assert left == [3, 2, 1, 0]
        assert bench.engine.db.tasks.filter(pk__in=live).count() == 3

    def test_prune_keeps_status_with_retention_none(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": None})
        pk = bench.ended()
        bench.time_passes(1000 * DAY)

        assert bench.engine.tasks.prune() == 0
        assert bench.status(pk) == "SUCCESSFUL"

    def test_prune_deletes_messages_of_task(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0})
        claimed, other = bench.running(), bench.add()
        bench.send(claimed.id)
        bench.send(claimed.id, dedupe_key="k")
        bench.send(other)
        bench.commit(outcome(claimed))

        assert bench.engine.tasks.prune() == 1
        assert [row.task_id for row in InboxMessage.objects.using(bench.engine.database).all()] == [other]

    def test_prune_deletes_oldest_tasks_up_to_limit(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 1.0})
        ids = []
        for _ in range(3):
            ids.append(bench.ended())
            bench.time_passes(10)

        assert bench.engine.tasks.prune(2) == 2
        assert set(bench.engine.db.tasks.values_list("pk", flat=True)) == {ids[2]}
        assert bench.engine.tasks.prune(2) == 1

    def test_prune_deletes_executors_silent_for_a_day(self, bench: Bench) -> None:
        bench.beat()
        bench.time_passes(DAY + 1)
        other = Bench(bench.engine)
        other.beat()

        bench.engine.tasks.prune()

        for model in (Executor, Heartbeat):
            rows = model._default_manager.using(bench.engine.database)
            assert list(rows.values_list("pk", flat=True)) == [other.executor_id]

    @pytest.mark.parametrize("make", [old_starts, old_reservations, old_executors, old_heartbeats])
    def test_prune_says_if_more_than_tasks_is_left(
        self, bench: Bench, make: Callable[[Bench, int], type[Model]]
    ) -> None:
        model = make(bench, 5)

        assert [bench.engine.tasks.prune(2) for _ in range(3)] == [2, 2, 0]
        assert not model._default_manager.using(bench.engine.database).exists()

    def test_prune_says_if_more_periods_of_counters_are_left(self, bench: Bench) -> None:
        old = bench.engine.db.now() - timedelta(days=40)
        CounterPeriod.objects.using(bench.engine.database).bulk_create(
            CounterPeriod(backend=bench.engine.alias, scope="task", name=str(n), length="minute", start=old)
            for n in range(15)
        )

        assert [bench.engine.tasks.prune(1) for _ in range(2)] == [1, 0]
        assert not CounterPeriod.objects.using(bench.engine.database).exists()

    def test_prune_keeps_tasks_of_other_backends(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0})
        Bench(type(bench.engine)("other", bench.engine.options)).ended()

        assert bench.engine.tasks.prune() == 0
