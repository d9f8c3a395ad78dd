"""Celery's schedules, and the entries of CELERY_BEAT_SCHEDULE as schedules of jobqueue."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from cronsim import CronSim
from django.core.exceptions import ImproperlyConfigured

import jobqueue
from jobqueue.contrib.celery.exceptions import refuse
from jobqueue.contrib.celery.payload import to_json
from jobqueue.contrib.celery.registry import tasks
from jobqueue.contrib.celery.rows import rename_context
from jobqueue.schedules.expressions import EPOCH
from jobqueue.schedules.from_celery import FIELDS, expression_from_celery
from jobqueue.values.text import printable

logger = logging.getLogger(__name__)

CLEANUP = "celery.backend_cleanup"  # executors delete old tasks


class schedule:
    """A fixed interval."""

    def __init__(self, run_every: float | timedelta, relative: bool = False, **_: Any) -> None:
        self.run_every = run_every


class crontab:
    """Minutes, hours and days. Each field is a number, a text such as "*/15", or several numbers."""

    def __init__(
        self,
        minute: Any = "*",
        hour: Any = "*",
        day_of_week: Any = "*",
        day_of_month: Any = "*",
        month_of_year: Any = "*",
        **_: Any,
    ) -> None:
        values = {
            "minute": minute,
            "hour": hour,
            "day_of_month": day_of_month,
            "month_of_year": month_of_year,
            "day_of_week": day_of_week,
        }
        for number, (name, value) in enumerate(values.items()):
            text = _text(value)
            fields = ["*"] * number + [text] + ["*"] * (len(values) - number - 1)
            read = getattr(CronSim(" ".join(fields), EPOCH), FIELDS[number][1])
            vars(self).update({f"_orig_{name}": text, name: read})


def solar(*_: Any, **__: Any) -> Any:
    raise refuse("A solar schedule", "Schedule a task each hour that computes the position of the sun.")


def _text(field: Any) -> str:
    is_several = isinstance(field, Iterable) and not isinstance(field, str)
    return ",".join(map(str, sorted(field))) if is_several else str(field)


def declare_entry(app: Any, name: str, entry: Any) -> None:
    """
    Declare an entry of beat as a schedule.

    An entry whose task is not here is skipped, because Celery may still run it. Raises ImproperlyConfigured for a
    schedule without counterpart.
    """
    if CLEANUP in (name, entry["task"]):
        return
    if entry["task"] not in tasks:
        logger.warning(
            "beat_entry.skipped name=%s task=%s hint=No @shared_task of jobqueue has this name. Leave the entry to "
            "Celery beat, or import the module of the task.",
            printable(name),
            printable(entry["task"]),
        )
        return
    task, kwargs = tasks[entry["task"]], dict(entry.get("kwargs") or {})
    args: Any = list(entry.get("args") or ())
    converted = task.converted(args, kwargs, dict(entry.get("options") or {}))
    zone = app.conf.timezone or "UTC"
    try:
        expression = expression_from_celery(entry["schedule"], str(zone))
    except ValueError as error:
        raise ImproperlyConfigured(f"CELERY_BEAT_SCHEDULE, {name!r}: {error}.") from error
    names = ("queue_name", "priority", "timeout", "expires", "metadata")
    declared = task.declared
    changed = {key: value for key in names if (value := getattr(converted, key)) != getattr(declared, key)}
    options: Any = {**changed, "args": to_json(args), "kwargs": rename_context(to_json(kwargs)), "overlap": "allow"}
    jobqueue.schedule(name, declared, expression, **options)
