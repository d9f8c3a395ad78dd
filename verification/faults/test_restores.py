"""Test a restored backup below running executors: time goes back, and claim numbers repeat."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier

from tools.postgres import throwaway_cluster
from tools.postgres_programs import binaries
from verification.faults.campaigns import DURABLE
from verification.faults.checker import contradicted, violations
from verification.faults.environment import FaultEnvironment, fault_environment
from verification.faults.history import History, read

SLOW = 4
ENQUEUE = (
    "SELECT jobqueue_create_task(NULL, 'verification.faults.bodies.wait_for', args => %s::jsonb, queue_name => 'slow')"
)
HELD = "SELECT 1 FROM jobqueue_executor AS one JOIN jobqueue_task AS task ON executor_id = one.id WHERE one.name = %s"


def test_no_claim_from_before_a_restore_is_committed_after_it() -> None:
    """Executors that keep running complete each task that waits in the backup, once."""
    with throwaway_cluster(**DURABLE) as cluster, fault_environment(cluster) as made:
        end = made.folder / "end"
        for _ in range(SLOW):
            made.query(ENQUEUE, json.dumps([str(end)]))
        sender, quick = made.start_sender(1), made.start_executor("--queue", "default")
        made.wait_for_work(20)
        saved_at, backup = time.time(), save(made)
        first = made.start_executor("--queue", "slow")
        made.wait_for(lambda: len(made.query(HELD, first.name)) == SLOW, "slow tasks to run")
        second = made.start_executor("--queue", "slow")
        made.wait_for_first_heartbeat(second)
        made.remember_usage(quick)
        made.stop(sender)
        first.send(signal.SIGSTOP)
        restore(made, backup)
        restored_at = time.time()
        made.start_sender(2)
        # The second takes them under the same numbers, while the first still has them in hand.
        made.wait_for(lambda: len(made.query(HELD, second.name)) == SLOW, "slow tasks to run elsewhere")
        first.send(signal.SIGCONT)
        made.wait_for(lambda: made.log(first).count("task.commit_rejected") == SLOW, "old outcomes to be dropped")
        end.touch()
        made.finish()

        seen = made.history()
        notes, logs = (
            [line for line in lines if not saved_at <= line["at"] <= restored_at] for lines in (seen.notes, seen.logs)
        )
        broken = [
            violation
            for violation in violations(replace(seen, notes=notes, logs=logs))
            if violation.rule != "contradicted"
        ]
        assert broken == []
        # An executor may log an end after the restore that it committed before, in the database that was replaced.
        assert list(contradicted(replace(seen, changes=[*read_replaced(made).changes, *seen.changes]))) == []
        assert [member.code for member in (quick, first, second)] == [0, 0, 0]
        assert {change.claim_after for change in seen.changes if change.is_claim and change.actor == second.name} == {1}


def save(made: FaultEnvironment) -> Path:
    backup = made.folder / "backup"
    program("pg_dump", "--format=custom", f"--file={backup}", made.url)
    return backup


def restore(made: FaultEnvironment, backup: Path) -> None:
    """Into a new database, which then takes the place of the other one."""
    name = psycopg.conninfo.conninfo_to_dict(made.url)["dbname"]
    live, new, old = Identifier(str(name)), Identifier(f"{name}_new"), Identifier(f"{name}_old")
    made.forget_connection()
    with psycopg.connect(made.cluster.url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(new))
        program("pg_restore", f"--dbname={made.cluster.url_for(f'{name}_new')}", str(backup))
        connection.execute(SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(live))
        connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name])
        connection.execute(SQL("ALTER DATABASE {} RENAME TO {}").format(live, old))
        connection.execute(SQL("ALTER DATABASE {} RENAME TO {}").format(new, live))


def read_replaced(made: FaultEnvironment) -> History:
    """Return the history of the database that `restore` replaced."""
    name = psycopg.conninfo.conninfo_to_dict(made.url)["dbname"]
    with psycopg.connect(made.cluster.url, autocommit=True) as connection:
        connection.execute(SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(Identifier(f"{name}_old")))
    return read(made.cluster.url_for(f"{name}_old"), made.diary, made.timeout_seconds)


def program(name: str, *arguments: str) -> None:
    subprocess.run([binaries() / name, *arguments], check=True)
