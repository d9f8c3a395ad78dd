"""The recorder thread: it records the steps of all workflows that run in this process, many in one transaction."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
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


class StepRecord:
    """The entries of one workflow, and whether they were written."""

    __slots__ = ("claimed", "entries", "is_cancel_requested", "is_over")

    def __init__(self, claimed: ClaimedTask, entries: Sequence[Entry]) -> None:
        self.claimed, self.entries = claimed, entries
        self.is_cancel_requested: bool | None = None  # None: they were not written
        self.is_over = threading.Lock()  # taken until then
        self.is_over.acquire()


class StepRecorder:
    """
    Records steps for the threads of workflows, on a connection of its own that prepares its statements.

    Steps that end while a transaction is being committed share the next one. So the disk is flushed once for all of
    them. It opens the connection for the first step.

    record() takes no lock of Python's. An interruption of the body may arrive in it at any place, and would leave a
    Condition locked for ever.
    """

    def __init__(self, engine: Engine, executor_id: UUID, connection: GuardedConnection) -> None:
        self._engine, self._executor_id, self._connection = engine, executor_id, connection
        self._pid = os.getpid()
        self._queue: SimpleQueue[StepRecord | None] = SimpleQueue()  # None: stop
        self._thread = threading.Thread(target=self._run, name="step-recorder", daemon=True)
        self._is_stopping = False

    def start(self) -> None:
        self._thread.start()

    def record(self, claimed: ClaimedTask, entries: Sequence[Entry]) -> bool | None:
        """
        Write entries. Return whether a cancel of the task was requested; None if they were not written.

        They are not written if the claim is lost, another session has locked the task's row, the database refuses a
        value of any of the entries that were to be written with them, or this process is a copy of the executor's.
        Then the caller writes them by itself, and gets its own error. It waits for twice the connection's limit at
        most.
        """
        if self._is_stopping or os.getpid() != self._pid:
            return None
        record = StepRecord(claimed, entries)
        self._queue.put(record)
        record.is_over.acquire(timeout=2 * self._connection.limit_seconds)
        return record.is_cancel_requested

    def stop(self) -> None:
        """Write what waits, and end the thread."""
        self._is_stopping = True
        self._queue.put(None)

    def _run(self) -> None:
        try:
            while records := self._take():
                try:
                    self._write(records)
                finally:
                    for record in records:
                        record.is_over.release()
        except BaseException:
            logger.exception("recorder.crashed hint=Workflows record their steps one by one.")
        finally:
            self._is_stopping = True
            for record in self._take():
                record.is_over.release()
            self._connection.drop()

    def _take(self) -> list[StepRecord]:
        """Wait for records, and return those that have come. Return none if it is to stop and none is left."""
        taken: list[StepRecord] = []
        try:
            while len(taken) < MAX_RECORDS:
                is_patient = not taken and not self._is_stopping
                if (record := self._queue.get(block=is_patient)) is not None:
                    taken.append(record)
        except Empty:
            pass
        return taken

    def _write(self, records: Sequence[StepRecord]) -> None:
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
