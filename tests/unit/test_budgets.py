from __future__ import annotations

import pytest

from tools import check_budgets


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with 100 lines in a package, and a budget for each measure."""
    for folder in ("jobqueue/engine", "tests/unit"):
        (tmp_path / folder).mkdir(parents=True)
    for module in ("jobqueue/__init__.py", "tests/__init__.py", "tests/unit/test_a.py"):
        (tmp_path / module).write_text("x = 1\n" * 3)
    (tmp_path / "jobqueue/engine/__init__.py").write_text("x = 1\n" * 100)
    (tmp_path / "budgets.toml").write_text(
        '[lines]\njobqueue = 3\n"jobqueue/engine" = 100\ntests = 6\n'
        '[files]\n"." = 1\njobqueue = 1\n[seconds]\nfast = 100\n'
    )
    monkeypatch.setattr(check_budgets, "CHECKOUT", tmp_path)
    return tmp_path


def test_measures_within_their_budgets_pass(checkout, capsys):
    (checkout / ".cache").mkdir()
    (checkout / "node_modules").mkdir()

    assert check_budgets.main([]) == 0
    assert capsys.readouterr().out == "Each measure is within its budget.\n"


@pytest.mark.parametrize(("lines", "code"), [(102, 0), (103, 1)])
def test_package_fails_when_it_is_two_percent_over(checkout, capsys, lines, code):
    (checkout / "jobqueue/engine/__init__.py").write_text("x = 1\n" * lines)

    assert check_budgets.main([]) == code
    assert ("jobqueue/engine has 103 lines. Its budget is 100.\nCut something" in capsys.readouterr().out) == bool(code)


def test_new_package_needs_a_budget_and_removed_one_has_none(checkout, capsys):
    (checkout / "jobqueue/engine").rename(checkout / "jobqueue/core")

    assert check_budgets.main([]) == 1
    output = capsys.readouterr().out
    assert "jobqueue/core has 100 lines and no budget." in output
    assert "jobqueue/engine has a budget of lines and does not exist." in output


def test_new_file_at_the_top_level_fails(checkout, capsys):
    (checkout / "jobqueue/more.py").touch()
    (checkout / "notes.txt").touch()

    assert check_budgets.main([]) == 1
    assert ". has 2 files. Its budget is 1.\njobqueue has 2 files." in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "code"), [(102, 0), (103, 1)])
def test_time_of_a_tier_is_compared(checkout, seconds, code):
    assert check_budgets.main(["--seconds", f"fast={seconds}"]) == code


def test_unknown_tier_fails(checkout, capsys):
    assert check_budgets.main(["--seconds", "sooner=1"]) == 1
    assert "sooner has 1 seconds and no budget." in capsys.readouterr().out
