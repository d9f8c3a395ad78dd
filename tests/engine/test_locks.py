"""Rows that somebody else has locked: one slow transaction delays one task, never the executor."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue.engine.portable.prune import EXECUTORS_KEPT_SECONDS
from jobqueue.engine.postgres import wake
from jobqueue.engine.postgres.connection import statement
from jobqueue.models import Executor, SpareHeartbeat
from jobqueue.records import Command, CommitResult, Effects, NewMessage, RequeueReport, Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.engine.sessions import DEADLINE_SECONDS, Session, session, threads, wait_until_somebody_waits

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["portable-on-postgresql", "postgresql"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return make_bench(request.param)


@pytest.fixture
def fast_bench() -> Bench:
    return make_bench("postgresql")


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
def isolation(request: pytest.FixtureRequest) -> Iterator[str]:
    """The site's default; the engine's own transactions are READ COMMITTED whatever it is."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{request.param}'")
    yield request.param
    with connection.cursor() as cursor:
        cursor.execute("RESET default_transaction_isolation")


@pytest.mark.parametrize("strength", ["NO KEY UPDATE", "UPDATE"])
class TestLockedRow:
    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_its_outcome_is_unknown_and_committed_later(self, bench: Bench, strength: str, status: Status) -> None:
        claimed, other = bench.running(), bench.running()
        outcomes = [outcome(claimed, status), outcome(other, status)]

        with session() as stranger:
            stranger.lock(claimed.id, strength=strength)
            answer = bench.commit(*outcomes)

        assert answer == CommitResult(done={other.id: status}, unknown=frozenset({claimed.id}))
        assert bench.status(claimed.id) == "RUNNING"
        assert bench.commit(outcomes[0]) == CommitResult(done={claimed.id: status})

    def test_it_is_not_claimed_and_the_others_are(self, bench: Bench, strength: str) -> None:
        locked, free = bench.add(), bench.add()

        with session() as stranger:
            stranger.lock(locked, strength=strength)
            assert bench.claim_ids() == [free]

        assert bench.claim_ids() == [locked]

    def test_limit_counts_what_was_claimed(self, bench: Bench, strength: str) -> None:
        ids = [answer.id for answer in bench.engine.enqueue([new() for _ in range(6)])]

        with session() as stranger:
            stranger.lock(*ids[:3], strength=strength)
            assert bench.claim_ids(2) == ids[3:5]

    def test_its_alarm_waits_and_the_others_ring(self, bench: Bench, strength: str) -> None:
        locked, free = bench.add(wake_after_seconds=60.0), bench.add(wake_after_seconds=60.0)
        bench.time_passes(61)

        with session() as stranger:
            stranger.lock(locked, strength=strength)
            assert bench.engine.wake_due().count == 1

        assert bench.status(free) == "READY"
        assert bench.engine.wake_due().count == 1

    def test_it_is_swept_later(self, bench: Bench, strength: str) -> None:
        locked, free = bench.suspended(), bench.suspended()
        bench.send(locked)
        bench.send(free)

        with session() as stranger:
            stranger.lock(locked, strength=strength)
            assert bench.engine.sweep() == 1

        assert bench.engine.sweep() == 1

    def test_it_is_rescued_later(self, bench: Bench, strength: str) -> None:
        locked, free = bench.running(), bench.running()
        bench.time_passes(31)

        with session() as stranger:
            stranger.lock(locked.id, strength=strength)
            assert [rescued.id for rescued in bench.engine.rescue()] == [free.id]

        assert [rescued.id for rescued in bench.engine.rescue()] == [locked.id]

    def test_its_executor_beats_on(self, bench: Bench, strength: str) -> None:
        claimed = bench.running()

        with session() as stranger:
            stranger.lock(claimed.id, strength=strength)
            assert bench.beat() == [claimed.id]

    def test_it_is_pruned_later(self, bench: Bench, strength: str) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0})
        locked, free = bench.ended(), bench.ended()

        with session() as stranger:
            stranger.lock(locked, strength=strength)
            assert bench.engine.prune() == 1
            assert list(bench.engine.tasks.values_list("pk", flat=True)) == [locked]

        assert free not in bench.engine.tasks.values_list("pk", flat=True)
        assert bench.engine.prune() == 1


