"""commit, loop and release, on every engine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from psycopg.errors import ProgramLimitExceeded

from jobqueue.engine.portable.database import json_from
from jobqueue.engine.portable.refusals import is_refusal
from jobqueue.records import FINAL, ClaimedTask, CommitResult, Effects, NewMessage, Outcome, Status
from jobqueue.serialization.ids import new_id
from tests.engine.bench import ERROR, Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

NOT_FINAL = [Status.READY, Status.SCHEDULED, Status.SUSPENDED]


def test_nothing_to_commit(bench: Bench) -> None:
    assert bench.commit() == CommitResult()


def test_success_is_written(bench: Bench) -> None:
    claimed = bench.running()

    answer = bench.commit(
        outcome(claimed, return_value='{"a": [1]}', metadata='{"m": 1}', worker_id="w", is_good_poll=True)
    )

    row = bench.row(claimed.id)
    assert answer == CommitResult(done={claimed.id: Status.SUCCESSFUL})
    assert (row.status, row.return_value, row.metadata, row.worker_ids) == ("SUCCESSFUL", {"a": [1]}, {"m": 1}, ["w"])
    assert (row.claimed_at, row.executor_id, row.wake_at) == (None, None, None)
    assert bench.moment(claimed.id, "finished_at") >= bench.moment(claimed.id, "started_at")
    assert (row.polls, row.claim_number) == (1, 1)


def test_failure_is_written(bench: Bench) -> None:
    claimed = bench.running()

    bench.commit(outcome(claimed, Status.FAILED, attempts=3, error=ERROR, worker_id="w"))

    row = bench.row(claimed.id)
    assert (row.status, row.attempts, row.errors, row.polls) == ("FAILED", 3, [json.loads(ERROR)], 0)
    assert row.finished_at is not None


def test_retry_is_scheduled_from_the_commit(bench: Bench) -> None:
    claimed = bench.running()
    bench.time_passes(100)

    bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=30.0))

    row = bench.row(claimed.id)
    assert (row.status, row.attempts, row.finished_at, row.executor_id) == ("SCHEDULED", 1, None, None)
    wait = bench.moment(claimed.id, "wake_at") - bench.engine.now()
    assert timedelta(seconds=20) < wait <= timedelta(seconds=30)


@pytest.mark.parametrize("wake_after_seconds", [None, 60.0])
def test_actor_that_waits_is_suspended(bench: Bench, wake_after_seconds: float | None) -> None:
    claimed = bench.running()

    bench.commit(
        outcome(
            claimed,
            Status.SUSPENDED,
            inner_state='{"total": 3}',
            is_good_poll=True,
            wake_after_seconds=wake_after_seconds,
        )
    )

    row = bench.row(claimed.id)
    assert (row.status, row.inner_state, row.polls) == ("SUSPENDED", {"total": 3}, 1)
    assert (row.wake_at is None) == (wake_after_seconds is None)


def test_what_an_outcome_does_not_name_stays(bench: Bench) -> None:
    claimed = bench.running(metadata='{"m": 1}')
    bench.set(claimed.id, inner_state={"total": 3}, return_value=7)

    bench.commit(outcome(claimed))

    row = bench.row(claimed.id)
    assert (row.metadata, row.inner_state, row.return_value) == ({"m": 1}, {"total": 3}, 7)
    assert (row.errors, row.worker_ids) == ([], [])


def test_result_none_is_stored_as_json(bench: Bench) -> None:
    claimed = bench.running()
    bench.set(claimed.id, return_value=7)

    bench.commit(outcome(claimed, return_value="null"))

    assert bench.row(claimed.id).return_value is None


def test_batch_of_all_kinds(bench: Bench) -> None:
    bench.engine.enqueue([new() for _ in range(6)])
    claims = bench.claim()
    statuses = [
        Status.SUCCESSFUL,
        Status.FAILED,
        Status.SCHEDULED,
        Status.READY,
        Status.CANCELLED,
        Status.SUSPENDED,
    ]

    answer = bench.commit(*(outcome(*pair, wake_after_seconds=60.0) for pair in zip(claims, statuses, strict=True)))

    assert answer.done == {claimed.id: status for claimed, status in zip(claims, statuses, strict=True)}
    assert [bench.status(claimed.id) for claimed in claims] == statuses
    assert [bench.row(claimed.id).finished_at is not None for claimed in claims] == [
        status in FINAL for status in statuses
    ]
    assert [bench.row(claimed.id).wake_at is not None for claimed in claims] == [
        status in (Status.SCHEDULED, Status.SUSPENDED) for status in statuses
    ]


class TestBounds:
    def test_the_twenty_newest_errors_are_kept(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.set(claimed.id, errors=[{"attempt": number} for number in range(1, 20)])

        for attempt in (20, 21):
            if attempt > 20:
                bench.engine.wake_due()
                (claimed,) = bench.claim(queues=[claimed.queue_name])
            error = json.dumps({"attempt": attempt})
            bench.commit(outcome(claimed, Status.SCHEDULED, error=error, wake_after_seconds=0.0))

        assert [error["attempt"] for error in bench.row(claimed.id).errors] == list(range(2, 22))

    def test_the_hundred_newest_workers_are_kept(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.set(claimed.id, worker_ids=[str(number) for number in range(1, 101)])

        bench.commit(outcome(claimed, worker_id="101"))

        assert bench.row(claimed.id).worker_ids == [str(number) for number in range(2, 102)]

    def test_lists_that_cannot_be_read_do_not_keep_a_task_from_ending(self, bench: Bench) -> None:
        claimed = bench.running()
        poison = json_from(f"[{'7' * 5000}]")
        bench.set(claimed.id, errors=poison, worker_ids=poison)

        bench.commit(outcome(claimed, Status.FAILED, error=ERROR, worker_id="w"))

        assert bench.engine.tasks.filter(pk=claimed.id).values_list("status", flat=True).get() == "FAILED"


class TestRestoredBackup:
    """Claim numbers are given out a second time: an executor whose claim the backup does not know must not commit."""

    @pytest.fixture(params=[Status.SUCCESSFUL, Status.SUSPENDED, Status.READY])
    def status(self, request: pytest.FixtureRequest) -> Status:
        return Status(request.param)

    @staticmethod
    def claimed_twice(bench: Bench) -> tuple[Bench, ClaimedTask, ClaimedTask]:
        """Give another executor, its claim, and ours from before the restore, which bears the same number."""
        ours = bench.running()
        bench.set(ours.id, status="READY", claim_number=0, executor_id=None, claimed_at=None)
        other = Bench(bench.engine)
        (theirs,) = other.claim(queues=[ours.queue_name])
        assert (theirs.id, theirs.claim_number) == (ours.id, ours.claim_number)
        return other, theirs, ours

    @pytest.mark.parametrize("wait", [False, True])
    def test_only_the_holder_commits(self, bench: Bench, status: Status, wait: bool) -> None:
        other, theirs, ours = self.claimed_twice(bench)

        late = bench.engine.commit([outcome(ours, status)], holder=bench.executor_id, wait=wait)
        good = bench.engine.commit([outcome(theirs, status)], holder=other.executor_id, wait=wait)

        assert (list(late.done), set(late.lost)) == ([], {ours.id})
        assert (good.done, set(good.lost)) == ({ours.id: status}, set())

    @pytest.mark.parametrize("limit", [0, 1])
    def test_a_pulse_commits_for_the_executor_that_claims(self, bench: Bench, status: Status, limit: int) -> None:
        other, theirs, ours = self.claimed_twice(bench)

        late, _ = bench.engine.commit_and_claim([outcome(ours, status)], bench.demand(limit, queues=["none"]))
        good, _ = bench.engine.commit_and_claim([outcome(theirs, status)], other.demand(limit, queues=["none"]))

        assert (list(late.done), set(late.lost)) == ([], {ours.id})
        assert (good.done, set(good.lost)) == ({ours.id: status}, set())

    def test_only_the_holder_runs_what_a_poll_has_returned(self, bench: Bench) -> None:
        other, theirs, ours = self.claimed_twice(bench)

        with bench.engine.transaction():
            assert not bench.engine.lock_claim(ours, bench.executor_id)
            assert bench.engine.lock_claim(theirs, other.executor_id)


class TestFence:
    """Only who presents the token of the claim may commit."""

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_stale_claim_cannot_commit(self, bench: Bench, status: Status) -> None:
        stale = bench.running()
        bench.engine.release([stale])
        (fresh,) = bench.claim(queues=[stale.queue_name], executor_id=uuid4())

        answer = bench.commit(outcome(stale, status, return_value='"stale"'))

        assert answer == CommitResult(lost=frozenset({stale.id}))
        row = bench.row(stale.id)
        assert (row.status, row.claim_number, row.return_value) == ("RUNNING", fresh.claim_number, None)
        assert bench.commit(outcome(fresh)).done == {fresh.id: Status.SUCCESSFUL}

    @pytest.mark.parametrize("now", [Status.READY, Status.SCHEDULED, Status.SUCCESSFUL, Status.FAILED])
    @pytest.mark.parametrize("status", [Status.FAILED, Status.SUSPENDED])
    def test_task_that_does_not_run_any_more_is_lost(self, bench: Bench, now: Status, status: Status) -> None:
        claimed = bench.running()
        bench.commit(outcome(claimed, now, wake_after_seconds=60.0))

        answer = bench.commit(outcome(claimed, status, error=ERROR))

        assert answer == CommitResult(lost=frozenset({claimed.id}))
        assert bench.status(claimed.id) == now
        assert bench.row(claimed.id).errors == []

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_task_that_is_gone_is_lost(self, bench: Bench, status: Status) -> None:
        gone = Outcome(task_id=new_id(), claim_number=1, status=status, attempts=0)

        assert bench.commit(gone) == CommitResult(lost=frozenset({gone.task_id}))

    def test_lost_outcome_has_no_effects(self, bench: Bench) -> None:
        stale, receiver = bench.running(), bench.suspended()
        bench.send(stale.id)
        (message,) = bench.inbox(stale.id)
        bench.engine.release([stale])

        answer = bench.perform(
            stale, consumed=[message.pk], spawn=[new(key="child")], send=[NewMessage(task_id=receiver, body="1")]
        )

        assert answer == CommitResult(lost=frozenset({stale.id}))
        assert len(bench.inbox(stale.id)) == 1
        assert bench.inbox(receiver) == []
        assert not bench.engine.tasks.filter(key="child").exists()
        assert bench.status(receiver) == "SUSPENDED"

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_lost_one_does_not_hold_up_its_batch(self, bench: Bench, status: Status) -> None:
        stale, good = bench.running(), bench.running()
        bench.engine.release([stale])

        answer = bench.commit(outcome(stale, status), outcome(good, status))

        assert answer == CommitResult(done={good.id: status}, lost=frozenset({stale.id}))


class TestCancelRequest:
    @pytest.mark.parametrize("status", NOT_FINAL)
    def test_task_that_would_go_on_is_cancelled(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()
        bench.engine.cancel([claimed.id])

        answer = bench.commit(outcome(claimed, status, wake_after_seconds=60.0))

        row = bench.row(claimed.id)
        assert answer.done == {claimed.id: Status.CANCELLED}
        assert (row.status, row.wake_at, row.executor_id) == ("CANCELLED", None, None)
        assert row.finished_at is not None

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED])
    def test_task_that_ended_all_the_same_has_ended(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()
        bench.engine.cancel([claimed.id])

        assert bench.commit(outcome(claimed, status)).done == {claimed.id: status}

    def test_released_task_is_cancelled(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.cancel([claimed.id])

        assert bench.engine.release([claimed]).done == {claimed.id: Status.CANCELLED}


@contextmanager
def trigger(body: str) -> Iterator[None]:
    """Run a bit of PL/pgSQL for each task that is written."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION pg_temp.meddle() RETURNS trigger LANGUAGE plpgsql"
            f" AS $$ BEGIN {body} RETURN NEW; END $$;"
            "CREATE TRIGGER meddle BEFORE UPDATE ON jobqueue_task FOR EACH ROW EXECUTE FUNCTION pg_temp.meddle()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER meddle ON jobqueue_task; DROP FUNCTION pg_temp.meddle()")


