"""A claim from a hundred queues returns the best ranks in order and locks few other rows."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest

from jobqueue.models import Task
from jobqueue.values.states import PoolName
from tests.engine.bench import Bench, new
from tests.engine.conftest import make_bench
from tests.engine.sessions import session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

QUEUES = [f"queue-{number:02}" for number in range(100)]
SPREADS: dict[str, Callable[[int], int]] = {
    "round robin": lambda n: n % 100,
    "one queue after the other": lambda n: n // 400,
    "one queue first": lambda n: 7 if n < 700 else n % 100,
    "a few queues": lambda n: n % 3,
    "at random": lambda n: random.Random(n).randrange(100),
    "mostly one queue": lambda n: 0 if n % 5 else n % 100,
}


@pytest.fixture
def bench() -> Bench:
    return make_bench("postgresql")


def fill(bench: Bench, count: int, spread: str = "round robin", **changes: object) -> None:
    queue_of = SPREADS[spread]
    bench.engine.enqueues.enqueue(
        [new(queue_name=QUEUES[queue_of(n)], priority=-(n // 30 % 100), **changes) for n in range(count)]
    )


def ids_in_order() -> list[UUID]:
    return list(Task.objects.ready().order_by("rank", "pk").values_list("pk", flat=True))


@pytest.mark.parametrize("limit", [10, 100])
@pytest.mark.parametrize("spread", SPREADS)
def test_claims_are_full_and_in_order_of_rank(bench: Bench, spread: str, limit: int) -> None:
    fill(bench, 1000, spread)
    best = ids_in_order()

    for start in range(0, 1000, limit):
        claims = bench.claim(limit, queues=QUEUES)
        assert [task.id for task in claims] == best[start : start + limit]

    assert bench.claim(limit, queues=QUEUES) == []


@pytest.mark.parametrize("rank", [datetime(1000, 1, 1, tzinfo=UTC), datetime(9899, 12, 31, tzinfo=UTC)])
def test_extreme_ranks_are_claimed_in_order(bench: Bench, rank: datetime) -> None:
    fill(bench, 400)
    extreme = ids_in_order()[::2]
    Task.objects.filter(pk__in=extreme).update(rank=rank)
    others = [pk for pk in ids_in_order() if pk not in extreme]
    best = [*sorted(extreme), *others] if rank.year == 1000 else [*others, *sorted(extreme)]

    assert [pk for _ in range(4) for pk in bench.claim_ids(100, queues=QUEUES)] == best


@pytest.mark.parametrize("spread", ["round robin", "one queue first", "mostly one queue"])
def test_claim_locks_only_returned_tasks(bench: Bench, spread: str) -> None:
    """A lock is a write, and every other claim must skip the locked row."""
    fill(bench, 3000, spread)

    with session() as other, bench.engine.db.transaction():
        assert len(bench.claim(100, queues=QUEUES)) == 100
        free = other.run("SELECT id FROM jobqueue_task WHERE status = 'READY' FOR NO KEY UPDATE SKIP LOCKED")

    assert len(free) == 2900


@pytest.mark.parametrize("locked", [50, 150, 400, 950])
@pytest.mark.parametrize("spread", ["round robin", "one queue first"])
def test_claim_skips_tasks_locked_by_others(bench: Bench, spread: str, locked: int) -> None:
    fill(bench, 1000, spread)
    best = ids_in_order()
    claimed: list[UUID] = []

    with session() as other:
        other.lock(*best[:locked])
        while claims := bench.claim(100, queues=QUEUES):
            claimed += [task.id for task in claims]
            assert len(claims) == 100 or claims.is_truncated or len(claimed) == 1000 - locked

    assert claimed == best[locked:]


def test_paused_and_full_queues_hide_no_tasks(bench: Bench) -> None:
    fill(bench, 1000)
    wanted = ids_in_order()
    for queue in ("paused", "limited"):
        bench.engine.enqueues.enqueue([new(queue_name=queue, priority=50) for _ in range(500)])
    bench.pause("paused")
    bench.limit("limited", 5)

    claims = bench.claim(100, queues=[*QUEUES, "paused", "limited"], limited=["limited"])

    assert [task.queue_name for task in claims[:5]] == ["limited"] * 5
    assert [task.id for task in claims[5:]] == wanted[:95]


def test_tasks_of_other_pool_hide_no_tasks(bench: Bench) -> None:
    bench.engine.enqueues.enqueue(
        [new(queue_name=QUEUES[n % 100], pool=PoolName.ASYNC, priority=50) for n in range(1000)]
    )
    fill(bench, 500)
    wanted = list(Task.objects.ready().filter(pool="threads").order_by("rank", "pk").values_list("pk", flat=True))

    assert bench.claim_ids(100, queues=QUEUES, pool_limits={PoolName.ASYNC: 0}) == wanted[:100]
    claims = bench.claim(150, queues=QUEUES, pool_limits={PoolName.THREADS: 100, PoolName.ASYNC: 50})
    assert [task.id for task in claims if task.pool == "threads"] == wanted[100:200]
    assert len(claims) == 150
