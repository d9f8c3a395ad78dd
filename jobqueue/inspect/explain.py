"""Why is this task where it is? One plain sentence, from values alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.inspect.formatting import class_name, duration, headline, moment_in_words, ready_since
from jobqueue.models import LIVE, Executor, Queue, Task

UNREAD = 100  # messages counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """
    What the sentence needs to know beside the task's row.

    serving: living executors that take tasks of its queue; slots, busy: theirs together. quiet: those that would, and
    were told to claim nothing. running: tasks of its queue, counted as far as its limit goes. alive: living executors
    of its backend. executor: the one that holds it. unread: messages in its inbox. live_children: children that have
    not ended. is_orphan: its parent has.
    """

    now: datetime
    aging_seconds: float = 60.0
    timeout_seconds: float = 30.0
    queue: Queue | None = None
    alive: int = 0
    serving: int = 0
    quiet: int = 0
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

    def ago(self, moment: datetime | None) -> str:
        return duration(self.now - moment) if moment is not None else "?"

    def until(self, moment: datetime) -> str:
        return duration(moment - self.now)


def explain(task: Task, around: Surroundings) -> str:
    """Say in a sentence or two why the task is in its state, and what happens next."""
    return " ".join([_why(task, around), *_besides(task, around)])


def _why(task: Task, around: Surroundings) -> str:
    match task.status:
        case Task.Status.READY:
            return _ready(task, around)
        case Task.Status.SCHEDULED:
            return _scheduled(task, around)
        case Task.Status.RUNNING:
            return _running(task, around)
        case Task.Status.SUSPENDED:
            return _suspended(task, around)
        case Task.Status.SUCCESSFUL:
            return _("Ended well %(ago)s ago; the last attempt took %(took)s.") % {
                "ago": around.ago(task.finished_at),
                "took": _took(task),
            }
        case Task.Status.FAILED:
            return _failed(task, around)
        case Task.Status.CANCELLED if task.started_at is None:
            return _("Cancelled %(ago)s ago, before it was started.") % {"ago": around.ago(task.finished_at)}
        case Task.Status.CANCELLED:
            return _("Cancelled %(ago)s ago, after it had been started.") % {"ago": around.ago(task.finished_at)}
        case _:
            return ""


def _besides(task: Task, around: Surroundings) -> Iterator[str]:
    """Say what is odd about its family and its mail."""
    if task.status in LIVE:
        if around.is_orphan:
            yield _("Its parent has ended.")
        return
    if around.live_children:
        yield ngettext(
            "%(count)d of its children lives on.", "%(count)d of its children live on.", around.live_children
        ) % {"count": around.live_children}
    if around.unread:
        yield ngettext(
            "%(count)s message was not delivered.", "%(count)s messages were not delivered.", around.unread
        ) % {"count": _many(around.unread)}


def _ready(task: Task, around: Surroundings) -> str:
    since = around.ago(ready_since(task, around.aging_seconds))
    return _("Ready for %(time)s: %(reason)s") % {"time": since, "reason": _why_not_started(task, around)}


def _why_not_started(task: Task, around: Surroundings) -> str:
    if task.expires_at is not None and task.expires_at <= around.now and task.polls == 0:
        return _("it expired %(ago)s ago and will end FAILED as soon as an executor takes it up.") % {
            "ago": around.ago(task.expires_at)
        }
    if around.queue is not None and around.queue.is_paused_at(around.now):
        return _paused(task, around.queue)
    names = {"queue": task.queue_name}
    if not around.serving and around.quiet:
        return _("every executor of queue %(queue)s that is alive was told to claim nothing.") % names
    if not around.serving:
        return _("no executor of queue %(queue)s is alive.") % names
    if task.executor_losses:
        return ngettext(
            "%(count)d executor was lost while it held the task; another one takes it up.",
            "%(count)d executors were lost while they held the task; it waits for one that is free to run it alone.",
            task.executor_losses,
        ) % {"count": task.executor_losses}
    if around.queue is not None and around.queue.max_running is not None and around.running >= around.queue.max_running:
        return ngettext(
            "%(count)d task of queue %(queue)s runs, and no more may.",
            "%(count)d tasks of queue %(queue)s run, and no more may.",
            around.queue.max_running,
        ) % {"count": around.queue.max_running, **names}
    if around.slots and around.busy >= around.slots:
        return _("all %(slots)d slots that serve queue %(queue)s are busy.") % {"slots": around.slots, **names}
    return _("it is started when its turn in queue %(queue)s comes.") % names


def _paused(task: Task, queue: Queue) -> str:
    sentence = _("queue %(queue)s is paused") % {"queue": task.queue_name}
    if queue.paused_by:
        sentence += _(" by %(user)s") % {"user": queue.paused_by}
    if queue.resume_at is not None:
        sentence += _(" until %(moment)s") % {"moment": moment_in_words(queue.resume_at)}
    if queue.pause_reason:
        sentence += _(" (%(reason)s)") % {"reason": queue.pause_reason}
    return f"{sentence}."


def _scheduled(task: Task, around: Surroundings) -> str:
    wake_at = task.wake_at
    name = class_name(around.last_error)
    if wake_at is None:
        return _("Scheduled, but for no moment: only a cancel ends this.")
    is_due = wake_at <= around.now
    moment = around.ago(wake_at) if is_due else around.until(wake_at)
    if name == "UnknownTask":
        sentence = _("No executor knows the task %(task)s") % {"task": task.task_type}
        then = _("it is offered again since %(time)s") if is_due else _("it is offered again in %(time)s")
    elif task.attempts:
        sentence = _("Attempt %(attempt)d of %(most)d failed") % {
            "attempt": task.attempts,
            "most": task.max_attempts,
        }
        if name:
            sentence += _(" with %(error)s") % {"error": name}
        then = _("the next try is due since %(time)s") if is_due else _("next try in %(time)s")
    elif name:
        sentence = _("Handed back with %(error)s") % {"error": name}
        then = _("the next try is due since %(time)s") if is_due else _("next try in %(time)s")
    else:
        sentence = _("Scheduled for %(moment)s") % {"moment": moment_in_words(wake_at)}
        then = _("it is due since %(time)s") if is_due else _("it becomes ready in %(time)s")
    end = _(", but no executor is alive.") if is_due and not around.alive else "."
    return f"{sentence}; {then % {'time': moment}}{end}"


def _running(task: Task, around: Surroundings) -> str:
    since = around.ago(task.claimed_at or task.last_attempted_at)
    if around.executor is None:
        return _(
            "Running for %(time)s on an executor that has no row: another one takes it over after %(timeout)s."
        ) % {
            "time": since,
            "timeout": duration(timedelta(seconds=around.timeout_seconds)),
        }
    names = {"time": since, "executor": around.executor.name}
    silent = around.now - around.executor.heartbeat
    if silent.total_seconds() > around.timeout_seconds:
        if not around.alive:
            words = _("%(executor)s was last heard of %(silent)s ago, and no executor is alive to take the task over.")
        else:
            words = _("%(executor)s was last heard of %(silent)s ago: another executor takes the task over.")
        return words % {**names, "silent": duration(silent)}
    if task.cancel_requested_at is not None:
        return _("Running for %(time)s on %(executor)s; told %(ago)s ago to cancel.") % {
            **names,
            "ago": around.ago(task.cancel_requested_at),
        }
    return _("Running for %(time)s on %(executor)s, attempt %(attempt)d of %(most)d.") % {
        **names,
        "attempt": task.attempts + 1,
        "most": task.max_attempts,
    }


def _many(count: int) -> str:
    return str(count) if count <= UNREAD else f"{UNREAD}+"


def _suspended(task: Task, around: Surroundings) -> str:
    is_due = task.wake_at is not None and task.wake_at <= around.now
    if around.unread and task.unread_polls and task.wake_at is not None and not is_due:
        return _("Will look again in %(time)s at mail it left unread.") % {"time": around.until(task.wake_at)}
    if around.unread:
        sentence = ngettext(
            "%(count)s unread message has come", "%(count)s unread messages have come", around.unread
        ) % {"count": _many(around.unread)}
        then = _("woken in a moment.") if around.alive else _("woken as soon as an executor is alive.")
        return f"{sentence}: {then}"
    if task.wake_at is not None and is_due:
        end = "." if around.alive else _(", but no executor is alive.")
        return (
            _("Its sleep ended %(time)s ago; it becomes ready in a moment") % {"time": around.ago(task.wake_at)} + end
        )
    if task.wake_at is not None:
        sentence = _("Suspended: waits for a message, or until %(moment)s, in %(time)s") % {
            "moment": moment_in_words(task.wake_at),
            "time": around.until(task.wake_at),
        }
        return sentence + (_living_children(around) or ".")
    sentence = _("Suspended for %(time)s with no timeout") % {
        "time": around.ago(task.last_attempted_at or task.enqueued_at)
    }
    return sentence + (_living_children(around) or _(": only a message wakes it."))


def _living_children(around: Surroundings) -> str:
    if not around.live_children:
        return ""
    words = ngettext("; %(count)d child has not ended.", "; %(count)d children have not ended.", around.live_children)
    return words % {"count": around.live_children}


def _failed(task: Task, around: Surroundings) -> str:
    error = around.last_error
    ago = around.ago(task.finished_at)
    said = headline(error.get("exception_class_path"), error.get("message"))
    values = {
        "ago": ago,
        "attempt": task.attempts,
        "most": task.max_attempts,
        "said": said,
        "lost": task.executor_losses,
    }
    match class_name(error):
        case "":
            return _("Failed %(ago)s ago; no error was recorded.") % values
        case "ExecutorLost":
            return (
                ngettext(
                    "Failed %(ago)s ago: %(lost)d executor was lost while it held the task.",
                    "Failed %(ago)s ago: %(lost)d executors were lost while they held the task.",
                    task.executor_losses,
                )
                % values
            )
        case "Expired":
            return _("Failed %(ago)s ago: it was not started before it expired.") % values
        case "UndecodableTask":
            return _("Failed %(ago)s ago, unstarted: its row cannot be read. %(said)s") % values
        case "GiveUp":
            return _("Failed %(ago)s ago: it gave up. %(said)s") % values
        case _ if task.attempts >= task.max_attempts:
            return _("Failed %(ago)s ago: attempt %(attempt)d of %(most)d, the last, ended with %(said)s") % values
        case _:
            words = _("Failed %(ago)s ago: attempt %(attempt)d of %(most)d ended with what is not retried. %(said)s")
            return words % values


def _took(task: Task) -> str:
    if task.finished_at is None or task.last_attempted_at is None:
        return "?"
    return duration(task.finished_at - task.last_attempted_at)