class TestRefused:
    """A value that the database rejects fails alone, with the reason."""

    BAD = "{"

    @pytest.mark.parametrize("column", ["return_value", "inner_state", "metadata", "error"])
    @pytest.mark.parametrize("status", [Status.FAILED, Status.SUSPENDED])
    def test_only_the_guilty_one_is_refused(self, bench: Bench, column: str, status: Status) -> None:
        bench.engine.enqueue([new() for _ in range(5)])
        claims = bench.claim()
        outcomes = [outcome(claimed, status) for claimed in claims]
        outcomes[3] = outcome(claims[3], status, **{column: self.BAD})

        answer = bench.commit(*outcomes)

        assert answer.done == {claimed.id: status for number, claimed in enumerate(claims) if number != 3}
        assert list(answer.refused) == [claims[3].id]
        assert str(answer.refused[claims[3].id])
        assert (bench.row(claims[3].id).status, bench.row(claims[3].id).attempts) == ("RUNNING", 0)

    def test_refused_task_can_be_committed_as_failed(self, bench: Bench) -> None:
        claimed = bench.running()
        assert bench.commit(outcome(claimed, return_value=self.BAD)).refused

        assert bench.commit(outcome(claimed, Status.FAILED, error=ERROR)).done == {claimed.id: Status.FAILED}

    def test_lone_surrogate(self, bench: Bench) -> None:
        bad, good = bench.running(), bench.running()

        answer = bench.commit(outcome(bad, return_value='"\ud800"'), outcome(good))

        assert (answer.done, list(answer.refused)) == ({good.id: Status.SUCCESSFUL}, [bad.id])

    def test_moment_beyond_the_calendar(self, bench: Bench) -> None:
        bad, good = bench.running(), bench.running()

        answer = bench.commit(outcome(bad, Status.SCHEDULED, wake_after_seconds=1e15), outcome(good))

        assert (answer.done, list(answer.refused)) == ({good.id: Status.SUCCESSFUL}, [bad.id])

    def test_nul_character(self, bench: Bench) -> None:
        """jsonb refuses one, SQLite stores it; payload.py lets none through to either."""
        bad, good = bench.running(), bench.running()

        answer = bench.commit(outcome(bad, return_value=r'"\u0000"'), outcome(good))

        assert good.id in answer.done
        assert list(answer.refused) == ([] if bench.engine.database == "sqlite" else [bad.id])

    @pytest.mark.parametrize("state", ["P0001", "U0001"])
    def test_trigger_that_raises_an_error_of_its_own(self, bench_on_server: Bench, state: str) -> None:
        bench = bench_on_server
        bad, good = bench.running(), bench.running()
        with trigger(f"IF NEW.id = '{bad.id}' THEN RAISE SQLSTATE '{state}'; END IF;"):
            answer = bench.commit(outcome(bad), outcome(good))

        assert (answer.done, list(answer.refused)) == ({good.id: Status.SUCCESSFUL}, [bad.id])

    @pytest.mark.parametrize("state", ["53100", "58030", "57014", "XX000"])
    def test_nothing_is_refused_for_the_trouble_of_the_server(self, bench_on_server: Bench, state: str) -> None:
        bench = bench_on_server
        claimed, other = bench.running(), bench.running()
        with trigger(f"RAISE SQLSTATE '{state}';"), pytest.raises(DatabaseError):
            bench.commit(outcome(claimed), outcome(other))

        assert bench.row(claimed.id).status == "RUNNING"

    def test_server_that_has_run_out_of_transaction_ids_refuses_nothing(self) -> None:
        """As it says of a value that is too large: 54000, program limit exceeded."""
        for place, is_refused in (("varsup.c", False), ("bufmgr.c", False), ("jsonb_util.c", True)):
            error = OperationalError()
            error.__cause__ = type("Error", (ProgramLimitExceeded,), {"diag": SimpleNamespace(source_file=place)})()
            assert is_refusal(error) is is_refused, place

    def test_nothing_of_a_refused_outcome_is_done(self, bench: Bench) -> None:
        claimed, receiver = bench.running(), bench.suspended()
        effects = Effects(spawn=[new(key="child")], send=[NewMessage(task_id=receiver, body="1")])

        answer = bench.commit(outcome(claimed, Status.SUSPENDED, inner_state=self.BAD, effects=effects))

        assert list(answer.refused) == [claimed.id]
        assert bench.inbox(receiver) == []
        assert not bench.engine.tasks.filter(key="child").exists()

    def test_in_a_callers_transaction(self, bench: Bench) -> None:
        """The body and its end are one transaction: a refused result leaves the rest of it intact."""
        claimed = bench.running()

        with transaction.atomic(using=bench.engine.database):
            beside = bench.add()
            answer = bench.engine.commit([outcome(claimed, return_value=self.BAD)], wait=True)
            assert list(answer.refused) == [claimed.id]
            assert bench.engine.commit([outcome(claimed, Status.FAILED)], wait=True).done

        assert (bench.status(claimed.id), bench.status(beside)) == ("FAILED", "READY")