class TestLockedExecutor:
    """Its row is kept locked by somebody else: nothing that executors do waits for that."""

    @pytest.fixture(autouse=True)
    def waits_are_errors(self) -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1s'")
            yield
            cursor.execute("RESET lock_timeout")

    def test_it_beats_on_and_loses_no_task(self, fast_bench: Bench) -> None:
        claimed, other = fast_bench.running(), Bench(fast_bench.engine)
        fast_bench.time_passes(31)

        with session() as stranger:
            stranger.run("SELECT FROM jobqueue_executor WHERE id = %s FOR UPDATE", fast_bench.executor_id)
            assert fast_bench.beat() == [claimed.id]
            assert other.engine.rescue() == []
        assert other.engine.rescue() == []

        fast_bench.time_passes(31)
        assert [rescued.id for rescued in other.engine.rescue()] == [claimed.id]

    def test_its_heartbeat_from_before_the_clock_was_set_back_does_not_count(self, fast_bench: Bench) -> None:
        claimed = fast_bench.running()
        fast_bench.time_passes(31)
        ahead = fast_bench.engine.now() + timedelta(hours=1)
        SpareHeartbeat.objects.create(executor_id=fast_bench.executor_id, at=ahead)

        assert [rescued.id for rescued in fast_bench.engine.rescue()] == [claimed.id]

    def test_command_is_heard_later(self, fast_bench: Bench) -> None:
        fast_bench.beat()
        fast_bench.engine.command([fast_bench.executor_id], Command.QUIET)

        with session() as stranger:
            stranger.run("SELECT FROM jobqueue_executor FOR UPDATE")
            assert fast_bench.engine.take_command(fast_bench.executor_id) is None

        assert fast_bench.engine.take_command(fast_bench.executor_id) is Command.QUIET

    def test_it_is_pruned_later(self, fast_bench: Bench) -> None:
        gone, locked = Bench(fast_bench.engine), Bench(fast_bench.engine)
        gone.beat()
        locked.beat()
        SpareHeartbeat.objects.create(executor_id=gone.executor_id, at=fast_bench.engine.now())
        fast_bench.time_passes(EXECUTORS_KEPT_SECONDS + 1)

        with session() as stranger:
            stranger.run("SELECT FROM jobqueue_executor WHERE id = %s FOR UPDATE", locked.executor_id)
            fast_bench.engine.prune()
            assert [row.pk for row in Executor.objects.all()] == [locked.executor_id]
            assert not SpareHeartbeat.objects.exists()

        fast_bench.engine.prune()
        assert not Executor.objects.exists()


def test_one_executor_prunes_at_a_time_while_people_may_purge(fast_bench: Bench) -> None:
    bench = fast_bench.with_options(retention={"SUCCESSFUL": 0.0})
    for _ in range(3):
        bench.ended()

    with session() as other:
        other.run(statement("try_prune_lock").replace("%(backend)s", "%s"), bench.engine.alias)
        assert bench.engine.prune(1) == 0
        assert bench.engine.prune_status("SUCCESSFUL", 0.0, 1) == 1

    assert [bench.engine.prune(1) for _ in range(3)] == [1, 1, 0]


class TestOpenSender:
    """A message being sent holds its receiver FOR KEY SHARE until the sender's COMMIT."""

    def test_it_delays_nothing_that_an_executor_does(self, bench: Bench) -> None:
        ready, scheduled = bench.add(), bench.add(wake_after_seconds=60.0)
        plain, actor, silent = bench.running(), bench.running(), bench.running()

        with session() as sender:
            for pk in (ready, scheduled, plain.id, actor.id, silent.id):
                sender.write_to(pk)
            assert bench.claim_ids() == [ready]
            assert plain.id in bench.beat()
            assert bench.commit(outcome(plain), outcome(actor, Status.SUSPENDED)) == CommitResult(
                done={plain.id: Status.SUCCESSFUL, actor.id: Status.SUSPENDED}
            )
            bench.time_passes(61)
            assert bench.engine.wake_due().count == 1
            assert silent.id in [rescued.id for rescued in bench.engine.rescue()]

    def test_its_receiver_is_not_pruned_under_its_commit(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0})
        claimed = bench.running()

        with session() as sender:
            sender.write_to(claimed.id)
            bench.commit(outcome(claimed))
            assert bench.engine.prune() == 0
            sender.commit()

        assert bench.bodies(claimed.id) == [1]  # undelivered, and visible
        assert bench.engine.prune() == 1

    def test_its_message_wakes_through_the_sweep_when_nobody_else_did(self, bench: Bench) -> None:
        claimed = bench.running()

        with session() as sender:
            sender.write_to(claimed.id)
            assert bench.commit(outcome(claimed, Status.SUSPENDED)).done == {claimed.id: Status.SUSPENDED}
            assert bench.engine.sweep() == 0
            sender.commit()

        assert bench.engine.sweep() == 1


