"""The same plays on engines that are deliberately broken: each is caught, or the simulation proves nothing."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from verification.interleavings.catches import BY_PLAYS, MOST_PLAYS, Catch
from verification.interleavings.process import pool_of
from verification.simulation import process

pytestmark = pytest.mark.django_db  # the database; what happens there happens in another process


@pytest.fixture(scope="module")
def pool(process_environment: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    with pool_of(process_environment, 1) as pool:
        yield pool


@pytest.mark.parametrize("catch", BY_PLAYS, ids=[catch.name for catch in BY_PLAYS])
def test_a_broken_engine_is_caught(
    pool: ProcessPoolExecutor, record_property: Callable[[str, object], None], catch: Catch
) -> None:
    played = pool.submit(process.run, range(catch.seed, catch.seed + MOST_PLAYS), catch.kind).result()
    assert played.problems, f"{catch.kind.__name__} was not caught"
    assert any(problem.startswith(catch.problem) for problem in played.problems), played.story
    record_property("caught", catch.cells(played.count, catch.seed))  # for the summary of the session


def test_a_failing_play_is_told_and_repeated(pool: ProcessPoolExecutor) -> None:
    kind = BY_PLAYS[0].kind
    first = pool.submit(process.run, range(1, 1 + MOST_PLAYS), kind).result()
    assert f"JOBQUEUE_SEED={first.seed} JOBQUEUE_SEEDS=1 python -m pytest verification/simulation" in first.story

    again = pool.submit(process.run, [first.seed], kind).result()

    assert again.problems == first.problems
    assert again.diary == first.diary
