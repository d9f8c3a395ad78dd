"""Why a task is in its state, and what happens next: a few plain sentences, computed from values alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.inspect.formatting import class_name, describe_pause, duration, headline, moment_in_words, ready_since
from jobqueue.models import LIVE, Executor, Queue, Task

MAX_UNREAD = 100  # messages counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """
    What the explanation needs beside the task's row.

    serving: executors that claim tasks of its queue; slots, busy: their threads and running tasks together. paused:
    executors of its queue that were asked to claim nothing. running: tasks of its queue, counted up to the limit.
    alive: living executors of its backend. executor: the one that runs it. unread: messages in its inbox.
    live_children: children that have not ended. is_orphan: its parent has ended.
    """

    now: datetime
    aging_seconds: float = 60.0
    timeout_seconds: float = 30.0
    queue: Queue | None = None
    alive: int = 0
    serving: int = 0
    paused: int = 0
    slots: int = 0
    busy: int = 0
    running: int = 0
    executor: Executor | None = None
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    unread: int = 0
    live_children: int = 0
    is_orphan: bool = False

    @property
    def last_error(self) -> Mapping[str, Any]:
        return self.errors[-1] if self.errors else {}

    def since(self, moment: datetime | None) -> str:
        return duration(self.now - moment) if moment is not None else "?"

    def until(self, moment: datetime) -> str:
        return duration(moment - self.now)


def explain(task: Task, around: Surroundings) -> str:
    """Explain a task's state. Each sentence is translated as a whole."""
    return " ".join([*_state(task, around), *_relatives(task, around)])


def _state(task: Task, around: Surroundings) -> Iterator[str]:
    match task.status:
        case Task.Status.READY:
            since = around.since(ready_since(task, around.aging_seconds))
            yield _("Ready for %(time)s.") % {"time": since}
            yield from _why_not_started(task, around)
        case Task.Status.SCHEDULED:
            yield from _scheduled(task, around)
        case Task.Status.RUNNING:
            yield from _running(task, around)
        case Task.Status.SUSPENDED:
            yield from _suspended(task, around)
        case Task.Status.SUCCESSFUL:
            yield _("Succeeded %(time)s ago in %(duration)s.") % {
                "time": around.since(task.finished_at),
                "duration": _last_duration(task),
            }
        case Task.Status.FAILED:
            yield _failed(task, around)
        case Task.Status.CANCELLED if task.started_at is None:
            yield _("Cancelled %(time)s ago, before it started.") % {"time": around.since(task.finished_at)}
        case Task.Status.CANCELLED:
            yield _("Cancelled %(time)s ago, after it started.") % {"time": around.since(task.finished_at)}


def _relatives(task: Task, around: Surroundings) -> Iterator[str]:
    """Explain what is unusual about parent, children and messages."""
    if task.status in LIVE:
        if around.is_orphan:
            yield _("Its parent has ended.")
        return
    yield from _live_children(around)
    if around.unread:
        yield ngettext(
            "%(number)s message was not delivered.", "%(number)s messages were not delivered.", around.unread
        ) % {"number": _unread_number(around)}


def _live_children(around: Surroundings) -> Iterator[str]:
    if around.live_children:
        yield ngettext("%(count)d child has not ended.", "%(count)d children have not ended.", around.live_children) % {
            "count": around.live_children
        }


def _unread_number(around: Surroundings) -> str:
    return str(around.unread) if around.unread <= MAX_UNREAD else f"{MAX_UNREAD}+"


def _why_not_started(task: Task, around: Surroundings) -> Iterator[str]:
    queue = around.queue
    name = {"queue": task.queue_name}
    if task.expires_at is not None and task.expires_at <= around.now and task.polls == 0:
        time = around.since(task.expires_at)
        yield _("It expired %(time)s ago and will fail when an executor claims it.") % {"time": time}
    elif queue is not None and queue.is_paused_at(around.now):
        yield describe_pause(queue)
    elif not around.serving and around.paused:
        yield _("All executors serving queue %(queue)s are paused: they claim no tasks.") % name
    elif not around.serving:
        yield _("No executor is serving queue %(queue)s.") % name
    elif task.executor_losses:
        yield ngettext(
            "%(count)d executor was lost while running it; another one will run it.",
            "%(count)d executors were lost while running it; an idle one will run it alone.",
            task.executor_losses,
        ) % {"count": task.executor_losses}
    elif queue is not None and queue.max_running is not None and around.running >= queue.max_running:
        yield _("The limit of queue %(queue)s is reached (%(count)d running).") % {**name, "count": queue.max_running}
    elif around.slots and around.busy >= around.slots:
        yield _("All %(slots)d slots of the executors serving queue %(queue)s are busy.") % {
            **name,
            "slots": around.slots,
        }
    else:
        yield _("Waiting for its turn in queue %(queue)s.") % name


