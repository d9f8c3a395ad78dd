"""The private PostgreSQL of a run, with its safety settings on: fsync, synchronous commits, full pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.core.management import call_command
from django.db import connection

from benchmarks import cpu
from tools.postgres import Cluster, throwaway_cluster

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    # Prevents a checkpoint in some rounds only.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}


@contextmanager
def prepared_cluster(settings: str = "benchmarks.settings", **of_server: str) -> Iterator[Cluster]:
    """Run a server with our tables, and set up Django to use it. of_server: more of its settings."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # PGSERVICE and similar variables name another server
    with throwaway_cluster(**SETTINGS | of_server) as cluster:
        os.environ["DATABASE_URL"] = cluster.url
        os.environ["DJANGO_SETTINGS_MODULE"] = settings
        django.setup()
        call_command("migrate", verbosity=0)
        try:
            yield cluster
        finally:
            connection.close()


def cpu_seconds(cluster: Cluster) -> float:
    """Return the CPU seconds that all processes of the server have used so far."""
    pid = cluster.pid()
    assert pid is not None
    return cpu.seconds_of_tree(pid)


def version() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        return str(cursor.fetchone()[0])


def empty(*tables: str) -> None:
    """Prepare a round: empty the tables, and checkpoint so that no checkpoint runs during the round."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")
        cursor.execute("CHECKPOINT")
