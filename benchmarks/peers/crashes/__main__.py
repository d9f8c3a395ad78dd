"""`make bench-crashes`: inject each fault into each queue, and write the section of docs/reliability-results.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.peers.crashes.environment import QUIET_SECONDS, PeerServer
from benchmarks.peers.crashes.faults import FAULTS, CrashFigures, run
from benchmarks.peers.crashes.sides import SIDES, TIMEOUT_SECONDS
from tools.postgres import throwaway_cluster
from verification.faults import pages
from verification.faults.pages import percentile, table
from verification.faults.server_access import WaitTimeout

DURABLE = {"fsync": "on", "synchronous_commit": "on"}
TOGETHER = 2  # sides; most of the time they wait
HEAD = ["fault", "queue", "times", "tasks", "failed", "lost", "doubled", "torn", "exits", "restart, s"]
Results = Mapping[tuple[str, str], CrashFigures]  # by fault and side


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-crashes ARGS=...", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of what is random (1)")
    parser.add_argument("--times", type=int, help="how often each fault is done, in place of its own number")
    parser.add_argument("--only", choices=SIDES, help="one side, and no page is written")
    parser.add_argument("--fault", choices=FAULTS, help="one fault, and no page is written")
    parser.add_argument("--remark", default="", help="a sentence for the page, about the machine or the run")
    options = parser.parse_args()
    if options.times is not None and options.times < 1:
        parser.error("--times must be 1 or more")
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # PGSERVICE and the like point at a server of the machine
    sides = [options.only] if options.only else list(SIDES)
    faults = [options.fault] if options.fault else list(FAULTS)
    began = time.monotonic()
    results: dict[tuple[str, str], CrashFigures] = {}
    with ExitStack() as stack:
        servers = {side: PeerServer(stack.enter_context(throwaway_cluster(**DURABLE))) for side in sides}
        pool = ThreadPoolExecutor(TOGETHER)
        stack.callback(pool.shutdown, cancel_futures=True)
        for fault in faults:
            runs = {side: pool.submit(attempt, servers[side], side, fault, options) for side in sides}
            for side, going in runs.items():
                if (figures := going.result()) is not None:
                    results[fault, side] = figures
            if not (options.only or options.fault):  # each time: it may be interrupted
                write(results, options.seed, time.monotonic() - began, options.remark)
    return 0 if len(results) == len(sides) * len(faults) else 1


def attempt(server: PeerServer, side: str, fault: str, options: argparse.Namespace) -> CrashFigures | None:
    """Inject one fault into one queue, and return the result."""
    try:
        figures = run(server, SIDES[side], FAULTS[fault], options.seed, options.times or FAULTS[fault].times)
    except WaitTimeout as error:
        print(error, flush=True)
        return None
    print(fault, side, *cells(figures), sep="  ", flush=True)
    return figures


def cells(figures: CrashFigures) -> list[str]:
    count = figures.count
    lost = f"{count.lost:,}" + (f" ({count.running:,})" if count.running else "")
    restart = "-"
    if count.restart_seconds:
        restart = " / ".join(f"{percentile(count.restart_seconds, share):.1f}" for share in (0.5, 0.99))
    numbers = (f"{number:,}" for number in (figures.times, count.acknowledged, count.failed))
    return [*numbers, lost, f"{count.doubled:,}", f"{count.torn:,}", f"{figures.exits:,}", restart]


def write(results: Results, seed: int, seconds: float, remark: str) -> None:
    named = [name for name in SIDES if any(side == name for _, side in results)]
    sides = [(side.name, side.version, side.settings, side.promise) for side in map(SIDES.__getitem__, named)]
    rows = [
        [fault.title, SIDES[side].name, *cells(results[name, side])]
        for name, fault in FAULTS.items()
        for side in named
        if (name, side) in results
    ]
    pages.write(
        {
            "timeout": TIMEOUT_SECONDS,
            "quiet": QUIET_SECONDS,
            "peers": table(["queue", "version", "settings", "what it promises"], sides, numbers_from=4),
            "peers_table": table(HEAD, rows, numbers_from=2),
            "peers_date": pages.today(),
            "peers_seed": seed,
            "peers_machine": pages.machine(),
            "peers_minutes": seconds / 60,
            "peers_remark": remark,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
