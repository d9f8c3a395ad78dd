"""The checks of `doctor` about limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from shlex import quote
from typing import NamedTuple

from django.core import checks
from django.db.models import Exists

from jobqueue.engine import INDEXED, IS_WAITING, Engine, of_limit
from jobqueue.models import AdmissionRequest
from jobqueue.operations.limits import IS_ACTIVE, Key, active_of, list_keys, read_keys
from jobqueue.operations.overview.findings import unanswered_requests
from jobqueue.operations.overview.stats import BackendStats
from jobqueue.operations.queries import many
from jobqueue.operations.task.detail import read_holders
from jobqueue.values.records import LimitKind, Status

KEYS_CHECKED = 200  # those with the most BLOCKED tasks
ACTIVE_READ = 1000  # tasks of a key
MAX_LISTED = 10  # findings of one check
LONG = timedelta(hours=1)
CODE_COMES = timedelta(minutes=1)  # an executor with the code of a task takes it sooner


class Active(NamedTuple):
    """A task that counts for a limit."""

    status: str
    queue_name: str
    wake_at: datetime | None
    claimed_at: datetime | None
    awaits_code_since: datetime | None

    def may_end_soon(self, now: datetime, stopped: Collection[str]) -> bool:
        """Whether it may run or end within LONG, as far as its row tells. stopped: queues that nobody serves now."""
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


def limit_findings(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find keys whose BLOCKED tasks cannot run, and say why. If no executor is alive, another check says so."""
    if not stats.alive:
        return
    here = f"Backend {stats.backend}"
    waiting = [one.key for one in list_keys(engine).keys if one.blocked]
    found: list[checks.CheckMessage] = []
    is_admitting = not list(unanswered_requests(engine, stats))
    for key in waiting[:KEYS_CHECKED]:
        found += _forgotten(engine, key) if is_admitting else ()
        found += _held(engine, stats, key)
    yield from found[:MAX_LISTED]
    if len(found) > MAX_LISTED:
        more = many(len(found) - MAX_LISTED, "more key")
        yield checks.Warning(f"{here}: a problem with {more}.", hint="manage.py jobqueue limits --blocked")
    if waiting and not found and is_admitting:
        yield checks.Info(f"{here}: no problem in {many(len(waiting), 'key')} with BLOCKED tasks.")


def _forgotten(engine: Engine, key: Key) -> Iterator[checks.CheckMessage]:
    """Find a key with BLOCKED tasks, nothing active, and no request to look at it: nothing will ever admit a task."""
    of_key = engine.db.tasks.filter(INDEXED[key.kind] & of_limit(key.kind, key.stored))
    waiting = of_key.filter(IS_WAITING[key.kind])
    requests = AdmissionRequest.objects.using(engine.database).filter(
        backend=engine.alias, kind=key.kind, key=key.stored
    )
    # One statement: an executor takes a request and admits tasks in one transaction.
    if waiting.filter(~Exists(of_key.filter(IS_ACTIVE[key.kind])), ~Exists(requests))[:1].exists():
        text = f"The {key.kind} limit {key.stored}: tasks are BLOCKED, none is active, and no executor will admit one."
        command = f"manage.py jobqueue limits set {quote(key.stored)} NUMBER --kind {key.kind}"
        yield checks.Error(text, hint=f"To look at the key again, run: {command}. This is a bug, please report it.")


def _held(engine: Engine, stats: BackendStats, key: Key) -> Iterator[checks.CheckMessage]:
    """Find a limit that only tasks use up that cannot end soon, and say why one of them cannot. Up to ACTIVE_READ."""
    columns = ("status", "queue_name", "wake_at", "claimed_at", "awaits_code_since")
    active = [Active(*row) for row in engine.db.tasks.filter(active_of(key)).values_list(*columns)[:ACTIVE_READ]]
    stopped = {queue.name for queue in stats.queues if queue.is_paused or not queue.executors}
    now = engine.db.now()
    if not active or any(row.may_end_soon(now, stopped) for row in active):
        return
    if any(row.status != Status.READY for row in active):
        (state,) = read_keys(engine.database, engine.alias, [key])
        for holder in read_holders(engine.database, state, with_payload=False)[:1]:
            yield checks.Warning(
                f"The {key.kind} limit {key.words} is used up by {many(len(active), 'task')} that cannot end soon. "
                f"{holder.task.task_type} {holder.task.pk}, {holder.task.status}: {holder.sentence}",
                hint=f"To let the BLOCKED tasks run, help or cancel it: manage.py jobqueue show {holder.task.pk}",
            )
        return
    if key.kind is LimitKind.RATE:  # starts in the window use it up for a moment only
        (state,) = read_keys(engine.database, engine.alias, [key])
        if state.number is None or len(active) < state.number:
            return
    names = ", ".join(sorted({row.queue_name for row in active}))
    text = (
        f"The {key.kind} limit {key.stored} is used up by READY tasks of queues that are paused or have no executor: "
        f"{names}."
    )
    yield checks.Warning(text, hint="Resume the queue, start an executor for it, or cancel these tasks.")
