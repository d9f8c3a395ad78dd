"""
Compare the size of the code with budgets.toml: python -m tools.check_budgets

`--seconds fast=231` compares the time of a tier of tests instead. Exits 1 if a budget is exceeded by more than 2 %.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
TOLERANCE = 0.02
ADVICE = "Cut something, or raise the budget in budgets.toml and say in the commit what it bought."
Numbers = Mapping[str, int]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_budgets", description=__doc__)
    parser.add_argument("--seconds", metavar="TIER=SECONDS", action="append", default=[], help="compare a tier's time")
    options = parser.parse_args(arguments)
    budgets = tomllib.loads((CHECKOUT / "budgets.toml").read_text())
    if options.seconds:
        measured = {tier: int(seconds) for tier, _, seconds in (text.partition("=") for text in options.seconds)}
        budget = {tier: seconds for tier, seconds in budgets["seconds"].items() if tier in measured}
        exceeded = list(complaints("seconds", budget, measured))
    else:
        exceeded = [
            *complaints("lines", budgets["lines"], count_lines(CHECKOUT)),
            *complaints("files", budgets["files"], count_files(CHECKOUT)),
        ]
    print("\n".join([*exceeded, ADVICE] if exceeded else ["Each measure is within its budget."]))
    return int(bool(exceeded))


def count_lines(root: Path) -> dict[str, int]:
    """Count the lines of Python: of each package of jobqueue/, of its own modules, and of the other folders."""
    lines = {"jobqueue": sum(map(lines_of, (root / "jobqueue").glob("*.py")))}
    for folder in [*(root / "jobqueue").iterdir(), *root.iterdir()]:
        if folder.name != "jobqueue" and not folder.name.startswith(".") and (folder / "__init__.py").exists():
            lines[folder.relative_to(root).as_posix()] = sum(map(lines_of, folder.rglob("*.py")))
    return lines


def lines_of(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def count_files(root: Path) -> dict[str, int]:
    """Count the files at the top level of the repository and of jobqueue/, without hidden ones and databases."""
    return {
        name: sum(
            path.is_file() and not path.name.startswith(".") and ".sqlite3" not in path.name
            for path in (root / name).iterdir()
        )
        for name in (".", "jobqueue")
    }


def complaints(unit: str, budget: Numbers, measured: Numbers) -> Iterator[str]:
    """Yield a line for each measure that is over its budget, or that has none."""
    for name in sorted({*budget, *measured}):
        if name not in budget:
            yield f"{name} has {measured[name]:,} {unit} and no budget."
        elif name not in measured:
            yield f"{name} has a budget of {unit} and does not exist."
        elif measured[name] > budget[name] * (1 + TOLERANCE):
            yield f"{name} has {measured[name]:,} {unit}. Its budget is {budget[name]:,}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
