"""huey on Redis: `huey_consumer benchmarks.peers.huey_app.huey`."""

from __future__ import annotations

import os
import time

from huey import RedisHuey

from benchmarks import notes

huey = RedisHuey("benchmarks", url="unix://" + os.environ["REDIS_SOCKET"])


@huey.task()
def noop(number: int) -> None:
    pass


@huey.task()
def note(sent: float) -> None:
    notes.write(sent)


class Producer:
    def setup(self) -> None:
        pass

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            noop(number)

    def in_bulk(self, count: int) -> None:
        """It has no call for many."""
        self.one_by_one(count)

    def note(self) -> None:
        note(time.time())
