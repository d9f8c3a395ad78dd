"""`make verify-peers`: inject each fault into each queue, and write the section of docs/reliability-results.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime

from demo_project.postgres import throwaway_cluster
from verification.faults.peers import section
from verification.faults.peers.crew import Stable, Stalled
from verification.faults.peers.faults import FAULTS, Figures, run
from verification.faults.peers.sides import SIDES
from verification.faults.sections import PAGE, PEERS, with_section

DURABLE = {"fsync": "on", "synchronous_commit": "on"}
TOGETHER = 2  # sides; most of the time they wait


def main() -> int:
    parser = argparse.ArgumentParser(prog="make verify-peers ARGS=...", description=__doc__)
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
    results: dict[tuple[str, str], Figures] = {}
    with ExitStack() as stack:
        stables = {side: Stable(stack.enter_context(throwaway_cluster(**DURABLE))) for side in sides}
        pool = ThreadPoolExecutor(TOGETHER)
        stack.callback(pool.shutdown, cancel_futures=True)
        for fault in faults:
            runs = {side: pool.submit(attempt, stables[side], side, fault, options) for side in sides}
            for side, going in runs.items():
                if (figures := going.result()) is not None:
                    results[fault, side] = figures
            if not (options.only or options.fault):  # each time: it may be interrupted
                write(results, options.seed, time.monotonic() - began, options.remark)
    return 0 if len(results) == len(sides) * len(faults) else 1


def attempt(stable: Stable, side: str, fault: str, options: argparse.Namespace) -> Figures | None:
    """Inject one fault into one queue, and return the result."""
    try:
        figures = run(stable, SIDES[side], FAULTS[fault], options.seed, options.times or FAULTS[fault].times)
    except Stalled as error:
        print(error, flush=True)
        return None
    print(fault, side, *section.cells(figures), sep="  ", flush=True)
    return figures


def write(results: section.Results, seed: int, seconds: float, remark: str) -> None:
    date = datetime.now(UTC).date().isoformat()
    text = section.text(results, date=date, seed=seed, minutes=seconds / 60, remark=remark)
    PAGE.write_text(with_section(PAGE.read_text(), PEERS, text))


if __name__ == "__main__":
    sys.exit(main())
