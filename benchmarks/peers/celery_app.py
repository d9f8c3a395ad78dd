"""Celery on Redis, no result backend (its default): `celery --app benchmarks.peers.celery_app worker`."""

from __future__ import annotations

import os
import time

from celery import Celery

from benchmarks import notes

app = Celery("benchmarks", broker="redis+socket://" + os.environ["REDIS_SOCKET"])
app.conf.worker_prefetch_multiplier = int(os.environ.get("CELERY_PREFETCH", "4"))


@app.task(name="noop", ignore_result=True)
def noop(number: int) -> None:
    pass


@app.task(name="note", ignore_result=True)
def note(sent: float) -> None:
    notes.write(sent)


class Producer:
    def setup(self) -> None:
        pass

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            noop.delay(number)

    def in_bulk(self, count: int) -> None:
        """It has no call for many."""
        self.one_by_one(count)

    def note(self) -> None:
        note.delay(time.time())
