"""The temporary PostgreSQL server of the demo and the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.waiting import wait_until
from tools.postgres import CHECKOUT, Cluster
from tools.postgres_programs import ClusterError, server_account, short_temporary_folder

pytestmark = pytest.mark.slow

HOLD = """if True:
    import time
    from tools.postgres import throwaway_cluster
    with throwaway_cluster(fsync="off") as cluster:
        print(cluster.data, cluster.pid(), flush=True)
        time.sleep(600)
"""


def test_killed_server_restarts_with_its_data(private_cluster: Cluster) -> None:
    with psycopg.connect(private_cluster.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    held = psycopg.connect(private_cluster.url)
    private_cluster.kill()
    assert not private_cluster.is_running()
    private_cluster.start()
    with pytest.raises(psycopg.OperationalError):
        held.execute("SELECT 1")
    held.close()
    with psycopg.connect(private_cluster.url) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_process_leaves_no_server_or_files(number: signal.Signals) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        data, pid = process.stdout.readline().split()
        process.send_signal(number)
    wait_until(lambda: not Path(f"/proc/{int(pid)}").exists() and not Path(os.fsdecode(data)).parent.exists())


@pytest.mark.skipif(server_account() is None, reason="the server runs as this user")
def test_folder_without_write_access_of_server_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path("/tmp") / f"jq-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        assert short_temporary_folder() == "/tmp"
        folder.chmod(0o1777)
        assert short_temporary_folder() == str(folder)
    finally:
        folder.rmdir()


def test_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="path is too long"):
        Cluster(tmp_path / ("long" * 30)).start()
