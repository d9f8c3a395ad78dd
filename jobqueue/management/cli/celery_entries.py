"""The periodic tasks of Celery beat: from the tables of django-celery-beat and from CELERY_BEAT_SCHEDULE."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.conf import settings

from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.schedules import Declaration
from jobqueue.schedules.expressions import EPOCH, Cron, Every, ValueProblem
from jobqueue.schedules.from_celery import ONCE, expression_from_celery, priority_from_celery
from jobqueue.schedules.rows import from_row_time
from jobqueue.values.policies import Overlap

MODEL = ("django_celery_beat", "PeriodicTask")
KINDS = ("interval", "crontab", "solar", "clocked")
RESOLUTION = timedelta(microseconds=1)  # of the database's times
CLEANUP = "celery.backend_cleanup"
# Options that say how Celery sends a message. They do not change what runs.
TRANSPORT_OPTIONS = {
    "exchange", "routing_key", "headers", "serializer", "compression", "delivery_mode", "retry", "retry_policy",
    "ignore_result", "immediate", "mandatory",
}  # fmt: skip


class NotNeeded(Exception):
    """A periodic task that would never run again. The message says why."""


@dataclass(frozen=True)
class CeleryEntry:
    """
    A periodic task of Celery beat.

    It has more than 15 attributes because each column of django-celery-beat that matters is a field.
    """

    name: str  # of the entry
    source: str  # the table or the setting that it comes from
    task: str = ""  # Celery's name
    schedule: Any = None  # Celery's object; None if `problem` says why there is none
    timezone: str = "UTC"  # of the schedule
    problem: str = ""  # why it cannot be imported; empty if it can
    args: Any = ()  # JSON in a table, values in the settings
    kwargs: Any = field(default_factory=dict)  # JSON in a table, values in the settings
    options: Mapping[str, Any] = field(default_factory=dict)  # of apply_async()
    clocked_at: datetime | None = None  # the only moment at which it is due; None for a repeated one
    starts_at: datetime | None = None  # beat does not send it before; None: no bound
    ends_at: datetime | None = None  # beat does not send it from then on; None: no end
    last_run_at: datetime | None = None  # when beat sent it last; None: never, or unknown
    is_one_off: bool = False  # beat sends it once
    has_run: bool = False  # beat has sent it
    is_enabled: bool = True  # beat sends it


def read_celery_entries() -> list[CeleryEntry]:
    """
    Return the periodic tasks of this site, by name.

    Beat's database scheduler copies CELERY_BEAT_SCHEDULE to the table when it starts, so a row of the table wins over
    an entry with its name.
    """
    by_name = {entry.name: entry for entry in [*_read_settings(), *_read_tables()]}
    return [by_name[name] for name in sorted(by_name)]


def _read_tables() -> Iterator[CeleryEntry]:
    """Yield the rows of PeriodicTask. Nothing if django_celery_beat is not in INSTALLED_APPS."""
    if apps.is_installed(MODEL[0]):
        for row in apps.get_model(*MODEL).objects.select_related(*KINDS):
            yield _from_row(row)


def _from_row(row: Any) -> CeleryEntry:
    options = {name: getattr(row, name) for name in ("queue", "exchange", "routing_key", "priority")}
    entry = CeleryEntry(
        row.name,
        "table",
        row.task,
        args=row.args or "[]",
        kwargs=row.kwargs or "{}",
        options=options | {"headers": (row.headers or "{}") != "{}", "expires": row.expire_seconds},
        clocked_at=from_row_time(row.clocked.clocked_time) if row.clocked else None,
        starts_at=from_row_time(row.start_time),
        ends_at=from_row_time(row.expires),
        last_run_at=row.last_run_at and from_row_time(row.last_run_at).replace(microsecond=0),
        is_one_off=row.one_off,
        has_run=row.total_run_count > 0,
        is_enabled=row.enabled,
    )
    kinds = [kind for kind in KINDS if getattr(row, kind)]
    if len(kinds) != 1:
        return replace(entry, problem=f"it must have one schedule, but has {' and '.join(kinds) or 'none'}")
    if row.solar:
        return replace(entry, problem=f"its schedule is solar, which has no counterpart: {row.solar}")
    try:
        schedule = row.schedule
    except (ValueError, TypeError, ArithmeticError) as error:
        return replace(entry, problem=f"Celery cannot read its schedule {getattr(row, kinds[0])}: {error}")
    return replace(entry, schedule=schedule, timezone=_find_timezone(schedule))


def _read_settings() -> Iterator[CeleryEntry]:
    """Yield the entries of CELERY_BEAT_SCHEDULE."""
    for name, value in (getattr(settings, "CELERY_BEAT_SCHEDULE", None) or {}).items():
        entry = CeleryEntry(str(name), "settings")
        if not isinstance(value, Mapping) or not {"task", "schedule"} <= value.keys():
            yield replace(entry, problem=f"it must be a dict with 'task' and 'schedule', not {value!r:.100}")
            continue
        schedule, options = value["schedule"], value.get("options") or {}
        expires = options.get("expires")
        yield replace(
            entry,
            task=str(value["task"]),
            schedule=schedule,
            timezone=_find_timezone(schedule),
            problem=f"its schedule is solar, which has no counterpart: {schedule!r}" if _is_solar(schedule) else "",
            args=value.get("args") or (),
            kwargs=value.get("kwargs") or {},
            options={**options, "expires": None} if isinstance(expires, datetime) else options,
            ends_at=from_row_time(expires) if isinstance(expires, datetime) else None,
        )


def _is_solar(schedule: Any) -> bool:
    return any(base.__name__ == "solar" for base in type(schedule).__mro__)


def _find_timezone(schedule: Any) -> str:
    """Return the time zone of a crontab: its own, else that of the settings, else that of Celery's app."""
    zone = vars(schedule).get("tz") if hasattr(schedule, "__dict__") else None
    zone = zone or getattr(settings, "CELERY_TIMEZONE", None) or getattr(schedule, "tz", None) or "UTC"
    # The zone of the computer has no name. Django sets it to TIME_ZONE.
    return settings.TIME_ZONE if type(zone).__name__ == "LocalTimezone" else str(zone)