class TestLookAfterLock:
    """Rule 2: what was committed between the lock and the look is seen."""

    def test_message_that_arrives_while_the_row_is_locked(self, fast_bench: Bench, isolation: str) -> None:
        claimed = fast_bench.running()

        with (
            session() as sender,
            connection.execute_wrapper(after("FOR NO KEY UPDATE", lambda: send_and_commit(sender, claimed.id))),
        ):
            answer = fast_bench.commit(outcome(claimed, Status.SUSPENDED))

        assert answer.done == {claimed.id: Status.READY}

    def test_wake_waits_for_the_commit_in_flight(self, bench: Bench) -> None:
        """It would see RUNNING, and be lost, if it decided before it had the lock."""
        claimed = bench.running()

        with session() as committer, threads(1) as start:
            committer.lock(claimed.id)
            committer.set_status(claimed.id, Status.SUSPENDED)
            woken = start(bench.engine.wake, [claimed.id])
            wait_until_somebody_waits()
            committer.commit()
            assert woken.result(DEADLINE_SECONDS) == 1

        assert bench.status(claimed.id) == "READY"


class TestIsolation:
    """A row changed by somebody else in mid-verb is looked at again, not given up with a serialization failure."""

    def test_commit(self, fast_bench: Bench, isolation: str) -> None:
        claimed = fast_bench.running()

        with session() as other, connection.execute_wrapper(before("FOR NO KEY UPDATE", lambda: request_cancel(other))):
            answer = fast_bench.commit(outcome(claimed, Status.SUSPENDED))

        assert answer.done == {claimed.id: Status.CANCELLED}

    def test_every_verb_of_the_pulse(self, fast_bench: Bench, isolation: str) -> None:
        done, actor, silent = fast_bench.running(), fast_bench.running(), fast_bench.running()
        ready = fast_bench.add()

        committed, claimed = fast_bench.engine.commit_and_claim(
            [outcome(done), outcome(actor, Status.SUSPENDED)], fast_bench.demand()
        )

        assert committed.done == {done.id: Status.SUCCESSFUL, actor.id: Status.SUSPENDED}
        assert [task.id for task in claimed] == [ready]
        assert fast_bench.engine.release(claimed).done == {ready: Status.READY}
        fast_bench.time_passes(31)
        assert silent.id in [rescued.id for rescued in fast_bench.engine.rescue()]

    def test_own_transaction_is_read_committed(self, fast_bench: Bench, isolation: str) -> None:
        with connection.cursor() as cursor:
            with fast_bench.engine.transaction():
                cursor.execute("SHOW transaction_isolation")
                assert cursor.fetchone() == ("read committed",)
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == (isolation,)


def request_cancel(other: Session) -> None:
    other.run("UPDATE jobqueue_task SET cancel_requested_at = now()")
    other.commit()


def before(words: str, call: Any) -> Any:
    """Run something once, right before the first statement that contains these words, in its transaction."""
    calls = [call]

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if words in sql and calls:
            execute("SELECT count(*) FROM jobqueue_task", None, False, context)  # takes the snapshot, if there is one
            calls.pop()()
        return execute(sql, params, many, context)

    return wrapper


def send_and_commit(sender: Session, pk: Any) -> None:
    sender.write_to(pk)
    sender.commit()


def after(words: str, call: Any) -> Any:
    """Run something once, right after the first statement that contains these words."""
    calls = [call]

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if words in sql and calls:
            calls.pop()()
        return result

    return wrapper


class TestReceivers:
    def test_receiver_in_somebodys_commit_is_woken_later(self, bench: Bench) -> None:
        claimed, receiver = bench.running(), bench.suspended()
        effects = Effects(send=[NewMessage(task_id=receiver, body="1")])

        with session() as stranger:
            stranger.lock(receiver)
            answer = bench.commit(outcome(claimed, Status.SUSPENDED, effects=effects))

        assert answer == CommitResult(done={claimed.id: Status.SUSPENDED}, wake=frozenset({receiver}))
        assert bench.status(receiver) == "SUSPENDED"
        assert bench.engine.wake(answer.wake) == 1

    def test_parent_in_somebodys_commit_is_woken_later(self, bench: Bench) -> None:
        parent = bench.suspended()
        child = bench.running(parent_id=parent)

        with session() as stranger:
            stranger.lock(parent)
            answer = bench.commit(outcome(child))

        assert answer == CommitResult(done={child.id: Status.SUCCESSFUL}, wake=frozenset({parent}))

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_receiver_that_cannot_even_be_written_to_delays_its_sender_alone(
        self, fast_bench: Bench, status: Status
    ) -> None:
        """Somebody's FOR UPDATE: the insert of a message would wait for it, and the whole loop with it."""
        parent = fast_bench.suspended()
        child, other = fast_bench.running(parent_id=parent), fast_bench.running()

        with session() as stranger:
            stranger.lock(parent, strength="UPDATE")
            answer = fast_bench.commit(outcome(child, status), outcome(other))
            assert answer == CommitResult(done={other.id: Status.SUCCESSFUL}, unknown=frozenset({child.id}))

        assert fast_bench.commit(outcome(child, status)).done == {child.id: status}

    def test_rescue_leaves_a_child_whose_parent_cannot_be_told(self, fast_bench: Bench) -> None:
        parent = fast_bench.suspended()
        child = fast_bench.running(parent_id=parent)
        fast_bench.set(child.id, executor_losses=2)
        fast_bench.time_passes(31)

        with session() as stranger:
            stranger.lock(parent, strength="UPDATE")
            assert fast_bench.engine.rescue() == []

        assert [rescued.status for rescued in fast_bench.engine.rescue()] == [Status.FAILED]
        assert len(fast_bench.inbox(parent)) == 1


