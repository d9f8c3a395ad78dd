"""enqueue_batches, on every engine: many rows in one transaction, the answers to each batch in its turn."""

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from jobqueue.records import Enqueued, NewTask, Status
from tests.engine.bench import Bench, new
from tests.engine.conftest import make_bench

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def batches_of(*sizes: int, **changes: Any) -> list[list[NewTask]]:
    return [[new(**changes) for _ in range(size)] for size in sizes]


def asked(bench: Bench, batches: Sequence[Sequence[NewTask]]) -> list[list[Enqueued]]:
    heard: list[list[Enqueued]] = []
    answers = bench.engine.enqueue_batches(batches, lambda some: heard.append(list(some)))
    assert answers == [answer for some in heard for answer in some]
    return heard


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_batch_is_answered_in_its_turn(bench: Bench, count: int) -> None:
    batches = batches_of(*range(1, count + 1), queue_name="mail", priority=2)

    answers = asked(bench, batches)

    assert [[answer.id for answer in some] for some in answers] == [[row.id for row in rows] for rows in batches]
    assert {(answer.status, answer.created) for some in answers for answer in some} == {(Status.READY, True)}
    assert bench.engine.tasks.filter(queue_name="mail", priority=2).count() == sum(map(len, batches))


def test_no_batch_is_no_row(bench: Bench) -> None:
    assert asked(bench, []) == []


def test_batches_with_a_key_that_is_held(bench: Bench) -> None:
    held = bench.add(key="k")

    answers = asked(bench, batches_of(2, 1, key="k"))

    seen = [[(answer.id, answer.created) for answer in some] for some in answers]
    assert seen == [[(held, False)] * 2, [(held, False)]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_batch_that_fails_leaves_nothing_of_the_others(bench: Bench, place: int) -> None:
    batches = batches_of(2, 2, 2)
    batches[place].append(new(id=bench.add()))

    with pytest.raises(IntegrityError):
        asked(bench, batches)

    assert bench.engine.tasks.count() == 1
    assert len(asked(bench, batches_of(1, 1))) == 2


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
def test_in_autocommit_all_is_there_or_nothing(bench: Bench) -> None:
    with pytest.raises(IntegrityError):
        asked(bench, [[new()], [new(id=bench.add())], [new()]])
    assert len(asked(bench, batches_of(1, 2, 1))) == 3
    assert bench.engine.tasks.count() == 5


def test_who_fails_when_it_hears_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.engine.enqueue_batches(batches_of(2, 2, 2), interrupt)

    assert bench.engine.tasks.count() == 0
    assert len(asked(bench, batches_of(1, 1))) == 2


def test_batches_larger_than_what_is_under_way_between_two_processes(bench: Bench) -> None:
    batches = batches_of(50, 50, 50, args=f'["{"x" * 100_000}"]')

    answers = asked(bench, batches)

    assert [len(some) for some in answers] == [50, 50, 50]
    assert bench.engine.tasks.filter(args__0__startswith="xxx").count() == 150


def interrupt(answers: Sequence[Enqueued]) -> None:
    raise KeyboardInterrupt


def test_the_callers_transaction_outlives_what_fails(bench_on_server: Bench) -> None:
    bench = bench_on_server
    with transaction.atomic():
        first = bench.add()
        with pytest.raises(IntegrityError):
            asked(bench, [[new()], [new(id=first)], [new()]])
        second = bench.add()

    assert set(bench.engine.tasks.values_list("pk", flat=True)) == {first, second}


def test_answers_are_heard_while_the_server_is_at_the_next_batch() -> None:
    bench = make_bench("postgresql")
    story: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        if "jobqueue_enqueue" in sql:
            story.append("asked")
        return execute(sql, *rest)

    with connections["default"].execute_wrapper(note):
        bench.engine.enqueue_batches(batches_of(1, 1, 1), lambda answers: story.append("heard"))

    assert story == ["asked", "asked", "heard", "asked", "heard", "heard"]
