"""What bodies report with `context.progress()`, until the loop writes it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from uuid import UUID

from jobqueue.records import Progress

WRITE_SECONDS = 1.0  # between two writes of the progress of running tasks


class ProgressReports:
    """
    The latest report of each task.

    Any thread may add one. There is no lock, because a body may be interrupted at any line. The methods of a dict that
    are used here are atomic.
    """

    def __init__(self) -> None:
        self._latest: dict[UUID, Progress] = {}
        self._written_at = float("-inf")  # monotonic

    def add(self, report: Progress) -> None:
        self._latest[report.task_id] = report

    def take_due(self, ended: Collection[UUID] = (), *, is_last: bool = False) -> list[Progress]:
        """
        Take the reports to write now: all, once a second; those of tasks that have ended, at once.

        is_last: take all.
        """
        if not self._latest:
            return []
        now = time.monotonic()
        takes_all = is_last or now - self._written_at >= WRITE_SECONDS
        ids: Iterable[UUID] = list(self._latest) if takes_all else ended
        self._written_at = now if takes_all else self._written_at
        return [report for pk in ids if (report := self._latest.pop(pk, None)) is not None]

    def put_back(self, reports: Iterable[Progress]) -> None:
        """Keep reports that could not be written, unless there are newer ones."""
        for report in reports:
            self._latest.setdefault(report.task_id, report)
