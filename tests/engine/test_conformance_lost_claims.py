"""Only the holder of a claim commits its outcome, on every engine."""

from uuid import uuid4

import pytest

from jobqueue.values.ids import new_id
from jobqueue.values.records import ClaimedTask, CommitResult, NewMessage, Outcome
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


class TestRestoredBackup:
    """After a restore, claim numbers repeat. An executor with a claim from before must not commit."""

    @pytest.fixture(params=[Status.SUCCESSFUL, Status.SUSPENDED, Status.READY])
    def status(self, request: pytest.FixtureRequest) -> Status:
        return Status(request.param)

    @staticmethod
    def claimed_twice(bench: Bench) -> tuple[Bench, ClaimedTask, ClaimedTask]:
        """Return another executor, its claim, and the old claim with the same number."""
        old_claim = bench.running()
        bench.set(old_claim.id, status="READY", claim_number=0, executor_id=None, claimed_at=None)
        other = Bench(bench.engine)
        (new_claim,) = other.claim(queues=[old_claim.queue_name])
        assert (new_claim.id, new_claim.claim_number) == (old_claim.id, old_claim.claim_number)
        return other, new_claim, old_claim

    @pytest.mark.parametrize("wait", [False, True])
    def test_commit_accepts_only_executor_of_claim(self, bench: Bench, status: Status, wait: bool) -> None:
        other, new_claim, old_claim = self.claimed_twice(bench)

        late = bench.engine.commits.commit([outcome(old_claim, status)], holder=bench.executor_id, wait=wait)
        good = bench.engine.commits.commit([outcome(new_claim, status)], holder=other.executor_id, wait=wait)

        assert (list(late.done), set(late.lost)) == ([], {old_claim.id})
        assert (good.done, set(good.lost)) == ({old_claim.id: status}, set())

    @pytest.mark.parametrize("limit", [0, 1])
    def test_commit_and_claim_accepts_only_executor_of_claim(self, bench: Bench, status: Status, limit: int) -> None:
        other, new_claim, old_claim = self.claimed_twice(bench)

        late, _ = bench.engine.commit_and_claim(
            [outcome(old_claim, status)], bench.claim_request(limit, queues=["none"])
        )
        good, _ = bench.engine.commit_and_claim(
            [outcome(new_claim, status)], other.claim_request(limit, queues=["none"])
        )

        assert (list(late.done), set(late.lost)) == ([], {old_claim.id})
        assert (good.done, set(good.lost)) == ({old_claim.id: status}, set())

    def test_lock_claim_accepts_only_executor_of_claim(self, bench: Bench) -> None:
        other, new_claim, old_claim = self.claimed_twice(bench)

        with bench.engine.db.transaction():
            assert not bench.engine.claims.lock_claim(old_claim, bench.executor_id)
            assert bench.engine.claims.lock_claim(new_claim, other.executor_id)


class TestClaimNumber:
    """Only an outcome with the current claim number is committed."""

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_stale_claim_cannot_commit(self, bench: Bench, status: Status) -> None:
        stale = bench.running()
        bench.engine.commits.release([stale])
        (fresh,) = bench.claim(queues=[stale.queue_name], executor_id=uuid4())

        good = bench.running()

        answer = bench.commit(outcome(stale, status, return_value='"stale"'), outcome(good, status))

        assert answer == CommitResult(done={good.id: status}, lost=frozenset({stale.id}))
        row = bench.row(stale.id)
        assert (row.status, row.claim_number, row.return_value) == ("RUNNING", fresh.claim_number, None)
        assert bench.commit(outcome(fresh)).done == {fresh.id: Status.SUCCESSFUL}

    @pytest.mark.parametrize("now", [Status.READY, Status.SCHEDULED, Status.SUCCESSFUL, Status.FAILED])
    @pytest.mark.parametrize("status", [Status.FAILED, Status.SUSPENDED])
    def test_outcome_of_task_that_left_running_is_lost(self, bench: Bench, now: Status, status: Status) -> None:
        claimed = bench.running()
        bench.commit(outcome(claimed, now, wake_after_seconds=60.0))

        answer = bench.commit(outcome(claimed, status, error=ERROR))

        assert answer == CommitResult(lost=frozenset({claimed.id}))
        assert bench.status(claimed.id) == now
        assert bench.row(claimed.id).errors == []

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.SUSPENDED])
    def test_outcome_of_deleted_task_is_lost(self, bench: Bench, status: Status) -> None:
        gone = Outcome(task_id=new_id(), claim_number=1, status=status, attempts=0)

        assert bench.commit(gone) == CommitResult(lost=frozenset({gone.task_id}))

    def test_lost_outcome_has_no_effects(self, bench: Bench) -> None:
        stale, receiver = bench.running(), bench.suspended()
        bench.send(stale.id)
        (message,) = bench.inbox(stale.id)
        bench.engine.commits.release([stale])

        answer = bench.perform(
            stale, consumed=[message.pk], spawn=[new(key="child")], send=[NewMessage(task_id=receiver, body="1")]
        )

        assert answer == CommitResult(lost=frozenset({stale.id}))
        assert len(bench.inbox(stale.id)) == 1
        assert bench.inbox(receiver) == []
        assert not bench.engine.db.tasks.filter(key="child").exists()
        assert bench.status(receiver) == "SUSPENDED"
