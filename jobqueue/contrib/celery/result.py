"""Celery's results, read from the rows of tasks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db import connections

from jobqueue import Status
from jobqueue.contrib.celery import states
from jobqueue.contrib.celery.exceptions import TaskRevokedError, refuse
from jobqueue.contrib.celery.exceptions import TimeoutError as NotInTime
from jobqueue.contrib.celery.payload import from_json
from jobqueue.contrib.celery.registry import current_app
from jobqueue.contrib.celery.request import allow_join_result as allow_join_result
from jobqueue.contrib.celery.request import will_block
from jobqueue.contrib.celery.rows import queue_databases, read_task, row_id

WOULD_BLOCK = (
    "Never call result.get() within a task! Its thread is blocked while it waits. Use a chain, a chord or a workflow; "
    "see docs/how-to-celery.md."
)
FIRST_POLL, LONGEST_POLL = 0.02, 0.5  # seconds between two looks at a row
FINAL = {
    Status.SUCCESSFUL: states.SUCCESS,
    Status.FAILED: states.FAILURE,
    Status.CANCELLED: states.REVOKED,
}
NEVER_STARTED = "jobqueue.exceptions.Expired"  # Celery revokes a task that has expired


class AsyncResult:
    """
    The result of a call, by its id. Unknown ids are PENDING, as in Celery.

    It has more than 20 methods because Celery's result has them.
    """

    parent: Any = None
    children: Any = None

    def __init__(self, id: Any, backend: Any = None, task_name: str | None = None, app: Any = None, **_: Any) -> None:  # noqa: A002 - Celery's name
        self.id = str(id)
        self.task_name = task_name
        self._row: Any = None

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self.id

    @property
    def row(self) -> Any:
        """The row of the task, a `jobqueue.models.Task`; None if there is none. Read again until it has ended."""
        if self._row is None or self._row.finished_at is None:
            self._row = read_task(self.id)
        return self._row

    # --- its state

    @property
    def state(self) -> str:
        """One of celery.states, or what update_state() has set."""
        return self._state_of(self.row)

    @property
    def status(self) -> str:
        """See state."""
        return self.state

    def _state_of(self, row: Any) -> str:
        if row is None:
            return states.PENDING
        if row.status in FINAL:
            expired = row.errors and row.errors[-1].get("exception_class_path") == NEVER_STARTED
            return states.REVOKED if row.status == Status.FAILED and expired else FINAL[row.status]
        if row.status == Status.RUNNING:
            reported = reported_by(row)
            return (reported and reported.get("state")) or (states.STARTED if is_tracked(row) else states.PENDING)
        return states.RETRY if row.attempts else states.PENDING

    @property
    def result(self) -> Any:
        """The return value, the exception, or the meta of update_state()."""
        row = self.row
        state = self._state_of(row)
        if state == states.SUCCESS:
            return from_json(row.return_value)
        if state == states.REVOKED:
            return TaskRevokedError("revoked" if row.status == Status.CANCELLED else "expired")
        if state in (states.FAILURE, states.RETRY) and row.errors:
            return stored_exception(row.errors[-1])
        reported = None if row is None else reported_by(row)
        return reported and from_json(reported.get("meta"))

    @property
    def info(self) -> Any:
        """See result."""
        return self.result

    @property
    def traceback(self) -> str | None:
        """The traceback of the last error as text."""
        row = self.row
        return row.errors[-1].get("traceback") if row is not None and row.errors else None

    @property
    def date_done(self) -> datetime | None:
        """When the task ended; None: it has not."""
        return getattr(self.row, "finished_at", None)

    @property
    def name(self) -> str | None:
        """The name of the task."""
        return self.task_name or getattr(self.row, "task_type", None)

    @property
    def args(self) -> Any:
        """The positional arguments."""
        return from_json(getattr(self.row, "args", None))

    @property
    def kwargs(self) -> Any:
        """The keyword arguments."""
        return from_json(getattr(self.row, "kwargs", None))

    @property
    def queue(self) -> str | None:
        """The queue of the task."""
        return getattr(self.row, "queue_name", None)

    @property
    def retries(self) -> int:
        """How often the task was retried."""
        return getattr(self.row, "attempts", 0)

    def ready(self) -> bool:
        """Return whether the task has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Return whether the task has succeeded."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Return whether the task has failed."""
        return self.state == states.FAILURE

    # --- wait for it

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = LONGEST_POLL,
        disable_sync_subtasks: bool = True,
        **_: Any,
    ) -> Any:
        """
        Wait until the task has ended, and return its result or raise its error.

        Raises TimeoutError after `timeout` seconds, and RuntimeError where the wait could never end: in a task, and in
        a transaction without a timeout, because executors do not see the task before the commit.
        """
        if disable_sync_subtasks and will_block():
            raise RuntimeError(WOULD_BLOCK)
        begun, pause = time.monotonic(), FIRST_POLL
        while not self.ready():
            if timeout is None and self._is_uncommitted():
                raise RuntimeError(
                    f"get() of {self.id} in a transaction: executors may not see the task before the commit. Call "
                    "get() after the transaction, or pass a timeout."
                )
            if timeout is not None and time.monotonic() - begun + pause > timeout:
                raise NotInTime("The operation timed out.")
            time.sleep(pause)
            pause = min(pause * 2, interval, LONGEST_POLL)
        result = self.result
        if propagate and self.state in states.PROPAGATE_STATES:
            raise result if isinstance(result, BaseException) else Exception(result)
        return result

    wait = get

    def _is_uncommitted(self) -> bool:
        return any(connections[name].in_atomic_block for name in queue_databases())

    def maybe_throw(self, propagate: bool = True, **_: Any) -> Any:
        """Return the result so far. Raises the error of a task that has failed."""
        result = self.result
        if propagate and self.state in states.PROPAGATE_STATES:
            raise result
        return result

    # --- change it

    def revoke(self, terminate: bool = False, **_: Any) -> None:
        """Cancel the task. terminate: also if it runs."""
        from jobqueue import api

        api.cancel(row_id(self.id), may=None if terminate else (lambda row: row.status != Status.RUNNING))

    def forget(self) -> None:
        """Delete the row of a task that has ended."""
        from jobqueue import api

        api.delete(row_id(self.id))

    def then(self, *_: Any, **__: Any) -> Any:
        raise refuse("AsyncResult.then()", "Use link= or a chain.")

    collect = iterdeps = get_leaf = then

    def as_tuple(self) -> Any:
        """Return the ids, for result_from_tuple()."""
        return (self.id, None), None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AsyncResult):
            return other.id == self.id
        return other == self.id if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"


