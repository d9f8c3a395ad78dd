"""The findings about limits: keys that keep tasks BLOCKED, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from shlex import quote
from typing import NamedTuple

from django.core import checks
from django.db.models import Exists
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.engine import INDEXED, IS_ACTIVE, IS_WAITING, Engine, clock_to_compare, tasks_of_limit
from jobqueue.models import AdmissionRequest
from jobqueue.operations.formatting import duration
from jobqueue.operations.holders import read_holders
from jobqueue.operations.limits import Key, counts_for, list_keys, read_key_states
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.stats import BackendStats
from jobqueue.operations.queries import many_tasks
from jobqueue.values.states import LimitKind, Status
from jobqueue.values.text import number_text

BLOCKED_MANY = 1000  # tasks of a queue
UNANSWERED_SECONDS = 10.0  # executors look at the key of a limit within a second
KEYS_CHECKED = 20  # those with the most BLOCKED tasks
ACTIVE_READ = 1000  # tasks of a key
MAX_LISTED = 10  # findings of one check
LONG = timedelta(hours=1)
CODE_COMES = timedelta(minutes=1)  # an executor with the code of a task takes it sooner


class Active(NamedTuple):
    """A task that counts for a limit."""

    status: str  # of the task
    queue_name: str  # of the task
    wake_at: datetime | None  # the next run; None: it does not wait for a time
    claimed_at: datetime | None  # of the last claim; None: never claimed
    awaits_code_since: datetime | None  # None: it does not wait for code

    def may_end_soon(self, now: datetime, stopped: Collection[str]) -> bool:
        """
        Return whether it may run or end within LONG, as far as its row tells. stopped: queues without executors.
        """
        match self.status:
            case Status.READY:
                return self.queue_name not in stopped
            case Status.SCHEDULED:
                return self.queue_name not in stopped and (self.wake_at is None or self.wake_at < now + LONG)
            case Status.RUNNING:
                return self.claimed_at is None or self.claimed_at > now - LONG
            case Status.AWAITING_CODE:
                return self.awaits_code_since is None or self.awaits_code_since > now - CODE_COMES
        return True


def limit_findings(
    engine: Engine, stats: BackendStats, keys_checked: int = KEYS_CHECKED
) -> Iterator[checks.CheckMessage]:
    """Find keys whose BLOCKED tasks cannot run, and say why. If no executor is alive, another check says so."""
    yield from _many_blocked(stats)
    unanswered = list(_unanswered_requests(engine, stats))
    yield from unanswered
    if not stats.alive or not stats.totals[Status.BLOCKED]:
        return
    waiting = [row.key for row in list_keys(engine).keys if row.blocked]
    messages: list[checks.CheckMessage] = []
    for key in waiting[:keys_checked]:
        messages += _forgotten(engine, key) if not unanswered else ()
        messages += _held(engine, stats, key)
    yield from messages[:MAX_LISTED]
    values = {"backend": stats.backend}
    if others := messages[MAX_LISTED:]:
        text = ngettext(
            "Backend %(backend)s: a problem with %(number)s more key.",
            "Backend %(backend)s: a problem with %(number)s more keys.",
            len(others),
        ) % {**values, "number": number_text(len(others))}
        yield checks.Warning(text, hint="manage.py jobqueue limits --blocked", obj=AdminTarget("limit"))
    if waiting and not messages and not unanswered:
        text = ngettext(
            "Backend %(backend)s: no problem in %(number)s key with BLOCKED tasks.",
            "Backend %(backend)s: no problem in %(number)s keys with BLOCKED tasks.",
            len(waiting),
        ) % {**values, "number": number_text(len(waiting))}
        yield checks.Info(text)


def _many_blocked(stats: BackendStats) -> Iterator[checks.CheckMessage]:
    for queue in stats.queues:
        blocked = queue.counts[Status.BLOCKED]
        if blocked.number >= BLOCKED_MANY:
            text = _("Queue %(queue)s: limits block %(tasks)s.")
            yield checks.Warning(
                text % {"queue": queue.name, "tasks": many_tasks(blocked)},
                hint=_("If they should run sooner, raise the limits: %(command)s")
                % {"command": "manage.py jobqueue limits"},
                obj=AdminTarget("task", {"status": Status.BLOCKED, "queue": queue.name}),
            )


def _unanswered_requests(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find requests to look at a limit that executors do not answer. Without executors, another check says so."""
    if not stats.alive:
        return
    requests = AdmissionRequest.objects.using(engine.database).filter(backend=engine.alias)
    late = requests.filter(due_at__lt=clock_to_compare(after=-UNANSWERED_SECONDS)).order_by("due_at")
    if (first := late.first()) is not None:
        text = _(
            "Backend %(backend)s: executors have not looked at the %(kind)s limit %(key)s, "
            "which has BLOCKED tasks, for %(time)s."
        )
        values = {"kind": first.kind, "key": first.key, "time": duration(stats.now - first.due_at)}
        advice = _("Look for errors in the log of executors, and for a session that keeps rows of these tasks locked.")
        yield checks.Error(text % {"backend": stats.backend, **values}, hint=advice, obj=AdminTarget("limit"))


