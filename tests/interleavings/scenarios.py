"""Who meets whom: each scenario makes its rows and gives the scripts of its actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.interleavings import world as decisions
from tests.interleavings.stepper import Script
from tests.interleavings.world import Decide, World

Setting = Callable[[World], Sequence[Script]]


@dataclass(frozen=True)
class Scenario:
    name: str
    set_up: Setting
    actors: int = 2


def sending_beside(decide: Decide) -> Setting:
    """A view sends while the task is claimed, polled and committed."""

    def set_up(world: World) -> Sequence[Script]:
        task = world.add("task")
        return [lambda: world.send(task, "m"), lambda: world.poll("task", decide=decide)]

    return set_up


SEND = [
    Scenario(f"send-x-{decide.__name__}", sending_beside(decide))
    for decide in (decisions.suspend, decisions.sleep, decisions.done, decisions.retry)
]

SCENARIOS = {scenario.name: scenario for scenario in [*SEND]}
