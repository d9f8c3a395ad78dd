"""
Enqueue jobs as an ordinary user of a peer does: python -m benchmarks.produce <peer> <verb> <count>

setup: create the peer's tables. one: enqueue no-op jobs one by one. bulk: enqueue them with the peer's bulk call.
note: enqueue jobs that record how long they waited, with pauses, or at BENCH_RATE jobs a second. limited_note: the same
with a limit (jobqueue only).
Prints the seconds that the calls took. Connecting and the first calls do not count.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Protocol

RATE = "BENCH_RATE"
WARM_UP = 20
NOTES_PER_SECOND = 50.0


class Producer(Protocol):
    def setup(self) -> None: ...
    def one_by_one(self, count: int) -> None: ...
    def in_bulk(self, count: int) -> None: ...
    def note(self) -> None: ...


def main(peer: str, verb: str, count: int) -> float:
    producer: Producer = importlib.import_module(f"benchmarks.peers.{peer}").Producer()
    match verb:
        case "setup":
            return timed(producer.setup)
        case "one":
            producer.one_by_one(WARM_UP)
            return timed(lambda: producer.one_by_one(count))
        case "bulk":
            producer.in_bulk(WARM_UP)
            return timed(lambda: producer.in_bulk(count))
        case "note" | "limited_note":
            return timed(lambda: send_notes(getattr(producer, verb), count))
        case _:
            raise SystemExit(__doc__)


def timed(act: Callable[[], None]) -> float:
    began_at = time.perf_counter()
    act()
    return time.perf_counter() - began_at


def send_notes(send: Callable[[], None], count: int) -> None:
    pause_seconds, rhythm = 1 / float(os.environ.get(RATE, NOTES_PER_SECOND)), random.Random(1)
    due_at = time.monotonic()
    for _ in range(count):
        # A random rhythm, so that a peer's polling cannot fall into step with it.
        due_at += pause_seconds * rhythm.uniform(0.5, 1.5)
        time.sleep(max(0.0, due_at - time.monotonic()))
        send()


if __name__ == "__main__":
    print(f"\nseconds {main(sys.argv[1], sys.argv[2], int(sys.argv[3]))}", flush=True)
