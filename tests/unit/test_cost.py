"""What `make cost` says about its counts."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from benchmarks.cost import report
from benchmarks.cost.callgrind import instructions, problem
from benchmarks.cost.profiles import functions_of_server

PROGRAMS = {"counts_of": "Python 3.11", "instructions_of": "Python 3.11.7 of this machine"}
COSTS = {"instructions of Python": 100_000.0, "statements": 2.0}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a commit with these costs of tasks."""
    monkeypatch.setattr(report, "FILE", tmp_path / "cost.toml")
    monkeypatch.setattr(report, "programs", lambda: PROGRAMS)
    report.write({"drain": COSTS})
    return tmp_path / "cost.toml"


@pytest.mark.parametrize(("name", "limit"), [("instructions of Python", 103_000.0), ("statements", 2.07)])
def test_figure_that_rose_by_more_than_three_percent_is_named(name: str, limit: float) -> None:
    assert not [*report.complaints({"drain": COSTS | {name: limit}})]
    (complaint,) = report.complaints({"drain": COSTS | {name: limit * 1.001}})
    assert name in complaint
    assert not [*report.complaints({"drain": {}})], "it was not counted"


@pytest.mark.parametrize(
    ("what", "named"), [("counts_of", "statements"), ("instructions_of", "instructions of Python")]
)
def test_figures_of_other_programs_are_not_compared(what: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "programs", lambda: PROGRAMS | {what: "Python 3.14"})
    assert not [line for line in report.complaints({"drain": COSTS | {named: 1e9}}) if named in line]
    (line,) = report.not_compared()
    assert "Python 3.14" in line
    assert PROGRAMS[what] in line


def test_written_figures_are_read_again(file: Path) -> None:
    report.write({"enqueue": {"WAL bytes": 1234.4, "statements": 0.012345}})
    assert report.stored() == (PROGRAMS, {"enqueue": {"WAL bytes": 1234, "statements": 0.0123}})
    assert file.read_text().startswith("# What a plain task costs.")


def test_table_has_a_row_for_each_figure_and_a_column_for_each_work() -> None:
    rows = [*report.table({"enqueue": COSTS, "drain": COSTS})]
    assert rows[0] == "| for each plain task | `enqueue()` | claim, run and commit |"
    assert rows[2:] == ["| instructions of Python | 100,000 | 100,000 |", "| statements | 2 | 2 |"]


def test_instructions_of_all_parts_of_a_file_are_added(tmp_path: Path) -> None:
    file = tmp_path / "client.1.1"
    file.write_text("fn=(1) main\n1 5\ntotals: 5\n\nfn=(2)\ntotals: 37\n")
    assert instructions(file) == 42


def test_functions_of_a_session_leave_out_those_around_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "callgrind_annotate"
    lines = ["9,999 (99.9%)  ???:PostgresMain [/postgres]", "8,000 (80.0%)  ???:heap_insert [/postgres]"]
    lines += ["8,000 (80.0%)  ???:ExecProcNode'2 [/postgres]", "no function"]
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "drain"
    file.write_text("totals: 10000\n")
    assert [*functions_of_server(file)] == [("heap_insert", 0.8)]


def test_instructions_are_not_counted_without_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", "")
    assert problem() == "valgrind is not installed"
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert problem() == "there is no count of instructions for riscv64"