class TestAtomicBody:
    """Body and completion in one transaction, on the worker's own connection."""

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_both_are_done(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()

        with transaction.atomic(using=bench.engine.database):
            beside = bench.add()
            assert bench.engine.commit([outcome(claimed, status)], wait=True).done == {claimed.id: status}

        assert (bench.status(claimed.id), bench.status(beside)) == (status, "READY")

    def test_neither_is_done_when_the_claim_is_lost(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.release([claimed])

        with transaction.atomic(using=bench.engine.database):
            beside = bench.add()
            assert bench.engine.commit([outcome(claimed)], wait=True).lost == {claimed.id}
            transaction.set_rollback(True, using=bench.engine.database)

        assert not bench.engine.tasks.filter(pk=beside).exists()

    def test_end_is_undone_with_the_body(self, bench: Bench) -> None:
        claimed = bench.running()

        with transaction.atomic(using=bench.engine.database):
            bench.engine.commit([outcome(claimed)], wait=True)
            transaction.set_rollback(True, using=bench.engine.database)

        assert bench.status(claimed.id) == "RUNNING"
        assert bench.commit(outcome(claimed)).done == {claimed.id: Status.SUCCESSFUL}


class TestPulse:
    def test_commits_and_claims(self, bench: Bench) -> None:
        done = bench.running()
        pk = bench.add()

        committed, claimed = bench.engine.commit_and_claim([outcome(done)], bench.demand())

        assert committed.done == {done.id: Status.SUCCESSFUL}
        assert [task.id for task in claimed] == [pk]

    def test_task_that_polls_again_can_be_claimed_at_once(self, bench: Bench) -> None:
        again = bench.running()

        _, claimed = bench.engine.commit_and_claim(
            [outcome(again, Status.READY)], bench.demand(queues=[again.queue_name])
        )

        assert [(task.id, task.claim_number) for task in claimed] == [(again.id, 2)]

    def test_without_demand_it_commits(self, bench: Bench) -> None:
        done, _ = bench.running(), bench.add()

        committed, claimed = bench.engine.commit_and_claim([outcome(done)], bench.demand(0))

        assert (committed.done, claimed) == ({done.id: Status.SUCCESSFUL}, [])

    def test_without_outcomes_it_claims(self, bench: Bench) -> None:
        pk = bench.add()

        committed, claimed = bench.engine.commit_and_claim([], bench.demand())

        assert (committed, [task.id for task in claimed]) == (CommitResult(), [pk])

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_refused_outcome_does_not_hold_up_the_rest(self, bench: Bench, status: Status) -> None:
        bad, good = bench.running(), bench.running()
        pk = bench.add()

        committed, claimed = bench.engine.commit_and_claim(
            [outcome(bad, status, return_value="{"), outcome(good, status)], bench.demand()
        )

        assert (committed.done, list(committed.refused)) == ({good.id: status}, [bad.id])
        assert [task.id for task in claimed] == [pk]


class TestRelease:
    def test_released_task_is_ready_as_before(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.set(claimed.id, attempts=2)
        (claimed,) = bench.engine.claimer.read_claimed([claimed.id])

        assert bench.engine.release([claimed]).done == {claimed.id: Status.READY}
        row = bench.row(claimed.id)
        assert (row.status, row.attempts, row.polls, row.executor_losses) == ("READY", 2, 0, 0)
        assert (row.executor_id, row.claimed_at, row.worker_ids, row.errors) == (None, None, [], [])

    def test_lost_claim_is_not_released(self, bench: Bench) -> None:
        stale = bench.running()
        bench.engine.release([stale])
        bench.claim(queues=[stale.queue_name])

        assert bench.engine.release([stale]).lost == {stale.id}
        assert bench.status(stale.id) == "RUNNING"

    def test_strays_are_handed_back_and_known_tasks_kept(self, bench: Bench) -> None:
        known, stray, foreign = bench.running(), bench.running(), bench.add()
        bench.claim(executor_id=uuid4())

        assert bench.engine.release_unknown_claims(bench.executor_id, [known.id]) == 1
        assert [bench.status(pk) for pk in (known.id, stray.id, foreign)] == ["RUNNING", "READY", "RUNNING"]
        assert bench.engine.release_unknown_claims(bench.executor_id, [known.id]) == 0


def test_values_are_carried_as_they_are(bench: Bench) -> None:
    """Quotes, percent signs, braces and backslashes are nobody's syntax."""
    text = json.dumps({"a'b": 'c"d', "%s": "%(x)s {} {0}", "back\\slash": "\n\t", "ü": "😀"})
    claimed = bench.running(args=f"[{text}]", metadata=text)

    bench.commit(outcome(claimed, Status.FAILED, return_value=text, error=text, inner_state=text, worker_id="a'%s\"b"))

    row = bench.row(claimed.id)
    value = json.loads(text)
    assert row.args == [value]
    assert (row.metadata, row.return_value, row.inner_state, row.errors) == (value, value, value, [value])
    assert row.worker_ids == ["a'%s\"b"]
