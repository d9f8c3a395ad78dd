"""wake_due, wake and sweep, on every engine."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections

from jobqueue.models import InboxMessage
from jobqueue.records import Status
from jobqueue.serialization.ids import new_id
from tests.engine.bench import Bench, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestWakeDue:
    def test_due_tasks_become_ready(self, bench: Bench) -> None:
        scheduled, asleep = bench.add(wake_after_seconds=60.0), bench.suspended(wake_after_seconds=60.0)
        bench.time_passes(61)

        assert bench.engine.wake_due().count == 2
        for pk in (scheduled, asleep):
            row = bench.row(pk)
            assert (row.status, row.wake_at) == ("READY", None)

    def test_what_is_not_due_sleeps_on(self, bench: Bench) -> None:
        scheduled, asleep, waiting = (
            bench.add(wake_after_seconds=60.0),
            bench.suspended(wake_after_seconds=60.0),
            bench.suspended(),
        )
        bench.time_passes(55)

        assert bench.engine.wake_due().count == 0
        assert [bench.status(pk) for pk in (scheduled, asleep, waiting)] == ["SCHEDULED", "SUSPENDED", "SUSPENDED"]

    def test_tells_the_seconds_until_the_next_alarm(self, bench: Bench) -> None:
        assert bench.engine.wake_due().next_seconds is None
        bench.add(wake_after_seconds=100.0)
        bench.suspended(wake_after_seconds=50.0)

        assert bench.engine.wake_due().next_seconds == pytest.approx(50, abs=5)

    def test_woken_tasks_are_no_alarms_any_more(self, bench: Bench) -> None:
        bench.add(wake_after_seconds=60.0)
        bench.time_passes(61)

        assert bench.engine.wake_due().next_seconds is None

    def test_a_limit_leaves_the_rest_overdue(self, bench: Bench) -> None:
        for _ in range(3):
            bench.add(wake_after_seconds=60.0)
        bench.time_passes(61)

        first, second = bench.engine.wake_due(2), bench.engine.wake_due(2)

        assert (first.count, second.count) == (2, 1)
        assert first.next_seconds is not None
        assert first.next_seconds < 0

    def test_actor_that_slept_ranks_by_the_moment_it_asked_for(self, bench: Bench) -> None:
        asleep = bench.suspended(wake_after_seconds=60.0)
        bench.time_passes(100)
        wake_at = bench.row(asleep).wake_at

        bench.engine.wake_due()

        assert bench.row(asleep).rank == wake_at

    def test_look_at_mail_that_was_left_is_not_the_alarm(self, bench: Bench) -> None:
        asleep = bench.suspended(wake_after_seconds=600.0, look_after_seconds=60.0)
        timeout_at = bench.moment(asleep, "timeout_at")
        assert timeout_at - bench.moment(asleep, "wake_at") == pytest.approx(
            timedelta(seconds=540), abs=timedelta(seconds=1)
        )
        bench.time_passes(61)
        bench.engine.wake_due()
        queue = bench.row(asleep).queue_name
        (claimed,) = bench.claim(queues=[queue])
        assert (claimed.timed_out, claimed.timeout_at) == (False, timeout_at - timedelta(seconds=61))

        retry = outcome(claimed, Status.SCHEDULED, wake_after_seconds=0.0)  # a failed try leaves the alarm alone
        bench.commit(retry)
        bench.engine.wake_due()
        (claimed,) = bench.claim(queues=[queue])
        assert (claimed.timed_out, claimed.timeout_at) == (False, timeout_at - timedelta(seconds=61))

        again = {"is_good_poll": True, "wake_after_seconds": 600.0, "look_after_seconds": 3600.0}
        bench.commit(outcome(claimed, Status.SUSPENDED, wake_at=claimed.timeout_at, **again))
        assert bench.row(asleep).wake_at == bench.row(asleep).timeout_at == claimed.timeout_at
        bench.time_passes(540)
        bench.engine.wake_due()
        (claimed,) = bench.claim(queues=[queue])
        assert claimed.timed_out

        bench.commit(outcome(claimed, Status.SUSPENDED, is_good_poll=True))
        assert (bench.row(asleep).timeout_at, bench.row(asleep).timed_out) == (None, False)

    def test_alarm_from_long_ago_wakes_a_task_of_any_priority(self, bench: Bench) -> None:
        pk = bench.add(wake_after_seconds=60.0)
        bench.set(pk, priority=32_767, wake_at=datetime(1000, 1, 1, tzinfo=UTC))

        assert bench.with_options(aging=86_400.0).engine.wake_due().count == 1
        assert bench.status(pk) == "READY"
        assert bench.claim_ids() == [pk]

    def test_running_and_finished_tasks_are_left_alone(self, bench: Bench) -> None:
        running, ended = bench.running(), bench.ended()
        bench.time_passes(1000)

        assert bench.engine.wake_due().count == 0
        assert (bench.status(running.id), bench.status(ended)) == ("RUNNING", "SUCCESSFUL")


class TestWake:
    def test_suspended_task_becomes_ready_now(self, bench: Bench) -> None:
        pk = bench.suspended(wake_after_seconds=3600.0)
        before = bench.engine.now()

        assert bench.engine.wake([pk]) == 1
        row = bench.row(pk)
        assert (row.status, row.wake_at) == ("READY", None)
        assert row.rank >= before - timedelta(milliseconds=1)

    def test_no_other_state_is_woken(self, bench: Bench) -> None:
        """A message neither starts tomorrow's task today nor defeats a backoff."""
        ids = [bench.add(), bench.add(wake_after_seconds=60.0), bench.running().id, bench.ended(), new_id()]
        before = [bench.row(pk).status for pk in ids[:-1]]

        assert bench.engine.wake(ids) == 0
        assert [bench.row(pk).status for pk in ids[:-1]] == before

    def test_nobody_to_wake(self, bench: Bench) -> None:
        assert bench.engine.wake([]) == 0


