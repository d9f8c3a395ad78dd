"""Counting the tasks of other queues, on forged runs, because those queues are not installed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verification.faults import report
from verification.faults.peers.count import EVERYBODY, Seen, count, restarts
from verification.faults.sections import LAST, PEERS, section, with_section

PAGE = f"# Reliability\n\n## Campaigns\n\nMuch.\n\n## {LAST}\n\n```\nmake verify   ## long\n```\n"


def enqueued(*numbers: int) -> list[dict[str, Any]]:
    return [{"kind": "enqueued", "number": number, "who": "sender", "at": 0.0} for number in numbers]


def started(number: int, who: str, at: float) -> dict[str, Any]:
    return {"kind": "started", "number": number, "who": who, "at": at}


def hurt(whom: str, at: float) -> dict[str, Any]:
    return {"kind": "hurt", "whom": whom, "who": "rig", "at": at}


def test_good_run_counts_nothing_but_successes() -> None:
    seen = count(Seen(enqueued(1, 2), {1: "succeeded", 2: "succeeded"}, [2, 1]))
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
    seen = count(Seen(enqueued(1), {1: state}, effects))
    names = ("succeeded", "failed", "lost", "running", "doubled", "torn")
    assert {name: getattr(seen, name) for name in names if getattr(seen, name)} == figures


def test_acknowledged_task_whose_row_is_gone_is_lost() -> None:
    seen = count(Seen(enqueued(1), {}, [1]))
    assert (seen.lost, seen.running) == (1, 0)


def test_task_that_nobody_acknowledged_does_not_count() -> None:
    seen = count(Seen(enqueued(1), {1: "succeeded", 2: "failed", 3: "running"}, [1, 2, 2]))
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


def test_section_goes_before_the_last_and_is_replaced_in_place() -> None:
    once = with_section(PAGE, "Beside others", "## Beside others\n\nOld.\n")
    twice = with_section(once, "Beside others", "## Beside others\n\nNew.\n")
    assert section(PAGE, "Beside others") == ""
    assert section(twice, "Beside others") == "## Beside others\n\nNew.\n\n"
    assert twice.replace(section(twice, "Beside others"), "") == PAGE
    assert twice.index("Much.") < twice.index("New.") < twice.index(LAST)


def test_section_about_peers_survives_make_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "reliability-results.md"
    page.write_text(with_section(PAGE, PEERS, f"## {PEERS}\n\n| a | {{b}} |\n"))
    monkeypatch.setattr(report, "PAGE", page)
    for _ in range(2):
        rows = [report.Row("a fault", seeds=[1])]
        report.write(report.seen(rows, ["a fault"], "", date="2030-01-01", minutes=1, remark=""))
    assert section(page.read_text(), PEERS) == f"## {PEERS}\n\n| a | {{b}} |\n\n"
    assert "a fault" in page.read_text()
