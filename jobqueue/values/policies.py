"""Policies for ticks that overlap or were missed, and the reasons why a tick became no task."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# A range of skipped ticks counts no further. With this count, it has at least so many.
MAX_COUNTED: Final = 1_000


class Overlap(StrEnum):
    """The policy for a tick while the task of an earlier tick has not ended."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_RUNNING = "cancel_running"


class CatchUp(StrEnum):
    """The policy for ticks that were missed while no executor was running."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class SkipReason(StrEnum):
    """
    A reason why a tick became no task.

    OVERLAP: the previous task had not ended. PAUSED: the schedule was paused. MISSED: no executor ran. KEY: another
    live task had the key of the schedule's task.
    """

    OVERLAP = "overlap"
    PAUSED = "paused"
    MISSED = "missed"
    KEY = "key"
