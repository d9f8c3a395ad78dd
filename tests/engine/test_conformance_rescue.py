"""heartbeat and rescue, on every engine."""

from uuid import uuid4

import pytest
from django.db import connections
from django.db.models import Model

from jobqueue.models import Executor, Heartbeat
from jobqueue.values.causes import fingerprint
from jobqueue.values.records import ClaimedTask, Rescued
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

TIMEOUT = 30.0


def lost(bench: Bench, **changes) -> ClaimedTask:
    """Return a task of an executor that is silent for longer than the timeout."""
    claimed = bench.running(**changes)
    bench.time_passes(TIMEOUT + 1)
    return claimed


class TestHeartbeat:
    def test_first_heartbeat_inserts_executor(self, bench: Bench) -> None:
        bench.beat(name="web-1", host="h", pid=7, versions={"python": "3"}, queues=["a"], slots=4, task_types=["x"])

        row = bench.engine.db.executors.get(pk=bench.executor_id)
        assert (row.backend, row.name, row.host, row.pid) == (bench.engine.alias, "web-1", "h", 7)
        assert (row.versions, row.queues, row.slots, row.task_types) == ({"python": "3"}, ["a"], 4, ["x"])
        assert (row.heartbeat.state, row.heartbeat.problem) == ("RUNNING", None)
        assert row.heartbeat.at <= row.started_at <= bench.engine.db.now()

    @pytest.mark.parametrize(
        ("name", "values"),
        [("waiting_for_connections", [0, 3, 0]), ("problem", [None, "Stuck for 40 s.", None])],
    )
    def test_each_heartbeat_writes_what_may_change(self, bench: Bench, name: str, values: list[object]) -> None:
        written = []
        for value in values:
            bench.beat(**{name: value})
            written.append(getattr(bench.engine.db.heartbeats.get(), name))

        assert written == values

    def test_later_heartbeat_keeps_what_was_written_at_the_start(self, bench: Bench) -> None:
        bench.beat()
        bench.time_passes(60)
        started_at, before = bench.engine.db.executors.get().started_at, bench.engine.db.now()

        bench.beat(state="STOPPING", name="other")

        row = bench.engine.db.executors.get()
        assert (row.heartbeat.state, row.name, row.started_at) == ("STOPPING", "bench", started_at)
        assert before <= row.heartbeat.at <= bench.engine.db.now()

    def test_heartbeat_returns_tasks_of_executor(self, bench: Bench) -> None:
        a, b = bench.running(), bench.running()
        bench.add()
        bench.claim(executor_id=uuid4())
        bench.ended()
        bench.engine.tasks.cancel([b.id])

        assert sorted(bench.beat()) == sorted([a.id, b.id])

    @pytest.mark.parametrize("deleted", [(Executor,), (Heartbeat,), (Executor, Heartbeat)])
    def test_heartbeat_inserts_deleted_rows_again(self, bench: Bench, deleted: tuple[type[Model], ...]) -> None:
        bench.beat()
        for model in deleted:
            model._default_manager.using(bench.engine.database).all().delete()

        bench.beat()

        assert bench.engine.db.executors.get(pk=bench.executor_id).heartbeat.state == "RUNNING"


