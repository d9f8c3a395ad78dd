"""The recorder thread: it records the steps of all workflows that run in this process, many in one transaction."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import django.db

from jobqueue.engine import Engine
from jobqueue.executor.database.connection import GuardedConnection
from jobqueue.executor.telemetry.errors import format_first_line
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.journal import Entry
from jobqueue.values.records import ClaimedTask

logger = get_logger(__name__)

MAX_RECORDS = 100  # in one transaction


@dataclass(eq=False, slots=True)
class _Record:
    claimed: ClaimedTask  # the workflow
    entries: Sequence[Entry]  # to write
    is_over: threading.Event = field(default_factory=threading.Event)  # set when they were written, or not
    is_cancel_requested: bool | None = None  # None: it was not written


class StepRecorder:
    """
    Records steps for the threads of workflows, on a connection of its own that prepares its statements.

    Steps that end while a transaction is being committed share the next one. So the disk is flushed once for all of
    them. The thread starts with the first step.
    """

    def __init__(self, engine: Engine, executor_id: UUID, connection: GuardedConnection) -> None:
        self._engine, self._executor_id, self._connection = engine, executor_id, connection
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: list[_Record] = []
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def record(self, claimed: ClaimedTask, entries: Sequence[Entry]) -> bool | None:
        """
        Write entries. Return whether a cancel of the task was requested; None if they were not written.

        They are not written if the claim is lost, another session has locked the task's row, the database refuses a
        value of any of the entries that were to be written with them, or this process is a copy of the executor's.
        Then the caller writes them by itself, and gets its own error. It waits for the connection's limit at most.
        """
        record = _Record(claimed, entries)
        if os.getpid() != self._pid:
            return None
        with self._changed:
            if self._is_stopping:
                return None
            self._waiting.append(record)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="step-recorder", daemon=True)
                self._thread.start()
            self._changed.notify()
        record.is_over.wait()
        return record.is_cancel_requested

    def stop(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            while records := self._take():
                try:
                    self._write(records)
                finally:
                    for record in records:
                        record.is_over.set()
        except BaseException:
            logger.exception("recorder.crashed hint=Workflows record their steps one by one.")
        finally:
            with self._changed:
                self._is_stopping = True
                left, self._waiting = self._waiting, []
            for record in left:
                record.is_over.set()
            self._connection.drop()

    def _take(self) -> list[_Record]:
        """Wait for records, and return those that have come. Return none after stop()."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_stopping)
            taken, self._waiting = self._waiting[:MAX_RECORDS], self._waiting[MAX_RECORDS:]
            return taken

    def _write(self, records: Sequence[_Record]) -> None:
        try:
            with self._connection:
                asked = self._engine.journal.record_steps(
                    self._executor_id, [(record.claimed, record.entries) for record in records]
                )
        except (django.db.Error, ValueError) as error:
            logger.debug("recorder.failed error=%s", format_first_line(error))
            self._connection.drop()
            return
        for record in records:
            record.is_cancel_requested = asked.get(record.claimed.id)
