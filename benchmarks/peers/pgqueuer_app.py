"""
pgqueuer with asyncpg and uvloop: python -m benchmarks.peers.pgqueuer_app <batch size>

What `pgq run --batch-size` does; that program of pgqueuer 1.6.0 ends with an AttributeError at its own default of
--log-level beside the typer that pip installs with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks import notes

BULK = 1_000


async def work(batch_size: int) -> None:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    app = PgQueuer(AsyncpgDriver(connection))

    @app.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    @app.entrypoint("ten_at_a_time", concurrency_limit=10)
    async def ten_at_a_time(job: Job) -> None:
        pass

    @app.entrypoint("one_at_a_time", concurrency_limit=1)
    async def one_at_a_time(job: Job) -> None:
        pass

    @app.entrypoint("note")
    async def note(job: Job) -> None:
        notes.write(struct.unpack("d", job.payload or b"")[0])

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, app.shutdown.set)
    print("ready", flush=True)
    await app.run(batch_size=batch_size)


class Producer:
    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.connection = self.runner.run(asyncpg.connect(os.environ["DATABASE_URL"]))
        self.queries = Queries(AsyncpgDriver(self.connection))

    def setup(self) -> None:
        self.runner.run(self.queries.install())

    def one_by_one(self, count: int) -> None:
        async def enqueue() -> None:
            for number in range(count):
                await self.queries.enqueue("noop", str(number).encode())

        self.runner.run(enqueue())

    def in_bulk(self, count: int) -> None:
        async def enqueue() -> None:
            for start in range(0, count, BULK):
                numbers = range(start, min(start + BULK, count))
                payloads: list[bytes | None] = [str(number).encode() for number in numbers]
                await self.queries.enqueue(["noop"] * len(numbers), payloads, [0] * len(numbers))

        self.runner.run(enqueue())

    def note(self) -> None:
        self.runner.run(self.queries.enqueue("note", struct.pack("d", time.time())))


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1])))
