"""
The timeline of a task: its attempts and polls, newest first, with requeues between them.

It is put together from the errors, the history, and for the last attempt the other columns of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.models import Executor, Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import attempt_number, headline, ready_since, short_id
from jobqueue.operations.log_entries import REQUEUE
from jobqueue.operations.payloads import from_timestamp, read_moment
from jobqueue.operations.task.reports import ShownLog
from jobqueue.values.history import Event, HistoryLine, read_history

ERRORS_SHOWN = 20  # as many as a row keeps
LOGGED_WITHIN = timedelta(seconds=15)  # a bulk action is logged after its last batch
POLLS = (Event.POLLED, Event.SUSPENDED)
STATUSES = {
    Event.POLLED: Task.Status.READY,
    Event.SUSPENDED: Task.Status.SUSPENDED,
    Event.RELEASED: Task.Status.READY,
    Event.STALE: Task.Status.SCHEDULED,
}


@dataclass(slots=True, kw_only=True)
class Step:
    """
    One attempt or poll, or a requeue between two of them.

    It has more than 15 attributes because each column of the table is a field.
    """

    at: datetime | None  # its end, and of a RUNNING one its start; None outside the calendar
    status: str = ""  # what it led to
    is_requeue: bool = False  # people have requeued the task
    poll: int | None = None  # its number, of actors; None for functions
    attempt: int | None = None  # its number since the last requeue, and of an actor's poll; None if it did not count
    wait_seconds: float | None = None  # from READY to the claim; None: unknown
    run_seconds: float | None = None  # of its body; None: unknown
    executor: str = ""  # its name
    executor_id: UUID | None = None  # of its row; None if there is none
    note: str = ""  # more about its outcome
    headline: str = ""  # the class and the message of its error; empty if it has not failed
    traceback: str = ""  # empty if it has not failed, or is hidden from the reader
    is_poll: bool = False  # whether it is a poll that succeeded
    is_open: bool = False  # its traceback is shown at once
    label: str = ""  # its number as people see it
    claim_number: Any = None  # by which `log` was found
    log: ShownLog | None = None  # what its body has logged; None: nothing
    is_log_open: bool = False  # the log is shown at once

    @property
    def key(self) -> str:
        """Distinguish it from the other steps, to keep it open when the page is refreshed."""
        return f"{self.at}"

    def as_json(self) -> dict[str, Any]:
        names = ("at", "poll", "attempt", "wait_seconds", "run_seconds", "executor")
        values = {name: getattr(self, name) for name in names}
        log = self.log and self.log.as_json()
        event = "REQUEUED" if self.is_requeue else self.status
        return {"event": event, **values, "note": self.note or self.headline, "log": log}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of a task."""

    steps: list[Step]  # newest first
    is_truncated: bool  # older ones may be missing


def read_timeline(
    task: Task,
    errors: Sequence[Mapping[str, Any]],
    worker_ids: Sequence[Any],
    log: Iterable[Any],
    *,
    logs: Mapping[int, ShownLog],
    is_actor: bool,
) -> Timeline:
    """
    Put the timeline of a task together. Reads the executors.

    errors: masked, oldest first. log: the manual actions. logs: those of the bodies, by claim_number.
    """
    history = list(read_history(task.history))
    steps = [*map(_step_of_error, errors), *(_step_of_entry(entry, log) for entry in history)]
    steps.sort(key=lambda step: step.at or task.enqueued_at)
    if last := _step_of_row(task, worker_ids):
        steps.append(last)
    steps.reverse()
    _number(task, steps, is_actor=is_actor)
    _find_executors(task, steps)
    if failed := [step for step in steps if step.traceback]:
        failed[0].is_open = True
    for step in steps:
        step.log = logs.get(step.claim_number) if isinstance(step.claim_number, int) else None
    if logged := [step for step in steps if step.log]:
        logged[0].is_log_open = True
    return Timeline(steps, len(errors) >= ERRORS_SHOWN or sum(step.is_poll for step in steps) < task.polls)


def _step_of_error(error: Mapping[str, Any]) -> Step:
    path = str(error.get("exception_class_path") or "")
    number, wait, run = (error.get(name) for name in ("attempt", "wait_seconds", "run_seconds"))
    has_started = "run_seconds" not in error or run is not None
    return Step(
        at=read_moment(error.get("at")),
        status=_status_of(error, path),
        attempt=number if has_started and isinstance(number, int) else None,
        wait_seconds=wait if isinstance(wait, float | int) else None,
        run_seconds=run if isinstance(run, float | int) else None,
        executor=str(error.get("executor") or ""),
        headline=headline(path, error["message"]),
        traceback=error["traceback"],
        claim_number=error.get("claim_number"),
    )


