"""The simulation detects every engine with wrong schedules. This shows that it can find errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from verification.interleavings.process import pool_of
from verification.schedules import runner
from verification.schedules.mutants import MAX_YEARS, MUTANTS, ForgetsPauses, ScheduleMutant

pytestmark = pytest.mark.django_db  # another process uses the database


@pytest.fixture(scope="module")
def pool(process_environment: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    with pool_of(process_environment, 1) as pool:
        yield pool


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.kind.__name__)
def test_year_detects_broken_schedules(
    pool: ProcessPoolExecutor, record_property: Callable[[str, object], None], mutant: ScheduleMutant
) -> None:
    result = pool.submit(runner.run, range(mutant.seed, mutant.seed + MAX_YEARS), mutant.kind).result()
    assert result.problem.startswith(mutant.problem), result.story
    doc = " ".join((mutant.kind.__doc__ or "").split())
    record_property("caught", ["schedules", doc, "year", mutant.problem, f"{result.looks:,} looks"])


def test_failed_year_is_reported_and_repeatable(pool: ProcessPoolExecutor) -> None:
    first, again = (pool.submit(runner.run, [1], ForgetsPauses).result() for _ in range(2))

    assert f"JOBQUEUE_SEED=1 JOBQUEUE_SEEDS=1 python -m pytest {runner.TEST}" in first.story
    assert again.problem == first.problem
