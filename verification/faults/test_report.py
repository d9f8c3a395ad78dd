"""docs/reliability-results.md: each chapter holds the results of its last run."""

import re
from pathlib import Path

import pytest

from verification.faults import report
from verification.faults.report import TEMPLATE, Row, cells_of, chapters, page, seen
from verification.faults.sections import PAGE

TITLES = ["killed", "frozen", "cut off"]
MUTANTS = {"mutants_date": "2030-01-01", "broken_engines": 3, "missed": "none", "caught": "| the table |"}


def test_page_keeps_chapters_that_did_not_run() -> None:
    before = page(MUTANTS)

    after = page({}, before)

    assert "| the table |" in chapters(after)["## Mutants\n\n"]
    assert "Not run yet." in chapters(after)["## Simulation\n\n"]
    assert after == before


def test_page_replaces_a_chapter_that_ran() -> None:
    assert "| another |" in page(MUTANTS | {"caught": "| another |"}, page(MUTANTS))


def test_page_has_the_chapters_of_the_template() -> None:
    assert chapters(page(MUTANTS)).keys() == chapters(TEMPLATE.read_text()).keys()


ROOT = Path(__file__).parents[2]
PAGES = [PAGE, ROOT / "SECURITY.md", ROOT / "verification/README.md"]


@pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])
def test_files_named_on_the_page_exist(path: Path) -> None:
    named = set(re.findall(r"`((?:tests|verification|jobqueue)/[\w/]+\.py)`", path.read_text()))
    assert named
    assert not [name for name in named if not (ROOT / name).is_file()]


def test_page_has_the_fault_table_of_the_template() -> None:
    heading = "## Faults and their tests\n\n"
    assert chapters(PAGE.read_text())[heading] == chapters(TEMPLATE.read_text())[heading]


def after_a_run(titles: list[str], before: str, first_seed: int, remark: str = "") -> str:
    rows = [Row(title, faults=3, seeds=list(range(first_seed, first_seed + 5))) for title in titles]
    return page(seen(rows, TITLES, before, date="2030-01-01", minutes=1.0, remark=remark), before)


def last_cells(text: str) -> dict[str, str]:
    return {cells[0]: cells[-1] for cells in cells_of(chapters(text)["## Campaigns\n\n"])}


def test_page_keeps_rows_and_remark_of_campaigns_that_did_not_run() -> None:
    before = after_a_run(TITLES, "", 1, "It was cold.")

    after = after_a_run(["frozen"], before, 7)

    wanted = {"killed": "2030-01-01, 1 to 5", "frozen": "2030-01-01, 7 to 11", "cut off": "2030-01-01, 1 to 5"}
    assert last_cells(after) == {"fault": "seeds", "---": "---:"} | wanted
    assert "It was cold." in after
    assert "It was cold." not in after_a_run(TITLES, after, 1)


def test_row_from_another_machine_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = after_a_run(TITLES, "", 1)
    monkeypatch.setattr(report, "machine", lambda: "64 cores")

    after = last_cells(after_a_run(["frozen"], before, 7))

    assert after["frozen"] == "2030-01-01, 7 to 11; 64 cores"
    assert after["killed"] == "2030-01-01, 1 to 5"


def test_each_table_ends_with_an_empty_line() -> None:
    """Markdown would read the next line as a row of the table."""
    assert not re.findall(r"^\|.*\|\n[^|\n].*", PAGE.read_text(), re.MULTILINE)


def test_row_names_only_the_seeds_that_ran() -> None:
    assert Row("", seeds=[1, 6, 11]).seen_with() == "1, 6, 11"
    assert Row("", seeds=[7]).seen_with() == "7"
