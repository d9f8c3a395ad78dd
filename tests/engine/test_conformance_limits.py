"""Queues with a max_running, on every engine."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from jobqueue.records import PoolName, Status
from tests.engine.bench import Bench, new, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def add(bench: Bench, count: int, queue: str = "a") -> None:
    bench.engine.enqueue([new(queue_name=queue) for _ in range(count)])


def test_no_more_is_claimed_than_may_run(bench: Bench) -> None:
    bench.limit("a", 3)
    add(bench, 5)

    assert len(bench.claim(2, queues=["a"], limited=["a"])) == 2
    assert len(bench.claim(queues=["a"], limited=["a"], executor_id=uuid4())) == 1
    assert bench.claim(queues=["a"], limited=["a"]) == []


def test_whatever_ends_makes_room_in_the_same_pulse(bench: Bench) -> None:
    bench.limit("a", 2)
    add(bench, 5)
    first, second = bench.claim(queues=["a"], limited=["a"])

    committed, claimed = bench.engine.commit_and_claim([outcome(first)], bench.demand(queues=["a"], limited=["a"]))
    assert (len(committed.done), len(claimed)) == (1, 1)

    committed, claimed = bench.engine.commit_and_claim(
        [outcome(second, Status.SCHEDULED, wake_after_seconds=60.0)], bench.demand(queues=["a"], limited=["a"])
    )
    assert (len(committed.done), len(claimed)) == (1, 1)


def test_other_queues_are_claimed_beside_a_full_one(bench: Bench) -> None:
    bench.limit("a", 1)
    add(bench, 2)
    add(bench, 2, "b")
    claims = bench.claim(queues=["a", "b"], limited=["a"])

    assert [claimed.queue_name for claimed in claims] == ["a", "b", "b"]
    add(bench, 1, "b")
    assert [claimed.queue_name for claimed in bench.claim(queues=["a", "b"], limited=["a"])] == ["b"]


def test_limit_that_the_claim_does_not_know_yet_holds_all_the_same(bench: Bench) -> None:
    add(bench, 2)
    bench.limit("a", 5)

    assert bench.claim(queues=["a"]) == []
    assert len(bench.claim(queues=["a"], limited=["a"])) == 2


def test_limit_that_was_taken_back_limits_nothing(bench: Bench) -> None:
    add(bench, 3)
    bench.limit("a", None)

    assert len(bench.claim(queues=["a"], limited=["a"])) == 3


def test_limit_below_what_runs_waits_until_enough_have_ended(bench: Bench) -> None:
    add(bench, 5)
    first, second, third = bench.claim(3, queues=["a"])
    bench.limit("a", 2)

    assert bench.claim(queues=["a"], limited=["a"]) == []
    bench.commit(outcome(first))
    assert bench.claim(queues=["a"], limited=["a"]) == []
    bench.commit(outcome(second), outcome(third))
    assert len(bench.claim(queues=["a"], limited=["a"])) == 2


def test_limit_is_of_one_backend(bench: Bench) -> None:
    bench.limit("a", 1)
    other = Bench(type(bench.engine)("other", bench.engine.options))
    add(other, 2)
    add(bench, 2)

    assert len(other.claim(queues=["a"])) == 2
    assert len(bench.claim(queues=["a"], limited=["a"])) == 1


def test_paused_queue_with_a_limit_gives_nothing(bench: Bench) -> None:
    add(bench, 1)
    bench.pause("a", max_running=5)

    assert bench.claim(queues=["a"], limited=["a"]) == []


def test_process_asks_for_so_many_of_a_queue(bench: Bench) -> None:
    add(bench, 5)
    add(bench, 5, "b")
    add(bench, 5, "c")

    claims = bench.claim(queues=["a", "b", "c"], most={"a": 2, "c": 0})

    assert [claimed.queue_name for claimed in claims] == ["a"] * 2 + ["b"] * 5


def test_smaller_of_both_limits_counts(bench: Bench) -> None:
    bench.limit("a", 3)
    bench.limit("b", 3)
    add(bench, 5)
    add(bench, 5, "b")

    claims = bench.claim(queues=["a", "b"], limited=["a", "b"], most={"a": 2, "b": 4})

    assert [claimed.queue_name for claimed in claims] == ["a"] * 2 + ["b"] * 3


def test_best_rank_goes_first_over_queues_with_and_without_limits(bench: Bench) -> None:
    bench.limit("a", 1)
    second = bench.add(queue_name="a", priority=5)
    bench.add(queue_name="a", priority=4)
    third = bench.add(queue_name="b")
    first = bench.add(queue_name="c", priority=9)

    assert bench.claim_ids(3, queues=["a", "b", "c"], limited=["a"], most={"c": 1}) == [first, second, third]


def test_limited_queues_are_named(bench: Bench) -> None:
    bench.limit("b", 1)
    bench.limit("a", 2)
    bench.limit("c", None)
    bench.pause("d")

    assert bench.engine.limited_queues() == ["a", "b"]


def test_suspects_of_a_full_queue_are_not_worth_making_room_for(bench: Bench) -> None:
    bench.limit("a", 1)
    add(bench, 1)
    (running,) = bench.claim(queues=["a"], limited=["a"])
    bench.set(bench.add(queue_name="a"), executor_losses=2)

    assert not bench.engine.has_isolated(["a"])
    bench.commit(outcome(running))
    assert bench.engine.has_isolated(["a"])
    assert len(bench.claim_isolated(queues=["a"], limited=["a"])) == 1


@pytest.mark.parametrize(("waits", "count"), [({}, 5), ({"limited": ["a"]}, 2)])
def test_claim_takes_of_limited_queue_what_starts_at_once(bench: Bench, waits: dict[str, Any], count: int) -> None:
    add(bench, 5)
    if waits:
        bench.limit("a", 4)

    assert len(bench.claim(queues=["a"], free_slots=dict.fromkeys(PoolName, 2), **waits)) == count


def test_isolated_task_waits_for_room_in_its_queue(bench: Bench) -> None:
    bench.limit("a", 1)
    bench.set(bench.add(queue_name="a"), executor_losses=2)

    assert bench.claim_isolated(queues=["a"]) == []
    add(bench, 1)
    bench.claim(queues=["a"], limited=["a"])
    assert bench.claim_isolated(queues=["a"], limited=["a"]) == []


def test_limit_of_nothing_is_refused(bench: Bench) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(using=bench.engine.database):
        bench.limit("a", 0)
