"""
Measure workflows of ten steps, beside DBOS and absurd on the same server: `make bench-workflows`.

All workflows are enqueued before two processes of each side start. The clock starts when the first workflow has ended.
absurd's tables are not part of its package: name the file absurd.sql of its repository by --absurd-sql.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection
from psycopg import sql

from benchmarks import cluster, cpu, workers
from benchmarks.arena import is_installed
from benchmarks.rounds import Sample, Samples, ratio, table, take_turns
from tools.postgres import Cluster

PROCESSES = 2
STEPS = 10
AIM, STEP_AIM = 2.0, 1.5
CHECK_SECONDS = 0.02
LONGEST_SECONDS = 600
BEGUN = 0.05  # of the workflows have ended when the clock starts
OURS, PLAIN = "jobqueue", "jobqueue, plain tasks"
DBOS_ENDED = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"
ABSURD_ENDED = "SELECT count(*) FROM absurd.t_bench WHERE state = 'completed'"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another project's program, with a database of its own."""

    name: str
    server: Cluster
    ended: str  # the query that counts workflows that have ended
    schema: str = ""  # SQL that creates its tables, if its program does not

    @property
    def url(self) -> str:
        return self.server.url_for(self.name)

    def measure(self, count: int) -> Sample:
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            name = sql.Identifier(self.name)
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
        command = [sys.executable, "-m", f"benchmarks.peers.{self.name}_app", self.url]
        with psycopg.connect(self.url, autocommit=True) as reader:
            if self.schema:
                reader.execute(self.schema)
            subprocess.run([*command, "enqueue", str(count)], check=True, cwd=workers.CHECKOUT)
            reader.execute("VACUUM ANALYZE")
            reader.execute("CHECKPOINT")
            return measure(
                self.server,
                workers.workers(PROCESSES, [*command, "work"]),
                partial(count_by, reader, self.ended),
                count,
            )


def count_by(reader: psycopg.Connection[Any], query: str) -> int:
    row = reader.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def measure_ours(server: Cluster, is_workflow: bool, count: int) -> Sample:
    from benchmarks.tasks import noop
    from benchmarks.workflows import ten_steps

    cluster.empty("jobqueue_task", "jobqueue_journalentry", "jobqueue_executor", "jobqueue_heartbeat")
    task, arguments = (ten_steps, (0,)) if is_workflow else (noop, ())
    task.enqueue_many([(arguments, {})] * count)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE jobqueue_task")
    return measure(server, workers.executors(PROCESSES), ended, count)


def ended() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM jobqueue_task WHERE status = 'SUCCESSFUL'")
        return int(cursor.fetchone()[0])


def measure(
    server: Cluster, processes: AbstractContextManager[list[int]], ended: Callable[[], int], count: int
) -> Sample:
    """Measure from the end of the first workflows to that of the last one."""
    with processes as pids:
        first = wait_for(ended, count * BEGUN)
        before, began_at = [used(pids), cluster.cpu_seconds(server)], time.monotonic()
        last = wait_for(ended, count)
        seconds = time.monotonic() - began_at
        after = [used(pids), cluster.cpu_seconds(server)]
    worker_seconds, server_seconds = after[0] - before[0], after[1] - before[1]
    return Sample(count=last - first, seconds=seconds, worker_seconds=worker_seconds, server_seconds=server_seconds)


def wait_for(ended: Callable[[], int], count: float) -> int:
    deadline = time.monotonic() + LONGEST_SECONDS
    while (reached := ended()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{reached} of {count:.0f} workflows have ended within {LONGEST_SECONDS} s")
        time.sleep(CHECK_SECONDS)
    return reached


def used(pids: Sequence[int]) -> float:
    return sum(cpu.seconds_of_tree(pid) for pid in pids)


def report(samples: Sequence[Samples], missing: dict[str, str]) -> None:
    sides = {side.name: side for side in samples}
    ours, plain = sides[OURS], sides.pop(PLAIN)
    print(f"\nWorkflows of {STEPS} steps, {PROCESSES} processes, PostgreSQL {cluster.version()}, fsync on; ", end="")
    print(f"medians of {len(ours.rounds)} alternating rounds\n")
    print(table(list(sides.values()), unit="workflow", base=ours))
    for name, reason in missing.items():
        print(f"\nNot measured: {name}: {reason}")
    if peers := [side for side in sides.values() if side is not ours]:
        print(f"\nAim: {AIM:g} times the best peer; reached: {min(ratio(ours, peer) for peer in peers):.1f}")
    step_us, task_us = 1000 * ours.worker_ms / STEPS, 1000 * plain.worker_ms
    print(f"Aim: a step costs the executor {STEP_AIM:g} times a plain task; reached: {step_us / task_us:.1f}", end="")
    print(f" ({step_us:.0f} and {task_us:.0f} us)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="workflows in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--absurd-sql", type=Path, help="the file absurd.sql of its repository")
    arguments = parser.parse_args()
    missing: dict[str, str] = {}
    with cluster.prepared_cluster() as server:
        sides: dict[str, Callable[[], Sample]] = {
            OURS: partial(measure_ours, server, True, arguments.count),
            PLAIN: partial(measure_ours, server, False, arguments.count * STEPS),
        }
        if is_installed("dbos"):
            sides["DBOS"] = partial(Peer("dbos", server, DBOS_ENDED).measure, arguments.count)
        else:
            missing["DBOS"] = "it is not installed"
        if is_installed("absurd-sdk") and arguments.absurd_sql:
            schema = arguments.absurd_sql.read_text()
            sides["absurd"] = partial(Peer("absurd", server, ABSURD_ENDED, schema).measure, arguments.count)
        else:
            missing["absurd"] = "--absurd-sql names no file, or absurd-sdk is not installed"
        report(take_turns(sides, arguments.rounds, missing), missing)


if __name__ == "__main__":
    main()
