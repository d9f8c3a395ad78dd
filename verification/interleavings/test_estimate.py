"""The estimated number of kinds of order is close to the number of listed kinds."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from verification.interleavings.orders import RunOne, estimate, every
from verification.interleavings.stepper import Choose, Order


def race(*scripts: Sequence[str]) -> RunOne:
    """Return a race of clients that run these steps and never wait for each other."""

    def run(choose: Choose) -> Order:
        order, at = Order(), [0] * len(scripts)
        for _ in range(sum(map(len, scripts))):
            runnable: Any = [
                SimpleNamespace(number=number, before=steps[at[number]])
                for number, steps in enumerate(scripts)
                if at[number] < len(steps)
            ]
            client = choose(runnable)
            order.steps.append(("AB"[client.number], client.before))
            at[client.number] += 1
        return order

    return run


@pytest.mark.parametrize(
    ("scripts", "kinds"),
    [
        ((["COMMIT"] * 5, ["COMMIT"] * 5), 252),  # ten over five: no steps commute
        (
            (["suspended_with_messages"] * 5, ["suspended_with_messages"] * 5),
            6,
        ),  # all steps commute: one kind, and five orders that lead to it
        ((["suspended_with_messages", "COMMIT"] * 3, ["heartbeat", "COMMIT"] * 3), 328),
    ],
)
def test_estimate_is_close_to_number_of_listed_orders(scripts: Sequence[Sequence[str]], kinds: int) -> None:
    kinds_listed = len(list(every(race(*scripts))))
    assert kinds_listed == kinds
    assert estimate(race(*scripts), 2000, seed=1)[0] == pytest.approx(kinds_listed, rel=0.1)
