"""commit, commit_and_claim and release, on every engine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from psycopg.errors import ProgramLimitExceeded

from jobqueue.engine.commit import is_refusal
from jobqueue.engine.database import json_from
from jobqueue.values.history import HISTORY_CHARACTERS, read_history
from jobqueue.values.records import CommitResult, Effects, NewMessage
from jobqueue.values.states import FINAL, Status
from tests.engine.bench import ERROR, Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

NOT_FINAL = [Status.READY, Status.SCHEDULED, Status.SUSPENDED]


def test_commit_writes_success(bench: Bench) -> None:
    claimed = bench.running()

    answer = bench.commit(
        outcome(claimed, return_value='{"a": [1]}', metadata='{"m": 1}', worker_id="w", has_succeeded=True)
    )

    row = bench.row(claimed.id)
    assert answer == CommitResult(done={claimed.id: Status.SUCCESSFUL})
    assert (row.status, row.return_value, row.metadata, row.worker_ids) == ("SUCCESSFUL", {"a": [1]}, {"m": 1}, ["w"])
    assert (row.claimed_at, row.executor_id, row.wake_at) == (None, None, None)
    assert bench.moment(claimed.id, "finished_at") >= bench.moment(claimed.id, "started_at")
    assert (row.polls, row.claim_number) == (1, 1)


def test_retry_is_scheduled_from_time_of_commit(bench: Bench) -> None:
    claimed = bench.running()
    bench.time_passes(100)

    bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, error=ERROR, wake_after_seconds=30.0))

    row = bench.row(claimed.id)
    assert (row.status, row.attempts, row.finished_at, row.executor_id) == ("SCHEDULED", 1, None, None)
    wait = bench.moment(claimed.id, "wake_at") - bench.engine.db.now()
    assert timedelta(seconds=20) < wait <= timedelta(seconds=30)


@pytest.mark.parametrize("wake_after_seconds", [None, 60.0])
def test_commit_suspends_waiting_actor(bench: Bench, wake_after_seconds: float | None) -> None:
    claimed = bench.running()

    bench.commit(
        outcome(
            claimed,
            Status.SUSPENDED,
            inner_state='{"total": 3}',
            has_succeeded=True,
            wake_after_seconds=wake_after_seconds,
        )
    )

    row = bench.row(claimed.id)
    assert (row.status, row.inner_state, row.polls) == ("SUSPENDED", {"total": 3}, 1)
    assert (row.wake_at is None) == (wake_after_seconds is None)


def test_commit_keeps_columns_that_outcome_omits(bench: Bench) -> None:
    claimed = bench.running(metadata='{"m": 1}')
    bench.set(claimed.id, inner_state={"total": 3}, return_value=7)

    bench.commit(outcome(claimed))

    row = bench.row(claimed.id)
    assert (row.metadata, row.inner_state, row.return_value) == ({"m": 1}, {"total": 3}, 7)
    assert (row.errors, row.worker_ids) == ([], [])


def test_commit_stores_result_null(bench: Bench) -> None:
    claimed = bench.running()
    bench.set(claimed.id, return_value=7)

    bench.commit(outcome(claimed, return_value="null"))

    assert bench.row(claimed.id).return_value is None


def test_commit_accepts_batch_of_all_states(bench: Bench) -> None:
    bench.engine.enqueues.enqueue([new() for _ in range(6)])
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
    def test_commit_keeps_twenty_newest_errors(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.set(claimed.id, errors=[{"attempt": number} for number in range(1, 20)])

        for attempt in (20, 21):
            if attempt > 20:
                bench.engine.inbox.wake_due()
                (claimed,) = bench.claim(queues=[claimed.queue_name])
            error = json.dumps({"attempt": attempt})
            bench.commit(outcome(claimed, Status.SCHEDULED, error=error, wake_after_seconds=0.0))

        assert [error["attempt"] for error in bench.row(claimed.id).errors] == list(range(2, 22))

    def test_commit_keeps_hundred_newest_worker_ids(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.set(claimed.id, worker_ids=[str(number) for number in range(1, 101)])

        bench.commit(outcome(claimed, worker_id="101"))

        assert bench.row(claimed.id).worker_ids == [str(number) for number in range(2, 102)]

    def test_commit_ends_task_whose_lists_are_unreadable(self, bench: Bench) -> None:
        claimed = bench.running()
        poison = json_from(f"[{'7' * 5000}]")
        bench.set(claimed.id, errors=poison, worker_ids=poison)

        bench.commit(outcome(claimed, Status.FAILED, error=ERROR, worker_id="w"))

        assert bench.engine.db.tasks.filter(pk=claimed.id).values_list("status", flat=True).get() == "FAILED"


class TestCancelRequest:
    @pytest.mark.parametrize("status", NOT_FINAL)
    def test_unfinished_task_with_cancel_request_is_cancelled(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()
        bench.engine.tasks.cancel([claimed.id])

        answer = bench.commit(outcome(claimed, status, wake_after_seconds=60.0))

        row = bench.row(claimed.id)
        assert answer.done == {claimed.id: Status.CANCELLED}
        assert (row.status, row.wake_at, row.executor_id) == ("CANCELLED", None, None)
        assert row.finished_at is not None

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED])
    def test_finished_task_with_cancel_request_keeps_its_outcome(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()
        bench.engine.tasks.cancel([claimed.id])

        assert bench.commit(outcome(claimed, status)).done == {claimed.id: status}


@contextmanager
def trigger(body: str) -> Iterator[None]:
    """Run this PL/pgSQL before each update of a task."""
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
    """A value that the database rejects refuses only its own outcome, with the reason."""

    BAD = "{"

    @pytest.mark.parametrize("column", ["return_value", "inner_state", "metadata", "error"])
    @pytest.mark.parametrize("status", [Status.FAILED, Status.SUSPENDED])
    def test_commit_refuses_only_outcome_with_bad_json(self, bench: Bench, column: str, status: Status) -> None:
        bench.engine.enqueues.enqueue([new() for _ in range(5)])
        claims = bench.claim()
        outcomes = [outcome(claimed, status) for claimed in claims]
        outcomes[3] = outcome(claims[3], status, **{column: self.BAD})

        answer = bench.commit(*outcomes)

        assert answer.done == {claimed.id: status for number, claimed in enumerate(claims) if number != 3}
        assert list(answer.refused) == [claims[3].id]
        assert str(answer.refused[claims[3].id])
        assert (bench.row(claims[3].id).status, bench.row(claims[3].id).attempts) == ("RUNNING", 0)

    @pytest.mark.parametrize(
        ("status", "changes"),
        [
            (Status.SUCCESSFUL, {"return_value": '"\ud800"'}),
            (Status.SUCCESSFUL, {"return_value": r'"\u0000"'}),
            (Status.SCHEDULED, {"wake_after_seconds": 1e15}),
        ],
        ids=["lone surrogate", "NUL", "beyond the calendar"],
    )
    def test_commit_refuses_value_that_no_column_holds(
        self, bench: Bench, status: Status, changes: dict[str, Any]
    ) -> None:
        bad, good = bench.running(), bench.running()

        answer = bench.commit(outcome(bad, status, **changes), outcome(good))

        assert good.id in answer.done
        is_stored = bench.engine.database == "sqlite" and "u0000" in str(changes)  # jsonb alone refuses NUL
        assert list(answer.refused) == ([] if is_stored else [bad.id])

    @pytest.mark.parametrize("state", ["P0001", "U0001"])
    def test_commit_refuses_outcome_that_trigger_rejects(self, bench_on_server: Bench, state: str) -> None:
        bench = bench_on_server
        bad, good = bench.running(), bench.running()
        with trigger(f"IF NEW.id = '{bad.id}' THEN RAISE SQLSTATE '{state}'; END IF;"):
            answer = bench.commit(outcome(bad), outcome(good))

        assert (answer.done, list(answer.refused)) == ({good.id: Status.SUCCESSFUL}, [bad.id])

    @pytest.mark.parametrize("state", ["53100", "58030", "57014", "XX000"])
    def test_commit_refuses_nothing_on_server_error(self, bench_on_server: Bench, state: str) -> None:
        bench = bench_on_server
        claimed, other = bench.running(), bench.running()
        with trigger(f"RAISE SQLSTATE '{state}';"), pytest.raises(DatabaseError):
            bench.commit(outcome(claimed), outcome(other))

        assert bench.row(claimed.id).status == "RUNNING"

    def test_lack_of_transaction_ids_is_no_refusal(self) -> None:
        """PostgreSQL reports it with the code of a value that is too large: 54000."""
        for file, is_refused in (("varsup.c", False), ("bufmgr.c", False), ("jsonb_util.c", True)):
            error = OperationalError()
            error.__cause__ = type("Error", (ProgramLimitExceeded,), {"diag": SimpleNamespace(source_file=file)})()
            assert is_refusal(error) is is_refused, file

    def test_refused_outcome_has_no_effects(self, bench: Bench) -> None:
        claimed, receiver = bench.running(), bench.suspended()
        effects = Effects(spawn=[new(key="child")], send=[NewMessage(task_id=receiver, body="1")])

        answer = bench.commit(outcome(claimed, Status.SUSPENDED, inner_state=self.BAD, effects=effects))

        assert list(answer.refused) == [claimed.id]
        assert bench.inbox(receiver) == []
        assert not bench.engine.db.tasks.filter(key="child").exists()

    def test_refused_outcome_keeps_transaction_of_caller(self, bench: Bench) -> None:
        """A refused result keeps the other writes of the transaction."""
        claimed = bench.running()

        with transaction.atomic(using=bench.engine.database):
            beside = bench.add()
            answer = bench.engine.commits.commit([outcome(claimed, return_value=self.BAD)], wait=True)
            assert list(answer.refused) == [claimed.id]
            assert bench.engine.commits.commit([outcome(claimed, Status.FAILED)], wait=True).done

        assert (bench.status(claimed.id), bench.status(beside)) == ("FAILED", "READY")


class TestAtomicBody:
    """Body and outcome share one transaction, on the connection of the worker thread."""

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_body_and_outcome_commit_together(self, bench: Bench, status: Status) -> None:
        claimed = bench.running()

        with transaction.atomic(using=bench.engine.database):
            beside = bench.add()
            assert bench.engine.commits.commit([outcome(claimed, status)], wait=True).done == {claimed.id: status}

        assert (bench.status(claimed.id), bench.status(beside)) == (status, "READY")

    def test_lost_claim_undoes_atomic_body(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.engine.commits.release([claimed])

        with transaction.atomic(using=bench.engine.database):
            beside = bench.add()
            assert bench.engine.commits.commit([outcome(claimed)], wait=True).lost == {claimed.id}
            transaction.set_rollback(True, using=bench.engine.database)

        assert not bench.engine.db.tasks.filter(pk=beside).exists()


class TestCommitAndClaim:
    @pytest.mark.parametrize("commits", [False, True])
    @pytest.mark.parametrize("limit", [0, 100])
    def test_commit_and_claim_does_either_or_both(self, bench: Bench, commits: bool, limit: int) -> None:
        done, ready = bench.running(), bench.add()
        outcomes = [outcome(done)] if commits else []

        committed, claimed = bench.engine.commit_and_claim(outcomes, bench.claim_request(limit))

        assert committed == CommitResult(done={done.id: Status.SUCCESSFUL} if commits else {})
        assert [task.id for task in claimed] == ([ready] if limit else [])

    def test_committed_task_is_claimed_again_in_same_call(self, bench: Bench) -> None:
        again = bench.running()

        _, claimed = bench.engine.commit_and_claim(
            [outcome(again, Status.READY)], bench.claim_request(queues=[again.queue_name])
        )

        assert [(task.id, task.claim_number) for task in claimed] == [(again.id, 2)]

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_refused_outcome_does_not_block_commit_and_claim(self, bench: Bench, status: Status) -> None:
        bad, good = bench.running(), bench.running()
        pk = bench.add()

        committed, claimed = bench.engine.commit_and_claim(
            [outcome(bad, status, return_value="{"), outcome(good, status)], bench.claim_request()
        )

        assert (committed.done, list(committed.refused)) == ({good.id: status}, [bad.id])
        assert [task.id for task in claimed] == [pk]


class TestRelease:
    def test_release_restores_ready_task(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.set(claimed.id, attempts=2)
        (claimed,) = bench.engine.claims.read_claimed([claimed.id])

        assert bench.engine.commits.release([claimed]).done == {claimed.id: Status.READY}
        row = bench.row(claimed.id)
        assert (row.status, row.attempts, row.polls, row.executor_losses) == ("READY", 2, 0, 0)
        assert (row.executor_id, row.claimed_at, row.worker_ids, row.errors) == (None, None, [], [])

    def test_release_unknown_claims_keeps_known_tasks(self, bench: Bench) -> None:
        kept, unknown, foreign = bench.running(), bench.running(), bench.add()
        bench.claim(executor_id=uuid4())

        assert bench.engine.commits.release_unknown_claims(bench.executor_id, [kept.id]) == 1
        assert [bench.status(pk) for pk in (kept.id, unknown.id, foreign)] == ["RUNNING", "READY", "RUNNING"]
        assert bench.engine.commits.release_unknown_claims(bench.executor_id, [kept.id]) == 0


def test_commit_keeps_special_characters(bench: Bench) -> None:
    """Quotes, percent signs, braces and backslashes are data and not syntax."""
    text = json.dumps({"a'b": 'c"d', "%s": "%(x)s {} {0}", "back\\slash": "\n\t", "ü": "😀"})
    claimed = bench.running(args=f"[{text}]", metadata=text)

    bench.commit(outcome(claimed, Status.FAILED, return_value=text, error=text, inner_state=text, worker_id="a'%s\"b"))

    row = bench.row(claimed.id)
    value = json.loads(text)
    assert row.args == [value]
    assert (row.metadata, row.return_value, row.inner_state, row.errors) == (value, value, value, [value])
    assert row.worker_ids == ["a'%s\"b"]


def test_commit_stores_the_cause_of_a_failure_until_an_attempt_succeeds(bench: Bench) -> None:
    claimed = bench.running()
    cause = "0123456789abcdef"
    bench.commit(outcome(claimed, Status.SCHEDULED, attempts=1, wake_after_seconds=0, error=ERROR, cause=cause))
    assert bench.row(claimed.id).cause == cause

    bench.engine.inbox.wake_due(100)
    (again,) = bench.claim(queues=[bench.row(claimed.id).queue_name])
    bench.commit(outcome(again))

    assert bench.row(claimed.id).cause is None


class TestHistory:
    def test_commit_appends_line_and_keeps_the_newest(self, bench: Bench) -> None:
        claimed = bench.running()
        bench.commit(outcome(claimed, Status.READY, has_succeeded=True, history="first\n"))
        (claimed,) = bench.claim(queues=[claimed.queue_name])
        bench.commit(outcome(claimed, Status.READY, has_succeeded=True, history="second\n"))
        assert bench.row(claimed.id).history == "first\nsecond\n"

        (claimed,) = bench.claim(queues=[claimed.queue_name])
        long = "x" * (HISTORY_CHARACTERS - 4) + "\n"
        bench.commit(outcome(claimed, Status.READY, has_succeeded=True, history=long))

        assert bench.row(claimed.id).history == f"nd\n{long}"

    def test_commit_without_line_leaves_the_history(self, bench: Bench) -> None:
        plain = bench.ended()
        claimed = bench.running()
        bench.set(claimed.id, history="first\n")
        bench.commit(outcome(claimed))

        assert bench.row(plain).history is None
        assert bench.row(claimed.id).history == "first\n"

    def test_requeue_appends_its_time(self, bench: Bench) -> None:
        pk = bench.ended(Status.FAILED)
        bench.set(pk, history="first\n")

        bench.engine.tasks.requeue([pk])

        first, *entries = (bench.row(pk).history or "").splitlines(keepends=True)
        assert first == "first\n"
        (entry,) = read_history("".join(entries))
        assert entry.event == "REQUEUED"
        assert abs(entry.at - bench.engine.db.now().timestamp()) < 60
