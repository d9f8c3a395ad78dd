"""Run random programs on the database of this process, one seed after the other, until one fails."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from django.conf import settings
from django.core.management import call_command
from django.test import override_settings

from verification.workflows import driver, memory
from verification.workflows.driver import Run, check
from verification.workflows.interpreter import Ambiguous
from verification.workflows.programs import Case, random_case, smaller

MAX_SMALLER = 400  # cases that are tried to make a failed one smaller


@dataclass
class ProgramsResult:
    """Result of some programs. The last one failed if there are `problems`."""

    count: int = 0
    ambiguous: int = 0
    faults: int = 0
    seconds: float = 0.0
    seed: int = 0
    problems: list[str] = field(default_factory=list)
    case: Case | None = None

    @property
    def story(self) -> str:
        case = self.case or Case([])
        again = f"JOBQUEUE_SEED={self.seed} JOBQUEUE_SEEDS=1 python -m pytest verification/workflows/test_programs.py"
        script = "\n".join(f"  {event}" for event in case.script)
        return "\n".join(
            [f"seed {self.seed}", f"program {case.program}", script, "", *self.problems, "Again:", f"  {again}"]
        )


def run(seeds: Sequence[int], *, play: Run = driver.run) -> ProgramsResult:
    """Run one program for each seed, twice: as it is, and with faults. Stop at the first that is wrong."""
    logging.disable(logging.CRITICAL)
    result, began = ProgramsResult(), time.monotonic()
    try:
        for seed in seeds:
            case = random_case(Random(seed))
            wrong, faults = perform(case, seed, play)
            if wrong is None:
                result.ambiguous += 1
                continue
            result.count += 1
            result.faults += faults
            if wrong:
                case, wrong = shrink(case, wrong, seed, play)
                result.seed, result.problems, result.case = seed, wrong, case
                break
    finally:
        logging.disable(logging.NOTSET)
    result.seconds = time.monotonic() - began
    return result


def run_in_memory(seeds: Sequence[int]) -> ProgramsResult:
    return run(seeds, play=memory.run)


def run_on_database(seeds: Sequence[int]) -> ProgramsResult:
    """Run programs on the default database, whose tasks may lose any number of executors."""
    call_command("migrate", verbosity=0, run_syncdb=True)  # with the table of effects
    default = settings.TASKS["default"]
    options = {**default["OPTIONS"], "MAX_EXECUTOR_LOSSES": 1000}
    with override_settings(TASKS={**settings.TASKS, "default": {**default, "OPTIONS": options}}):
        return run(seeds)


def perform(case: Case, seed: int, play: Run) -> tuple[list[str] | None, int]:
    """Return what is wrong, and the number of faults. None: the case has more than one correct result."""
    try:
        return check(case, seed, play)
    except Ambiguous:
        return None, 0
    except Exception as error:  # noqa: BLE001 - every error is a finding
        return [f"raised {type(error).__name__}: {error}", *traceback.format_exception(error)[-6:]], 0


def shrink(case: Case, wrong: list[str], seed: int, play: Run) -> tuple[Case, list[str]]:
    """Return a smaller case that is wrong by the same rule."""
    rule, left, is_smaller = wrong[0].partition(": ")[0][:40], MAX_SMALLER, True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in smaller(case):
            left -= 1
            problems, _ = perform(candidate, seed, play)
            if problems and rule in problems[0]:
                case, wrong, is_smaller = candidate, problems, True
                break
            if left <= 0:
                break
    return case, wrong
