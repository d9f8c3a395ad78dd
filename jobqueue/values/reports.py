"""
What a body reports while it runs: progress and log lines.

The column `lines` of `jobqueue_tasklog` has the newest lines of one attempt or poll, oldest first. A line is an array
of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

CLAIMS_KEPT = 20  # the newest attempts or polls of a task, of which the lines are kept
MESSAGE_CHARACTERS = 500
NAME_CHARACTERS = 100  # of a logger


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The progress of a claimed task's body: how much is done, of which total if it is known, and a note."""

    task_id: UUID
    claim_number: int
    done: float
    total: float | None = None
    note: str = ""


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """at: in seconds since 1970. logger: its name."""

    at: float
    level: str
    logger: str
    message: str


class BodyLog(msgspec.Struct, frozen=True, kw_only=True):
    """The newest lines of an attempt or poll, oldest first. dropped: the number of older ones that are not kept."""

    task_id: UUID
    claim_number: int
    dropped: int
    lines: Sequence[LogLine]


def as_text(lines: Sequence[LogLine]) -> str:
    return msgspec.json.encode(lines).decode()


def read_lines(text: str) -> list[LogLine]:
    """Read a column. It is shown without lines if it cannot be read."""
    try:
        return msgspec.json.decode(text, type=list[LogLine])
    except msgspec.MsgspecError:
        return []
