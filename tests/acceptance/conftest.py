import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from tests.acceptance.harness import Fleet, fleet_of
from tools.postgres import Cluster, throwaway_cluster


@dataclass(frozen=True)
class Site:
    """A server that the test may kill, with executors. The test uses the same server."""

    cluster: Cluster
    fleet: Fleet

    def kill(self) -> None:
        connection.close()
        self.cluster.kill()

    def start(self) -> None:
        self.cluster.start()

    def stop(self, way: signal.Signals) -> None:
        """Stop the server as `pg_ctl stop --mode` does: SIGTERM is smart, SIGINT fast, SIGQUIT immediate."""
        postmaster = self.cluster.pid()
        assert postmaster is not None
        os.kill(postmaster, way)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with throwaway_cluster(fsync="on", log_lock_waits="on", deadlock_timeout="100ms") as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE jobqueue")
        yield cluster


@pytest.fixture
def site(transactional_db: None, process_environment: dict[str, str], cluster: Cluster) -> Iterator[Site]:
    cluster.start()
    connection.close()
    before = dict(connection.settings_dict)
    connection.settings_dict.update(cluster.database("jobqueue"), OPTIONS={})
    try:
        call_command("migrate", verbosity=0, run_syncdb=True)
        with fleet_of(process_environment | {"DATABASE_URL": cluster.url_for("jobqueue")}) as fleet:
            yield Site(cluster, fleet)
    finally:
        connection.close()
        cluster.start()
        call_command("flush", verbosity=0, interactive=False)
        connection.close()
        connection.settings_dict.update(before)
