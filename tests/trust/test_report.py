"""The page: each chapter says what came of its last run."""

import re
from pathlib import Path

from tests.trust.report import TEMPLATE, chapters, page
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
