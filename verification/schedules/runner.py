"""Run simulations of schedules on PostgreSQL or on SQLite."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.models import Counter, CounterDelta, Schedule, Task
from verification.schedules.judge import Violation
from verification.schedules.moves import YearOfSchedules
from verification.schedules.simulation import BACKEND, YEAR
from verification.schedules.virtual_database import virtual_postgres, virtual_sqlite

TEST = "verification/schedules/test_year.py"
LAST_NOTES = 60


@dataclass
class YearsResult:
    """Result of some simulations. The last one failed if there is a `problem`."""

    years: int = 0
    enqueued: int = 0
    skipped: int = 0
    looks: int = 0
    crashes: int = 0
    moves: int = 0
    seconds: float = 0.0
    seed: int = 0
    problem: str = ""
    diary: list[str] = field(default_factory=list)

    @property
    def story(self) -> str:
        again = f"JOBQUEUE_SEED={self.seed} JOBQUEUE_SEEDS=1 python -m pytest {TEST}"
        return "\n".join([f"seed {self.seed}", *self.diary[-LAST_NOTES:], "", self.problem, "Again:", f"  {again}"])


def run(seeds: Iterable[int], kind: type[Engine], length: timedelta = YEAR) -> YearsResult:
    """Run one simulation for each seed, until one fails. The PostgreSQL engines run on PostgreSQL, others on SQLite."""
    result, began = YearsResult(), time.monotonic()
    on_postgres = issubclass(kind, PostgresEngine)
    with virtual_postgres() if on_postgres else virtual_sqlite() as database:
        for seed in seeds:
            simulation = YearOfSchedules(kind, seed, database, length)
            try:
                simulation.run()
            except Violation as error:
                result.problem = str(error)
            except Exception as error:  # noqa: BLE001 every error of the engine is a finding
                where = "".join(traceback.format_exception(error)[-4:])
                result.problem = f"raised {type(error).__name__}: {error}\n{where}"
            clear(simulation)
            result.years += 1
            result.enqueued += simulation.judge.enqueued
            result.skipped += simulation.judge.skipped
            result.looks += simulation.looks
            result.crashes += simulation.crashes
            result.moves += len(simulation.diary)
            result.seed, result.diary = seed, simulation.diary
            if result.problem:
                break
    result.seconds = time.monotonic() - began
    return result


def clear(simulation: YearOfSchedules) -> None:
    for model in (Task, Schedule, Counter, CounterDelta):
        model.objects.using(simulation.engine.database).filter(backend=BACKEND).delete()
