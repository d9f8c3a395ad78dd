"""Concurrent sessions on PostgreSQL, and the journal of one workflow."""

from __future__ import annotations

from threading import Event

import pytest
from django.db import connection, transaction

from jobqueue.api import requeue
from jobqueue.api.workflows import give
from jobqueue.exceptions import ChangeRefused, ClaimLost
from jobqueue.models import Task
from jobqueue.values.journal import EntryKind
from jobqueue.values.records import ClaimedTask, Effects
from jobqueue.values.states import Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.engine.sessions import session, threads, wait_until_blocked
from tests.engine.test_conformance_journal import entry, names
from tests.engine.test_conformance_workflow_changes import failed_family, statuses, waiting_for_retry
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

RELEASE = "UPDATE jobqueue_task SET status = 'READY', executor_id = NULL, claimed_at = NULL WHERE id = %s"


@pytest.fixture(params=["portable-on-postgresql", "postgresql"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return make_bench(request.param)


def record(bench: Bench, claimed: ClaimedTask, name: str = "charge", isolation: str = "read committed") -> bool:
    """Record a step as the thread of a body does, whose session has an isolation level of the site."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{isolation}'")
    return bench.engine.journal.record(claimed, bench.executor_id, [entry(name)])


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_record_beside_a_rescue_finds_the_claim_gone(isolation: str) -> None:
    bench = make_bench("postgresql")
    claimed = bench.running()

    with session() as rescuer, threads(1) as start:
        rescuer.run(RELEASE, claimed.id)
        recording = start(record, bench, claimed, "charge", isolation)
        wait_until_blocked()
        rescuer.commit()

        with pytest.raises(ClaimLost):
            recording.result(DEADLINE_SECONDS)

    assert names(bench, claimed.id) == []


def test_portable_record_beside_a_rescue_finds_the_claim_gone() -> None:
    bench = make_bench("portable-on-postgresql")
    claimed = bench.running()

    with session() as rescuer, threads(1) as start:
        rescuer.run(RELEASE, claimed.id)
        recording = start(record, bench, claimed)
        wait_until_blocked()
        rescuer.commit()

        with pytest.raises(ClaimLost):
            recording.result(DEADLINE_SECONDS)

    assert names(bench, claimed.id) == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_record_beside_a_cancel_is_written_and_reads_the_request(isolation: str) -> None:
    bench = make_bench("postgresql")
    claimed = bench.running()

    with session() as other, threads(1) as start:
        other.run("UPDATE jobqueue_task SET cancel_requested_at = now() WHERE id = %s", claimed.id)
        recording = start(record, bench, claimed, "charge", isolation)
        wait_until_blocked()
        other.commit()

        assert recording.result(DEADLINE_SECONDS) is True

    assert names(bench, claimed.id) == ["charge"]


def test_record_waits_for_a_lock_of_a_stranger(bench: Bench) -> None:
    claimed = bench.running()

    with session() as stranger, threads(1) as start:
        stranger.lock(claimed.id)
        recording = start(record, bench, claimed)
        wait_until_blocked()
        assert names(bench, claimed.id) == []
        stranger.rollback()

        assert recording.result(DEADLINE_SECONDS) is False

    assert names(bench, claimed.id) == ["charge"]


def test_two_executors_record_one_journal_between_them(bench: Bench) -> None:
    lost = bench.running()
    bench.engine.journal.record(lost, bench.executor_id, [entry("a")])
    with session(autocommit=True) as rescuer:
        rescuer.run(RELEASE, lost.id)
    other = Bench(bench.engine)
    other.beat()
    (claimed,) = other.claim(queues=[bench.row(lost.id).queue_name])
    other.engine.journal.record(claimed, other.executor_id, [entry("b")])

    with pytest.raises(ClaimLost):
        bench.engine.journal.record(lost, bench.executor_id, [entry("b", value='"stale"'), entry("c")])
    answer = bench.commit(outcome(lost, Status.SUSPENDED, effects=Effects(journal=[entry("d")], forget=["a"])))

    assert answer.lost == {lost.id}
    assert [(e.name, e.value) for e in bench.engine.journal.read(lost.id).entries] == [("a", None), ("b", None)]


def test_rescue_leaves_a_task_whose_step_is_not_committed(bench: Bench) -> None:
    claimed = bench.running()
    bench.time_passes(120)
    has_recorded, may_commit = Event(), Event()

    def run_atomic_step() -> None:
        with transaction.atomic():
            Task.objects.filter(pk=claimed.id).exists()
            record(bench, claimed)
            has_recorded.set()
            assert may_commit.wait(DEADLINE_SECONDS)

    with threads(1) as start:
        step = start(run_atomic_step)
        assert has_recorded.wait(DEADLINE_SECONDS)
        assert Bench(bench.engine).engine.executors.rescue() == []
        may_commit.set()
        step.result(DEADLINE_SECONDS)

    assert [rescued.id for rescued in bench.engine.executors.rescue()] == [claimed.id]
    assert names(bench, claimed.id) == ["charge"]


def test_atomic_step_that_is_rolled_back_leaves_no_entry(bench: Bench) -> None:
    claimed, child = bench.running(), new()

    def fail() -> None:
        with transaction.atomic():
            bench.engine.journal.record(claimed, bench.executor_id, [entry()], Effects(spawn=[child]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert names(bench, claimed.id) == []
    assert not Task.objects.filter(pk=child.id).exists()


def test_locked_entry_of_one_workflow_delays_no_other_commit() -> None:
    bench = make_bench("postgresql")
    claimed, other = bench.running(), bench.running()
    bench.engine.journal.record(claimed, bench.executor_id, [entry()])
    outcomes = [
        outcome(task, Status.SUSPENDED, has_succeeded=True, effects=Effects(journal=[entry(value="1")]))
        for task in (claimed, other)
    ]

    with session() as stranger:
        stranger.run("SELECT id FROM jobqueue_journalentry WHERE task_id = %s FOR UPDATE", claimed.id)
        answer = bench.engine.commits.commit(outcomes, lock_wait="50ms")

    assert answer.done == {other.id: Status.SUSPENDED}
    assert answer.waiting.keys() == {claimed.id}
    assert bench.commit(outcomes[0]).done == {claimed.id: Status.SUSPENDED}


def test_requeue_of_a_child_is_busy_while_its_workflow_is_locked(bench: Bench) -> None:
    parent, child = failed_family(bench)

    with session() as stranger:
        stranger.lock(parent)
        report = bench.engine.tasks.requeue([child], wait=False)

    assert (report.requeued, report.busy, report.skipped) == (0, frozenset({child}), 0)
    assert statuses(bench, parent, child) == [Status.FAILED, Status.FAILED]
    assert bench.engine.tasks.requeue([child], wait=False).requeued == 2


def test_two_requeues_of_one_family_requeue_it_once() -> None:
    """Each finds the other's row locked, and repeats."""
    families = [failed_family(make_bench("postgresql")) for _ in range(5)]

    for family in families:
        with threads(2) as start:
            calls = [start(requeue, pk) for pk in family]
            reports = [call.result(DEADLINE_SECONDS) for call in calls]

        assert sorted(report.requeued for report in reports) == [0, 2]
        assert [report.busy for report in reports] == [frozenset(), frozenset()]


def test_change_of_a_locked_workflow_is_refused_after_a_second() -> None:
    bench = make_bench("postgresql")
    pk = waiting_for_retry(bench)

    with session() as stranger:
        stranger.lock(pk)
        with pytest.raises(ChangeRefused, match="locked the workflow"):
            give(pk, "charge", 1)

    give(pk, "charge", 1)
    assert bench.status(pk) == Status.READY


def test_change_waits_for_the_commit_of_a_poll(bench: Bench) -> None:
    claimed = bench.running()
    bench.engine.journal.record(claimed, bench.executor_id, [entry("sleep", kind=EntryKind.SLEEP)])

    with session() as other, threads(1) as start:
        other.set_status(claimed.id, Status.SUSPENDED)
        change = start(bench.engine.journal.rewind, claimed.id, "sleep")
        wait_until_blocked()
        other.commit()
        assert change.result(DEADLINE_SECONDS).ready == {claimed.id}

    assert names(bench, claimed.id) == []