class EagerResult(AsyncResult):
    """The result of a task that has run here."""

    def __init__(
        self,
        id: Any,  # noqa: A002 - Celery's name
        ret_value: Any,
        state: str,
        traceback: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(id, task_name=name)
        self._value, self._state, self._traceback = ret_value, state, traceback

    row = None
    state = property(lambda self: self._state)
    result = property(lambda self: self._value)
    traceback = property(lambda self: self._traceback)

    def ready(self) -> bool:
        """Return True: it has run."""
        return True

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = LONGEST_POLL,
        disable_sync_subtasks: bool = True,
        **_: Any,
    ) -> Any:
        """Return the result, or raise the error."""
        if disable_sync_subtasks and will_block():
            raise RuntimeError(WOULD_BLOCK)
        if self._state in states.PROPAGATE_STATES and propagate:
            raise self._value if isinstance(self._value, BaseException) else Exception(self._value)
        return self._value if self._state in (states.SUCCESS, *states.PROPAGATE_STATES) else None

    wait = get

    def revoke(self, *_: Any, **__: Any) -> None:
        """Mark it as revoked."""
        self._state = states.REVOKED

    def forget(self) -> None:
        """Do nothing: it has no row."""


class ResultSet:
    """Several results."""

    def __init__(self, results: Iterable[Any], **_: Any) -> None:
        self.results = list(results)

    @property
    def children(self) -> list[Any]:
        """The results."""
        return self.results

    def add(self, result: Any) -> None:
        """Add a result."""
        if result not in self.results:
            self.results.append(result)

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> list[Any]:
        """Wait for all, and return their results in order. Raises the error of the first that failed."""
        end = None if timeout is None else time.monotonic() + timeout
        left = None
        values = []
        for result in self.results:
            if end is not None:
                left = max(0.0, end - time.monotonic())
            values.append(result.get(timeout=left, propagate=propagate, **options))
        return values

    join = join_native = get

    def ready(self) -> bool:
        """Return whether all have ended."""
        return all(result.ready() for result in self.results)

    def successful(self) -> bool:
        """Return whether all have succeeded."""
        return all(result.successful() for result in self.results)

    def failed(self) -> bool:
        """Return whether one has failed."""
        return any(result.failed() for result in self.results)

    def waiting(self) -> bool:
        """Return whether one has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return how many have succeeded."""
        return sum(result.successful() for result in self.results)

    def revoke(self, **options: Any) -> None:
        """Revoke all."""
        for result in self.results:
            result.revoke(**options)

    def forget(self) -> None:
        """Forget all."""
        for result in self.results:
            result.forget()

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]


class GroupResult(ResultSet):
    """The results of a group."""

    parent: Any = None

    def __init__(self, id: str | None = None, results: Iterable[Any] = (), **_: Any) -> None:  # noqa: A002 - Celery's name
        super().__init__(results)
        self.id = id

    def save(self, *_: Any, **__: Any) -> Any:
        raise refuse("GroupResult.save()", "Use a Batch: it has an id.")

    restore = save

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id} [{', '.join(str(result) for result in self.results)}]>"


def is_tracked(row: Any) -> bool:
    """Return whether a running task is STARTED. Without track_started, Celery shows it as PENDING."""
    task = current_app.tasks.get(row.task_type)
    tracked = getattr(task, "track_started", None)
    return bool(current_app.conf.task_track_started if tracked is None else tracked)


def reported_by(row: Any) -> Any:
    """Return the report of update_state() for a row, or None."""
    from jobqueue.models import TaskProgress

    note = TaskProgress.objects.using(row._state.db).filter(pk=row.pk, claim_number=row.claim_number)
    text = note.values_list("note", flat=True).first() or ""
    return json.loads(text) if text.startswith('{"state": ') else None


def stored_exception(error: dict[str, Any]) -> Exception:
    """Return an exception of the class and with the message that a row stores. Its module is not imported."""
    module, _, name = str(error.get("exception_class_path", "")).rpartition(".")
    kind: Any = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name or "Exception", (Exception,), {"__module__": module})
    message = error.get("message", "")
    try:
        made: Exception = kind(message)
    except Exception:  # noqa: BLE001 - its constructor takes other arguments
        made = kind.__new__(kind, message)
        made.args = (message,)
    return made
