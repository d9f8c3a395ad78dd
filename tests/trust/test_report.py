"""The page: each chapter says what came of its last run."""

from tests.trust.report import TEMPLATE, chapters, page

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
