"""
Measure schedules: python -m benchmarks.bench_schedules

An idle executor with no schedules and with 10,000 take turns. Then 1,000 schedules are due at the same second, for one
executor and for three. Then schedules fire each second. All times are from the tick, by the database's clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from benchmarks import cluster, cpu, workers
from benchmarks.idle import SETTLE_SECONDS
from tools.postgres import Cluster

TABLES = ("jobqueue_task", "jobqueue_schedule", "jobqueue_scheduletick", "jobqueue_executor", "jobqueue_heartbeat")
FAR = timedelta(days=1)
AHEAD = timedelta(seconds=5)  # until the first tick, so that executors have started
CHECK_SECONDS = 0.005
LONGEST_SECONDS = 120.0
AIM_SECONDS = {"same second": 2.0, "each second": 1.0}


@dataclass(frozen=True, slots=True)
class IdleSchedules:
    """worker, server: percent of a core. transactions: per second, of all sessions."""

    worker: float
    server: float
    transactions: float


def fill(count: int, first_at: datetime, *, seconds: int) -> None:
    """Create schedules with a tick at the same moments."""
    from benchmarks.tasks import noop
    from jobqueue import Every
    from jobqueue.declarations.schedules import Declaration
    from jobqueue.models import Schedule

    expression = Every(seconds=seconds, anchor=first_at)
    columns = Declaration("schedule", noop, expression, "", args=(1,), overlap="allow").columns()
    Schedule.objects.bulk_create(
        Schedule(
            **columns,
            name=f"schedule-{number}",
            next_at=first_at,
            due_at=first_at,
            created_at=first_at,
            updated_at=first_at,
        )
        for number in range(count)
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE jobqueue_schedule")


def now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


def measure_idle(server: Cluster, schedules: int, seconds: float) -> IdleSchedules:
    cluster.empty(*TABLES)
    fill(schedules, now() + FAR, seconds=86_400)
    with workers.executors(1) as pids:
        time.sleep(SETTLE_SECONDS)
        before = used(server, pids)
        time.sleep(seconds)
        after = used(server, pids)
    worker, backend, transactions = ((late - early) / seconds for late, early in zip(after, before, strict=True))
    return IdleSchedules(100 * worker, 100 * backend, transactions)


def used(server: Cluster, pids: list[int]) -> tuple[float, float, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        (transactions,) = cursor.fetchone()
    return sum(cpu.seconds_of_tree(pid) for pid in pids), cluster.cpu_seconds(server), transactions


def measure_same_second(schedules: int, executors: int) -> float:
    """Return the seconds from the tick until all its tasks are visible."""
    cluster.empty(*TABLES)
    with workers.executors(executors):
        tick = now().replace(microsecond=0) + AHEAD
        fill(schedules, tick, seconds=86_400)
        began = time.monotonic()
        while time.monotonic() - began < LONGEST_SECONDS:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*), clock_timestamp() FROM jobqueue_scheduletick")
                count, at = cursor.fetchone()
            if count >= schedules:
                return float((at - tick).total_seconds())
            time.sleep(CHECK_SECONDS)
    raise RuntimeError(f"{count} of {schedules} ticks within {LONGEST_SECONDS:g} s")


def measure_each_second(schedules: int, seconds: float) -> list[float]:
    """Return for each tick the seconds until its task was inserted."""
    cluster.empty(*TABLES)
    with workers.executors(1):
        fill(schedules, now().replace(microsecond=0) + AHEAD, seconds=1)
        time.sleep(AHEAD.total_seconds() + seconds)
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM recorded_at - tick_at)::float8 FROM jobqueue_scheduletick")
        return sorted(late for (late,) in cursor.fetchall())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds to measure an idle executor")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds with ticks each second")
    options = parser.parse_args()
    with cluster.prepared_cluster() as server:
        print(f"\nPostgreSQL {cluster.version()}, fsync on, {options.rounds} rounds\n", flush=True)
        idle: dict[int, list[IdleSchedules]] = {0: [], 10_000: []}
        bursts: dict[int, list[float]] = {1: [], 3: []}
        for _ in range(options.rounds):
            for count, samples in idle.items():
                samples.append(measure_idle(server, count, options.idle))
            for executors, times in bursts.items():
                times.append(measure_same_second(1_000, executors))
        report_idle(idle)
        for executors, times in bursts.items():
            print(f"1,000 schedules at the same second, executors: {executors}; the last after {spread(times, 's')}")
        for count in (10, 200):
            late = measure_each_second(count, options.seconds)
            shares = ", ".join(
                f"{share:.0%} {late[round(share * (len(late) - 1))]:.3f} s" for share in (0.5, 0.99, 1.0)
            )
            print(f"{count} schedules each second, {len(late):,} ticks: enqueued after {shares}", flush=True)
    print(f"\nAims: the same second {AIM_SECONDS['same second']:g} s, each second {AIM_SECONDS['each second']:g} s")


def report_idle(idle: dict[int, list[IdleSchedules]]) -> None:
    for count, samples in idle.items():
        print(
            f"idle with {count:,} schedules: executor {spread([sample.worker for sample in samples], '% of a core')},"
            f" PostgreSQL {spread([sample.server for sample in samples], '%')},"
            f" {spread([sample.transactions for sample in samples], 'transactions/s')}"
        )
    few, many = (statistics.median(sample.worker + sample.server for sample in samples) for samples in idle.values())
    print(f"CPU with 10,000 schedules / without: {many / few:.2f}", flush=True)


def spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) {unit}"


if __name__ == "__main__":
    main()