def _forgotten(engine: Engine, key: Key) -> Iterator[checks.CheckMessage]:
    """Find a key with BLOCKED tasks, nothing active, and no request to look at it: nothing will ever admit a task."""
    of_key = engine.db.tasks.filter(INDEXED[key.kind] & tasks_of_limit(key.kind, key.stored))
    waiting = of_key.filter(IS_WAITING[key.kind])
    requests = AdmissionRequest.objects.using(engine.database).filter(
        backend=engine.alias, kind=key.kind, key=key.stored
    )
    # One statement: an executor takes a request and admits tasks in one transaction.
    if waiting.filter(~Exists(of_key.filter(IS_ACTIVE[key.kind])), ~Exists(requests))[:1].exists():
        text = _("The %(kind)s limit %(key)s: tasks are BLOCKED, none is active, and no executor will admit one.")
        command = f"manage.py jobqueue limits set {quote(key.stored)} NUMBER --kind {key.kind}"
        advice = _("To look at the key again, run: %(command)s. This is a bug, please report it.")
        yield checks.Error(
            text % {"kind": key.kind, "key": key.stored},
            hint=advice % {"command": command},
            obj=AdminTarget("limit", pk=f"{engine.alias}:{key.text}"),
        )


def _held(engine: Engine, stats: BackendStats, key: Key) -> Iterator[checks.CheckMessage]:
    """Find a limit that only tasks use up that cannot end soon, and say why one of them cannot. Up to ACTIVE_READ."""
    columns = ("status", "queue_name", "wake_at", "claimed_at", "awaits_code_since")
    active = [Active(*row) for row in engine.db.tasks.filter(counts_for(key)).values_list(*columns)[:ACTIVE_READ]]
    stopped = {queue.name for queue in stats.queues if queue.is_paused or not queue.executors}
    if not active or any(row.may_end_soon(stats.now, stopped) for row in active):
        return
    (state,) = read_key_states(engine.database, engine.alias, [key])
    values: dict[str, object] = {"kind": key.kind, "key": key.label, "tasks": many_tasks(state.active)}
    if any(row.status != Status.READY for row in active):
        text = _(
            "The %(kind)s limit %(key)s is used up by %(tasks)s that cannot end soon. "
            "%(name)s %(id)s, %(status)s: %(sentence)s"
        )
        advice = _("To let the BLOCKED tasks run, help or cancel it: %(command)s")
        for holder in read_holders(engine.database, state, with_payload=False)[:1]:
            row = holder.task
            values |= {"name": row.task_type, "id": row.pk, "status": row.status, "sentence": holder.sentence}
            command = f"manage.py jobqueue show {row.pk}"
            yield checks.Warning(text % values, hint=advice % {"command": command}, obj=AdminTarget("task", pk=row.pk))
        return
    # Starts in the window use up a rate for a moment only.
    if key.kind is LimitKind.RATE and (state.number is None or len(active) < state.number):
        return
    values["queues"] = ", ".join(sorted({row.queue_name for row in active}))
    text = _(
        "The %(kind)s limit %(key)s is used up by READY tasks of queues that are paused or have no executor: "
        "%(queues)s."
    )
    yield checks.Warning(
        text % values,
        hint=_("Resume the queue, start an executor for it, or cancel these tasks."),
        obj=AdminTarget("limit", pk=f"{engine.alias}:{key.text}"),
    )
