"""Count what a plain task costs, and compare it with the figures in cost.toml."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from benchmarks.cluster import prepared_cluster
from benchmarks.cost import callgrind, profiles, report
from benchmarks.cost.server import SETTINGS
from tools.postgres import Cluster
from tools.postgres_programs import server_account, short_temporary_folder

TASKS = (400, 1200)  # of the two pieces of work that are compared
ADVICE = "Lower the cost. Or run `make cost ARGS=--write`, and say in the commit message what the cost is for."
FUNCTION = "function "


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cost ARGS=...", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the counts to cost.toml")
    parser.add_argument("--no-instructions", action="store_true", help="count without valgrind, in a few seconds")
    parser.add_argument("--profile", action="store_true", help="also list the functions that cost most")
    options = parser.parse_args()
    problem = "--no-instructions" if options.no_instructions else callgrind.problem()
    with (
        folder_of_server() as folder,
        prepared_cluster("benchmarks.cost.settings", **SETTINGS) as cluster,
    ):
        connection.close()  # the work waits until all sessions have ended
        figures: dict[str, dict[str, float]] = run_work(cluster)
        times = run_work(cluster, [], "--profile") if options.profile and profiles.is_supported() else {}
        if problem is None:
            cluster.wrapper = callgrind.of_server(folder)
            cluster.restart()
            of_work = run_work(cluster, callgrind.of_client(folder), "--callgrind", str(folder))
            figures = {name: instructions | figures[name] for name, instructions in of_work.items()}
        calls = {name: dict(take_functions(of_work)) for name, of_work in figures.items()}
        figures["whole"] = {name: figures["enqueue"][name] + figures["drain"][name] for name in figures["drain"]}
        print(*report.table(figures), sep="\n")
        if options.profile:
            for name in calls:
                print(*report.functions(name, calls[name], times.get(name, {})), sep="\n")
                if problem is None:
                    print(*report.functions_of_server(name, folder / name), sep="\n")
    if options.profile and not profiles.is_supported():
        print("\nThe CPU time of functions is not measured: it needs a Python below 3.12.")
    if problem is not None:
        print(f"\nInstructions are not counted: {problem}.")
    if options.write:
        report.write(figures)
        return 0
    for line in report.not_compared():
        print(line)
    exceeded = list(report.complaints(figures))
    print(*exceeded, *[ADVICE] * bool(exceeded), sep="\n")
    return int(bool(exceeded))


def take_functions(figures: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Remove the calls of single functions from the figures."""
    for name in [name for name in figures if name.startswith(FUNCTION)]:
        yield name.removeprefix(FUNCTION), figures.pop(name)


@contextmanager
def folder_of_server() -> Iterator[Path]:
    """Make a temporary folder in which the server may write."""
    with tempfile.TemporaryDirectory(prefix="jq-cost-", dir=short_temporary_folder()) as folder:
        if (account := server_account()) is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        yield Path(folder)


def run_work(cluster: Cluster, wrapper: Sequence[str] = (), *arguments: str) -> Any:
    """Return the figures of each piece of work, for each task."""
    command = [*wrapper, sys.executable, "-m", "benchmarks.cost.work", str(cluster.data), *map(str, TASKS)]
    done = subprocess.run(
        [*command, *arguments], env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
