"""heartbeat and rescue, on every engine."""

from uuid import uuid4

import pytest
from django.db import connections

from jobqueue.models import Executor
from jobqueue.records import ClaimedTask, Rescued, Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

TIMEOUT = 30.0


def lost(bench: Bench, **changes) -> ClaimedTask:
    """A task whose executor has been silent for longer than the timeout."""
    claimed = bench.running(**changes)
    bench.time_passes(TIMEOUT + 1)
    return claimed


class TestHeartbeat:
    def test_first_beat_writes_the_executor(self, bench: Bench) -> None:
        bench.beat(name="web-1", host="h", pid=7, versions={"python": "3"}, queues=["a"], slots=4)

        row = bench.engine.executors.get(pk=bench.executor_id)
        assert (row.backend, row.name, row.host, row.pid) == (bench.engine.alias, "web-1", "h", 7)
        assert (row.versions, row.queues, row.slots, row.state) == ({"python": "3"}, ["a"], 4, "RUNNING")
        assert row.heartbeat == row.started_at

    def test_later_beats_move_the_heartbeat_and_the_state_alone(self, bench: Bench) -> None:
        bench.beat()
        bench.time_passes(60)
        started_at, before = bench.engine.executors.get().started_at, bench.engine.now()

        bench.beat(state="DRAINING", name="other")

        row = bench.engine.executors.get()
        assert (row.state, row.name, row.started_at) == ("DRAINING", "bench", started_at)
        assert before <= row.heartbeat <= bench.engine.now()

    def test_beat_tells_what_is_held_and_what_is_to_be_cancelled(self, bench: Bench) -> None:
        a, b = bench.running(), bench.running()
        bench.add()
        bench.claim(executor_id=uuid4())
        bench.ended()
        bench.engine.cancel([b.id])

        assert sorted(bench.beat()) == sorted([a.id, b.id])

    def test_beat_writes_nothing_on_tasks(self, bench: Bench) -> None:
        claimed = bench.running()
        before = bench.row(claimed.id).claimed_at
        bench.beat()

        assert bench.row(claimed.id).claimed_at == before

    def test_executor_whose_row_was_deleted_writes_it_again(self, bench: Bench) -> None:
        bench.beat()
        Executor.objects.using(bench.engine.database).all().delete()

        bench.beat()

        assert bench.engine.executors.filter(pk=bench.executor_id).exists()


