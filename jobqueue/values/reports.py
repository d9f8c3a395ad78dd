"""
Reports of a running body: progress and log lines.

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
    """The progress of a claimed task's body."""

    task_id: UUID  # the claimed task
    claim_number: int  # of the claim; another claim's row is not overwritten
    done: float  # how much is done, in the body's own unit
    total: float | None = None  # of how much, in the same unit; None: unknown
    note: str = ""  # a text for people


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line that the body of a task has logged."""

    at: float  # seconds since 1970, to the millisecond
    level: str  # such as INFO
    logger: str  # its name
    message: str  # formatted, with the traceback


class BodyLog(msgspec.Struct, frozen=True, kw_only=True):
    """The newest lines of an attempt or poll, oldest first."""

    task_id: UUID  # of the claimed task
    claim_number: int  # the attempt or poll that has logged
    dropped: int  # the number of older lines that are not kept
    lines: Sequence[LogLine]  # oldest first


def as_text(lines: Sequence[LogLine]) -> str:
    return msgspec.json.encode(lines).decode()


def parse_lines(text: str) -> list[LogLine]:
    """Read a column. It is shown without lines if it cannot be read."""
    try:
        return msgspec.json.decode(text, type=list[LogLine])
    except msgspec.MsgspecError:
        return []