class TestRescue:
    def test_rescue_accepts_unreadable_errors(self, bench: Bench) -> None:
        claimed = lost(bench)
        too_deep = "[" * 990 + "]" * 990  # SQLite accepts 1,000 levels
        with connections[bench.engine.database].cursor() as cursor:
            cursor.execute("UPDATE jobqueue_task SET errors = %s, worker_ids = %s", [too_deep, too_deep])

        (rescued,) = bench.engine.executors.rescue()

        assert (rescued.id, rescued.status) == (claimed.id, Status.READY)

    def test_rescue_makes_task_ready_and_counts_no_attempt(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.set(claimed.id, attempts=2)
        rank = bench.row(claimed.id).rank

        (rescued,) = bench.engine.executors.rescue()

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
        assert (row.attempts, row.worker_ids) == (2, [str(bench.executor_id)])
        (error,) = row.errors
        assert (error["attempt"], error["exception_class_path"]) == (3, "jobqueue.exceptions.ExecutorLost")
        assert error["executor"] == str(bench.executor_id)

    @pytest.mark.parametrize(("limit", "losses"), [(3, 2), (2, 1), (5, 2)])
    def test_task_of_a_frozen_executor_runs_alone_after_its_rescue(self, bench: Bench, limit: int, losses: int) -> None:
        """Unless one loss more would end it FAILED."""
        bench = bench.with_options(max_executor_losses=limit)
        other = bench.running()
        bench.set(other.id, executor_id=uuid4())
        claimed = lost(bench)

        assert bench.engine.executors.isolate_tasks_of(bench.executor_id) == (losses > 1)

        (rescued,) = bench.engine.executors.rescue()
        assert (rescued.id, rescued.status, rescued.executor_losses) == (claimed.id, Status.READY, losses)
        assert bench.claim_isolated(queues=[claimed.queue_name]) == ([claimed.id] if losses > 1 else [])
        assert bench.row(other.id).executor_losses == 0

    def test_rescue_skips_executor_with_heartbeat(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.beat()

        assert bench.engine.executors.rescue() == []
        assert bench.status(claimed.id) == "RUNNING"

    def test_rescue_skips_task_claimed_within_timeout(self, bench: Bench) -> None:
        """Its executor may have started after the rescuer read the heartbeats."""
        bench.beat()
        bench.time_passes(TIMEOUT + 1)
        bench.add()
        bench.claim()

        assert bench.engine.executors.rescue() == []

    def test_claim_after_last_heartbeat_does_not_delay_rescue(self, bench: Bench) -> None:
        """The timeout starts at the last heartbeat, not at the last claim."""
        bench.beat()
        bench.time_passes(TIMEOUT / 3)
        bench.add()
        (claimed,) = bench.claim()
        bench.time_passes(TIMEOUT * 2 / 3 + 1)

        assert [rescued.id for rescued in bench.engine.executors.rescue()] == [claimed.id]

    def test_clock_set_back_delays_rescue_by_one_timeout(self, bench: Bench) -> None:
        """Its last heartbeat and its claim lie in the future."""
        bench.beat()
        claimed = bench.running()
        bench.time_passes(-3600)

        assert bench.engine.executors.rescue() == []
        bench.time_passes(TIMEOUT - 5)
        assert bench.engine.executors.rescue() == []
        bench.time_passes(6)
        assert [rescued.id for rescued in bench.engine.executors.rescue()] == [claimed.id]

    @pytest.mark.parametrize("timeout", [3.0, TIMEOUT])
    def test_rescue_waits_for_heartbeat_timeout(self, bench: Bench, timeout: float) -> None:
        bench = bench.with_options(heartbeat_timeout=timeout)
        bench.running()
        bench.time_passes(timeout - 1)
        assert bench.engine.executors.rescue() == []

        bench.time_passes(2)
        assert len(bench.engine.executors.rescue()) == 1

    def test_rescue_inserts_missing_heartbeat_and_waits(self, bench: Bench) -> None:
        claimed = lost(bench)
        for model in (Executor, Heartbeat):
            model._default_manager.using(bench.engine.database).all().delete()

        assert bench.engine.executors.rescue() == []
        assert bench.engine.db.heartbeats.get().pk == bench.executor_id

        bench.time_passes(TIMEOUT + 1)
        assert [rescued.id for rescued in bench.engine.executors.rescue()] == [claimed.id]

    def test_third_executor_loss_fails_task(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.set(claimed.id, executor_losses=2)

        (rescued,) = bench.engine.executors.rescue()

        row = bench.row(claimed.id)
        assert (rescued.status, rescued.executor_losses) == (Status.FAILED, 3)
        assert (row.status, row.executor_losses, row.executor_id) == ("FAILED", 3, None)
        error = row.errors[-1]
        assert row.cause == fingerprint(row.task_type, error["exception_class_path"], error["message"])
        assert row.finished_at is not None
        assert row.errors[-1]["exception_class_path"] == "jobqueue.exceptions.ExecutorLost"
        assert "loss 3" in row.errors[-1]["message"]

    @pytest.mark.parametrize(
        ("status", "has_succeeded", "losses"),
        [
            (Status.SUSPENDED, True, 0),
            (Status.READY, True, 0),
            (Status.READY, False, 2),  # released
            (Status.SCHEDULED, False, 2),  # a retry
            (Status.SUCCESSFUL, True, 2),  # for people who look at the task
        ],
    )
    def test_successful_poll_forgets_executor_losses(
        self, bench: Bench, status: Status, has_succeeded: bool, losses: int
    ) -> None:
        """Otherwise an actor of a year would be FAILED after its third deploy that went wrong."""
        pk = bench.add()
        for _ in range(2):
            doomed = Bench(bench.engine)
            doomed.beat()
            doomed.claim()
            bench.time_passes(TIMEOUT + 2)
            bench.engine.executors.rescue()
        assert bench.row(pk).executor_losses == 2
        (claimed,) = bench.engine.claims.claim_isolated(bench.claim_request(1))

        bench.commit(outcome(claimed, status, has_succeeded=has_succeeded))

        assert bench.row(pk).executor_losses == losses

    def test_rescue_cancels_task_with_cancel_request(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.engine.tasks.cancel([claimed.id])

        assert [rescued.status for rescued in bench.engine.executors.rescue()] == [Status.CANCELLED]
        assert bench.row(claimed.id).finished_at is not None

    @pytest.mark.parametrize(("losses", "child_status"), [(2, "FAILED"), (0, None)])
    def test_rescue_notifies_parent_of_final_failure_only(
        self, bench: Bench, losses: int, child_status: str | None
    ) -> None:
        parent = bench.suspended()
        child = lost(bench, parent_id=parent)
        bench.set(child.id, executor_losses=losses)

        bench.engine.executors.rescue()

        assert [sent.child_status for sent in bench.inbox(parent)] == ([child_status] if child_status else [])
        assert bench.status(parent) == ("READY" if child_status else "SUSPENDED")
        if child_status:
            assert bench.bodies(parent)[0]["exception_class_path"] == "jobqueue.exceptions.ExecutorLost"

    def test_rescue_bounds_errors_and_worker_ids(self, bench: Bench) -> None:
        claimed = lost(bench)
        bench.set(claimed.id, errors=[{"attempt": n} for n in range(20)], worker_ids=[str(n) for n in range(100)])

        bench.engine.executors.rescue()

        row = bench.row(claimed.id)
        assert (len(row.errors), row.errors[0]["attempt"]) == (20, 1)
        assert (len(row.worker_ids), row.worker_ids[-1]) == (100, str(bench.executor_id))

    def test_rescue_keeps_limit_over_several_executors(self, bench: Bench) -> None:
        for _ in range(3):
            other = Bench(bench.engine)
            other.beat()
            other.engine.enqueues.enqueue([new(), new()])
            other.claim()
        bench.time_passes(TIMEOUT + 1)

        assert [len(bench.engine.executors.rescue(4)) for _ in range(3)] == [4, 2, 0]
