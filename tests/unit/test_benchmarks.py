"""What the benchmarks make of their samples, and that each contestant has what a measurement needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import claims, contestants
from benchmarks.arena import NotMeasured
from benchmarks.contestants import STORES, Contestant
from benchmarks.goals import Goal
from benchmarks.rounds import measured_in_turns

CONTESTANTS = [value for value in vars(contestants).values() if isinstance(value, Contestant)]
APPS = Path(__file__).parents[2] / "benchmarks" / "peers"
PINS = (APPS.parent / "requirements.txt").read_text()


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda contestant: contestant.name)
def test_contestant_has_an_app_a_store_and_a_pinned_package(contestant: Contestant) -> None:
    assert (APPS / f"{contestant.peer}_app.py").exists()
    assert contestant.needs_redis or contestant.peer in STORES
    assert contestant.package == "django-jobqueue" or f"\n{contestant.package}" in PINS
    assert len(contestant.commands()) in (1, contestant.processes)


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        (Goal("drain", 1.15, 1.15, is_minimum=True), "| met |"),
        (Goal("drain", 1.1499, 1.15, is_minimum=True), "| **missed** |"),
        (Goal("CPU", 40, 40, " us"), "| 40 us | <= 40 us | met |"),
        (Goal("CPU", 40.1, 40, " us"), "| **missed** |"),
        (Goal("claim", None, 100, " ms"), "| not measured | <= 100 ms | **missed** |"),
    ],
)
def test_goal_says_whether_it_is_met(goal: Goal, verdict: str) -> None:
    assert str(goal).endswith(verdict)


def test_contestants_take_turns_and_those_that_fail_drop_out() -> None:
    order: list[str] = []

    def measure(name: str) -> str:
        order.append(name)
        if name == "b" and len(order) > 3:
            raise NotMeasured("it broke\nhere")
        return name

    missing: dict[str, str] = {}
    sides = {name: lambda name=name: measure(name) for name in "abc"}
    assert measured_in_turns(sides, 2, missing, str) == {"a": ["a", "a"], "c": ["c", "c"]}
    assert order == ["a", "b", "c", "b", "c", "a"]
    assert missing == {"b": "it broke"}


def test_times_of_claims_leave_out_the_first_half_second(tmp_path: Path) -> None:
    file = tmp_path / "claims"
    file.write_text("100.000 0.500000\n100.400 0.300000\n100.600 0.010000\n101.000 0.020000\n")
    assert claims.read(file) == [0.01, 0.02]
    assert claims.read(tmp_path / "missing") == []


def test_only_claims_that_got_tasks_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "claims"
    with file.open("wb") as stream:
        claim = claims.timed(lambda _, request: request, stream.fileno())  # type: ignore[arg-type, return-value]
        assert claim(None, []) == []  # type: ignore[arg-type]
        assert claim(None, ["task"]) == ["task"]  # type: ignore[arg-type, comparison-overlap]
    assert len(file.read_text().splitlines()) == 1
