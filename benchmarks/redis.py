"""A private Redis for a run, if `redis-server` is installed: on a Unix socket, with its default settings."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Redis:
    pid: int
    socket: Path

    def left(self, peer: str) -> int:
        """Return the number of jobs of a peer that have not ended."""
        client = self._client()
        match peer:
            case "celery":
                return int(client.llen("celery") + client.hlen("unacked"))
            case "huey":
                return int(client.llen("huey.redis.benchmarks"))
        raise ValueError(peer)

    def clear(self) -> None:
        self._client().flushall()

    def _client(self) -> Any:
        from redis import Redis as Client

        return Client(unix_socket_path=str(self.socket))


@contextmanager
def private_redis(folder: Path) -> Iterator[Redis | None]:
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    socket = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--daemonize", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{program} did not start")
            time.sleep(0.02)
        yield Redis(process.pid, socket)
    finally:
        process.terminate()
        process.wait()