def _scheduled(task: Task, around: Surroundings) -> Iterator[str]:
    if task.wake_at is None:
        yield _("Scheduled without a time; it will never run. Cancel it.")
        return
    is_due = task.wake_at <= around.now
    time = {"time": around.since(task.wake_at) if is_due else around.until(task.wake_at)}
    error = class_name(around.last_error)
    values = {"error": error, "attempt": task.attempts, "max": task.max_attempts, "task": task.task_type}
    if error == "UnknownTask":
        yield _("No executor has code for the task %(task)s.") % values
    elif task.attempts and error:
        yield _("Attempt %(attempt)d of %(max)d failed with %(error)s.") % values
    elif task.attempts:
        yield _("Attempt %(attempt)d of %(max)d failed.") % values
    elif error:
        yield _("Returned to the queue because of %(error)s.") % values
    else:
        text = _("It was due %(time)s ago (%(moment)s).") if is_due else _("It becomes ready in %(time)s (%(moment)s).")
        yield text % {**time, "moment": moment_in_words(task.wake_at)}
    if error or task.attempts:
        yield (_("Its next attempt was due %(time)s ago.") if is_due else _("Next attempt in %(time)s.")) % time
    if is_due and not around.alive:
        yield _("No executor is running.")


def _running(task: Task, around: Surroundings) -> Iterator[str]:
    values = {
        "time": around.since(task.claimed_at or task.last_attempted_at),
        "attempt": task.attempts + 1,
        "max": task.max_attempts,
    }
    if around.executor is None:
        timeout = duration(timedelta(seconds=around.timeout_seconds))
        yield _("Running for %(time)s on an executor that no longer exists.") % values
        yield _("Another executor will rescue the task after %(timeout)s.") % {"timeout": timeout}
        return
    values["executor"] = around.executor.name
    silent = around.now - around.executor.heartbeat
    if silent.total_seconds() > around.timeout_seconds:
        values["silent"] = duration(silent)
        yield _("Executor %(executor)s sent its last heartbeat %(silent)s ago.") % values
        yield _("Another executor will rescue the task.") if around.alive else _("No executor is running to rescue it.")
    elif task.cancel_requested_at is not None:
        yield _("Running for %(time)s on %(executor)s.") % values
        yield _("Cancellation was requested %(time)s ago.") % {"time": around.since(task.cancel_requested_at)}
    else:
        yield _("Running for %(time)s on %(executor)s (attempt %(attempt)d of %(max)d).") % values


def _suspended(task: Task, around: Surroundings) -> Iterator[str]:
    is_due = task.wake_at is not None and task.wake_at <= around.now
    if around.unread and task.unread_polls and task.wake_at is not None and not is_due:
        yield _("It will check its unread messages again in %(time)s.") % {"time": around.until(task.wake_at)}
    elif around.unread:
        yield ngettext("It has %(number)s unread message.", "It has %(number)s unread messages.", around.unread) % {
            "number": _unread_number(around)
        }
        yield _("It will be woken in a moment.") if around.alive else _("No executor is running to wake it.")
    elif task.wake_at is not None and is_due:
        yield _("Its wait ended %(time)s ago.") % {"time": around.since(task.wake_at)}
        yield _("It becomes ready in a moment.") if around.alive else _("No executor is running to wake it.")
    elif task.wake_at is not None:
        values = {"moment": moment_in_words(task.wake_at), "time": around.until(task.wake_at)}
        yield _("Waiting for a message, until %(moment)s (in %(time)s).") % values
        yield from _live_children(around)
    else:
        since = around.since(task.last_attempted_at or task.enqueued_at)
        yield _("Waiting for a message for %(time)s, without a timeout.") % {"time": since}
        yield from _live_children(around)


def _failed(task: Task, around: Surroundings) -> str:
    error = around.last_error
    values = {
        "time": around.since(task.finished_at),
        "attempt": task.attempts,
        "max": task.max_attempts,
        "error": headline(error.get("exception_class_path"), error.get("message")),
        "message": headline(None, error.get("message")),
        "count": task.executor_losses,
    }
    match class_name(error):
        case "":
            text = _("Failed %(time)s ago without a recorded error.")
        case "ExecutorLost":
            text = ngettext(
                "Failed %(time)s ago: %(count)d executor was lost while running it.",
                "Failed %(time)s ago: %(count)d executors were lost while running it.",
                task.executor_losses,
            )
        case "Expired":
            text = _("Failed %(time)s ago: it expired before it started.")
        case "UndecodableTask":
            text = _("Failed %(time)s ago before it started, because its stored row is unreadable: %(message)s")
        case "GiveUp":
            text = _("Failed %(time)s ago: the task gave up: %(message)s")
        case _ if task.attempts >= task.max_attempts:
            text = _("Failed %(time)s ago on its last attempt (%(attempt)d of %(max)d): %(error)s")
        case _:
            text = _("Failed %(time)s ago on attempt %(attempt)d of %(max)d; this error is not retried: %(error)s")
    return text % values


def _last_duration(task: Task) -> str:
    if task.finished_at is None or task.last_attempted_at is None:
        return "?"
    return duration(task.finished_at - task.last_attempted_at)
