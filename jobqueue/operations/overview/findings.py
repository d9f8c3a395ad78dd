"""
Find the problems of a backend, for `doctor` and the overview: queues, executors, failures, limits, schedules, server.

Each finding is a message of Django's check framework. Its `obj` is where the admin shows the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING, cast

from django.core import checks
from django.db import DatabaseError, connections
from django.db.models import Sum
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.api import aliases
from jobqueue.declarations.checks import encoding_problems
from jobqueue.engine import (
    Count,
    Engine,
    alive,
    clock_to_compare,
    count,
    migrate_command,
    missing_objects,
    schema_problem,
)
from jobqueue.models import CounterPeriod, Executor, Task
from jobqueue.operations.backends import backends_on
from jobqueue.operations.executors import ExecutorState
from jobqueue.operations.formatting import duration
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.code_findings import code_findings
from jobqueue.operations.overview.limit_findings import KEYS_CHECKED, limit_findings
from jobqueue.operations.overview.schedule_findings import schedule_findings
from jobqueue.operations.overview.server_findings import lock_findings, server_findings
from jobqueue.operations.overview.stats import BackendStats, QueueStats
from jobqueue.operations.overview.workflows import workflow_findings
from jobqueue.operations.queries import many_executors, many_tasks, status_condition, tasks_with_status
from jobqueue.values.counters import Length, Scope
from jobqueue.values.states import FINAL, WAITING, Status
from jobqueue.values.text import number_text

if TYPE_CHECKING:
    from jobqueue.engine import PostgresEngine

OVERDUE_SECONDS = 3600.0  # executors prune twice a minute
PAUSED_LONG = timedelta(days=1)
LATENCY_LONG_SECONDS = 300.0
MAX_NAMES = 10  # findings of one kind: queues, executors, unknown backends
FAILED_MANY = 10  # failures in an hour
FAILURES_RISE = 3  # times as many as in an hour of the day before
SNAPSHOT_LONG_SECONDS = 900.0
DAY_SECONDS, HOUR_SECONDS = 86_400.0, 3600.0
LATER = (*WAITING, Status.BLOCKED, Status.AWAITING_CODE)  # may run later


def findings(engine: Engine, stats: BackendStats, *, keys_checked: int = KEYS_CHECKED) -> Iterator[checks.CheckMessage]:
    """Yield what is wrong with a backend, and what is all right. keys_checked: of limits with BLOCKED tasks."""
    yield from _at_most(_queues(stats), stats, AdminTarget("queue"))
    yield from _at_most(_latency(stats), stats, AdminTarget("queue"))
    yield from code_findings(engine, stats)
    yield from _failures(engine)
    yield from _at_most(_executors(stats), stats, AdminTarget("executor"))
    yield from schedule_findings(engine, stats)
    yield from limit_findings(engine, stats, keys_checked)
    yield from workflow_findings(engine, stats)
    yield from _unknown_backends(engine)
    yield from _retention(engine)
    if connections[engine.database].vendor == "postgresql":
        yield from _snapshots(cast("PostgresEngine", engine))
        yield from server_findings(cast("PostgresEngine", engine), stats)


def access_findings(engine: Engine) -> Iterator[checks.CheckMessage]:
    """
    Yield whether the database is there, what it lacks, and whose locks stop executors.

    After an error, further reads may fail or wait.
    """
    try:
        connections[engine.database].ensure_connection()
    except DatabaseError as error:
        first_line, *_others = str(error).strip().splitlines() or [type(error).__name__]
        text = f"Backend {engine.alias}: database {engine.database!r} is unreachable: {first_line}"
        yield checks.Error(text, hint=f"Start it, or correct DATABASES[{engine.database!r}].")
        return
    if refused := list(encoding_problems(engine.database)):
        yield from refused
        return
    if problem := schema_problem(engine.database):
        yield checks.Error(f"Backend {engine.alias}: {problem}")
        return
    if missing := missing_objects(engine.database):
        text = _("Backend %(backend)s: the database %(database)r lacks what migrations install: %(names)s.")
        values = {"backend": engine.alias, "database": engine.database, "names": ", ".join(missing)}
        yield checks.Warning(text % values, hint=migrate_command(engine.database))
    if connections[engine.database].vendor == "postgresql":
        yield from lock_findings(cast("PostgresEngine", engine))


def has_error(messages: Iterable[checks.CheckMessage]) -> bool:
    return any(message.level >= checks.ERROR for message in messages)


def find_problems(engine: Engine, stats: BackendStats) -> list[checks.CheckMessage]:
    """Find the problems of a backend, errors first."""
    warnings = [message for message in findings(engine, stats) if message.level >= checks.WARNING]
    return sorted(warnings, key=lambda message: -message.level)


def _at_most(
    messages: Iterable[checks.CheckMessage], stats: BackendStats, rows: AdminTarget
) -> Iterator[checks.CheckMessage]:
    """Yield the first MAX_NAMES problems, the number of the others, and what is all right."""
    all_messages = list(messages)
    problems = sorted((m for m in all_messages if m.level >= checks.WARNING), key=lambda message: -message.level)
    yield from problems[:MAX_NAMES]
    if others := problems[MAX_NAMES:]:
        text = ngettext(
            "Backend %(backend)s: %(number)s more problem like these.",
            "Backend %(backend)s: %(number)s more problems like these.",
            len(others),
        ) % {"backend": stats.backend, "number": number_text(len(others))}
        yield checks.CheckMessage(others[0].level, text, hint="manage.py jobqueue status", obj=rows)
    yield from (message for message in all_messages if message.level < checks.WARNING)


def _tasks(status: Status, **query: object) -> AdminTarget:
    return AdminTarget("task", {"status": status, **query})


def _retention(engine: Engine) -> Iterator[checks.CheckMessage]:
    for status in FINAL:
        kept = engine.options.retention.get(status)
        prune = f"manage.py jobqueue prune --status {status} --older-than"
        if kept is None:
            text = _("Backend %(backend)s: %(status)s tasks are never pruned: RETENTION['%(status)s'] is None.")
            advice = _("Set it, or run regularly: %(command)s") % {"command": f"{prune} 30d"}
        elif (
            tasks_with_status(engine, status)
            .filter(finished_at__lte=clock_to_compare(after=-kept - OVERDUE_SECONDS))[:1]
            .exists()
        ):
            text = _(
                "Backend %(backend)s: %(status)s tasks are older than RETENTION allows: "
                "executors prune too slowly or do not run."
            )
            advice = _("Start an executor, or run: %(command)s") % {"command": f"{prune} {kept:.0f}s"}
        else:
            continue
        yield checks.Warning(text % {"backend": engine.alias, "status": status}, hint=advice, obj=_tasks(status))


def _queues(stats: BackendStats) -> Iterator[checks.CheckMessage]:
    is_starving = False
    for queue in stats.queues:
        ready, paused_at = queue.counts[Status.READY], queue.row.paused_at
        serve = f"manage.py run_executors --backend {quote(stats.backend)} --queue {quote(queue.name)}"
        rows = AdminTarget("queue")
        if queue.is_paused and paused_at is not None:
            if stats.now - paused_at > PAUSED_LONG:
                text = _("Queue %(queue)s: paused for %(time)s; %(ready)s READY.") % {
                    "queue": queue.name,
                    "time": duration(stats.now - paused_at),
                    "ready": ready,
                }
                yield checks.Warning(text, hint=f"manage.py jobqueue resume {quote(queue.name)}", obj=rows)
        elif ready and not queue.executors:
            is_starving = True
            text = _("Queue %(queue)s: %(ready)s READY, a latency of %(latency)s, and no executor serves it.") % {
                "queue": queue.name,
                "ready": ready,
                "latency": duration(queue.latency or 0.0),
            }
            yield checks.Error(text, hint=serve, obj=_tasks(Status.READY, queue=queue.name))
        elif (
            stats.alive
            and not queue.executors
            and (waiting := sum((queue.counts[status] for status in LATER), Count()))
        ):
            text = ngettext(
                "Queue %(queue)s: %(number)s task waits, and no executor will serve it.",
                "Queue %(queue)s: %(number)s tasks wait, and no executor will serve them.",
                waiting.number,
            )
            values = {"queue": queue.name, "number": waiting}
            yield checks.Warning(text % values, hint=serve, obj=AdminTarget("task", {"queue": queue.name}))
    if not is_starving:
        text = _("Backend %(backend)s: every queue with READY tasks has executors or is paused.")
        yield checks.Info(text % {"backend": stats.backend})


def has_high_latency(queue: QueueStats) -> bool:
    """Return whether tasks of a queue wait long though executors serve it."""
    return bool(queue.executors) and not queue.is_paused and (queue.latency or 0.0) > LATENCY_LONG_SECONDS


def _latency(stats: BackendStats) -> Iterator[checks.CheckMessage]:
    for queue in filter(has_high_latency, stats.queues):
        text = _("Queue %(queue)s: %(ready)s READY, a latency of %(latency)s, and %(executors)s.") % {
            "queue": queue.name,
            "ready": queue.counts[Status.READY],
            "latency": queue.latency_text,
            "executors": many_executors(queue.executors),
        }
        yield checks.Warning(
            text,
            hint=_("Start more executors, give them more --threads, or raise the limit of the queue."),
            obj=_tasks(Status.READY, queue=queue.name),
        )


def _failures(engine: Engine) -> Iterator[checks.CheckMessage]:
    """
    Compare the last hour with the day before. A task that was requeued may have failed several times.

    It is no problem any more when people have requeued or discarded most of the failed tasks.
    """
    rows = CounterPeriod.objects.using(engine.database).filter(backend=engine.alias, scope=Scope.BACKEND, name="")
    last_hour = rows.filter(length=Length.MINUTE, start__gte=clock_to_compare(after=-HOUR_SECONDS))
    day_before = rows.filter(length=Length.HOUR, start__gte=clock_to_compare(after=-DAY_SECONDS - HOUR_SECONDS))
    now, before = (part.aggregate(sum=Sum("dead"))["sum"] or 0 for part in (last_hour, day_before))
    usual = max(0, before - now) / 24
    if now < FAILED_MANY or now <= FAILURES_RISE * usual:
        return
    text = ngettext(
        "Backend %(backend)s: %(number)s failure in the last hour, %(usual)s an hour in the day before.",
        "Backend %(backend)s: %(number)s failures in the last hour, %(usual)s an hour in the day before.",
        now,
    ) % {"backend": engine.alias, "number": number_text(now), "usual": number_text(usual, ".0f")}
    kept = engine.options.retention.get(Status.FAILED)
    if kept is None or kept >= HOUR_SECONDS:  # otherwise, failed tasks may have been deleted
        left = count(
            tasks_with_status(engine, Status.FAILED).filter(finished_at__gte=clock_to_compare(after=-HOUR_SECONDS))
        )
        if left.number < FAILED_MANY:
            return
        text += " " + _("Still failed: %(tasks)s.") % {"tasks": many_tasks(left)}
    yield checks.Warning(
        text, hint=_("Fix the cause, then requeue its tasks."), obj=AdminTarget("task", page="failures")
    )


def _executors(stats: BackendStats) -> Iterator[checks.CheckMessage]:
    here, rows = {"backend": stats.backend}, AdminTarget("executor")
    silent = stats.in_state(ExecutorState.NOT_RESPONDING)
    for executor in (lost for lost in silent if lost.running):
        text = _("Executor %(executor)s has sent no heartbeat for %(time)s, and still has %(tasks)s.") % {
            "executor": executor.row.name,
            "time": duration(executor.silent_seconds),
            "tasks": many_tasks(executor.running),
        }
        yield checks.Error(
            text,
            hint=_(
                "Another executor rescues them: check that one is running. If this one's process exists, restart it."
            ),
            obj=AdminTarget("executor", pk=executor.row.pk),
        )
    if idle := [executor.row for executor in silent if not executor.running]:
        text = _("Backend %(backend)s: %(executors)s died without shutting down in the last 24 h: %(names)s.")
        yield checks.Warning(
            text % {**here, "executors": many_executors(len(idle)), "names": _names(idle)},
            hint=ngettext(
                "Its tasks were rescued. Look for a kill: out of memory, or too short a grace period.",
                "Their tasks were rescued. Look for kills: out of memory, or too short a grace period.",
                len(idle),
            ),
            obj=rows,
        )
    running = [*stats.alive, *stats.in_state(ExecutorState.PAUSED), *stats.in_state(ExecutorState.STOPPING)]
    if stuck := [executor.row for executor in running if executor.row.heartbeat.problem is not None]:
        text = _("Backend %(backend)s: %(executors)s without progress: %(names)s. %(problem)s")
        values = {
            "executors": many_executors(len(stuck)),
            "names": _names(stuck),
            "problem": stuck[0].heartbeat.problem,
        }
        yield checks.Error(
            text % {**here, **values},
            hint=_("Remove the cause. The log says more. After a restart, their tasks start again."),
            obj=rows,
        )
    if short := [executor.row for executor in running if executor.row.heartbeat.waiting_for_connections]:
        text = _(
            "Backend %(backend)s: %(tasks)s wait for database connections, which other async tasks keep while they "
            "wait for something else, in %(executors)s: %(names)s."
        )
        values = {
            "tasks": many_tasks(sum(row.heartbeat.waiting_for_connections for row in short)),
            "executors": many_executors(len(short)),
            "names": _names(short),
        }
        yield checks.Warning(
            text % {**here, **values},
            hint=_("Let actors wait for other tasks, not functions, or start more processes."),
            obj=rows,
        )
    if stats.alive:
        text = _("Backend %(backend)s: %(executors)s alive.")
        yield checks.Info(text % {**here, "executors": many_executors(len(stats.alive))})
    elif stats.in_state(ExecutorState.PAUSED):
        text = _("Backend %(backend)s: all executors are paused: they claim no tasks.")
        yield checks.Warning(text % here, hint="manage.py jobqueue executors resume --all", obj=rows)
    else:
        text = _("Backend %(backend)s: no executor is running.")
        yield checks.Warning(text % here, hint="manage.py run_executors", obj=rows)


def _unknown_backends(engine: Engine) -> Iterator[checks.CheckMessage]:
    """Find tasks of backends that TASKS lacks, such as a misspelled one in SQL. Each name costs an index lookup."""
    first, *_others = backends_on(engine.database)
    if engine.alias != first:
        return  # one finding for each database
    configured, unknown = set(aliases()), list[str]()
    for condition in (Status.READY, Status.SCHEDULED):
        names = Task.objects.using(engine.database).filter(status_condition(condition)).order_by("backend")
        name: str | None = ""
        for _round in range(len(configured) + MAX_NAMES):
            name = names.filter(backend__gt=name).values_list("backend", flat=True).first()
            if name is None:
                break
            if name not in configured and name not in unknown:
                unknown.append(name)
    executors = Executor.objects.using(engine.database).filter(alive(engine.options.heartbeat_timeout))
    others = executors.filter(backend__in=unknown).values_list("backend", flat=True)  # of another site
    served = {*others} if unknown else set()
    for name in sorted({*unknown} - served)[:MAX_NAMES]:
        text = _("Database %(database)s: tasks of the backend %(name)s, which TASKS does not have, never run.")
        yield checks.Error(
            text % {"database": engine.database, "name": repr(name)},
            hint=_("Add the backend to TASKS, or give the tasks one that it has: %(known)s.")
            % {"known": ", ".join(map(repr, sorted(configured)))},
        )


def _names(executors: Sequence[Executor]) -> str:
    return ", ".join(row.name for row in executors[:3]) + ("…" if len(executors) > 3 else "")


def _snapshots(engine: PostgresEngine) -> Iterator[checks.CheckMessage]:
    """Find long transactions, such as reports: each claim skips all rows claimed since they began."""
    for pid, name, state, seconds in engine.db.query("oldest_snapshot"):
        if seconds > SNAPSHOT_LONG_SECONDS:
            text = _("Backend %(backend)s: a transaction has been open for %(time)s (%(session)s): claims get slower.")
            unnamed = _("no name")
            session = f"pid {pid}, {name or unnamed}, {state}"
            advice = _("Claims skip all rows claimed since. Wait for its end, or %(command)s")
            yield checks.Warning(
                text % {"backend": engine.alias, "time": duration(seconds), "session": session},
                hint=advice % {"command": f"SELECT pg_terminate_backend({pid});"},
            )
