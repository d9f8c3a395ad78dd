"""claim and what there is to claim, on every engine."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobqueue.engine.clock import from_now
from jobqueue.records import PoolName, Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def test_claimed_task_is_running_in_the_executors_hands(bench: Bench) -> None:
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


def test_nothing_is_claimed_twice(bench: Bench) -> None:
    bench.add()

    assert len(bench.claim()) == 1
    assert bench.claim(executor_id=uuid4()) == []


def test_each_claim_has_a_number_of_its_own(bench: Bench) -> None:
    bench.add()

    numbers = []
    for _ in range(3):
        claims = bench.claim()
        numbers.append(claims[0].claim_number)
        bench.engine.release(claims)

    assert numbers == [1, 2, 3]


def test_first_start_is_kept_and_last_attempt_moves(bench: Bench) -> None:
    pk = bench.add()
    bench.engine.release(bench.claim())
    bench.time_passes(10)
    first = bench.moment(pk, "started_at")

    bench.claim()

    assert bench.moment(pk, "started_at") == first
    assert bench.moment(pk, "last_attempted_at") > first + timedelta(seconds=9)


def test_at_most_limit_tasks_are_claimed(bench: Bench) -> None:
    bench.engine.enqueue([new() for _ in range(5)])

    assert len(bench.claim(2)) == 2
    assert bench.engine.tasks.running().count() == 2


@pytest.mark.parametrize("changes", [{"limit": 0}, {"limit": -1}, {"queues": []}])
def test_no_demand_claims_nothing(bench: Bench, changes: dict[str, Any]) -> None:
    bench.add()

    assert bench.claim(**changes) == []


def test_only_the_queues_asked_for(bench: Bench) -> None:
    bench.add(queue_name="a")
    wanted = [bench.add(queue_name="b"), bench.add(queue_name="c")]
    bench.add(queue_name="d")

    assert bench.claim_ids(queues=["b", "c"]) == wanted


def test_best_rank_first_over_several_queues(bench: Bench) -> None:
    late = bench.add(queue_name="a")
    first = bench.add(queue_name="b", priority=10)
    second = bench.add(queue_name="a", priority=5)

    assert bench.claim_ids(2, queues=["a", "b"]) == [first, second]
    assert bench.claim_ids(2, queues=["a", "b"]) == [late]


@pytest.mark.parametrize("limit", [7, 60, 500])
def test_best_of_many_queues_come_in_order_though_one_queue_has_them_all(bench: Bench, limit: int) -> None:
    for number in range(120):
        bench.add(queue_name="urgent", priority=1 + number % 3)
    queues = ["urgent", *(f"q{number}" for number in range(30))]
    for number in range(60):
        bench.add(queue_name=queues[1 + number % 30], priority=number % 2)
    best = [row.pk for row in bench.engine.tasks.ready().order_by("rank", "pk")]

    claimed: list[UUID] = []
    while claims := bench.claim(limit, queues=queues):
        assert len(claims) == limit or claims.is_truncated or len(claimed) + len(claims) == len(best)
        claimed += [task.id for task in claims]

    assert claimed == best


def test_paused_queue_is_left_out(bench: Bench) -> None:
    bench.add(queue_name="a")
    wanted = bench.add(queue_name="b")
    bench.pause("a")
    bench.pause("b", paused_at=None)

    assert bench.claim_ids(queues=["a", "b"]) == [wanted]


def test_paused_queue_goes_on_at_the_moment_that_was_set(bench: Bench) -> None:
    pk = bench.add()
    bench.pause("default", resume_at=bench.engine.now() + timedelta(seconds=60))

    assert bench.claim_ids() == []
    bench.time_passes(61)
    assert bench.claim_ids() == [pk]


def test_claim_takes_no_more_of_each_pool_than_asked_for(bench: Bench) -> None:
    both = [bench.add(pool=pool) for pool in [PoolName.THREADS, PoolName.ASYNC] * 3]

    assert bench.claim_ids(1) == both[:1]
    assert bench.claim_ids(pool_limits={PoolName.THREADS: 0, PoolName.ASYNC: 2}) == [both[1], both[3]]
    assert bench.claim_ids(2, pool_limits={PoolName.THREADS: 2, PoolName.ASYNC: 2}) == [both[2], both[4]]
    assert bench.claim_ids(pool_limits=dict.fromkeys(PoolName, 0)) == []
    (last,) = bench.claim(pool_limits={PoolName.THREADS: 5, PoolName.ASYNC: 5})
    assert (last.id, last.pool) == (both[5], PoolName.ASYNC)


def test_claim_for_both_pools_keeps_the_maximum_of_a_queue(bench: Bench) -> None:
    both = [bench.add(pool=pool) for pool in [PoolName.ASYNC, PoolName.THREADS] * 3]

    assert bench.claim_ids(most={"default": 3}) == both[:3]


def test_task_moved_to_another_pool_is_claimed_for_that_pool(bench: Bench) -> None:
    pk = bench.add()

    bench.engine.move_to_pool([pk], PoolName.ASYNC)

    assert bench.claim_ids(pool_limits={PoolName.ASYNC: 0}) == []
    assert bench.claim_ids(pool_limits={PoolName.THREADS: 0}) == [pk]


@pytest.mark.parametrize(
    "status", [Status.SCHEDULED, Status.SUSPENDED, Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED]
)
def test_only_ready_tasks_are_claimed(bench: Bench, status: Status) -> None:
    pk = bench.add()
    bench.commit(outcome(bench.claim()[0], status, wake_after_seconds=60.0))
    assert bench.status(pk) == status

    assert bench.claim() == []


def test_undecodable_row_does_not_strand_its_batch(bench: Bench) -> None:
    """Python reads no integer of 5,000 digits, and must not have to before the tasks are in its hands."""
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


def test_task_waited_since_it_became_ready(bench: Bench) -> None:
    bench.add(priority=50)
    bench.time_passes(30)

    (claimed,) = bench.claim()

    assert 30 <= claimed.wait_seconds < 600  # the priority is worth 3,000


def test_task_that_was_not_started_in_time_is_expired(bench: Bench) -> None:
    late, in_time, without = bench.add(expires_after_seconds=10.0), bench.add(expires_after_seconds=100.0), bench.add()
    bench.time_passes(11)

    assert {claimed.id: claimed.is_expired for claimed in bench.claim()} == {late: True, in_time: False, without: False}


def test_actor_that_was_polled_in_time_does_not_expire(bench: Bench) -> None:
    pk = bench.add(expires_after_seconds=10.0)
    bench.commit(outcome(bench.claim()[0], Status.READY, is_good_poll=True))
    bench.time_passes(11)

    (claimed,) = bench.claim()

    assert (claimed.id, claimed.is_expired) == (pk, False)


class TestRank:
    """A task of priority p overtakes tasks of priority 0 that became ready up to p x AGING earlier."""

    def test_priority_overtakes_what_became_ready_within_its_aging(self, bench: Bench) -> None:
        old = bench.add()
        bench.time_passes(2 * 60 - 5)
        urgent = bench.add(priority=2)

        assert bench.claim_ids() == [urgent, old]

    def test_priority_does_not_overtake_what_has_waited_longer(self, bench: Bench) -> None:
        old = bench.add()
        bench.time_passes(2 * 60 + 5)
        urgent = bench.add(priority=2)

        assert bench.claim_ids() == [old, urgent]

    def test_low_priority_does_not_starve(self, bench: Bench) -> None:
        lowest = bench.add(priority=-100)
        bench.time_passes(200 * 60 + 5)
        highest = bench.add(priority=100)

        assert bench.claim_ids() == [lowest, highest]

    def test_equal_priorities_are_first_come_first_served(self, bench: Bench) -> None:
        ids = []
        for _ in range(3):
            ids.append(bench.add())
            bench.time_passes(1)

        assert bench.claim_ids() == ids

    def test_without_aging_priority_means_nothing(self, bench: Bench) -> None:
        bench = bench.with_options(aging=0.0)
        first = bench.add()
        bench.time_passes(1)
        urgent = bench.add(priority=100)

        assert bench.claim_ids() == [first, urgent]

    def test_due_task_ranks_by_the_moment_it_asked_for(self, bench: Bench) -> None:
        scheduled = bench.add(wake_after_seconds=60.0, priority=1)
        bench.time_passes(65)
        wake_at = bench.moment(scheduled, "wake_at")

        bench.engine.wake_due()

        assert bench.row(scheduled).rank == wake_at - timedelta(seconds=60)

    def test_scheduled_task_does_not_gain_rank_while_it_sleeps(self, bench: Bench) -> None:
        scheduled = bench.add(wake_after_seconds=3600.0)
        bench.time_passes(3590)
        waiting = bench.add()
        bench.time_passes(20)
        bench.engine.wake_due()

        assert bench.claim_ids() == [waiting, scheduled]

    def test_released_task_keeps_its_place(self, bench: Bench) -> None:
        first, second = bench.add(), bench.add()
        rank = bench.row(first).rank

        bench.engine.release(bench.claim(1))

        assert bench.row(first).rank == rank
        assert bench.claim_ids() == [first, second]

    def test_task_that_polls_again_goes_to_the_end(self, bench: Bench) -> None:
        first, second = bench.add(), bench.add()
        bench.time_passes(1)

        bench.commit(outcome(bench.claim(1)[0], Status.READY, is_good_poll=True))

        assert bench.claim_ids() == [second, first]


class TestIsolation:
    """A task that lost two executors runs alone in its process."""

    def test_suspect_is_claimed_only_when_asked_for(self, bench: Bench) -> None:
        harmless, once, twice = bench.add(), bench.add(), bench.add()
        bench.set(once, executor_losses=1)
        bench.set(twice, executor_losses=2)

        assert bench.claim_ids() == [harmless, once]
        assert bench.claim_isolated() == [twice]

    def test_suspects_are_seen_where_they_wait(self, bench: Bench) -> None:
        assert not bench.engine.has_isolated(["default"])
        bench.set(bench.add(queue_name="a"), executor_losses=2)
        bench.set(bench.add(queue_name="b"), executor_losses=1)

        assert bench.engine.has_isolated(["a", "b"])
        assert not bench.engine.has_isolated(["b"])
        assert not bench.engine.has_isolated([])

    def test_nobody_makes_room_for_a_suspect_of_a_paused_queue(self, bench: Bench) -> None:
        bench.set(bench.add(), executor_losses=2)
        bench.pause("default")

        assert not bench.engine.has_isolated(["default"])
        assert bench.claim_isolated() == []

    def test_running_suspect_is_none_that_waits(self, bench: Bench) -> None:
        bench.set(bench.add(), executor_losses=2)
        bench.claim_isolated()

        assert not bench.engine.has_isolated(["default"])


class TestQueuesInUse:
    def test_names_each_queue_with_ready_tasks_once_in_order(self, bench: Bench) -> None:
        for name in ("b", "a", "b", "B", "é", "a-1"):
            bench.add(queue_name=name)
        bench.add(queue_name="later", wake_after_seconds=60.0)
        bench.ended()

        assert bench.engine.queues_in_use() == ["B", "a", "a-1", "b", "é"]

    def test_empty(self, bench: Bench) -> None:
        assert bench.engine.queues_in_use() == []


class TestIsDrained:
    def test_nothing_there(self, bench: Bench) -> None:
        assert bench.engine.is_drained(None, 1)
        assert bench.engine.is_drained([], 1)
        assert bench.engine.is_drained(["default"], 1)

    def test_ready_or_running_is_not_drained(self, bench: Bench) -> None:
        bench.add(queue_name="a")
        assert not bench.engine.is_drained(None, 1)
        assert not bench.engine.is_drained(["b", "a"], 1)
        assert bench.engine.is_drained(["b"], 1)

        bench.claim(queues=["a"])
        assert not bench.engine.is_drained(None, 1)
        assert not bench.engine.is_drained(["b", "a"], 1)
        assert bench.engine.is_drained(["b"], 1)

    def test_what_sleeps_until_later_may_stay(self, bench: Bench) -> None:
        bench.add(queue_name="a", wake_after_seconds=100.0)
        pk = bench.suspended(wake_after_seconds=100.0)
        bench.suspended()
        bench.ended()

        assert bench.engine.is_drained(None, 1)
        assert not bench.engine.is_drained(None, 120)
        assert not bench.engine.is_drained(["a"], 120)
        assert not bench.engine.is_drained([bench.row(pk).queue_name], 120)
        assert bench.engine.is_drained(["b"], 120)

    def test_nobody_waits_for_a_paused_queue_but_for_what_of_it_runs(self, bench: Bench) -> None:
        running = bench.add(queue_name="a")
        bench.claim(queues=["a"])
        bench.pause("a")
        bench.add(queue_name="a")
        bench.add(queue_name="a", wake_after_seconds=0.5)
        assert not bench.engine.is_drained(None, 1)
        assert not bench.engine.is_drained(["a"], 1)

        bench.set(running, status=Status.SUCCESSFUL)
        assert bench.engine.is_drained(None, 1)
        assert bench.engine.is_drained(["a"], 1)

        bench.add(queue_name="b")
        assert not bench.engine.is_drained(None, 1)

    def test_overdue_alarm_is_not_drained(self, bench: Bench) -> None:
        bench.set(bench.add(wake_after_seconds=100.0), wake_at=from_now(-1))

        assert not bench.engine.is_drained(None, 0)
