"""How many kinds of orders there are, listed and estimated, of races that need no server."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from verification.interleavings.orders import RunOne, estimate, every
from verification.interleavings.stepper import Choose, Order


def race(*scripts: Sequence[str]) -> RunOne:
    """Actors that never wait for each other, and take these steps."""

    def run(choose: Choose) -> Order:
        order, at = Order(), [0] * len(scripts)
        for _ in range(sum(map(len, scripts))):
            able: Any = [
                SimpleNamespace(number=number, before=steps[at[number]])
                for number, steps in enumerate(scripts)
                if at[number] < len(steps)
            ]
            chosen = choose(able)
            order.steps.append(("AB"[chosen.number], chosen.before))
            at[chosen.number] += 1
        return order

    return run


@pytest.mark.parametrize(
    ("scripts", "kinds"),
    [
        ((["COMMIT"] * 5, ["COMMIT"] * 5), 252),  # ten over five: none of them commute
        (
            (["suspended_with_messages"] * 5, ["suspended_with_messages"] * 5),
            6,
        ),  # all do: one kind, and five that turn out to be it
        ((["suspended_with_messages", "COMMIT"] * 3, ["heartbeat", "COMMIT"] * 3), 328),
    ],
)
def test_estimate_comes_near_to_what_is_listed(scripts: Sequence[Sequence[str]], kinds: int) -> None:
    listed = len(list(every(race(*scripts))))
    assert listed == kinds
    assert estimate(race(*scripts), 2000, seed=1)[0] == pytest.approx(listed, rel=0.1)
