"""Count what a plain task costs, and compare it with the numbers of the last commit."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.db import connection

from benchmarks.cluster import prepared_cluster
from benchmarks.cost import callgrind, report
from benchmarks.cost.server import SETTINGS
from tools.postgres import Cluster
from tools.postgres_programs import server_account

TASKS = (400, 1200)  # of the two pieces of work that are compared
ADVICE = "Make it cheaper, or run `make cost ARGS=--write`, and say in the commit what it bought."
FUNCTION = "function "


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cost ARGS=...", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the counts to cost.toml")
    parser.add_argument("--functions", action="store_true", help="list the functions that a task calls")
    parser.add_argument("--no-instructions", action="store_true", help="count without valgrind, in a few seconds")
    options = parser.parse_args()
    problem = callgrind.problem()
    figures = counted(with_instructions=problem is None and not options.no_instructions)
    functions = {name: {key: of.pop(key) for key in [*of] if key.startswith(FUNCTION)} for name, of in figures.items()}
    figures["whole"] = {name: figures["enqueue"][name] + figures["drain"][name] for name in figures["drain"]}
    print(*report.table(figures), sep="\n")
    if options.functions:
        for name, of_work in functions.items():
            print(f"\n{report.COLUMNS[name]}:\n")
            for function, calls in sorted(of_work.items(), key=lambda item: -item[1]):
                if calls >= 0.01:
                    print(f"{calls:8.3g} {function.removeprefix(FUNCTION)}")
    if problem is not None:
        print(f"\nInstructions are not counted: {problem}.")
    if options.write:
        report.write(figures)
        return 0
    print(*report.not_compared(figures), sep="\n")
    exceeded = list(report.complaints(figures))
    print(*exceeded, *[ADVICE] * bool(exceeded), sep="\n")
    return int(bool(exceeded))


def counted(*, with_instructions: bool) -> dict[str, dict[str, float]]:
    """Return the counts of each piece of work, for each task."""
    with prepared_cluster(**SETTINGS) as cluster, tempfile.TemporaryDirectory(prefix="jq-cost-") as folder:
        connection.close()  # the work waits until all sessions have ended
        figures: dict[str, dict[str, float]] = run_work(cluster)
        if with_instructions:
            home = Path(folder)
            if (account := server_account()) is not None:
                os.chown(home, account.pw_uid, account.pw_gid)
            cluster.wrapper = callgrind.of_server(home)
            cluster.restart()
            of_work = run_work(cluster, callgrind.of_client(home), "--callgrind", str(home))
            figures = {name: instructions | figures[name] for name, instructions in of_work.items()}
        return figures


def run_work(cluster: Cluster, wrapper: list[str] | None = None, *arguments: str) -> Any:
    command = [*(wrapper or ()), sys.executable, "-m", "benchmarks.cost.work", str(cluster.data), *map(str, TASKS)]
    done = subprocess.run(
        [*command, *arguments], env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
