"""docs/reliability-results.md: each chapter holds the results of its last run."""

import re
from pathlib import Path

import pytest

from verification.faults import pages
from verification.faults.pages import PAGE, TEMPLATE, cells_of, chapters, filled
from verification.faults.report import CampaignRow, chapter_of

DATE = pages.today()
TITLES = ["killed", "frozen", "cut off"]
MUTANTS = {"mutants_date": "2030-01-01", "broken_engines": 3, "missed": "none", "caught": "| the table |"}


def test_page_keeps_chapters_that_did_not_run() -> None:
    before = filled(MUTANTS, "")
    assert "| the table |" in chapters(before)["## Mutants\n\n"]
    assert "Not run yet." in chapters(before)["## Simulation\n\n"]
    assert filled({}, before) == before
    assert "| another |" in filled(MUTANTS | {"caught": "| another |"}, before)


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
    rows = [CampaignRow(title, faults=3, seeds=list(range(first_seed, first_seed + 5))) for title in titles]
    figures = chapter_of(rows, TITLES, before, minutes=1.0, remark=remark)
    return filled({"timeout": 3.0, "promised": 5.0, **figures}, before)


def last_cells(text: str) -> dict[str, str]:
    return {cells[0]: cells[-1] for cells in cells_of(chapters(text)["## Campaigns\n\n"])}


def test_page_keeps_rows_and_remark_of_campaigns_that_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = after_a_run(TITLES, "", 1, "It was cold.")

    after = after_a_run(["frozen"], before, 7)

    wanted = {"killed": f"{DATE}, 1 to 5", "frozen": f"{DATE}, 7 to 11", "cut off": f"{DATE}, 1 to 5"}
    assert last_cells(after) == {"fault": "seeds", "---": "---:"} | wanted
    assert "It was cold." in after
    assert "It was cold." not in after_a_run(TITLES, after, 1)
    monkeypatch.setattr(pages, "machine", lambda: "64 cores")
    assert last_cells(after_a_run(["frozen"], before, 7))["frozen"] == f"{DATE}, 7 to 11; 64 cores"


def test_each_table_ends_with_an_empty_line() -> None:
    """Markdown would read the next line as a row of the table."""
    assert not re.findall(r"^\|.*\|\n[^|\n].*", PAGE.read_text(), re.MULTILINE)


def test_row_names_only_the_seeds_that_ran() -> None:
    assert CampaignRow("", seeds=[1, 6, 11]).seed_text() == "1, 6, 11"
    assert CampaignRow("", seeds=[7]).seed_text() == "7"
