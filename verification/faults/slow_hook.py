"""In an executor's process: name the statements of its own threads, and let the server sleep before one of them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

from jobqueue.engine.postgres.connection import statement

THREADS = ("loop", "heartbeat")
SEEN, CHOSEN, SLOWED = "statements.txt", "slow.txt", "slowed.txt"  # in the folder: a label in each line
NOTE_SECONDS = 1.0  # between two notes of one statement: their number shows how often it is used
SLEEP_SECONDS = 600  # longer than any timeout
SAVEPOINT = re.compile(r"SAVEPOINT \S+")
VALUES = re.compile(r"\((?:%s(?:::\w+)?(?:, )?)+\)(?:, \((?:%s(?:::\w+)?(?:, )?)+\))*")


def install(folder: Path) -> None:
    """Watch each connection that a thread of the executor opens from now on."""

    def watch(connection: Any, **_: Any) -> None:
        thread = threading.current_thread().name
        if thread in THREADS and connection.vendor == "postgresql":
            connection.execute_wrappers.append(Slow(folder, thread, connection))

    connection_created.connect(watch, weak=False)


class Slow:
    def __init__(self, folder: Path, thread: str, connection: Any) -> None:
        self._folder, self._thread, self._connection = folder, thread, connection
        self._noted_at: dict[str, float] = {}

    def __call__(self, execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: Any) -> Any:
        label = f"{self._thread}: {label_of(sql)}"
        now = time.monotonic()
        if now - self._noted_at.get(label, float("-inf")) >= NOTE_SECONDS:
            self._noted_at[label] = now
            write_line(self._folder / SEEN, label)
        selected = self._folder / CHOSEN
        if selected.exists() and selected.read_text() == label:
            write_line(self._folder / SLOWED, label)
            with self._connection.wrap_database_errors:
                self._connection.connection.execute(f"SELECT pg_sleep({SLEEP_SECONDS})")
        return execute(sql, parameters, many, context)


def write_line(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(f"{text}\n")


@cache
def names() -> dict[str, str]:
    """Return the file of each statement of the engine, by its text."""
    folder = files("jobqueue.engine.postgres") / "sql"
    labels = [path.name.removesuffix(".sql") for path in folder.iterdir() if path.name.endswith(".sql")]
    return {statement(name): name for name in labels}


@cache
def label_of(sql: str) -> str:
    """Return the name of a statement's file, or a statement of the ORM without the number of its values."""
    if (name := names().get(sql)) is not None:
        return name
    text = SAVEPOINT.sub("SAVEPOINT", " ".join(sql.replace('"', "").split()))
    return VALUES.sub("(...)", text)[:300]