class TestWaiting:
    def test_commit_on_the_workers_own_connection_waits(self, bench: Bench) -> None:
        claimed = bench.running()

        with session() as stranger, threads(1) as start:
            stranger.lock(claimed.id)
            answer = start(lambda: bench.engine.commit([outcome(claimed)], wait=True))
            wait_until_somebody_waits()
            stranger.rollback()
            assert answer.result(DEADLINE_SECONDS).done == {claimed.id: Status.SUCCESSFUL}

    def test_enqueue_waits_for_one_of_its_keys_and_adds_the_others(self, bench: Bench) -> None:
        with session() as stranger, threads(1) as start:
            ((holder,),) = stranger.run("SELECT jobqueue_create_task(NULL, 'tests.noop', key => 'b')")
            answers = start(bench.engine.enqueue, [new(key=key) for key in ("c", "b", "a", "b")])
            wait_until_somebody_waits()
            stranger.commit()
            c, b, a, again = answers.result(DEADLINE_SECONDS)

        assert (c.created, a.created) == (True, True)
        assert (b.id, b.created) == (again.id, again.created) == (holder, False)
        assert bench.engine.tasks.count() == 3

    def test_cancel_waits_for_the_commit_in_flight(self, bench: Bench) -> None:
        claimed = bench.running()

        with session() as committer, threads(1) as start:
            committer.lock(claimed.id)
            committer.set_status(claimed.id, Status.SUSPENDED)
            report = start(bench.engine.cancel, [claimed.id])
            wait_until_somebody_waits()
            committer.commit()
            assert report.result(DEADLINE_SECONDS).cancelled == 1

        assert bench.status(claimed.id) == "CANCELLED"

    def test_wake_gives_up_after_a_while(self, fast_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wake, "WAKE_LOCK_TIMEOUT", "10ms")
        pk = fast_bench.suspended()

        with session() as stranger:
            stranger.lock(pk)
            with pytest.raises(OperationalError):
                fast_bench.engine.wake([pk])
            fast_bench.engine.wake_or_defer([pk])

        assert fast_bench.engine.wake([pk]) == 1

    def test_wake_leaves_the_callers_transaction_its_patience(
        self, fast_bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wake, "WAKE_LOCK_TIMEOUT", "10ms")
        free, locked = fast_bench.suspended(), fast_bench.suspended()

        with session() as stranger, transaction.atomic(), connection.cursor() as cursor:
            stranger.lock(locked)
            cursor.execute("SET LOCAL lock_timeout = '7s'")
            assert fast_bench.engine.wake([free]) == 1
            fast_bench.engine.wake_or_defer([locked])
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("7s",)


class TestKeysAtOnce:
    def test_second_insert_waits_and_gets_the_first(self, bench: Bench) -> None:
        with threads(1) as start:
            with transaction.atomic():
                first = bench.add(key="k")
                second = start(bench.engine.enqueue, [new(key="k")])
                wait_until_somebody_waits()
            (answer,) = second.result(DEADLINE_SECONDS)

        assert (answer.id, answer.created) == (first, False)

    def test_second_insert_takes_the_place_of_one_that_was_rolled_back(self, bench: Bench) -> None:
        with threads(1) as start:
            with transaction.atomic():
                first = bench.add(key="k")
                second = start(bench.engine.enqueue, [new(key="k")])
                wait_until_somebody_waits()
                transaction.set_rollback(True)
            (answer,) = second.result(DEADLINE_SECONDS)

        assert answer.created
        assert answer.id != first

    def test_requeue_and_enqueue_at_once(self, bench: Bench) -> None:
        failed = bench.ended(Status.FAILED, key="k")

        with threads(1) as start:
            with transaction.atomic():
                bench.add(key="k")
                requeued = start(bench.engine.requeue, [failed])
                wait_until_somebody_waits()
            assert requeued.result(DEADLINE_SECONDS) == RequeueReport(key_taken=1)

        assert bench.status(failed) == "FAILED"

    def test_message_with_a_dedupe_key_from_two_senders_arrives_once(self, bench: Bench) -> None:
        pk = bench.add()

        with threads(1) as start:
            with transaction.atomic():
                bench.send(pk, 1, dedupe_key="k")
                second = start(lambda: bench.send(pk, 2, dedupe_key="k"))
                wait_until_somebody_waits()
            assert second.result(DEADLINE_SECONDS) == []

        assert bench.bodies(pk) == [1]
