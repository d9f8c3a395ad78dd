"""The page: each chapter says what came of its last run."""

import re
from pathlib import Path

import pytest

from verification.faults import report
from verification.faults.report import TEMPLATE, Row, cells_of, chapters, page, seen
from verification.faults.sections import PAGE

TITLES = ["killed", "frozen", "cut off"]
MUTANTS = {"mutants_date": "2030-01-01", "broken_engines": 3, "missed": "none", "caught": "| the table |"}


def test_chapter_that_was_not_run_stays_as_it_was() -> None:
    before = page(MUTANTS)

    after = page({}, before)

    assert "| the table |" in chapters(after)["## Broken engines\n\n"]
    assert "Not run yet." in chapters(after)["## Simulation\n\n"]
    assert after == before


def test_chapter_that_was_run_is_new() -> None:
    assert "| another |" in page(MUTANTS | {"caught": "| another |"}, page(MUTANTS))


def test_chapters_are_those_of_the_template() -> None:
    assert chapters(page(MUTANTS)).keys() == chapters(TEMPLATE.read_text()).keys()


def test_tests_that_the_page_names_are_there() -> None:
    root = Path(__file__).parents[2]
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE.read_text()))
    assert len(named) > 30
    assert not [name for name in named if not (root / name).is_file()]


def test_page_has_the_table_of_faults_as_the_template() -> None:
    heading = "## Where each fault is tried\n\n"
    assert chapters(PAGE.read_text())[heading] == chapters(TEMPLATE.read_text())[heading]


def after_a_run(titles: list[str], before: str, first_seed: int, remark: str = "") -> str:
    rows = [Row(title, faults=3, seeds=list(range(first_seed, first_seed + 5))) for title in titles]
    return page(seen(rows, TITLES, before, date="2030-01-01", minutes=1.0, remark=remark), before)


def last_cells(text: str) -> dict[str, str]:
    return {cells[0]: cells[-1] for cells in cells_of(chapters(text)["## What was seen\n\n"])}


def test_campaigns_that_were_not_run_keep_their_rows_and_what_was_said_of_them() -> None:
    before = after_a_run(TITLES, "", 1, "It was cold.")

    after = after_a_run(["frozen"], before, 7)

    wanted = {"killed": "2030-01-01, 1 to 5", "frozen": "2030-01-01, 7 to 11", "cut off": "2030-01-01, 1 to 5"}
    assert last_cells(after) == {"fault": "seeds", "---": "---:"} | wanted
    assert "It was cold." in after
    assert "It was cold." not in after_a_run(TITLES, after, 1)


def test_row_of_another_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = after_a_run(TITLES, "", 1)
    monkeypatch.setattr(report, "machine", lambda: "64 cores")

    after = last_cells(after_a_run(["frozen"], before, 7))

    assert after["frozen"] == "2030-01-01, 7 to 11; 64 cores"
    assert after["killed"] == "2030-01-01, 1 to 5"


def test_tables_end_with_an_empty_line() -> None:
    """Else what follows is a row of them."""
    assert not re.findall(r"^\|.*\|\n[^|\n].*", PAGE.read_text(), re.MULTILINE)


def test_seeds_that_were_left_out_are_not_named() -> None:
    assert Row("", seeds=[1, 6, 11]).seen_with() == "1, 6, 11"
    assert Row("", seeds=[7]).seen_with() == "7"