class TestRescue:
    def test_history_that_cannot_be_read_keeps_nobody_from_rescuing(self, bench: Bench) -> None:
        claimed = lost(bench)
        too_deep = "[" * 990 + "]" * 990  # SQLite takes a thousand
        with connections[bench.engine.database].cursor() as cursor:
            cursor.execute("UPDATE jobqueue_task SET errors = %s, worker_ids = %s", [too_deep, too_deep])

        (rescued,) = bench.engine.rescue()

        assert (rescued.id, rescued.status) == (claimed.id, Status.READY)

    def test_task_of_a_silent_executor_is_ready_again(self, bench: Bench) -> None:
        claimed = lost(bench)
        rank = bench.row(claimed.id).rank

        (rescued,) = bench.engine.rescue()

        row = bench.row(claimed.id)
        assert rescued == Rescued(
            id=claimed.id,
            queue_name=claimed.queue_name,
            task_type=claimed.task_type,
            status=Status.READY,
            executor_losses=1,
            executor_id=bench.executor_id,
            silent_seconds=rescued.silent_seconds,
        )
        assert TIMEOUT < rescued.silent_seconds < TIMEOUT + 600
        assert (row.status, row.executor_losses, row.rank) == ("READY", 1, rank)
        assert (row.executor_id, row.claimed_at, row.finished_at) == (None, None, None)

    def test_lost_executor_uses_up_no_attempt(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.set(claimed.id, attempts=2)

        bench.engine.rescue()

        row = bench.row(claimed.id)
        assert row.attempts == 2
        assert row.worker_ids == [str(bench.executor_id)]
        (error,) = row.errors
        assert (error["attempt"], error["exception_class_path"]) == (3, "jobqueue.exceptions.ExecutorLost")
        assert error["executor"] == str(bench.executor_id)

    def test_rescued_task_is_lost_to_its_old_executor(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.engine.rescue()

        assert bench.commit(outcome(claimed)).lost == {claimed.id}
        assert bench.beat() == []

    def test_beating_executor_keeps_its_tasks(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.beat()

        assert bench.engine.rescue() == []
        assert bench.status(claimed.id) == "RUNNING"

    def test_task_that_was_claimed_just_now_is_kept(self, bench: Bench) -> None:
        """Its executor may be younger than the rescuer's view of who beats."""
        bench.beat()
        bench.time_passes(TIMEOUT + 1)
        bench.add()
        bench.claim()

        assert bench.engine.rescue() == []

    def test_claim_after_the_last_beat_does_not_put_off_the_rescue(self, bench: Bench) -> None:
        """Killed right before it would have beaten again, an executor is silent from its last beat on."""
        bench.beat()
        bench.time_passes(TIMEOUT / 3)
        bench.add()
        (claimed,) = bench.claim()
        bench.time_passes(TIMEOUT * 2 / 3 + 1)

        assert [rescued.id for rescued in bench.engine.rescue()] == [claimed.id]

    def test_clock_that_was_set_back_gives_the_dead_no_more_than_a_timeout(self, bench: Bench) -> None:
        """Its last beat, and its claim, lie ahead."""
        bench.beat()
        claimed = bench.running()
        bench.time_passes(-3600)

        assert bench.engine.rescue() == []
        bench.time_passes(TIMEOUT - 5)
        assert bench.engine.rescue() == []
        bench.time_passes(6)
        assert [rescued.id for rescued in bench.engine.rescue()] == [claimed.id]

    def test_nobody_is_rescued_within_the_timeout(self, bench: Bench) -> None:
        bench.running()
        bench.time_passes(TIMEOUT - 5)

        assert bench.engine.rescue() == []

    def test_timeout_is_the_option(self, bench: Bench) -> None:
        bench = bench.with_options(heartbeat_timeout=3.0)
        bench.running()
        bench.time_passes(4)

        assert len(bench.engine.rescue()) == 1

    def test_executor_without_a_row_gets_one_and_a_timeout_to_beat(self, bench: Bench) -> None:
        claimed = lost(bench)
        Executor.objects.using(bench.engine.database).all().delete()

        assert bench.engine.rescue() == []
        row = bench.engine.executors.get()
        assert (row.pk, row.name) == (bench.executor_id, "unknown")

        bench.time_passes(TIMEOUT + 1)
        assert [rescued.id for rescued in bench.engine.rescue()] == [claimed.id]

    def test_living_executor_without_a_row_keeps_its_tasks(self, bench: Bench) -> None:
        lost(bench)
        Executor.objects.using(bench.engine.database).all().delete()
        bench.engine.rescue()
        bench.time_passes(TIMEOUT + 1)
        bench.beat()

        assert bench.engine.rescue() == []

    def test_third_loss_is_the_end(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.set(claimed.id, executor_losses=2)

        (rescued,) = bench.engine.rescue()

        row = bench.row(claimed.id)
        assert (rescued.status, rescued.executor_losses) == (Status.FAILED, 3)
        assert (row.status, row.executor_losses, row.executor_id) == ("FAILED", 3, None)
        assert row.finished_at is not None
        assert row.errors[-1]["exception_class_path"] == "jobqueue.exceptions.ExecutorLost"
        assert "loss 3" in row.errors[-1]["message"]

    def test_limit_of_losses_is_the_option(self, bench: Bench) -> None:
        bench = bench.with_options(max_executor_losses=1)
        lost(bench)

        assert [rescued.status for rescued in bench.engine.rescue()] == [Status.FAILED]

    def test_task_that_was_to_be_cancelled_is_cancelled(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.engine.cancel([claimed.id])

        assert [rescued.status for rescued in bench.engine.rescue()] == [Status.CANCELLED]
        assert bench.row(claimed.id).finished_at is not None

    @pytest.mark.parametrize(("losses", "child_status"), [(2, "FAILED"), (0, None)])
    def test_parent_is_told_of_the_end_only(self, bench: Bench, losses: int, child_status: str | None) -> None:
        parent = bench.suspended()
        child = lost(bench, parent_id=parent)
        bench.set(child.id, executor_losses=losses)

        bench.engine.rescue()

        assert [told.child_status for told in bench.inbox(parent)] == ([child_status] if child_status else [])
        assert bench.status(parent) == ("READY" if child_status else "SUSPENDED")
        if child_status:
            assert bench.bodies(parent)[0]["exception_class_path"] == "jobqueue.exceptions.ExecutorLost"

    def test_errors_and_workers_stay_bounded(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.set(claimed.id, errors=[{"attempt": n} for n in range(20)], worker_ids=[str(n) for n in range(100)])

        bench.engine.rescue()

        row = bench.row(claimed.id)
        assert (len(row.errors), row.errors[0]["attempt"]) == (20, 1)
        assert (len(row.worker_ids), row.worker_ids[-1]) == (100, str(bench.executor_id))

    def test_small_batches_of_several_executors(self, bench: Bench) -> None:
        for _ in range(3):
            other = Bench(bench.engine)
            other.beat()
            other.engine.enqueue([new(), new()])
            other.claim()
        bench.time_passes(TIMEOUT + 1)

        assert [len(bench.engine.rescue(4)) for _ in range(3)] == [4, 2, 0]

    def test_waiting_tasks_are_nobodys_to_lose(self, bench: Bench) -> None:
        ids = [bench.add(), bench.suspended(), bench.add(wake_after_seconds=3600.0), bench.ended()]
        before = [bench.status(pk) for pk in ids]
        bench.time_passes(TIMEOUT + 1)

        assert bench.engine.rescue() == []
        assert [bench.status(pk) for pk in ids] == before
