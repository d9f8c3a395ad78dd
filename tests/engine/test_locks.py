"""Rows locked by other sessions: a slow transaction delays one task and never the executor."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue.engine import messages
from jobqueue.engine.admissions import Admissions
from jobqueue.engine.postgres.connection import statement
from jobqueue.engine.tasks import EXECUTORS_KEPT_SECONDS
from jobqueue.models import AdmissionRequest, Executor, Heartbeat, TaskLog
from jobqueue.values.records import CommitResult, Effects, NewMessage
from jobqueue.values.reports import BodyLog
from jobqueue.values.states import Command, LimitKind, Status
from tests.engine.bench import Bench, new, outcome
from tests.engine.conftest import make_bench
from tests.engine.sessions import Session, session, threads, wait_until_blocked
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["portable-on-postgresql", "postgresql"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return make_bench(request.param)


@pytest.fixture
def fast_bench() -> Bench:
    return make_bench("postgresql")


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
def isolation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the default isolation level. Transactions of the engine are always READ COMMITTED."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{request.param}'")
    yield request.param
    with connection.cursor() as cursor:
        cursor.execute("RESET default_transaction_isolation")


def with_message(bench: Bench) -> UUID:
    pk = bench.suspended()
    bench.send(pk)
    return pk


VERBS: dict[str, tuple[Callable[[Bench], UUID], Callable[[Bench], int]]] = {
    "wake_due": (lambda bench: bench.add(wake_after_seconds=30.0), lambda bench: bench.engine.inbox.wake_due()),
    "sweep": (with_message, lambda bench: bench.engine.messages.sweep()),
    "rescue": (lambda bench: Bench(bench.engine).running().id, lambda bench: len(bench.engine.executors.rescue())),
    "prune": (Bench.ended, lambda bench: bench.engine.tasks.prune()),
}


@pytest.mark.parametrize("strength", ["NO KEY UPDATE", "UPDATE"])
class TestLockedRow:
    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_outcome_of_locked_task_is_unknown_then_committed(
        self, bench: Bench, strength: str, status: Status
    ) -> None:
        claimed, other = bench.running(), bench.running()
        outcomes = [outcome(claimed, status), outcome(other, status)]

        with session() as blocker:
            blocker.lock(claimed.id, strength=strength)
            answer = bench.commit(*outcomes)

        assert answer == CommitResult(done={other.id: status}, unknown=frozenset({claimed.id}))
        assert bench.status(claimed.id) == "RUNNING"
        assert bench.commit(outcomes[0]) == CommitResult(done={claimed.id: status})

    def test_claim_skips_locked_tasks_and_fills_limit(self, bench: Bench, strength: str) -> None:
        ids = [answer.id for answer in bench.engine.enqueues.enqueue([new() for _ in range(6)])]

        with session() as blocker:
            blocker.lock(*ids[:3], strength=strength)
            assert bench.claim_ids(2) == ids[3:5]

        assert bench.claim_ids() == [*ids[:3], ids[5]]

    def test_heartbeat_ignores_locked_task(self, bench: Bench, strength: str) -> None:
        claimed = bench.running()

        with session() as blocker:
            blocker.lock(claimed.id, strength=strength)
            assert bench.beat() == [claimed.id]

    @pytest.mark.parametrize("verb", VERBS)
    def test_maintenance_skips_locked_task_until_later(self, bench: Bench, strength: str, verb: str) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0})
        prepare, run = VERBS[verb]
        locked, free = prepare(bench), prepare(bench)
        bench.time_passes(31)

        with session() as blocker:
            blocker.lock(locked, strength=strength)
            before = bench.row(locked)
            assert run(bench) == 1
            assert bench.row(locked).status == before.status

        assert run(bench) == 1
        assert run(bench) == 0
        assert not bench.engine.db.tasks.filter(pk__in=[locked, free], status=before.status).exists()


class TestLockedExecutor:
    """No verb of an executor waits for its own row while another session has it locked."""

    @pytest.fixture(autouse=True)
    def waits_are_errors(self) -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1s'")
            yield
            cursor.execute("RESET lock_timeout")

    def test_heartbeat_of_locked_executor_prevents_rescue(self, fast_bench: Bench) -> None:
        claimed, other = fast_bench.running(), Bench(fast_bench.engine)
        fast_bench.time_passes(31)

        with session() as blocker:
            blocker.run("SELECT FROM jobqueue_executor WHERE id = %s FOR UPDATE", fast_bench.executor_id)
            assert fast_bench.beat() == [claimed.id]
            assert other.engine.executors.rescue() == []
        assert other.engine.executors.rescue() == []

        fast_bench.time_passes(31)
        assert [rescued.id for rescued in other.engine.executors.rescue()] == [claimed.id]

    def test_command_to_locked_executor_is_taken_later(self, fast_bench: Bench) -> None:
        fast_bench.beat()
        fast_bench.engine.executors.command([fast_bench.executor_id], Command.PAUSE)

        with session() as blocker:
            blocker.run("SELECT FROM jobqueue_executor FOR UPDATE")
            assert fast_bench.engine.executors.take_command(fast_bench.executor_id) is None

        assert fast_bench.engine.executors.take_command(fast_bench.executor_id) is Command.PAUSE

    def test_locked_executor_is_pruned_later(self, fast_bench: Bench) -> None:
        gone, locked = Bench(fast_bench.engine), Bench(fast_bench.engine)
        gone.beat()
        locked.beat()
        fast_bench.time_passes(EXECUTORS_KEPT_SECONDS + 1)

        with session() as blocker:
            blocker.run("SELECT FROM jobqueue_executor WHERE id = %s FOR UPDATE", locked.executor_id)
            fast_bench.engine.tasks.prune()
            for model in (Executor, Heartbeat):
                assert [row.pk for row in model._default_manager.all()] == [locked.executor_id]

        fast_bench.engine.tasks.prune()
        assert not Executor.objects.exists()
        assert not Heartbeat.objects.exists()


def test_heartbeat_of_an_executor_that_is_pruned_is_written_again(bench: Bench) -> None:
    """It woke up after a day, while a prune deleted its rows."""
    bench.beat()
    bench.time_passes(EXECUTORS_KEPT_SECONDS + 1)

    bench.engine.tasks.prune()
    assert not Heartbeat.objects.exists()
    bench.beat()

    assert Executor.objects.get().heartbeat.at > bench.engine.db.now() - timedelta(minutes=1)


def test_prune_runs_once_at_a_time_beside_prune_status(fast_bench: Bench) -> None:
    bench = fast_bench.with_options(retention={"SUCCESSFUL": 0.0})
    for _ in range(3):
        bench.ended()

    with session() as other:
        other.run(statement("try_prune_lock").replace("%(backend)s", "%s"), bench.engine.alias)
        assert bench.engine.tasks.prune(1) == 0
        assert bench.engine.tasks.prune_status("SUCCESSFUL", 0.0, 1) == 1

    assert [bench.engine.tasks.prune(1) for _ in range(3)] == [1, 1, 0]


class TestOpenSender:
    """An uncommitted message holds its receiver FOR KEY SHARE."""

    def test_uncommitted_message_delays_no_verb(self, bench: Bench) -> None:
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
            assert bench.engine.inbox.wake_due() == 1
            assert silent.id in [rescued.id for rescued in bench.engine.executors.rescue()]

    def test_prune_skips_receiver_of_uncommitted_message(self, bench: Bench) -> None:
        bench = bench.with_options(retention={"SUCCESSFUL": 0.0})
        claimed = bench.running()

        with session() as sender:
            sender.write_to(claimed.id)
            bench.commit(outcome(claimed))
            assert bench.engine.tasks.prune() == 0
            sender.commit()

        assert bench.bodies(claimed.id) == [1]  # undelivered but visible
        assert bench.engine.tasks.prune() == 1

    def test_sweep_finds_message_committed_after_suspend(self, bench: Bench) -> None:
        claimed = bench.running()

        with session() as sender:
            sender.write_to(claimed.id)
            assert bench.commit(outcome(claimed, Status.SUSPENDED)).done == {claimed.id: Status.SUSPENDED}
            assert bench.engine.messages.sweep() == 0
            sender.commit()

        assert bench.engine.messages.sweep() == 1


class TestReadAfterLock:
    """Statements after the lock see what was committed before it."""

    def test_message_committed_after_lock_makes_task_ready(self, fast_bench: Bench, isolation: str) -> None:
        claimed = fast_bench.running()

        with (
            session() as sender,
            connection.execute_wrapper(once("FOR NO KEY UPDATE", lambda: send_and_commit(sender, claimed.id))),
        ):
            answer = fast_bench.commit(outcome(claimed, Status.SUSPENDED))

        assert answer.done == {claimed.id: Status.READY}


class TestIsolation:
    """A verb reads a changed row again and raises no serialization failure."""

    def test_commit_sees_cancel_request_of_other_session(self, fast_bench: Bench, isolation: str) -> None:
        claimed = fast_bench.running()

        with (
            session() as other,
            connection.execute_wrapper(once("FOR NO KEY UPDATE", lambda: request_cancel(other), before=True)),
        ):
            answer = fast_bench.commit(outcome(claimed, Status.SUSPENDED))

        assert answer.done == {claimed.id: Status.CANCELLED}

    def test_verbs_work_under_any_isolation_level(self, fast_bench: Bench, isolation: str) -> None:
        done, actor, silent = fast_bench.running(), fast_bench.running(), fast_bench.running()
        ready = fast_bench.add()

        committed, claimed = fast_bench.engine.commit_and_claim(
            [outcome(done), outcome(actor, Status.SUSPENDED)], fast_bench.claim_request()
        )

        assert committed.done == {done.id: Status.SUCCESSFUL, actor.id: Status.SUSPENDED}
        assert [task.id for task in claimed] == [ready]
        assert fast_bench.engine.commits.release(claimed).done == {ready: Status.READY}
        fast_bench.time_passes(31)
        assert silent.id in [rescued.id for rescued in fast_bench.engine.executors.rescue()]

    def test_own_transaction_is_read_committed(self, fast_bench: Bench, isolation: str) -> None:
        with connection.cursor() as cursor:
            with fast_bench.engine.db.transaction():
                cursor.execute("SHOW transaction_isolation")
                assert cursor.fetchone() == ("read committed",)
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == (isolation,)


def request_cancel(other: Session) -> None:
    other.run("UPDATE jobqueue_task SET cancel_requested_at = now()")
    other.commit()


def once(words: str, call: Callable[[], None], *, before: bool = False) -> Any:
    """Run a call once, before or after the first statement that contains these words."""
    calls = [call]

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if words not in sql or not calls:
            return execute(sql, params, many, context)
        run = calls.pop()
        if before:
            # Take the snapshot under REPEATABLE READ.
            execute("SELECT count(*) FROM jobqueue_task", None, False, context)
            run()
        result = execute(sql, params, many, context)
        if not before:
            run()
        return result

    return wrapper


def send_and_commit(sender: Session, pk: Any) -> None:
    sender.write_to(pk)
    sender.commit()


class TestReceivers:
    def test_locked_receiver_is_woken_later(self, bench: Bench) -> None:
        claimed, receiver = bench.running(), bench.suspended()
        effects = Effects(send=[NewMessage(task_id=receiver, body="1")])

        with session() as blocker:
            blocker.lock(receiver)
            answer = bench.commit(outcome(claimed, Status.SUSPENDED, effects=effects))

        assert answer == CommitResult(done={claimed.id: Status.SUSPENDED}, wake=frozenset({receiver}))
        assert bench.status(receiver) == "SUSPENDED"
        assert bench.engine.messages.wake(answer.wake) == 1

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_receiver_locked_for_update_delays_only_its_sender(self, fast_bench: Bench, status: Status) -> None:
        """The insert of a message would wait for FOR UPDATE and block the whole batch."""
        parent = fast_bench.suspended()
        child, other = fast_bench.running(parent_id=parent), fast_bench.running()

        with session() as blocker:
            blocker.lock(parent, strength="UPDATE")
            answer = fast_bench.commit(outcome(child, status), outcome(other))
            assert answer == CommitResult(done={other.id: Status.SUCCESSFUL}, unknown=frozenset({child.id}))

        assert fast_bench.commit(outcome(child, status)).done == {child.id: status}

    def test_rescue_skips_child_of_locked_parent(self, fast_bench: Bench) -> None:
        parent = fast_bench.suspended()
        child = fast_bench.running(parent_id=parent)
        fast_bench.set(child.id, executor_losses=2)
        fast_bench.time_passes(31)

        with session() as blocker:
            blocker.lock(parent, strength="UPDATE")
            assert fast_bench.engine.executors.rescue() == []

        assert [rescued.status for rescued in fast_bench.engine.executors.rescue()] == [Status.FAILED]
        assert len(fast_bench.inbox(parent)) == 1


class TestWaiting:
    def test_commit_with_wait_waits_for_lock(self, bench: Bench) -> None:
        claimed = bench.running()

        with session() as blocker, threads(1) as start:
            blocker.lock(claimed.id)
            answer = start(lambda: bench.engine.commits.commit([outcome(claimed)], wait=True))
            wait_until_blocked()
            blocker.rollback()
            assert answer.result(DEADLINE_SECONDS).done == {claimed.id: Status.SUCCESSFUL}

    @pytest.mark.parametrize(("verb", "status"), [("wake", "READY"), ("cancel", "CANCELLED")])
    def test_wake_and_cancel_wait_for_uncommitted_suspend(self, bench: Bench, verb: str, status: str) -> None:
        """A decision before the lock would see RUNNING."""
        claimed = bench.running()

        with session() as committer, threads(1) as start:
            committer.lock(claimed.id)
            committer.set_status(claimed.id, Status.SUSPENDED)
            verbs = {"wake": bench.engine.messages.wake, "cancel": bench.engine.tasks.cancel}
            call = start(verbs[verb], [claimed.id])
            wait_until_blocked()
            committer.commit()
            call.result(DEADLINE_SECONDS)

        assert bench.status(claimed.id) == status

    def test_wake_times_out_on_locked_task(self, fast_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(messages, "LOCK_WAIT", "10ms")
        pk = fast_bench.suspended()

        with session() as blocker:
            blocker.lock(pk)
            with pytest.raises(OperationalError):
                fast_bench.engine.messages.wake([pk])
            fast_bench.engine.messages.wake_or_defer([pk])

        assert fast_bench.engine.messages.wake([pk]) == 1

    def test_wake_restores_lock_timeout_of_caller(self, fast_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(messages, "LOCK_WAIT", "10ms")
        free, locked = fast_bench.suspended(), fast_bench.suspended()

        with session() as blocker, transaction.atomic(), connection.cursor() as cursor:
            blocker.lock(locked)
            cursor.execute("SET LOCAL lock_timeout = '7s'")
            assert fast_bench.engine.messages.wake([free]) == 1
            fast_bench.engine.messages.wake_or_defer([locked])
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("7s",)


def test_line_that_is_written_beside_the_deletion_of_its_task_is_pruned(bench: Bench) -> None:
    claimed = bench.running()
    bench.commit(outcome(claimed))
    line = BodyLog(task_id=claimed.id, claim_number=1, dropped=0, lines=[])
    with threads(1) as start:
        with transaction.atomic():
            bench.engine.tasks.delete([claimed.id])
            start(bench.engine.reports.write, [], [line]).result(DEADLINE_SECONDS)
        assert TaskLog.objects.count() == 1

    bench.engine.tasks.prune()

    assert not TaskLog.objects.exists()


class TestKeysAtOnce:
    @pytest.mark.parametrize("commits", [True, False])
    def test_enqueue_waits_until_key_is_committed_or_rolled_back(self, bench: Bench, commits: bool) -> None:
        with threads(1) as start:
            with transaction.atomic():
                first = bench.add(key="k")
                second = start(bench.engine.enqueues.enqueue, [new(key="k")])
                wait_until_blocked()
                transaction.set_rollback(not commits)
            (answer,) = second.result(DEADLINE_SECONDS)

        assert (answer.id == first, answer.created) == (commits, not commits)


def test_request_of_a_locked_key_stays_and_asks_to_look_again(fast_bench: Bench) -> None:
    """Another session looks at each key, and counts from a snapshot that is older than this request."""
    pk = fast_bench.add(concurrency_key="imports:anna", concurrency_limit=1)
    with session() as other:
        other.run(
            "SELECT pg_advisory_xact_lock('jobqueue_admissionrequest'::regclass::oid::int, number)"
            " FROM generate_series(0, 4095) AS number"
        )
        admitted = fast_bench.engine.admissions.admit_in_transaction()

    assert (admitted.keys_seen, admitted.has_more) == (0, True)
    assert fast_bench.engine.admissions.admit().queues == {"default": 1}
    assert fast_bench.status(pk) == Status.READY


def test_requests_of_a_locked_key_do_not_delay_other_keys(fast_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admissions.admit_in_transaction, "__defaults__", (10,))
    held = [fast_bench.add(concurrency_key="imports:held", concurrency_limit=1) for _ in range(30)]
    other = fast_bench.add(concurrency_key="imports:other", concurrency_limit=1)
    for _ in range(30):
        fast_bench.add(concurrency_key="imports:held", concurrency_limit=1)
    with session() as elsewhere:
        elsewhere.run(
            "SELECT pg_advisory_xact_lock('jobqueue_admissionrequest'::regclass::oid::int,"
            " hashtext('default concurrency imports:held') & 4095)"
        )
        for _ in range(10):
            with fast_bench.engine.db.transaction():
                fast_bench.engine.admissions.admit_in_transaction()
        assert fast_bench.status(other) == Status.READY
        assert fast_bench.status(held[0]) == Status.BLOCKED
        assert AdmissionRequest.objects.count() < 5  # those of the held key became one

    wait_until(lambda: fast_bench.engine.admissions.admit().queues == {"default": 1}, "the request that was postponed")
    assert fast_bench.status(held[0]) == Status.READY


@pytest.mark.parametrize("strength", ["UPDATE", "KEY SHARE"])
def test_locked_request_delays_no_other(fast_bench: Bench, strength: str) -> None:
    first = fast_bench.add(concurrency_key="imports:a", concurrency_limit=1)
    second = fast_bench.add(rate_key="imports:b", rate_limit=1, rate_seconds=60.0)
    with session() as other:
        other.run(f"SELECT id FROM jobqueue_admissionrequest WHERE key = 'imports:a' FOR {strength}")
        assert fast_bench.engine.admissions.admit().queues == {"default": 1}
        assert (fast_bench.status(first), fast_bench.status(second)) == (Status.BLOCKED, Status.READY)

    assert fast_bench.engine.admissions.admit().queues == {"default": 1}


def test_locked_number_of_a_limit_delays_no_look(fast_bench: Bench) -> None:
    fast_bench.engine.limits.set(LimitKind.CONCURRENCY, "imports:a", 1)
    fast_bench.add(concurrency_key="imports:a", concurrency_limit=1)
    with session() as other:
        other.run("SELECT id FROM jobqueue_limit FOR UPDATE")
        assert fast_bench.engine.admissions.admit().queues == {"default": 1}
