"""Explain why a task is in its state, and what happens next: a few plain sentences, computed from values alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.engine import is_silent
from jobqueue.models import LIVE, Executor, Queue, Task
from jobqueue.operations.formatting import class_name, describe_pause, duration, headline, moment_in_words, ready_since
from jobqueue.operations.limits import KeyState

MAX_UNREAD = 100  # messages counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """
    Facts for the explanation beside the task's row.

    It has more than 15 attributes because each reason to wait has its fact.
    """

    now: datetime  # of the database
    aging_seconds: float = 60.0  # AGING of the backend
    timeout_seconds: float = 30.0  # HEARTBEAT_TIMEOUT of the backend
    queue: Queue | None = None  # the row of its queue; None: it has none
    alive: int = 0  # living executors of its backend
    serving: int = 0  # executors that claim tasks of its queue
    knowing: int = 0  # those of them that have code for its name
    paused: int = 0  # executors of its queue that were asked to claim nothing
    slots: int = 0  # threads of the serving executors together
    busy: int = 0  # running tasks of the serving executors together
    running: int = 0  # tasks of its queue, counted up to the limit
    executor: Executor | None = None  # the one that runs it; None: it does not run, or the row is gone
    silent_seconds: float = 0.0  # since the last heartbeat of `executor`
    # The limit by key for which a BLOCKED task waits, or for which a SCHEDULED task still counts; None: neither
    limit: KeyState | None = None
    errors: list[Mapping[str, Any]] = field(default_factory=list)  # of its attempts, oldest first
    unread: int = 0  # messages in its inbox
    live_children: int = 0  # children that have not ended
    is_orphan: bool = False  # its parent has ended
    wait: str = ""  # what a workflow waits for, as a sentence; empty for other tasks

    @property
    def last_error(self) -> Mapping[str, Any]:
        return self.errors[-1] if self.errors else {}


def explain(task: Task, facts: TaskFacts) -> str:
    """Explain a task's state. Each sentence is translated as a whole, then filled with the values that it names."""
    error, executor, wake_at = facts.last_error, facts.executor, task.wake_at
    moments = {
        "ready": ready_since(task, facts.aging_seconds),
        "running": task.claimed_at or task.last_attempted_at,
        "suspended": task.last_attempted_at or task.enqueued_at,
        "wake": wake_at,
        "expired": task.expires_at,
        "cancel": task.cancel_requested_at,
        "ended": task.finished_at,
        "code": task.awaits_code_since,
        "look": facts.limit.next_look_at if facts.limit is not None else None,
    }
    values = {
        "task": task.task_type,
        "queue": task.queue_name,
        "executor": executor.name if executor is not None else "",
        "attempt": task.attempts,
        "next_attempt": task.attempts + 1,
        "max": task.max_attempts,
        "losses": task.executor_losses,
        "limit": facts.queue.max_running if facts.queue is not None else None,
        "slots": facts.slots,
        "children": facts.live_children,
        "messages": str(facts.unread) if facts.unread <= MAX_UNREAD else f"{MAX_UNREAD}+",
        **_limit_values(facts.limit),
        "new_holder": task.taken_over_by_id,
        "class": class_name(error),
        "error": headline(error.get("exception_class_path"), error.get("message")),
        "message": headline(None, error.get("message")),
        "awaited": error.get("awaited", ""),
        "moment": moment_in_words(wake_at) if wake_at is not None else "",
        "timeout": duration(facts.timeout_seconds),
        "silent": duration(facts.silent_seconds),
        "duration": _between(task.last_attempted_at, task.finished_at),
        **{name: _between(moment, facts.now) for name, moment in moments.items()},
    }
    *first, last = [sentence % values for sentence in (*_state(task, facts), *_relatives(task, facts))]
    # A sentence may end with the message of an error, which needs a period before the next one.
    return " ".join([*(text if text[-1:] in ".:!?…" else f"{text}." for text in first), last])


def _limit_values(limit: KeyState | None) -> dict[str, object]:
    if limit is None:
        return {}
    return {"key": limit.title, "active": str(limit.active), "number": limit.number, "words": limit.number_text}


def _between(start: datetime | None, end: datetime | None) -> str:
    return "?" if start is None or end is None else duration(abs(end - start))


