"""wake_due, wake, sweep and pending_maintenance, on every engine."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from msgspec.structs import asdict

from jobqueue.models import Executor, InboxMessage
from jobqueue.values.ids import new_id
from jobqueue.values.records import PendingWork
from jobqueue.values.states import Command, Status
from tests.engine.bench import Bench, outcome
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestWakeDue:
    def test_wake_due_makes_only_due_tasks_ready(self, bench: Bench) -> None:
        due = [bench.add(wake_after_seconds=60.0), bench.suspended(wake_after_seconds=60.0)]
        later = [bench.add(wake_after_seconds=70.0), bench.suspended(wake_after_seconds=70.0), bench.suspended()]
        bench.time_passes(61)

        assert bench.engine.inbox.wake_due() == 2
        assert [(bench.status(pk), bench.row(pk).wake_at) for pk in due] == [("READY", None)] * 2
        assert [bench.status(pk) for pk in later] == ["SCHEDULED", "SUSPENDED", "SUSPENDED"]

    def test_wake_due_limit_leaves_the_rest_overdue(self, bench: Bench) -> None:
        for _ in range(3):
            bench.add(wake_after_seconds=60.0)
        bench.time_passes(61)

        assert [bench.engine.inbox.wake_due(2), bench.engine.inbox.wake_due(2)] == [2, 1]

    def test_look_at_left_messages_is_no_timeout(self, bench: Bench) -> None:
        asleep = bench.suspended(wake_after_seconds=600.0, recheck_seconds=60.0)
        timeout_at = bench.moment(asleep, "timeout_at")
        assert timeout_at - bench.moment(asleep, "wake_at") == pytest.approx(
            timedelta(seconds=540), abs=timedelta(seconds=1)
        )
        bench.time_passes(61)
        bench.engine.inbox.wake_due()
        queue = bench.row(asleep).queue_name
        (claimed,) = bench.claim(queues=[queue])
        assert (claimed.timed_out, claimed.timeout_at) == (False, timeout_at - timedelta(seconds=61))

        retry = outcome(claimed, Status.SCHEDULED, wake_after_seconds=0.0)  # a failed attempt keeps timeout_at
        bench.commit(retry)
        bench.engine.inbox.wake_due()
        (claimed,) = bench.claim(queues=[queue])
        assert (claimed.timed_out, claimed.timeout_at) == (False, timeout_at - timedelta(seconds=61))

        again = {"has_succeeded": True, "wake_after_seconds": 600.0, "recheck_seconds": 3600.0}
        bench.commit(outcome(claimed, Status.SUSPENDED, wake_at=claimed.timeout_at, **again))
        assert bench.row(asleep).wake_at == bench.row(asleep).timeout_at == claimed.timeout_at
        bench.time_passes(540)
        bench.engine.inbox.wake_due()
        (claimed,) = bench.claim(queues=[queue])
        assert claimed.timed_out

        bench.commit(outcome(claimed, Status.SUSPENDED, has_succeeded=True))
        assert (bench.row(asleep).timeout_at, bench.row(asleep).timed_out) == (None, False)

    def test_wake_at_long_ago_wakes_task_of_any_priority(self, bench: Bench) -> None:
        pk = bench.add(wake_after_seconds=60.0)
        bench.set(pk, priority=32_767, wake_at=datetime(1000, 1, 1, tzinfo=UTC))

        assert bench.with_options(aging=86_400.0).engine.inbox.wake_due() == 1
        assert bench.status(pk) == "READY"
        assert bench.claim_ids() == [pk]

    def test_wake_due_skips_running_and_finished_tasks(self, bench: Bench) -> None:
        running, ended = bench.running(), bench.ended()
        bench.time_passes(1000)

        assert bench.engine.inbox.wake_due() == 0
        assert (bench.status(running.id), bench.status(ended)) == ("RUNNING", "SUCCESSFUL")


class TestWake:
    def test_wake_makes_suspended_task_ready(self, bench: Bench) -> None:
        pk = bench.suspended(wake_after_seconds=3600.0)
        before = bench.engine.db.now()

        assert bench.engine.messages.wake([pk]) == 1
        row = bench.row(pk)
        assert (row.status, row.wake_at) == ("READY", None)
        assert row.rank >= before - timedelta(milliseconds=1)

    def test_wake_skips_other_states(self, bench: Bench) -> None:
        """A message must not start a scheduled task or shorten a backoff."""
        ids = [bench.add(), bench.add(wake_after_seconds=60.0), bench.running().id, bench.ended(), new_id()]
        before = [bench.row(pk).status for pk in ids[:-1]]

        assert bench.engine.messages.wake(ids) == 0
        assert [bench.row(pk).status for pk in ids[:-1]] == before


class TestSweep:
    """The sweep finds messages after a lost wake-up."""

    @pytest.mark.parametrize("seconds", [1.0, 3600.0])
    def test_sweep_wakes_actor_with_messages_before_its_wake_at(self, bench: Bench, seconds: float) -> None:
        """Its poll found no messages, and POLL_INTERVAL may be long."""
        bench = bench.with_options(poll_interval=60.0)
        pk = bench.suspended(wake_after_seconds=seconds)
        bench.send(pk)

        assert bench.engine.messages.sweep() == 1
        row = bench.row(pk)
        assert (row.status, row.wake_at) == ("READY", None)

    def test_sweep_skips_actor_that_looks_again_soon(self, bench: Bench) -> None:
        """It left this message and waits for another. A wake-up each second would be a hot loop."""
        pk = bench.suspended(recheck_seconds=1.0, unread_polls=1)
        bench.send(pk)
        bench.set(pk, last_attempted_at=bench.engine.db.now())

        assert bench.engine.messages.sweep() == 0
        assert bench.status(pk) == "SUSPENDED"

        bench.send(pk)
        assert bench.engine.messages.sweep() == 1

    def test_sweep_ignores_consumed_messages(self, bench: Bench) -> None:
        pk = bench.suspended()
        bench.send(pk, dedupe_key="k")
        InboxMessage.objects.using(bench.engine.database).update(consumed_at=bench.engine.db.now())

        assert bench.engine.messages.sweep() == 0

    def test_sweep_skips_other_states(self, bench: Bench) -> None:
        ids = [bench.add(), bench.add(wake_after_seconds=60.0), bench.running().id]
        for pk in ids:
            bench.send(pk)

        assert bench.engine.messages.sweep() == 0
        assert [bench.status(pk) for pk in ids] == ["READY", "SCHEDULED", "RUNNING"]

    def test_sweep_keeps_limit(self, bench: Bench) -> None:
        for _ in range(3):
            bench.send(bench.suspended())

        assert [bench.engine.messages.sweep(2), bench.engine.messages.sweep(2)] == [2, 1]


def test_clock_works_while_django_logs_queries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[bench.engine.database], "force_debug_cursor", True)
    bench.add(wake_after_seconds=60.0)
    bench.beat()

    assert bench.engine.inbox.wake_due() == 0
    assert bench.engine.db.now() is not None


# --- pending_maintenance

NOTHING = PendingWork(None, None, None, *[False] * 6)


def running(bench: Bench) -> None:
    bench.running()


def messages(bench: Bench) -> None:
    bench.send(bench.suspended())


def command(bench: Bench) -> None:
    bench.beat()
    bench.engine.executors.command([bench.executor_id], Command.STOP)


def isolated(bench: Bench) -> None:
    bench.set(bench.add(), executor_losses=2)


def awaiting_code(bench: Bench) -> None:
    bench.set(bench.add(), status="AWAITING_CODE", awaits_code_since=bench.engine.db.now())


@pytest.mark.parametrize("begin", [running, messages, command, isolated, awaiting_code])
def test_pending_maintenance_reports_each_kind_of_work(bench: Bench, begin: Callable[[Bench], None]) -> None:
    begin(bench)

    assert asdict(bench.engine.executors.pending_maintenance(bench.executor_id))[f"has_{begin.__name__}"]


@pytest.mark.parametrize("left", [-60.0, 60.0])
def test_pending_maintenance_tells_seconds_to_next_wake_at(bench: Bench, left: float) -> None:
    assert bench.engine.executors.pending_maintenance(bench.executor_id).next_wake_seconds is None
    bench.add(wake_after_seconds=86_400.0)
    bench.add(wake_after_seconds=100.0)
    bench.time_passes(100.0 - left)

    seconds = bench.engine.executors.pending_maintenance(bench.executor_id).next_wake_seconds
    assert seconds is not None
    assert left - 5 < seconds <= left  # never too late


@pytest.mark.parametrize("begin", [running, messages, command, isolated, awaiting_code])
def test_pending_maintenance_reports_no_other_kind(begin: Callable[[Bench], None]) -> None:
    bench = make_bench("postgresql")
    assert bench.engine.executors.pending_maintenance(bench.executor_id) == NOTHING
    begin(bench)

    due = asdict(bench.engine.executors.pending_maintenance(bench.executor_id))
    assert {name for name, value in due.items() if value} == {f"has_{begin.__name__}"}


def test_pending_maintenance_ignores_work_of_others() -> None:
    bench = make_bench("postgresql")
    bench.send(bench.add())  # READY tasks need no wake-up
    bench.set(bench.suspended(), status="FAILED", executor_losses=2)
    bench.set(bench.suspended(), backend="another", wake_at=bench.engine.db.now())
    bench.set(bench.add(), backend="another", executor_losses=2)
    bench.set(bench.add(), backend="another", status="AWAITING_CODE", awaits_code_since=bench.engine.db.now())
    bench.add()
    bench.engine.executors.command(list(Executor.objects.values_list("pk", flat=True)), Command.STOP)
    bench.executor_id = make_bench("postgresql").executor_id

    assert bench.engine.executors.pending_maintenance(bench.executor_id) == NOTHING
