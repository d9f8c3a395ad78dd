"""The page: each chapter says what came of its last run."""

import re
from pathlib import Path

from tests.trust.report import TEMPLATE, Row, cells_of, chapters, page, seen
from tests.trust.sections import PAGE

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


def test_campaigns_that_were_not_run_keep_their_rows() -> None:
    titles = ["killed", "frozen", "cut off"]

    def run(title: str, before: str, first_seed: int) -> str:
        row = Row(title, faults=3)
        seeds = range(first_seed, first_seed + 5)
        return page(
            seen([row], titles, before, date="2030-01-01", seeds=seeds, minutes=1.0, remark="As it was."), before
        )

    after = run("killed", run("cut off", "", 1), 7)

    rows = [(cells[0], cells[-1]) for cells in cells_of(chapters(after)["## What was seen\n\n"])]
    assert rows == [
        ("fault", "seeds"),
        ("---", "---:"),
        ("killed", "2030-01-01, 7 to 11"),
        ("cut off", "2030-01-01, 1 to 5"),
    ]