def _state(task: Task, facts: TaskFacts) -> Iterator[str]:
    match task.status:
        case Task.Status.READY:
            yield _("Ready for %(ready)s.")
            yield _why_not_started(task, facts)
        case Task.Status.BLOCKED:
            yield from _blocked(task, facts)
        case Task.Status.SCHEDULED:
            yield from _scheduled(task, facts)
        case Task.Status.AWAITING_CODE:
            yield from _awaiting_code(task, facts)
        case Task.Status.RUNNING:
            yield from _running(task, facts)
        case Task.Status.SUSPENDED:
            yield from _suspended(task, facts)
        case Task.Status.SUCCESSFUL:
            yield _("Succeeded %(ended)s ago in %(duration)s.")
        case Task.Status.FAILED:
            yield _failed(task, facts)
        case Task.Status.CANCELLED if task.started_at is None:
            yield _("Cancelled %(ended)s ago, before it started.")
        case Task.Status.CANCELLED:
            yield _("Cancelled %(ended)s ago, after it started.")


def _relatives(task: Task, facts: TaskFacts) -> Iterator[str]:
    """Explain what is unusual about parent, children and messages."""
    if task.status in LIVE:
        if task.taken_over_by_id is not None:
            yield _("Task %(new_holder)s has taken over its unique key, and does not wait for it.")
        if facts.is_orphan:
            yield _("Its parent has ended.")
        return
    yield from _live_children(facts)
    if facts.unread:
        text = ngettext(
            "%(messages)s message was not delivered.", "%(messages)s messages were not delivered.", facts.unread
        )
        yield text
        if task.status != Task.Status.SUCCESSFUL:
            yield _("If you requeue it, the task reads what it has not read.")


def _live_children(facts: TaskFacts) -> Iterator[str]:
    if facts.live_children:
        yield ngettext(
            "%(children)d child has not ended.", "%(children)d children have not ended.", facts.live_children
        )


def _why_not_started(task: Task, facts: TaskFacts) -> str:
    queue = facts.queue
    if task.expires_at is not None and task.expires_at <= facts.now and task.polls == 0:
        return _("It expired %(expired)s ago and will fail when an executor claims it.")
    if queue is not None and queue.is_paused_at(facts.now):
        return describe_pause(queue).replace("%", "%%")
    if not facts.serving and facts.paused:
        return _("All executors serving queue %(queue)s are paused: they claim no tasks.")
    if not facts.serving:
        return _("No executor is serving queue %(queue)s.")
    if task.executor_losses:
        text = ngettext(
            "%(losses)d executor was lost while running it; another one will run it.",
            "%(losses)d executors were lost while running it; an idle one will run it alone.",
            task.executor_losses,
        )
        return text
    if queue is not None and queue.max_running is not None and facts.running >= queue.max_running:
        return _("The limit of queue %(queue)s is reached (%(limit)d running).")
    if facts.slots and facts.busy >= facts.slots:
        return _("All %(slots)d slots of the executors serving queue %(queue)s are busy.")
    return _("Waiting for its turn in queue %(queue)s.")


def _blocked(task: Task, facts: TaskFacts) -> Iterator[str]:
    limit, is_due = facts.limit, True
    if limit is None:
        yield _("Blocked for %(ready)s by a limit.")
    elif limit.is_rate:
        # Executors look again each second, but the rate allows no start before one of these tasks has started.
        waits_for_ready = limit.number is not None and limit.unstarted >= limit.number
        is_due = not waits_for_ready and (limit.next_look_at is None or limit.next_look_at <= facts.now)
        used = _("Blocked: the rate of %(key)s is used up (%(words)s). Next start in %(look)s.")
        if limit.left:
            yield _("Blocked for %(ready)s by the rate of %(key)s (%(words)s).")
        else:
            yield _("Blocked: the rate of %(key)s is used up (%(words)s).") if is_due or waits_for_ready else used
    elif limit.left:
        yield _("Blocked for %(ready)s by the concurrency limit of %(key)s (%(active)s of %(number)d active).")
    else:
        yield _("Blocked: the concurrency limit of %(key)s is reached (%(active)s of %(number)d active).")
        is_due = False
    if task.expires_at is not None and task.expires_at <= facts.now and task.polls == 0:
        yield _("It expired %(expired)s ago and will fail when an executor claims it.")
    if facts.queue is not None and facts.queue.is_paused_at(facts.now):
        yield describe_pause(facts.queue).replace("%", "%%")
    elif not facts.alive:
        yield _("No executor is running.")
    elif is_due:
        yield _("It becomes ready in a moment.")


