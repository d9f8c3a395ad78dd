"""Run simulations on the database of this process, whose changes triggers record."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from django.db import connections

from jobqueue.engine import messages
from jobqueue.engine.engine import Engine
from jobqueue.models import AdmissionRequest, Counter, CounterDelta, Queue, RateStart
from verification.faults import history
from verification.simulation.simulation import Simulation

MOVES = 40
RECORD = Path(history.__file__).with_name("record.sql")
TABLES = (
    "verification_change",
    "verification_beat",
    "verification_message",
    "verification_effect",
    "verification_entry",
)
DATABASES = ("default", "first_side", "second_side")
VACUUM_EVERY = 50  # simulations: dead rows slow down the later ones


@dataclass
class SimulationResult:
    """Result of some simulations. count: how many ran. The last one failed if there are `problems`."""

    count: int = 0
    moves: int = 0
    seed: int = 0
    problems: list[str] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)

    @property
    def story(self) -> str:
        again = f"JOBQUEUE_SEED={self.seed} JOBQUEUE_SEEDS=1 python -m pytest verification/simulation/test_plays.py"
        return "\n".join([f"seed {self.seed}", *self.diary, "", *self.problems, "Again:", f"  {again}"])


def run(seeds: Sequence[int], kind: type[Engine], *, has_limits: bool = False) -> SimulationResult:
    """Run one simulation for each seed, until one fails. has_limits: many of its tasks have limits."""
    result = SimulationResult()
    for name in DATABASES[1:]:
        connections.databases.setdefault(name, connections.databases["default"].copy())
    with patch.object(messages, "LOCK_WAIT", "20ms"), recording():
        for seed in seeds:
            simulation = Simulation(kind, seed, DATABASES, has_limits=has_limits)
            failure = perform(simulation)
            result.count += 1
            result.moves += len(simulation.diary)
            if failure:
                result.seed, result.problems, result.diary = seed, failure, simulation.diary
                break
            if result.count % VACUUM_EVERY == 0:
                vacuum()
    for name in DATABASES[1:]:
        connections[name].close()
    return result


def perform(simulation: Simulation) -> list[str]:
    try:
        return simulation.run(MOVES)
    except Exception as error:  # noqa: BLE001 every error of the engine is a finding
        where = traceback.format_exception(error)[-4:]
        return [f"raised {type(error).__name__}: {error}", *where]
    finally:
        clear(simulation)


def clear(simulation: Simulation) -> None:
    simulation.clear()
    for model in (Queue, Counter, CounterDelta, AdmissionRequest, RateStart):
        model.objects.filter(backend=simulation.engine.alias).delete()
    with connections["default"].cursor() as cursor:
        cursor.execute("; ".join(f"DELETE FROM {table}" for table in TABLES))


@contextmanager
def recording() -> Iterator[None]:
    with connections["default"].cursor() as cursor:
        cursor.execute(RECORD.read_text())
        try:
            yield
        finally:
            cursor.execute(
                "DROP FUNCTION verification_note_change, verification_note_beat, verification_note_message, "
                "verification_note_entry, verification_extend CASCADE"
            )
            cursor.execute(f"DROP TABLE verification_full, {', '.join(TABLES)}")


def vacuum() -> None:
    tables = ", ".join(
        [
            "jobqueue_inboxmessage",
            "jobqueue_task",
            "jobqueue_executor",
            "jobqueue_heartbeat",
            "jobqueue_counterdelta",
            "jobqueue_admissionrequest",
            "jobqueue_ratestart",
            *TABLES,
        ]
    )
    with connections["default"].cursor() as cursor:
        cursor.execute(f"VACUUM (TRUNCATE FALSE) {tables}")
