"""
The history of a task: what its other columns do not keep of successful polls, releases and requeues.

It is the column `history`, a line of JSON for each entry. Failed attempts are in `errors`. The last attempt is in the
columns of the row. So a task that succeeds at once has no history.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

import msgspec

HISTORY_CHARACTERS = 1200  # about 20 polls, the newest. With a full column, a poll takes PostgreSQL 5 us longer.


class Event(StrEnum):
    """The kind of a line of the history."""

    POLLED = "POLLED"  # a poll that wants the next one at once
    SUSPENDED = "SUSPENDED"  # a poll that waits for a message or a time
    RELEASED = "RELEASED"  # the executor has stopped the attempt
    STALE = "STALE"  # an attempt that is not counted, because it has read stale rows
    REQUEUED = "REQUEUED"


class HistoryLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of a task's history: one attempt or poll that has ended, or a requeue."""

    event: Event  # how it ended
    at: float  # its end, in seconds since 1970
    wait_seconds: float = 0.0  # from READY to the claim
    run_seconds: float = 0.0  # of the body
    executor: str = ""  # its name; empty for a requeue
    consumed: int = 0  # messages that an actor's poll consumed
    spawned: int = 0  # children that an actor's poll started
    sent: int = 0  # messages that an actor's poll sent
    claim_number: int = 0  # of the attempt


def format_line(
    event: Event,
    at: datetime,
    wait_seconds: float = 0.0,
    run_seconds: float = 0.0,
    executor: str = "",
    *,
    consumed: int = 0,
    spawned: int = 0,
    sent: int = 0,
    claim_number: int = 0,
) -> str:
    """Return the line of an entry. Times are rounded to milliseconds."""
    wait, run = round(wait_seconds, 3), round(run_seconds, 3)
    entry = HistoryLine(event, round(at.timestamp(), 3), wait, run, executor, consumed, spawned, sent, claim_number)
    return f"{msgspec.json.encode(entry).decode()}\n"


def read_history(text: str | None) -> Iterator[HistoryLine]:
    """Yield the entries of a column, oldest first, without lines that cannot be read: the first one may be cut."""
    for line in (text or "").split("\n"):
        try:
            yield msgspec.json.decode(line, type=HistoryLine)
        except msgspec.MsgspecError:
            continue