def _status_of(error: Mapping[str, Any], path: str) -> str:
    """Return the status to which an error has led, as far as it tells."""
    if "awaited" in error:
        return Task.Status.AWAITING_CODE
    return Task.Status.CANCELLED if path == "jobqueue.exceptions.TaskCancelled" else Task.Status.FAILED


def _step_of_entry(entry: HistoryLine, log: Iterable[Any]) -> Step:
    at = from_timestamp(entry.at)
    if entry.event is Event.REQUEUED:
        return Step(at=at, is_requeue=True, note=_requeued(at, log))
    return Step(
        at=at,
        status=STATUSES[entry.event],
        wait_seconds=entry.wait_seconds,
        run_seconds=entry.run_seconds,
        executor=entry.executor,
        note=", ".join(_notes(entry)),
        is_poll=entry.event in POLLS,
        claim_number=entry.claim_number,
    )


def _requeued(at: datetime | None, log: Iterable[Any]) -> str:
    """Name the user who has requeued the task in the admin. Other actions are in the log as well."""
    for action in log:
        is_requeue = action.change_message.startswith(str(REQUEUE))
        if is_requeue and at is not None and abs(action.action_time - at) <= LOGGED_WITHIN:
            return _("Requeued by %(user)s") % {"user": action.user}
    return _("Requeued")


def _notes(entry: HistoryLine) -> Iterator[str]:
    if entry.event is Event.RELEASED:
        yield _("released by its executor; not counted")
    elif entry.event is Event.STALE:
        yield _("it has read stale rows; not counted")
    if entry.consumed:
        text = ngettext("%(number)d message read", "%(number)d messages read", entry.consumed)
        yield text % {"number": entry.consumed}
    if entry.spawned:
        text = ngettext("%(number)d child spawned", "%(number)d children spawned", entry.spawned)
        yield text % {"number": entry.spawned}
    if entry.sent:
        yield ngettext("%(number)d message sent", "%(number)d messages sent", entry.sent) % {"number": entry.sent}


def _step_of_row(task: Task, worker_ids: Sequence[Any]) -> Step | None:
    """Return the attempt that runs, or the one that has succeeded."""
    is_running = task.status == Task.Status.RUNNING
    if task.last_attempted_at is None or not (is_running or task.status == Task.Status.SUCCESSFUL):
        return None
    started = task.last_attempted_at
    end = task.now if is_running else task.finished_at  # type: ignore[attr-defined]
    executor = task.executor_id if is_running else next(iter(worker_ids[-1:]), None)
    return Step(
        at=started if is_running else end,
        status=task.status,
        wait_seconds=max(0.0, (started - ready_since(task, options_of(task.backend).aging)).total_seconds()),
        run_seconds=max(0.0, (end - started).total_seconds()) if end is not None else None,
        executor=str(executor or ""),
        attempt=attempt_number(task),
        is_poll=not is_running,
        claim_number=task.claim_number,
    )


def _number(task: Task, steps: Iterable[Step], *, is_actor: bool) -> None:
    """Number the polls, and write the labels. steps: newest first."""
    polls = task.polls
    for step in steps:
        if step.is_requeue:
            continue
        if is_actor:
            step.poll = polls if step.is_poll else polls + 1
        polls -= step.is_poll
        step.label = ", ".join(_labels(step, task.max_attempts))


def _labels(step: Step, max_attempts: int) -> Iterator[str]:
    values = {"poll": step.poll, "number": step.attempt, "max": max_attempts}
    if step.poll is None:
        yield _("Attempt %(number)d of %(max)d") % values if step.attempt is not None else _("Not counted")
        return
    yield _("Poll %(poll)d") % values
    if step.attempt is not None and (step.attempt > 1 or step.headline):
        yield _("attempt %(number)d of %(max)d") % values


def _find_executors(task: Task, steps: Iterable[Step]) -> None:
    """Find the rows of the executors, which steps name, or whose ids they have."""
    names = {step.executor for step in steps} - {""}
    ids = {pk for name in names if (pk := _to_uuid(name)) is not None}
    rows = Executor.objects.using(task._state.db).filter(Q(name__in=names) | Q(pk__in=ids), backend=task.backend)
    executors: dict[str, tuple[UUID, str]] = {}
    for pk, name in rows.order_by("started_at").values_list("pk", "name") if names else ():
        executors |= {name: (pk, name), str(pk): (pk, name)}
    for step in steps:
        if step.executor in executors:
            step.executor_id, step.executor = executors[step.executor]
        elif _to_uuid(step.executor) is not None:
            step.executor = short_id(step.executor)


def _to_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
