"""claim, has_isolated, queues_in_use and has_no_work_left, on every engine."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from jobqueue.models.clock import clock_to_store
from jobqueue.values.states import PoolName, Status
from tests.engine.bench import Bench, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_claim_sets_task_running_for_executor(bench: Bench) -> None:
    pk = bench.add(args="[1]", kwargs='{"a": 2}', priority=4)

    (claimed,) = bench.claim()

    row = bench.row(pk)
    assert (row.status, row.executor_id, row.claim_number) == ("RUNNING", bench.executor_id, 1)
    assert row.claimed_at == claimed.claimed_at
    assert row.started_at is not None
    assert row.last_attempted_at is not None
    assert (claimed.id, claimed.claim_number, claimed.priority) == (pk, 1, 4)
    assert (claimed.args.replace(" ", ""), claimed.kwargs.replace(" ", "")) == ("[1]", '{"a":2}')
    assert (claimed.inner_state, claimed.errors, claimed.worker_ids) == (None, "[]", "[]")
    assert (claimed.rank, claimed.enqueued_at) == (row.rank, row.enqueued_at)


def test_second_claim_keeps_started_at_and_moves_last_attempted_at(bench: Bench) -> None:
    pk = bench.add()
    bench.engine.commits.release(bench.claim())
    bench.time_passes(10)
    first = bench.moment(pk, "started_at")

    bench.claim()

    assert bench.moment(pk, "started_at") == first
    assert bench.moment(pk, "last_attempted_at") > first + timedelta(seconds=9)


@pytest.mark.parametrize("changes", [{"limit": 0}, {"limit": -1}, {"queues": []}])
def test_claim_without_limit_or_queues_is_empty(bench: Bench, changes: dict[str, Any]) -> None:
    bench.add()

    assert bench.claim(**changes) == []


def test_claim_takes_only_requested_queues(bench: Bench) -> None:
    bench.add(queue_name="a")
    wanted = [bench.add(queue_name="b"), bench.add(queue_name="c")]
    bench.add(queue_name="d")

    assert bench.claim_ids(queues=["b", "c"]) == wanted


@pytest.mark.parametrize("name", ["NULL", "", " a b ", 'a"b', "a\\", "{a,b}", "a'b", "é\n"])
def test_claim_from_a_queue_with_any_name(bench: Bench, name: str) -> None:
    bench.add(queue_name="a")
    wanted = bench.add(queue_name=name)

    assert bench.claim_ids(queues=["other", name]) == [wanted]


@pytest.mark.parametrize("limit", [7, 60, 500])
def test_claim_from_many_queues_returns_best_ranks_in_order(bench: Bench, limit: int) -> None:
    for number in range(120):
        bench.add(queue_name="urgent", priority=1 + number % 3)
    queues = ["urgent", *(f"q{number}" for number in range(30))]
    for number in range(60):
        bench.add(queue_name=queues[1 + number % 30], priority=number % 2)
    best = [row.pk for row in bench.engine.db.tasks.ready().order_by("rank", "pk")]

    claimed: list[UUID] = []
    while claims := bench.claim(limit, queues=queues):
        assert len(claims) == limit or claims.is_truncated or len(claimed) + len(claims) == len(best)
        claimed += [task.id for task in claims]

    assert claimed == best


@pytest.mark.parametrize("max_running", [None, 5])
def test_claim_skips_paused_queue(bench: Bench, max_running: int | None) -> None:
    bench.add(queue_name="a")
    wanted = bench.add(queue_name="b")
    bench.pause("a", max_running=max_running)
    bench.pause("b", paused_at=None)

    assert bench.claim_ids(queues=["a", "b"], limited=["a"] if max_running else []) == [wanted]


def test_claim_resumes_queue_at_resume_at(bench: Bench) -> None:
    pk = bench.add()
    bench.pause("default", resume_at=bench.engine.db.now() + timedelta(seconds=60))

    assert bench.claim_ids() == []
    bench.time_passes(61)
    assert bench.claim_ids() == [pk]


def test_claim_keeps_limit_of_each_pool(bench: Bench) -> None:
    ids = [bench.add(pool=pool) for pool in [PoolName.THREADS, PoolName.ASYNC] * 3]

    assert bench.claim_ids(1) == ids[:1]
    assert bench.claim_ids(pool_limits={PoolName.THREADS: 0, PoolName.ASYNC: 2}) == [ids[1], ids[3]]
    assert bench.claim_ids(2, pool_limits={PoolName.THREADS: 2, PoolName.ASYNC: 2}) == [ids[2], ids[4]]
    assert bench.claim_ids(pool_limits=dict.fromkeys(PoolName, 0)) == []
    (last,) = bench.claim(pool_limits={PoolName.THREADS: 5, PoolName.ASYNC: 5})
    assert (last.id, last.pool) == (ids[5], PoolName.ASYNC)


def test_claim_for_both_pools_keeps_limit_of_queue(bench: Bench) -> None:
    ids = [bench.add(pool=pool) for pool in [PoolName.ASYNC, PoolName.THREADS] * 3]

    assert bench.claim_ids(max_per_queue={"default": 3}) == ids[:3]


def test_task_is_claimed_for_pool_it_was_moved_to(bench: Bench) -> None:
    pk = bench.add()

    bench.engine.claims.move_to_pool([pk], PoolName.ASYNC)

    assert bench.claim_ids(pool_limits={PoolName.ASYNC: 0}) == []
    assert bench.claim_ids(pool_limits={PoolName.THREADS: 0}) == [pk]


@pytest.mark.parametrize(
    "status", [Status.SCHEDULED, Status.SUSPENDED, Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED]
)
def test_claim_skips_tasks_that_are_not_ready(bench: Bench, status: Status) -> None:
    pk = bench.add()
    bench.commit(outcome(bench.claim()[0], status, wake_after_seconds=60.0))
    assert bench.status(pk) == status

    assert bench.claim() == []


def test_claim_with_undecodable_task_returns_whole_batch(bench: Bench) -> None:
    """Python cannot read an integer of 5,000 digits. The claim must not decode it."""
    poison = f'["{"x" * 10}", {"7" * 5000}]'
    ids = [
        bench.add(),
        bench.add(args=poison, kwargs=f'{{"n": {"7" * 5000}}}', metadata=f'{{"n": {"7" * 5000}}}'),
        bench.add(),
    ]

    claimed = bench.claim()

    assert [task.id for task in claimed] == ids
    assert "7" * 5000 in claimed[1].args
    error = '{"exception_class_path": "jobqueue.exceptions.UndecodableTask"}'
    answer = bench.commit(
        outcome(claimed[0]), outcome(claimed[1], Status.FAILED, error=error, worker_id="w"), outcome(claimed[2])
    )
    assert set(answer.done.values()) == {Status.SUCCESSFUL, Status.FAILED}
    assert len(answer.done) == 3


def test_wait_seconds_counts_from_ready(bench: Bench) -> None:
    bench.add(priority=50)
    bench.time_passes(30)

    (claimed,) = bench.claim()

    assert 30 <= claimed.wait_seconds < 600  # the priority is worth 3,000


def test_task_is_expired_if_not_started_in_time(bench: Bench) -> None:
    late, in_time, without = bench.add(expires_after_seconds=10.0), bench.add(expires_after_seconds=100.0), bench.add()
    bench.time_passes(11)

    assert {claimed.id: claimed.is_expired for claimed in bench.claim()} == {late: True, in_time: False, without: False}


def test_actor_does_not_expire_after_first_poll(bench: Bench) -> None:
    pk = bench.add(expires_after_seconds=10.0)
    bench.commit(outcome(bench.claim()[0], Status.READY, has_succeeded=True))
    bench.time_passes(11)

    (claimed,) = bench.claim()

    assert (claimed.id, claimed.is_expired) == (pk, False)


class TestRank:
    """A task of priority p overtakes tasks of priority 0 that were ready up to p x AGING earlier."""

    @pytest.mark.parametrize(
        ("first", "seconds", "second", "aging", "overtakes"),
        [
            (0, 2 * 60 - 5, 2, 60.0, True),
            (0, 2 * 60 + 5, 2, 60.0, False),
            (-100, 200 * 60 + 5, 100, 60.0, False),
            (0, 1, 0, 60.0, False),
            (0, 1, 100, 0.0, False),
        ],
    )
    def test_priority_overtakes_tasks_ready_up_to_its_aging_earlier(
        self, bench: Bench, first: int, seconds: float, second: int, aging: float, overtakes: bool
    ) -> None:
        bench = bench.with_options(aging=aging)
        ids = [bench.add(priority=first)]
        bench.time_passes(seconds)
        ids.append(bench.add(priority=second))

        assert bench.claim_ids() == (ids[::-1] if overtakes else ids)

    @pytest.mark.parametrize("make", [Bench.suspended, Bench.add])
    def test_rank_of_due_task_follows_wake_at(self, bench: Bench, make: Any) -> None:
        pk = make(bench, wake_after_seconds=60.0)
        bench.set(pk, priority=1)
        bench.time_passes(65)
        wake_at = bench.moment(pk, "wake_at")

        bench.engine.inbox.wake_due()

        assert bench.row(pk).rank == wake_at - timedelta(seconds=60)

    def test_scheduled_task_gains_no_rank_before_wake_at(self, bench: Bench) -> None:
        scheduled = bench.add(wake_after_seconds=3600.0)
        bench.time_passes(3590)
        waiting = bench.add()
        bench.time_passes(20)
        bench.engine.inbox.wake_due()

        assert bench.claim_ids() == [waiting, scheduled]

    def test_released_task_keeps_its_rank(self, bench: Bench) -> None:
        first, second = bench.add(), bench.add()
        rank = bench.row(first).rank

        bench.engine.commits.release(bench.claim(1))

        assert bench.row(first).rank == rank
        assert bench.claim_ids() == [first, second]

    def test_task_that_polls_again_goes_behind_ready_tasks(self, bench: Bench) -> None:
        first, second = bench.add(), bench.add()
        bench.time_passes(1)

        bench.commit(outcome(bench.claim(1)[0], Status.READY, has_succeeded=True))

        assert bench.claim_ids() == [second, first]


class TestIsolation:
    """A task that lost two executors runs alone in its process."""

    def test_claim_skips_isolated_task(self, bench: Bench) -> None:
        harmless, once, twice = bench.add(), bench.add(), bench.add()
        bench.set(once, executor_losses=1)
        bench.set(twice, executor_losses=2)

        assert bench.claim_ids() == [harmless, once]
        assert bench.claim_isolated() == [twice]
        assert not bench.engine.claims.has_isolated(["default"])

    def test_has_isolated_finds_ready_tasks_of_given_queues(self, bench: Bench) -> None:
        assert not bench.engine.claims.has_isolated(["default"])
        bench.set(bench.add(queue_name="a"), executor_losses=2)
        bench.set(bench.add(queue_name="b"), executor_losses=1)

        assert bench.engine.claims.has_isolated(["a", "b"])
        assert not bench.engine.claims.has_isolated(["b"])
        assert not bench.engine.claims.has_isolated([])

    def test_has_isolated_ignores_paused_queue(self, bench: Bench) -> None:
        bench.set(bench.add(), executor_losses=2)
        bench.pause("default")

        assert not bench.engine.claims.has_isolated(["default"])
        assert bench.claim_isolated() == []


class TestQueuesInUse:
    def test_queues_in_use_names_queues_with_ready_tasks_in_order(self, bench: Bench) -> None:
        for name in ("b", "a", "b", "B", "é", "a-1"):
            bench.add(queue_name=name)
        bench.add(queue_name="later", wake_after_seconds=60.0)
        bench.ended()

        assert bench.engine.queues.queues_in_use() == ["B", "a", "a-1", "b", "é"]


class TestHasNoWorkLeft:
    def test_ready_or_running_task_is_work_left(self, bench: Bench) -> None:
        bench.add(queue_name="a")
        assert not bench.engine.queues.has_no_work_left(None, 1)
        assert not bench.engine.queues.has_no_work_left(["b", "a"], 1)
        assert bench.engine.queues.has_no_work_left(["b"], 1)

        bench.claim(queues=["a"])
        assert not bench.engine.queues.has_no_work_left(None, 1)
        assert not bench.engine.queues.has_no_work_left(["b", "a"], 1)
        assert bench.engine.queues.has_no_work_left(["b"], 1)

    def test_task_due_later_than_wait_is_no_work_left(self, bench: Bench) -> None:
        bench.add(queue_name="a", wake_after_seconds=100.0)
        pk = bench.suspended(wake_after_seconds=100.0)
        bench.suspended()
        bench.ended()

        assert bench.engine.queues.has_no_work_left(None, 1)
        assert not bench.engine.queues.has_no_work_left(None, 120)
        assert not bench.engine.queues.has_no_work_left(["a"], 120)
        assert not bench.engine.queues.has_no_work_left([bench.row(pk).queue_name], 120)
        assert bench.engine.queues.has_no_work_left(["b"], 120)

    def test_paused_queue_has_no_work_left_once_nothing_runs(self, bench: Bench) -> None:
        running = bench.add(queue_name="a")
        bench.claim(queues=["a"])
        bench.pause("a")
        bench.add(queue_name="a")
        bench.add(queue_name="a", wake_after_seconds=0.5)
        assert not bench.engine.queues.has_no_work_left(None, 1)
        assert not bench.engine.queues.has_no_work_left(["a"], 1)

        bench.set(running, status=Status.SUCCESSFUL)
        assert bench.engine.queues.has_no_work_left(None, 1)
        assert bench.engine.queues.has_no_work_left(["a"], 1)

        bench.add(queue_name="b")
        assert not bench.engine.queues.has_no_work_left(None, 1)

    def test_overdue_task_is_work_left(self, bench: Bench) -> None:
        bench.set(bench.add(wake_after_seconds=100.0), wake_at=clock_to_store(after=-1))

        assert not bench.engine.queues.has_no_work_left(None, 0)
