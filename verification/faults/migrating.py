"""
`python -m verification.faults.migrating`: how long others wait for our migrations at a million rows, with a reader open.

Fails where that is longer than a second.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import django
import psycopg

from demo_project.postgres import Cluster, throwaway_cluster

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
for name in [name for name in os.environ if name.startswith("PG")]:
    del os.environ[name]  # PGSERVICE and the like point at a server of the machine

LONGEST_SECONDS = 1.0
FIRST = "0003"  # of the first release that somebody may have
FILL = """
INSERT INTO jobqueue_task (
    id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, status, claim_number,
    worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at, wake_at, finished_at, key
)
SELECT gen_random_uuid(), 'default', 'queue-' || n %% 5, 'tests.noop', 0, now(), '[]', '{}', '{}', '{}', status, 0,
    '[]', 0, 4, 0, 0, '[]', now(), CASE WHEN status = 'SCHEDULED' THEN now() + interval '1 day' END,
    CASE WHEN status = 'SUCCESSFUL' THEN now() END, CASE WHEN n %% 10 = 0 THEN 'key-' || n END
FROM (
    SELECT n, CASE n %% 10 WHEN 0 THEN 'READY' WHEN 1 THEN 'SCHEDULED' ELSE 'SUCCESSFUL' END AS status
    FROM generate_series(1, %s) AS n
) AS numbered
"""
# Modes that the statements of executors and senders wait for.
HELD = """
SELECT DISTINCT relation::regclass::text FROM pg_locks
WHERE granted AND relation IN ('jobqueue_task'::regclass, 'jobqueue_inboxmessage'::regclass,
    'jobqueue_executor'::regclass, 'jobqueue_queue'::regclass)
    AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
STATEMENTS = {
    "enqueue": "SELECT jobqueue_create_task(NULL, 'tests.noop')",
    "update": "UPDATE jobqueue_task SET priority = priority WHERE id = (SELECT id FROM jobqueue_task"
    " WHERE status = 'READY' AND backend = 'default' AND queue_name = 'queue-0' ORDER BY rank LIMIT 1)",
    "read": "SELECT count(*) FROM jobqueue_executor",
}


class Watch:
    """Threads that look at locks, and that do what a site does meanwhile; the longest of each is kept."""

    def __init__(self, url: str) -> None:
        self.url, self.is_over = url, threading.Event()
        self.longest: dict[str, float] = defaultdict(float)
        self.threads = [threading.Thread(target=self._look)]
        self.threads += [threading.Thread(target=self._do, args=item) for item in STATEMENTS.items()]

    def _look(self) -> None:
        since: dict[str, float] = {}
        with psycopg.connect(self.url, autocommit=True) as observer:
            while not self.is_over.wait(0.002):
                now, held = time.monotonic(), {table for (table,) in observer.execute(HELD)}
                since = {table: since.get(table, now) for table in held}
                for began in since.values():
                    self.longest["lock"] = max(self.longest["lock"], now - began)

    def _do(self, name: str, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.is_over.wait(0.005):
                began = time.monotonic()
                connection.execute(sql)
                self.longest[name] = max(self.longest[name], time.monotonic() - began)


@contextmanager
def watching(url: str) -> Iterator[Mapping[str, float]]:
    watch = Watch(url)
    for thread in watch.threads:
        thread.start()
    try:
        yield watch.longest
    finally:
        watch.is_over.set()
        for thread in watch.threads:
            thread.join()


@contextmanager
def reading(url: str, seconds: float) -> Iterator[None]:
    """Read in a transaction that stays open for so long, as a report or a dump does."""
    is_open = threading.Event()

    def read() -> None:
        with psycopg.connect(url) as reader:
            for table in ("jobqueue_task", "jobqueue_inboxmessage", "jobqueue_executor", "jobqueue_queue"):
                reader.execute(f"SELECT count(*) FROM {table}")
            is_open.set()
            time.sleep(seconds)

    thread = threading.Thread(target=read)
    thread.start()
    is_open.wait()
    yield
    thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="that the reader's transaction is open (5)")
    options = parser.parse_args()
    with throwaway_cluster(fsync="on", synchronous_commit="on", max_wal_size="4GB") as cluster:
        measure(cluster, options.rows, options.seconds)


def measure(cluster: Cluster, rows: int, seconds: float) -> None:
    from django.conf import settings

    settings.DATABASES["default"] = cluster.database("postgres") | {"OPTIONS": {}}
    django.setup()
    from django.core.management import call_command
    from django.db.migrations.loader import MigrationLoader

    names = sorted(name for app, name in MigrationLoader(None).disk_migrations or {} if app == "jobqueue")
    migrate(call_command, "auth", None)
    migrate(call_command, "jobqueue", FIRST)
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(FILL, [rows])
        connection.execute("VACUUM ANALYZE jobqueue_task")
    print(f"{rows:,} rows; a reader is open for the first {seconds:g} s of each migration")
    held = 0.0
    print(f"{'migration':32} {'took':>7} {'lock':>7} " + " ".join(f"{name:>8}" for name in STATEMENTS))
    for name in (name for name in names if name[:4] > FIRST):
        with watching(cluster.url) as longest, reading(cluster.url, seconds):
            began = time.monotonic()
            migrate(call_command, "jobqueue", name)
            took = time.monotonic() - began
        waited = " ".join(f"{longest[one]:7.3f}s" for one in STATEMENTS)
        print(f"{name:32} {took:6.1f}s {longest['lock']:6.3f}s {waited}", flush=True)
        held = max(held, *longest.values())
    if held > LONGEST_SECONDS:
        sys.exit(f"Somebody waited for {held:.1f} s; more than {LONGEST_SECONDS:g} s are too long.")


def migrate(call_command: Any, app: str, name: str | None) -> None:
    call_command("migrate", app, *([name] if name else []), verbosity=0)


if __name__ == "__main__":
    main()