class TestSweep:
    """The net below a wake-up that was lost."""

    def test_waiting_task_with_mail_becomes_ready(self, bench: Bench) -> None:
        lost, without = bench.suspended(), bench.suspended()
        bench.send(lost)

        assert bench.engine.sweep() == 1
        assert [bench.status(pk) for pk in (lost, without)] == ["READY", "SUSPENDED"]
        assert bench.engine.sweep() == 0

    @pytest.mark.parametrize("seconds", [1.0, 3600.0])
    def test_sleeper_with_mail_becomes_ready_however_near_its_alarm_is(self, bench: Bench, seconds: float) -> None:
        """Its poll found no mail; and POLL_INTERVAL may be long."""
        bench = bench.with_options(poll_interval=60.0)
        pk = bench.suspended(wake_after_seconds=seconds)
        bench.send(pk)

        assert bench.engine.sweep() == 1
        row = bench.row(pk)
        assert (row.status, row.wake_at) == ("READY", None)

    def test_sleeper_that_looks_again_soon_is_left_to_its_alarm(self, bench: Bench) -> None:
        """It read this mail and waits for other: waking it each second would be a hot loop."""
        pk = bench.suspended(look_after_seconds=1.0, unread_polls=1)
        bench.send(pk)
        bench.set(pk, last_attempted_at=bench.engine.now())

        assert bench.engine.sweep() == 0
        assert bench.status(pk) == "SUSPENDED"

        bench.send(pk)
        assert bench.engine.sweep() == 1

    def test_read_mail_wakes_nobody(self, bench: Bench) -> None:
        pk = bench.suspended()
        bench.send(pk, dedupe_key="k")
        InboxMessage.objects.using(bench.engine.database).update(consumed_at=bench.engine.now())

        assert bench.engine.sweep() == 0

    def test_mail_does_not_start_other_states(self, bench: Bench) -> None:
        ids = [bench.add(), bench.add(wake_after_seconds=60.0), bench.running().id]
        for pk in ids:
            bench.send(pk)

        assert bench.engine.sweep() == 0
        assert [bench.status(pk) for pk in ids] == ["READY", "SCHEDULED", "RUNNING"]

    def test_finds_every_sleeper_among_others_with_and_without_mail(self, bench: Bench) -> None:
        stuck = []
        for number in range(12):
            pk = bench.suspended() if number % 2 else bench.running().id
            if number % 3 == 0:
                bench.send(pk)
                bench.send(pk)
                stuck += [pk] if number % 2 else []

        assert bench.engine.sweep() == len(stuck) == 2
        assert {pk for pk in stuck if bench.status(pk) == "READY"} == set(stuck)

    def test_a_limit_leaves_the_rest_to_the_next_sweep(self, bench: Bench) -> None:
        for _ in range(3):
            bench.send(bench.suspended())

        assert [bench.engine.sweep(2), bench.engine.sweep(2)] == [2, 1]


def test_retry_overwrites_the_alarm(bench: Bench) -> None:
    claimed = bench.running()
    bench.send(claimed.id)

    bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, wake_after_seconds=30.0))

    assert bench.status(claimed.id) == "SCHEDULED"
    wait = bench.moment(claimed.id, "wake_at") - bench.engine.now()
    assert timedelta(seconds=20) < wait <= timedelta(seconds=30)
    assert bench.engine.wake([claimed.id]) == 0
    assert bench.engine.sweep() == 0


def test_the_clock_bears_a_debugger_that_logs_queries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[bench.engine.database], "force_debug_cursor", True)
    bench.add(wake_after_seconds=60.0)
    bench.beat()

    assert bench.engine.wake_due().count == 0
    assert bench.engine.now() is not None
