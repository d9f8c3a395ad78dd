"""Counting the tasks of other queues, on forged runs, because those queues are not installed here."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.crashes.count import EVERYBODY, Results, count, restarts


def enqueued(*numbers: int) -> list[dict[str, Any]]:
    return [{"kind": "enqueued", "number": number, "who": "sender", "at": 0.0} for number in numbers]


def started(number: int, who: str, at: float) -> dict[str, Any]:
    return {"kind": "started", "number": number, "who": who, "at": at}


def hurt(whom: str, at: float) -> dict[str, Any]:
    return {"kind": "hurt", "whom": whom, "who": "environment", "at": at}


def test_good_run_counts_nothing_but_successes() -> None:
    seen = count(Results(enqueued(1, 2), {1: "succeeded", 2: "succeeded"}, [2, 1]))
    assert (seen.acknowledged, seen.succeeded) == (2, 2)
    assert (seen.failed, seen.lost, seen.running, seen.doubled, seen.torn) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("state", "effects", "figures"),
    [
        ("running", [], {"lost": 1, "running": 1}),
        ("running", [1], {"lost": 1, "running": 1}),
        ("waiting", [], {"lost": 1}),
        ("failed", [], {"failed": 1}),
        ("failed", [1], {"failed": 1, "torn": 1}),
        ("succeeded", [], {"succeeded": 1, "torn": 1}),
        ("succeeded", [1, 1, 1], {"succeeded": 1, "doubled": 1}),
        ("failed", [1, 1], {"failed": 1, "torn": 1, "doubled": 1}),
    ],
)
def test_each_end_is_counted_for_what_it_is(state: str, effects: list[int], figures: dict[str, int]) -> None:
    seen = count(Results(enqueued(1), {1: state}, effects))
    names = ("succeeded", "failed", "lost", "running", "doubled", "torn")
    assert {name: getattr(seen, name) for name in names if getattr(seen, name)} == figures


def test_acknowledged_task_whose_row_is_gone_is_lost() -> None:
    seen = count(Results(enqueued(1), {}, [1]))
    assert (seen.lost, seen.running) == (1, 0)


def test_task_that_was_not_acknowledged_does_not_count() -> None:
    seen = count(Results(enqueued(1), {1: "succeeded", 2: "failed", 3: "running"}, [1, 2, 2]))
    assert (seen.acknowledged, seen.failed, seen.lost, seen.doubled, seen.torn) == (1, 0, 0, 0, 0)


def test_restart_counts_from_the_fault_to_the_next_start() -> None:
    notes = [started(1, "a", 1.0), hurt("a", 1.2), started(1, "b", 5.0), started(2, "b", 1.1), started(2, "a", 1.3)]
    assert list(restarts(notes)) == [pytest.approx(3.8)]


def test_restart_after_a_failure_is_not_counted() -> None:
    assert list(restarts([started(1, "a", 1.0), started(1, "b", 2.0), hurt("b", 2.5), hurt("a", 3.0)])) == []


def test_fault_of_the_server_counts_for_all_workers() -> None:
    notes = [
        started(1, "a", 1.0),
        started(2, "b", 1.0),
        hurt(EVERYBODY, 2.0),
        started(2, "c", 3.0),
        started(1, "c", 4.0),
    ]
    assert sorted(restarts(notes)) == [pytest.approx(1.0), pytest.approx(2.0)]
