"""Queues with a max_running, on every engine."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from jobqueue.values.states import PoolName, Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def add(bench: Bench, count: int, queue: str = "a") -> None:
    bench.engine.enqueues.enqueue([new(queue_name=queue) for _ in range(count)])


def test_claim_keeps_limit_of_queue(bench: Bench) -> None:
    bench.limit("a", 3)
    add(bench, 5)

    assert len(bench.claim(2, queues=["a"], limited=["a"])) == 2
    assert len(bench.claim(queues=["a"], limited=["a"], executor_id=uuid4())) == 1
    assert bench.claim(queues=["a"], limited=["a"]) == []


def test_ended_task_frees_place_in_same_commit_and_claim(bench: Bench) -> None:
    bench.limit("a", 2)
    add(bench, 5)
    first, second = bench.claim(queues=["a"], limited=["a"])

    committed, claimed = bench.engine.commit_and_claim(
        [outcome(first)], bench.claim_request(queues=["a"], limited=["a"])
    )
    assert (len(committed.done), len(claimed)) == (1, 1)

    committed, claimed = bench.engine.commit_and_claim(
        [outcome(second, Status.SCHEDULED, wake_after_seconds=60.0)], bench.claim_request(queues=["a"], limited=["a"])
    )
    assert (len(committed.done), len(claimed)) == (1, 1)


def test_full_queue_does_not_block_other_queues(bench: Bench) -> None:
    bench.limit("a", 1)
    add(bench, 2)
    add(bench, 2, "b")
    claims = bench.claim(queues=["a", "b"], limited=["a"])

    assert [claimed.queue_name for claimed in claims] == ["a", "b", "b"]
    add(bench, 1, "b")
    assert [claimed.queue_name for claimed in bench.claim(queues=["a", "b"], limited=["a"])] == ["b"]


def test_new_limit_holds_before_executors_know_it(bench: Bench) -> None:
    add(bench, 2)
    bench.limit("a", 5)

    assert bench.claim(queues=["a"]) == []
    assert len(bench.claim(queues=["a"], limited=["a"])) == 2


def test_removed_limit_has_no_effect(bench: Bench) -> None:
    add(bench, 3)
    bench.limit("a", None)

    assert len(bench.claim(queues=["a"], limited=["a"])) == 3


def test_limit_below_number_running_blocks_claims(bench: Bench) -> None:
    add(bench, 5)
    first, second, third = bench.claim(3, queues=["a"])
    bench.limit("a", 2)

    assert bench.claim(queues=["a"], limited=["a"]) == []
    bench.commit(outcome(first))
    assert bench.claim(queues=["a"], limited=["a"]) == []
    bench.commit(outcome(second), outcome(third))
    assert len(bench.claim(queues=["a"], limited=["a"])) == 2


def test_limit_belongs_to_one_backend(bench: Bench) -> None:
    bench.limit("a", 1)
    other = Bench(type(bench.engine)("other", bench.engine.options))
    add(other, 2)
    add(bench, 2)

    assert len(other.claim(queues=["a"])) == 2
    assert len(bench.claim(queues=["a"], limited=["a"])) == 1


def test_claim_keeps_smaller_of_queue_limit_and_request(bench: Bench) -> None:
    bench.limit("a", 3)
    bench.limit("b", 3)
    for queue in "abc":
        add(bench, 5, queue)

    claims = bench.claim(queues=["a", "b", "c"], limited=["a", "b"], max_per_queue={"a": 2, "b": 4, "c": 0})

    assert [claimed.queue_name for claimed in claims] == ["a"] * 2 + ["b"] * 3


def test_best_rank_is_claimed_first_with_and_without_limits(bench: Bench) -> None:
    bench.limit("a", 1)
    second = bench.add(queue_name="a", priority=5)
    bench.add(queue_name="a", priority=4)
    third = bench.add(queue_name="b")
    first = bench.add(queue_name="c", priority=9)

    assert bench.claim_ids(3, queues=["a", "b", "c"], limited=["a"], max_per_queue={"c": 1}) == [first, second, third]


def test_limited_queues_lists_queues_with_limit(bench: Bench) -> None:
    bench.limit("b", 1)
    bench.limit("a", 2)
    bench.limit("c", None)
    bench.pause("d")

    assert bench.engine.queues.limited_queues() == ["a", "b"]


def test_has_isolated_ignores_full_queue(bench: Bench) -> None:
    bench.limit("a", 1)
    add(bench, 1)
    (running,) = bench.claim(queues=["a"], limited=["a"])
    bench.set(bench.add(queue_name="a"), executor_losses=2)

    assert not bench.engine.claims.has_isolated(["a"])
    bench.commit(outcome(running))
    assert bench.engine.claims.has_isolated(["a"])
    assert len(bench.claim_isolated(queues=["a"], limited=["a"])) == 1


@pytest.mark.parametrize(("waits", "count"), [({}, 5), ({"limited": ["a"]}, 2)])
def test_claim_from_limited_queue_fills_only_free_slots(bench: Bench, waits: dict[str, Any], count: int) -> None:
    add(bench, 5)
    if waits:
        bench.limit("a", 4)

    assert len(bench.claim(queues=["a"], free_slots=dict.fromkeys(PoolName, 2), **waits)) == count


def test_isolated_task_waits_for_limit_of_queue(bench: Bench) -> None:
    bench.limit("a", 1)
    bench.set(bench.add(queue_name="a"), executor_losses=2)

    assert bench.claim_isolated(queues=["a"]) == []
    add(bench, 1)
    bench.claim(queues=["a"], limited=["a"])
    assert bench.claim_isolated(queues=["a"], limited=["a"]) == []


def test_limit_of_zero_is_refused(bench: Bench) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(using=bench.engine.database):
        bench.limit("a", 0)
