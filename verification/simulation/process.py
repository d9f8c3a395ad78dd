"""Run simulations in another process. This module imports no models, which need Django to be set up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobqueue.engine.engine import Engine

MOVES = 40


@dataclass
class SimulationResult:
    """Result of some simulations. count: how many ran. The last one failed if there are `problems`."""

    count: int = 0
    moves: int = 0
    cpu_seconds: float = 0.0
    seed: int = 0
    problems: list[str] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)

    @property
    def story(self) -> str:
        again = f"JOBQUEUE_SEED={self.seed} JOBQUEUE_SEEDS=1 python -m pytest verification/simulation/test_plays.py"
        return "\n".join([f"seed {self.seed}", *self.diary, "", *self.problems, "Again:", f"  {again}"])


def run(seeds: Sequence[int], kind: type[Engine], moves: int = MOVES) -> SimulationResult:
    from verification.simulation import runner

    return runner.run(seeds, moves, kind)
