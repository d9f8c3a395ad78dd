"""The tasks of the benchmarks."""

from __future__ import annotations

import time

from benchmarks import notes
from jobqueue import Concurrency, task


@task
def noop(number: int = 0) -> None:
    pass


@task
async def noop_async(number: int = 0) -> None:
    pass


@task
def note(sent: float) -> None:
    notes.write(sent)


@task(concurrency=Concurrency(1, key="{sent}"))
def limited_note(sent: float) -> None:
    notes.write(sent)


@task
def rest(seconds: float) -> None:
    time.sleep(seconds)
