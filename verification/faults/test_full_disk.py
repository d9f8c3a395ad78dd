"""
A disk without room: for the tables, for the log of the server, for a while.

Each writer gets an error. The executors keep running. When there is space again, each acknowledged task ends once.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tools.postgres import Cluster, throwaway_cluster
from tools.postgres_programs import server_account, short_temporary_folder
from verification.faults import diary
from verification.faults.campaigns import DURABLE
from verification.faults.checker import violations
from verification.faults.environment import FaultEnvironment, fault_environment

MIB = 2**20
# Mounts, prints a line, and unmounts when its stdin ends. Its stdin ends with this process, even after a crash.
SMALL_DISK = """
mount -t tmpfs -o "size=$1,mode=0711" jobqueue-tests "$2" || exit 1
echo mounted
read -r _
umount -l "$2"
rmdir "$2"
"""


@contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A file system of so many bytes, which the server may write to; skips where we may not mount one."""
    folder = Path(tempfile.mkdtemp(prefix="jq-disk-", dir=short_temporary_folder()))
    guard = subprocess.Popen(
        ["/bin/sh", "-c", SMALL_DISK, "small-disk", str(size), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert guard.stdout is not None
        first_line = guard.stdout.readline().strip()
        if first_line != "mounted":
            folder.rmdir()
            pytest.skip(f"no file system can be mounted here: {first_line}")
        yield folder
    finally:
        guard.communicate(timeout=60)
    assert not folder.exists()


def place_on(disk: Path, name: str) -> Path:
    """Make a folder of the server's."""
    folder = disk / name
    folder.mkdir(mode=0o700)
    if (account := server_account()) is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def fill(disk: Path) -> Path:
    """Take all room that is left; returns what to remove to have it back."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            with suppress_no_space():
                while True:
                    file.write(bytes(size))
    return ballast


@contextmanager
def suppress_no_space() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def set_to_work(env: FaultEnvironment) -> None:
    env.start_sender(1)
    for _ in range(2):
        env.wait_for_first_heartbeat(env.start_executor())
    env.wait_for_work(20)
    env.remember_usage(env.alive()[0])


def wait_until_all_know(env: FaultEnvironment) -> None:
    """Return when the executors wait for the database, and a sender that does not wait for them was refused."""
    sender = env.start_sender(2, max_ready=1_000_000)
    errors = env.wait_for(lambda: refusals(env), "a refused sender")
    for process in env.alive():
        env.wait_for_line(process, "database.unreachable")
    sender.send(signal.SIGTERM)
    assert errors[0].startswith("OperationalError: ")


def refusals(env: FaultEnvironment) -> list[str]:
    """Return the errors that senders got instead of an acknowledgement."""
    return [f"{note['error']}: {note['text']}" for note in diary.read(env.diary) if note["kind"] == "refused"]


def judge(env: FaultEnvironment) -> None:
    """Check that each first executor survived and stops cleanly, and that no task was lost, repeated or failed."""
    for process in env.alive():
        env.wait_for_line(process, "database.reconnected")
    env.wait_for_work(20)
    env.finish()
    assert [member.code for member in env.processes if member.role == "executor"] == [0, 0]
    assert violations(env.history()) == []


def count_tried(env: FaultEnvironment, *kinds: str) -> int:
    """How many attempts were counted of tasks that do not fail by themselves."""
    rows = env.query(
        "SELECT count(*) FROM verification_change JOIN jobqueue_task AS task ON task.id = task_id"
        " WHERE attempts_after > 0 AND task_type = ANY(%s)",
        [f"verification.faults.bodies.{kind}" for kind in kinds],
    )
    return int(rows[0][0])


def test_tables_that_cannot_grow_are_an_outage() -> None:
    with small_disk(48 * MIB) as disk, throwaway_cluster(**DURABLE) as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{place_on(disk, 'tables')}'")
            connection.execute("ALTER DATABASE template1 SET TABLESPACE small")
        with fault_environment(cluster) as made:
            set_to_work(made)
            ballast = fill(disk)
            wait_until_all_know(made)
            ballast.unlink()
            judge(made)
            assert any("could not extend file" in text for text in refusals(made))
            assert count_tried(made, "work", "work_later") == 0


def test_no_room_for_the_log_of_the_server_is_an_outage() -> None:
    """The server panics then, and does not come up before there is room."""
    settings = {**DURABLE, "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with small_disk(128 * MIB) as disk, server_on(disk, settings) as cluster, fault_environment(cluster) as made:
        set_to_work(made)
        ballast = fill(disk)
        made.forget_connection()
        made.wait_for(lambda: has_panicked(cluster), "the server to panic")
        wait_until_all_know(made)
        made.wait_for(lambda: cluster.pid() is None, "the server to give up its recovery")
        ballast.unlink()
        cluster.start()
        judge(made)
        assert count_tried(made, "work", "work_later") == 0


@contextmanager
def server_on(disk: Path, settings: dict[str, str]) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="jq-log-", dir=short_temporary_folder()))
    cluster = Cluster(place_on(disk, "of-server") / "pg", settings=settings)
    cluster.log = folder / "server.log"
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop("immediate")
        cluster.log.unlink()
        folder.rmdir()


def has_panicked(cluster: Cluster) -> bool:
    with suppress(psycopg.Error), psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("SELECT pg_switch_wal()")  # a new file of 16 MB
    return "PANIC" in cluster.log.read_text(errors="replace")


AT_COMMIT = """
CREATE CONSTRAINT TRIGGER verification_extend_at_commit AFTER INSERT OR UPDATE ON jobqueue_task
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION verification_extend()
"""


def test_no_attempt_is_spent_on_a_full_disk() -> None:
    """As if there were room for half of what is written: at claims, beats, sends, in a commit and at its very end."""
    with throwaway_cluster(**DURABLE) as cluster, fault_environment(cluster) as made:
        made.query(AT_COMMIT)
        set_to_work(made)
        made.query("INSERT INTO verification_full VALUES (0.5)")
        wait_until_all_know(made)
        made.query("DELETE FROM verification_full")
        judge(made)
        assert any("could not extend file" in text for text in refusals(made))
        assert count_tried(made, "pay", "work", "work_later", "NumberCollector") == 0
