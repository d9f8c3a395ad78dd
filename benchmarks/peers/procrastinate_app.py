"""procrastinate: `procrastinate --app benchmarks.peers.procrastinate_app.app worker`."""

from __future__ import annotations

import os
import time

from procrastinate import App, PsycopgConnector

from benchmarks import notes

URL = os.environ["DATABASE_URL"]

app = App(connector=PsycopgConnector(conninfo=URL))


@app.task(name="noop")
async def noop(number: int) -> None:
    pass


@app.task(name="note")
async def note(sent: float) -> None:
    notes.write(sent)


class Producer:
    """A synchronous program, as a site of Django is."""

    def __init__(self) -> None:
        app.open()

    def setup(self) -> None:
        app.schema_manager.apply_schema()

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            noop.defer(number=number)

    def in_bulk(self, count: int) -> None:
        noop.batch_defer(*({"number": number} for number in range(count)))

    def note(self) -> None:
        note.defer(sent=time.time())
