"""
Random programs over all calls of a workflow do what a plain interpreter says, also when executors die or lose claims.

JOBQUEUE_SEED is the first seed, JOBQUEUE_SEEDS the number of seeds.
"""

import os
from collections.abc import Callable

import pytest

from tests.fixtures import Options
from verification.workflows import memory, mutants, runner

SEED, SEEDS = int(os.environ.get("JOBQUEUE_SEED") or 1), int(os.environ.get("JOBQUEUE_SEEDS") or 0)

FOUND = (101_969, 109_182, 154_037)  # programs of the long form that were wrong once

Record = Callable[[str, object], None]


@pytest.mark.parametrize(("database", "programs"), [("default", 20), ("sqlite", 10)])
@pytest.mark.django_db(databases=["default", "sqlite"])
def test_program_on_a_database_does_what_the_interpreter_says(
    options: Options, record_property: Record, database: str, programs: int
) -> None:
    options(DATABASE=database, MAX_EXECUTOR_LOSSES=1000)
    result = runner.run(range(SEED, SEED + (SEEDS or programs)))
    record_property("programs", [result.count, result.faults])
    assert not result.problems, result.story


def test_program_in_memory_does_what_the_interpreter_says(record_property: Record) -> None:
    result = runner.run(range(SEED, SEED + (SEEDS or 1_000)), play=memory.run)
    record_property("programs", [result.count, result.faults])
    assert not result.problems, result.story


@pytest.mark.parametrize("seed", FOUND)
def test_program_that_was_wrong_once_does_what_the_interpreter_says(seed: int) -> None:
    result = runner.run([seed], play=memory.run)
    assert not result.problems, result.story


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=[mutant.broken.__name__ for mutant in mutants.MUTANTS])
def test_programs_detect_broken_workflow(mutant: mutants.Mutant) -> None:
    with mutant.broken():
        result = runner.run(range(mutant.seed, mutant.seed + mutants.MAX_SEEDS), play=memory.run)
    assert result.problems, f"{mutant.wrong} It was not caught."
    assert any(problem in result.problems[0] for problem in mutant.problems), result.story
