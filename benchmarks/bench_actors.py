"""
Measure polls of actors per second, next to the naive protocol on the same server: python -m benchmarks.bench_actors

Both compute fib(N) with a tree of actors and two processes. Each round measures both.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from django.db import connection

from benchmarks import cluster, cpu, naive, workers
from benchmarks.rounds import Sample, Samples, ratio, table, take_turns
from tools.postgres import Cluster

PROCESSES = 2
AIM = 4.0
CHECK_SECONDS = 0.02
LONGEST_SECONDS = 600
NAIVE = "naive protocol"


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def measure_ours(server: Cluster, n: int, *flags: str) -> Sample:
    from benchmarks.actors import Fibonacci

    cluster.empty("jobqueue_task", "jobqueue_inboxmessage", "jobqueue_executor", "jobqueue_heartbeat")
    return measure(
        server,
        workers.executors(PROCESSES, *flags),
        begin=lambda: str(Fibonacci.enqueue(n).id),
        result="SELECT return_value::int FROM jobqueue_task WHERE id = %s AND status = 'SUCCESSFUL'",
        polls="SELECT sum(polls) FROM jobqueue_task",
        expected=fibonacci(n),
    )


def measure_naive(server: Cluster, n: int) -> Sample:
    cluster.empty("naive.task", "naive.message")
    return measure(
        server,
        workers.workers(PROCESSES, [sys.executable, "-m", "benchmarks.naive", server.url]),
        begin=lambda: str(scalar("INSERT INTO naive.task (n) VALUES (%s) RETURNING id", n)),
        result="SELECT (state->>'total')::int FROM naive.task WHERE id = %s AND state->>'pending' = '0'",
        polls="SELECT sum(polls) FROM naive.task",
        expected=fibonacci(n),
    )


def measure(
    server: Cluster,
    processes: AbstractContextManager[list[int]],
    *,
    begin: Callable[[], str],
    result: str,
    polls: str,
    expected: int,
) -> Sample:
    with processes as pids:
        before = [used(pids), cluster.cpu_seconds(server)]
        began_at = time.monotonic()
        root = begin()
        while (value := scalar(result, root)) is None:
            if time.monotonic() - began_at > LONGEST_SECONDS:
                raise RuntimeError(f"No result within {LONGEST_SECONDS} s")
            time.sleep(CHECK_SECONDS)
        seconds = time.monotonic() - began_at
        after = [used(pids), cluster.cpu_seconds(server)]
    assert value == expected, (value, expected)
    return Sample(
        count=int(scalar(polls) or 0),
        seconds=seconds,
        worker_seconds=after[0] - before[0],
        server_seconds=after[1] - before[1],
    )


def used(pids: list[int]) -> float:
    return sum(cpu.seconds_of_tree(pid) for pid in pids)


def scalar(query: str, *parameters: str | int) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        row = cursor.fetchone()
    return None if row is None else row[0]


def report(samples: list[Samples], n: int) -> None:
    base = next(side for side in samples if side.name == NAIVE)
    print(f"\nfib({n}) by actors, {PROCESSES} processes, PostgreSQL {cluster.version()}, fsync on; ", end="")
    print(f"medians of {len(base.rounds)} alternating rounds\n")
    print(table(samples, unit="poll", base=base))
    best = max(ratio(side, base) for side in samples)
    print(f"\nAim: {AIM:g} times the naive protocol; reached: {best:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with cluster.prepared_cluster() as server:
        with connection.cursor() as cursor:
            cursor.execute(naive.SCHEMA)
        samples = take_turns(
            {
                "jobqueue, default settings (8 threads)": partial(measure_ours, server, arguments.n),
                "jobqueue, 1 thread": partial(measure_ours, server, arguments.n, "--threads=1"),
                # The naive protocol does not log its work.
                "jobqueue, 1 thread, warnings logged only": partial(
                    measure_ours, server, arguments.n, "--threads=1", "--verbosity=0"
                ),
                NAIVE: partial(measure_naive, server, arguments.n),
            },
            arguments.rounds,
        )
        report(samples, arguments.n)


if __name__ == "__main__":
    main()
