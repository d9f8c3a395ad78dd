"""Run PgBouncer. In session mode each login, in transaction mode each transaction, may get another server session."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg

from tools.postgres_programs import identity, server_account, short_temporary_folder

Mode = Literal["session", "transaction"]

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
START_SECONDS = 120.0
PORT = 6432
CONFIGURATION = """
[databases]
* = {server}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
server_round_robin = 1
server_login_retry = 1
max_client_conn = 500
log_connections = 0
log_disconnections = 0
"""


@dataclass(frozen=True, slots=True)
class Pooler:
    """A running PgBouncer. It listens on a socket in its folder."""

    folder: Path

    def url_for(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}&port={PORT}"

    @property
    def address(self) -> dict[str, Any]:
        """The entry in DATABASES of its clients."""
        return {"HOST": str(self.folder), "PORT": str(PORT)}

    def reaches(self, name: str) -> bool:
        """Return whether the server answers a statement. The pooler accepts logins even while the server is down."""
        try:
            with psycopg.connect(self.url_for(name), autocommit=True) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def run_pooler(server: Mapping[str, Any], *, mode: Mode, sessions: int) -> Iterator[Pooler]:
    """Run PgBouncer in front of a server given as in DATABASES. sessions: maximum number of server sessions."""
    assert PROGRAM is not None
    folder = Path(tempfile.mkdtemp(prefix="jq-pool-", dir=short_temporary_folder()))
    configuration, log = folder / "pgbouncer.ini", folder / "log"
    settings = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    login = " ".join(f"{name}='{server[key]}'" for name, key in settings.items() if server.get(key))
    configuration.write_text(CONFIGURATION.format(server=login, port=PORT, folder=folder, mode=mode, sessions=sessions))
    configuration.chmod(0o644)
    if (account := server_account()) is not None:
        shutil.chown(folder, account.pw_uid, account.pw_gid)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, str(configuration)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **identity()
        )
    try:
        pooler = Pooler(folder)
        wait_until_it_answers(pooler, process, log)
        yield pooler
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_answers(pooler: Pooler, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if pooler.reaches("postgres"):
            return
        time.sleep(0.02)
    raise AssertionError(log.read_text(errors="replace"))
