"""chancy: a worker as in its first example: python -m benchmarks.peers.chancy_app. CHANCY_QUEUE: how it is declared."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time

from chancy import Chancy, Queue, Worker, job

from benchmarks import notes

URL = os.environ["DATABASE_URL"]


@job(queue="default")
def noop(*, number: int) -> None:
    pass


@job(queue="default")
async def noop_async(*, number: int) -> None:
    pass


@job(queue="default")
def note(*, sent: float) -> None:
    notes.write(sent)


@job(queue="default")
async def note_async(*, sent: float) -> None:
    notes.write(sent)


def plain_log() -> logging.Logger:
    """Without this it logs by rich, which is here for pgqueuer only, and spends three quarters of its time on that."""
    log = logging.getLogger("chancy")
    log.addHandler(logging.StreamHandler())
    log.setLevel(os.environ["CHANCY_LOG"])
    return log


async def work() -> None:
    settings = json.loads(os.environ["CHANCY_QUEUE"])
    async with Chancy(URL, log=plain_log()) as chancy:
        await chancy.declare(Queue(**settings), upsert=True)
        async with Worker(chancy) as worker:
            print("ready", flush=True)
            await worker.wait_for_shutdown()


class Producer:
    def __init__(self) -> None:
        self.chancy = Chancy(URL)
        self.chancy.__enter__()

    def setup(self) -> None:
        async def migrate() -> None:
            async with Chancy(URL) as chancy:
                await chancy.migrate()

        asyncio.run(migrate())

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            self.chancy.sync_push(noop.job.with_kwargs(number=number))

    def in_bulk(self, count: int) -> None:
        jobs = [noop.job.with_kwargs(number=number) for number in range(count)]
        for _ in self.chancy.sync_push_many(jobs):
            pass

    def note(self) -> None:
        self.chancy.sync_push(note.job.with_kwargs(sent=time.time()))


if __name__ == "__main__":
    asyncio.run(work())