def _scheduled(task: Task, facts: TaskFacts) -> Iterator[str]:
    if task.wake_at is None:
        yield _("Scheduled without a time; it will never run. Cancel it.")
        return
    is_due = task.wake_at <= facts.now
    error = class_name(facts.last_error)
    if task.attempts and error:
        yield _("Attempt %(attempt)d of %(max)d failed with %(class)s.")
    elif task.attempts:
        yield _("Attempt %(attempt)d of %(max)d failed.")
    elif error:
        yield _("Returned to the queue because of %(class)s.")
    else:
        text = _("It was due %(wake)s ago (%(moment)s).") if is_due else _("It becomes ready in %(wake)s (%(moment)s).")
        yield text
    if error or task.attempts:
        text = _("Its next attempt was due %(wake)s ago.") if is_due else _("Next attempt in %(wake)s.")
        yield text
    if is_due and not facts.alive:
        yield _("No executor is running.")
    if task.counts_while_waiting and facts.limit is not None:
        yield _("It still counts for the concurrency limit of %(key)s.")
        if facts.queue is not None and facts.queue.is_paused_at(facts.now):  # others wait as long as the pause
            yield describe_pause(facts.queue).replace("%", "%%")
        elif facts.alive and not facts.serving:
            yield _("No executor is serving queue %(queue)s.")


def _awaiting_code(task: Task, facts: TaskFacts) -> Iterator[str]:
    is_unbound = "awaited" in facts.last_error and class_name(facts.last_error) == "UnboundCall"
    if not facts.alive:
        yield _("Waiting for code for %(code)s. No executor is running.")
    elif not facts.knowing:
        yield _("No running executor has code for the task %(task)s. It has waited for %(code)s.")
    elif is_unbound:
        yield _("The code of the running executors does not fit: %(awaited)s. It has waited for %(code)s.")
    else:
        yield _("An executor has code for the task %(task)s now. It becomes ready when the executor has a free slot.")
    if task.wake_at is not None:
        text = _("It fails in %(wake)s unless an executor has code that fits.")
        yield text if is_unbound else _("It expires in %(wake)s.")
    if task.counts_while_waiting:
        yield _("It still counts for its concurrency limit.")


def _running(task: Task, facts: TaskFacts) -> Iterator[str]:
    if facts.executor is None:
        yield _("Running for %(running)s on an executor that no longer exists.")
        yield _("Another executor will rescue the task after %(timeout)s.")
    elif is_silent(facts.silent_seconds, facts.timeout_seconds):
        yield _("Executor %(executor)s sent its last heartbeat %(silent)s ago.")
        yield _("Another executor will rescue the task.") if facts.alive else _("No executor is running to rescue it.")
    elif task.cancel_requested_at is not None:
        yield _("Running for %(running)s on %(executor)s.")
        yield _("Cancellation was requested %(cancel)s ago.")
    else:
        yield _("Running for %(running)s on %(executor)s (attempt %(next_attempt)d of %(max)d).")
        if facts.silent_seconds > facts.timeout_seconds / 2:  # one was missed
            yield _("Executor %(executor)s sent its last heartbeat %(silent)s ago.")


def _suspended(task: Task, facts: TaskFacts) -> Iterator[str]:
    is_due = task.wake_at is not None and task.wake_at <= facts.now
    if facts.wait:
        yield facts.wait.replace("%", "%%")
    if facts.unread and task.unread_polls and task.wake_at is not None and not is_due:
        yield _("It will check its unread messages again in %(wake)s.")
    elif facts.unread:
        yield ngettext("It has %(messages)s unread message.", "It has %(messages)s unread messages.", facts.unread)
        yield _("It will be woken in a moment.") if facts.alive else _("No executor is running to wake it.")
    elif is_due:
        yield _("Its wait ended %(wake)s ago.")
        yield _("It becomes ready in a moment.") if facts.alive else _("No executor is running to wake it.")
    elif not facts.wait:
        until = _("Waiting for a message, until %(moment)s (in %(wake)s).")
        yield until if task.wake_at else _("Waiting for a message for %(suspended)s, without a timeout.")
        yield from _live_children(facts)


def _failed(task: Task, facts: TaskFacts) -> str:
    match class_name(facts.last_error):
        case "":
            return _("Failed %(ended)s ago without a recorded error.")
        case "ExecutorLost":
            return ngettext(
                "Failed %(ended)s ago: %(losses)d executor was lost while running it.",
                "Failed %(ended)s ago: %(losses)d executors were lost while running it.",
                task.executor_losses,
            )
        case "Expired":
            return _("Failed %(ended)s ago: it expired before it started.")
        case "UndecodableTask":
            return _("Failed %(ended)s ago before it started, because its stored row is unreadable: %(message)s")
        case "UnboundCall":
            return _("Failed %(ended)s ago, because no executor had code that fits: %(message)s")
        case "GiveUp":
            return _("Failed %(ended)s ago: the task gave up: %(message)s")
        case _ if task.attempts >= task.max_attempts:
            return _("Failed %(ended)s ago on its last attempt (%(attempt)d of %(max)d): %(error)s")
        case _:
            return _("Failed %(ended)s ago on attempt %(attempt)d of %(max)d; this error is not retried: %(error)s")