def make_declaration(
    entry: CeleryEntry, find_task: Callable[[str], FunctionTask[..., Any]], now: datetime, backend: str | None = None
) -> Declaration:
    """
    Return the schedule that does what a periodic task does in Celery.

    find_task: returns the task for a name of Celery, or raises ValueError. backend: if not that of the task.
    Raises NotNeeded if it would never run again, ValueError if it has no counterpart.
    """
    if CLEANUP in (entry.name, entry.task):
        raise NotNeeded("it deletes old results of Celery. Executors delete old tasks without a schedule")
    if entry.problem:
        raise ValueError(entry.problem)
    expression, starts_at, ends_at = _timing(entry, now)
    declaration = Declaration(
        entry.name,
        find_task(entry.task),
        expression,
        location="",
        args=_arguments(entry.args, list | tuple, "args"),
        kwargs=_arguments(entry.kwargs, dict, "kwargs"),
        # Celery sends a task whether or not the last one has ended.
        overlap=Overlap.ALLOW,
        starts_at=starts_at,
        ends_at=ends_at,
        task_options=task_options(entry.options) | ({"backend": backend} if backend else {}),
    )
    _refuse(declaration.problems())
    return declaration


def _refuse(problems: Iterable[ValueProblem]) -> None:
    if texts := [str(problem) for problem in problems]:
        raise ValueError("; ".join(texts))


def _timing(entry: CeleryEntry, now: datetime) -> tuple[Cron | Every, datetime | None, datetime | None]:
    """Return the expression, the first and the last moment."""
    if (moment := entry.clocked_at) is not None:
        if moment <= now and (entry.has_run or not entry.is_enabled):
            raise NotNeeded(f"it was due once, at {moment}")
        if moment <= now:
            raise ValueError(f"it was due once, at {moment}, and beat has not sent it. Enqueue the task yourself")
        return Every(ONCE, anchor=moment), moment, moment
    if entry.is_one_off and (entry.has_run or not entry.is_enabled):
        raise NotNeeded("it was due once, and has run or was disabled")
    anchors = [moment for moment in (entry.last_run_at, entry.starts_at) if moment]
    expression = expression_from_celery(entry.schedule, entry.timezone, max(anchors, default=EPOCH))
    _refuse(expression.problems())
    first = expression.next_after(max(now, (entry.starts_at or now) - RESOLUTION))
    if first is None or (entry.ends_at and first >= entry.ends_at):
        raise NotNeeded(f"it has no further run before it expires at {entry.ends_at}")
    return expression, entry.starts_at, first if entry.is_one_off else entry.ends_at and entry.ends_at - RESOLUTION


def task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the task. Raises ValueError that names those without a counterpart."""
    used = {name: value for name, value in options.items() if value is not None and name not in TRANSPORT_OPTIONS}
    queue, priority = used.pop("queue", None), used.pop("priority", None)
    expires = used.pop("expires", None) or used.pop("expire_seconds", None)
    if used:
        raise ValueError(f"there is no counterpart of the option {', '.join(sorted(used))}")
    converted: dict[str, Any] = {}
    if queue:
        converted["queue_name"] = str(getattr(queue, "name", queue))
    if expires:
        converted["expires"] = expires if isinstance(expires, timedelta) else timedelta(seconds=expires)
    if priority is not None:
        converted["priority"] = priority_from_celery(priority, str(getattr(settings, "CELERY_BROKER_URL", "")))
    return converted


def ignored_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the given options that are of no use here."""
    return sorted(name for name in TRANSPORT_OPTIONS & options.keys() if options[name] not in (None, "", False, {}))


def _arguments(value: Any, kind: Any, name: str) -> Any:
    try:
        read = json.loads(value, object_hook=_refuse_typed) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"its {name} cannot be read: {error}") from error
    if not isinstance(read, kind):
        raise ValueError(f"its {name} must be a {'dict' if kind is dict else 'list'}, not {value!r:.100}")
    return read


def _refuse_typed(value: dict[str, Any]) -> dict[str, Any]:
    if "__type__" in value:
        raise ValueError(f"only Celery can read the value {value!r:.100}")
    return value
