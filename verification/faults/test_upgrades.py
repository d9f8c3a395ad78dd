"""Migrations beside a running queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from jobqueue.migrations import _online
from tests.engine.sessions import Session, session, threads, wait_until_somebody_waits
from tests.factories import TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)
OLD = "0003"  # of the first release that somebody may have


@pytest.fixture
def old_schema(transactional_db: None) -> Iterator[None]:
    call_command("migrate", "jobqueue", OLD, verbosity=0)
    connection.close()
    yield
    call_command("migrate", "jobqueue", verbosity=0)


def migrate() -> None:
    call_command("migrate", "jobqueue", verbosity=0)


def write(writer: Session, number: int) -> None:
    writer.run("SET statement_timeout = '20s'")
    writer.run("SELECT jobqueue_create_task(NULL, 'tests.tasks.echo', key => %s)", str(number))
    writer.run("UPDATE jobqueue_task SET priority = 1 WHERE key = %s", str(number))


@pytest.mark.parametrize("table", ["jobqueue_task", "jobqueue_executor", "jobqueue_queue"])
def test_nobody_waits_for_a_migration_that_waits_for_a_reader(
    old_schema: None, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Each try gives up soon: whoever stood behind it goes on, though the reader has not ended."""
    monkeypatch.setattr(_online, "PAUSE_SECONDS", 0.1)
    with threads(1) as start, session() as reader, session(autocommit=True) as writer:
        reader.run(f"SELECT count(*) FROM {table}")
        migration = start(migrate)
        wait_until_somebody_waits()
        for number in range(5):
            write(writer, number)
            writer.run("SELECT count(*) FROM jobqueue_executor")
            writer.run("SELECT count(*) FROM jobqueue_queue")
        assert not migration.done()
        reader.commit()
        migration.result(120)

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM jobqueue_task WHERE idempotency_key IS NULL AND timeout_at IS NULL")
        assert cursor.fetchone() == (5,)


def test_index_is_built_beside_an_open_writer(old_schema: None) -> None:
    """Who writes meanwhile waits for nothing: an index that is not built CONCURRENTLY would lock him out."""
    call_command("migrate", "jobqueue", "0004", verbosity=0)
    with threads(1) as start, session() as open_writer, session(autocommit=True) as writer:
        write(open_writer, 1)
        migration = start(migrate)
        wait_until_somebody_waits()
        write(writer, 2)
        assert not migration.done()
        open_writer.commit()
        migration.result(120)


def validity() -> dict[str, bool]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE relname LIKE 'jobqueue_%'"
        )
        return dict(cursor.fetchall())


def test_migration_that_was_killed_halfway_is_run_again() -> None:
    TaskFactory.create()
    before = validity()
    call_command("migrate", "jobqueue", "0007", verbosity=0)
    names = ["0004_task_alarm_at", "0005_task_past_key", "0006_task_idempotency_key", "0007_limits_and_commands"]
    with connection.cursor() as cursor:  # as a CREATE INDEX CONCURRENTLY that was killed leaves it
        cursor.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid IN"
            " ('jobqueue_task_past_key'::regclass, 'jobqueue_task_idempotency'::regclass)"
        )
    for name in names:
        MigrationRecorder(connection).record_unapplied("jobqueue", name)

    migrate()

    assert validity() == before


STRONG = {"ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}  # an UPDATE waits for these
READ = """
SELECT stat.relname, array_agg(locks.mode), max(stat.seq_tup_read)
FROM pg_stat_xact_user_tables AS stat
LEFT JOIN pg_locks AS locks ON locks.relation = stat.relid AND locks.pid = pg_backend_pid() AND locks.granted
WHERE stat.relname IN ('jobqueue_task', 'jobqueue_inboxmessage', 'jobqueue_executor', 'jobqueue_queue')
GROUP BY stat.relname
"""
FILES = "SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r' AND relname = ANY(%s)"


def test_no_migration_reads_or_rewrites_a_table_that_it_has_locked(old_schema: None) -> None:
    """More rows take no longer while others wait: `python -m verification.faults.migrating` measures it with a million."""
    names = ["jobqueue_task", "jobqueue_inboxmessage", "jobqueue_executor", "jobqueue_queue"]
    rows, changes = 50, 0

    def read(context: Any) -> dict[str, tuple[set[str], int]]:
        with context["connection"].connection.cursor() as cursor:
            return {table: (set(modes), count) for table, modes, count in cursor.execute(READ)}

    def look(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        nonlocal changes
        if not connection.in_atomic_block:  # CONCURRENTLY
            return execute(sql, params, many, context)
        before = read(context)
        answer = execute(sql, params, many, context)
        for table, (modes, count) in read(context).items():
            changes += bool(STRONG & modes)
            _, count_before = before[table]  # what was read before this transaction is counted, too
            # Django looks at one row to learn what columns there are.
            assert not STRONG & modes or count - count_before < rows, f"{table} was read by: {sql}"
        return answer

    with session(autocommit=True) as writer:
        for number in range(rows):
            write(writer, number)
        files = dict(writer.run(FILES, names))
        with connection.execute_wrapper(look):
            migrate()

        assert dict(writer.run(FILES, names)) == files
    assert changes
