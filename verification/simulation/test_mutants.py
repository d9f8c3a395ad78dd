"""The simulation detects every deliberately broken engine. This shows that it can find errors."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from verification.interleavings.mutant_cases import CAUGHT_BY_SIMULATION, MAX_SEEDS, MutantCase
from verification.interleavings.process import pool_of
from verification.simulation import runner

pytestmark = pytest.mark.django_db  # another process uses the database


@pytest.fixture(scope="module")
def pool(process_environment: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    with pool_of(process_environment, 1) as pool:
        yield pool


@pytest.mark.parametrize("case", CAUGHT_BY_SIMULATION, ids=[case.name for case in CAUGHT_BY_SIMULATION])
def test_simulation_detects_broken_engine(
    pool: ProcessPoolExecutor, record_property: Callable[[str, object], None], case: MutantCase
) -> None:
    seeds = range(case.seed, case.seed + MAX_SEEDS)
    result = pool.submit(runner.run, seeds, case.kind, has_limits=case.has_limits).result()
    assert result.problems, f"{case.kind.__name__} was not caught"
    assert any(problem.startswith(case.problem) for problem in result.problems), result.story
    record_property("caught", case.cells(result.count, case.seed))  # shown at the end of the test run


def test_failed_simulation_is_reported_and_repeatable(pool: ProcessPoolExecutor) -> None:
    kind = CAUGHT_BY_SIMULATION[0].kind
    first = pool.submit(runner.run, range(1, 1 + MAX_SEEDS), kind).result()
    assert f"JOBQUEUE_SEED={first.seed} JOBQUEUE_SEEDS=1 python -m pytest verification/simulation" in first.story

    again = pool.submit(runner.run, [first.seed], kind).result()

    assert again.problems == first.problems
    assert again.diary == first.diary
