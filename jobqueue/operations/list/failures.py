"""
Failed tasks by their cause: task, exception class, and message without numbers and ids.

One index has the causes of the FAILED tasks, each with the times of their ends. So no statement reads more than CAP
entries of it, and the number of statements depends on the number of shown causes only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.db.models import Count as CountOf
from django.db.models import Min
from django.db.models.functions import TruncHour
from django.utils.translation import gettext as _

from jobqueue.engine import CAP, Count, Engine, count_or_estimate, engine_for
from jobqueue.models import TaskQuerySet
from jobqueue.operations.backends import backends_on
from jobqueue.operations.formatting import class_name
from jobqueue.operations.list.rows import mask
from jobqueue.operations.payloads import find_secrets, parse_column, raw, row_annotations, shown_errors
from jobqueue.operations.queries import tasks_with_status
from jobqueue.values.causes import mask_message
from jobqueue.values.states import Status
from jobqueue.values.text import number_text

MAX_CAUSES = 100  # of a search: an address with more is too long
MAX_CAUSES_FOUND = 10_000  # in the index
READ_AT_ONCE = 500  # causes in a statement
TASKS_READ = 1000  # the newest ones, for the causes that the overview shows and that a filter offers
ARGUMENT_CHARACTERS = 20_000  # of a task whose arguments are larger, the whole message is masked
HOURS = 24  # of the small chart
# Jumps from one cause to the next in the index: two entries for each. For PostgreSQL and SQLite.
CAUSES = """
WITH RECURSIVE causes (cause) AS (
    SELECT min(cause) FROM jobqueue_task
    WHERE backend = %(backend)s AND status = 'FAILED' AND cause IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(task.cause) FROM jobqueue_task AS task
        WHERE backend = %(backend)s AND status = 'FAILED' AND task.cause > causes.cause
    )
    FROM causes WHERE cause IS NOT NULL
)
SELECT cause, (
    SELECT max(finished_at) FROM jobqueue_task AS task
    WHERE backend = %(backend)s AND status = 'FAILED' AND task.cause = causes.cause
)
FROM causes WHERE cause IS NOT NULL LIMIT %(limit)s
"""
# The last task of each of some causes, a JSON array. An OR of causes and times took ten times as long.
LAST_TASKS = {
    "postgresql": """
        SELECT (
            SELECT id FROM jobqueue_task AS task
            WHERE backend = %(backend)s AND status = 'FAILED' AND task.cause = causes.value AND finished_at IS NOT NULL
            ORDER BY finished_at DESC LIMIT 1
        )
        FROM json_array_elements_text(%(causes)s::json) AS causes
    """,
    "sqlite": """
        SELECT (
            SELECT id FROM jobqueue_task AS task
            WHERE backend = %(backend)s AND status = 'FAILED' AND task.cause = causes.value AND finished_at IS NOT NULL
            ORDER BY finished_at DESC LIMIT 1
        )
        FROM json_each(%(causes)s) AS causes
    """,
}


class TooManyCauses(Exception):
    """There are more causes than a search can read, or than an address can contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failed tasks with one cause."""

    cause: str  # The hash of a text that a reader could guess, and so empty if the reader may not see errors
    task_type: str  # of the tasks
    error_class: str  # the name of the exception's class
    message: str  # of the newest one, with # in place of numbers and … in place of ids
    number: Count  # of the tasks
    first_at: datetime  # when the first one failed
    last_at: datetime  # when the newest one failed
    hours: Sequence[int]  # how many failed in each of the last hours, the oldest first, among the newest CAP
    example: UUID  # the id of the newest one
    traceback: str  # of the newest one

    @property
    def title(self) -> str:
        return format_title(self.error_class, self.message)


def tasks_with_cause(engine: Engine, cause: str) -> TaskQuerySet:
    """Return the failed tasks with a cause, in no order."""
    return engine.db.tasks.filter(status=Status.FAILED, cause=cause, finished_at__isnull=False)


def newest_causes(engine: Engine) -> list[str]:
    """Return the causes, the one that failed last first, in one statement. At most MAX_CAUSES_FOUND + 1."""
    with connections[engine.database].cursor() as cursor:
        cursor.execute(CAUSES, {"backend": engine.alias, "limit": MAX_CAUSES_FOUND + 1})
        causes = [(at, cause) for cause, at in cursor.fetchall() if at]
    return [cause for _at, cause in sorted(causes, reverse=True)]


def frequent_causes(engine: Engine) -> list[str]:
    """Return the causes of the newest TASKS_READ failed tasks, the most frequent one first."""
    return [cause for cause, _number in _last_causes(engine).most_common()]


def _last_causes(engine: Engine) -> Counter[str]:
    """Count the newest TASKS_READ failed tasks by cause, the cause that failed last first."""
    failed = tasks_with_status(engine, Status.FAILED).order_by("-finished_at").values_list("cause", flat=True)
    return Counter(filter(None, failed[:TASKS_READ]))


def read_failures(engine: Engine, causes: Sequence[str], *, with_payload: bool) -> list[Failure]:
    """
    Read causes, the most frequent ones first. Those that no task has are left out.

    with_payload: whether the reader may see errors.
    """
    texts = {f"{column}_text": raw(column) for column in ("errors", "args", "kwargs")}
    examples = _examples(engine, causes).only("cause", "task_type", "finished_at").annotate(**texts)
    now = engine.db.now()
    by_cause = {row.cause: _failure(engine, row, now, with_payload=with_payload) for row in examples}
    failures = [by_cause[cause] for cause in causes if cause in by_cause]
    return sorted(failures, key=lambda failure: -failure.number.number)


def causes_with(engine: Engine, text: str) -> list[str]:
    """
    Return the causes that a text names: the fingerprint of one, or a part of class and message.

    Raises TooManyCauses. So no cause is left out.
    """
    if tasks_with_cause(engine, text).exists():
        return [text]
    newest = newest_causes(engine)
    if len(newest) > MAX_CAUSES_FOUND:
        problem = _(
            "More than %(number)s different errors are stored. "
            "Pass the cause of one, which is in the address of its list in the admin."
        )
        raise TooManyCauses(problem % {"number": number_text(MAX_CAUSES_FOUND)})
    titles = _titles(engine, newest)
    return [cause for cause, title in titles.items() if text.casefold() in title.casefold()]


def causes_in_database(database: str, text: str) -> list[str]:
    """Return the causes that a text names in a database. Raises TooManyCauses, also for more than MAX_CAUSES."""
    engines = map(engine_for, backends_on(database))
    causes = sorted({cause for engine in engines for cause in causes_with(engine, text)})
    if len(causes) > MAX_CAUSES:
        problem = _("%(number)s different errors contain “%(text)s”, too many to list. Search for more of the text.")
        raise TooManyCauses(problem % {"number": number_text(len(causes)), "text": text})
    return causes


def read_titles(backends: Iterable[str], causes: Collection[str]) -> dict[str, str]:
    """Return class and message by cause, for a reader who may see errors. Causes that no task has are left out."""
    titles: dict[str, str] = {}
    for engine in map(engine_for, backends) if causes else ():
        titles |= _titles(engine, list(causes))
    return titles


def newest_titles(backends: Iterable[str], limit: int) -> dict[str, str]:
    """
    Return class and message of the causes of the newest failed tasks of each backend, for a reader who may see errors.

    It takes as long with 10,000 causes as with one. newest_causes() takes 0.25 s with them.
    """
    titles: dict[str, str] = {}
    for engine in map(engine_for, backends):
        titles |= _titles(engine, [*_last_causes(engine)][:limit])
    return titles


def _titles(engine: Engine, causes: Sequence[str]) -> dict[str, str]:
    """Return class and message by cause, in the order of the causes, masked as in the list of tasks."""
    arguments = {f"{column}_text": raw(column, ARGUMENT_CHARACTERS) for column in ("args", "kwargs")}
    titles: dict[str, str] = {}
    for start in range(0, len(causes), READ_AT_ONCE):
        rows: Any = _examples(engine, causes[start : start + READ_AT_ONCE]).only("backend", "cause", "task_type")
        for row in rows.annotate(**row_annotations() | arguments):
            mask(row, with_payload=True)
            error = {"exception_class_path": row.error_class}
            titles[row.cause] = format_title(class_name(error), mask_message(row.error_message or ""))
    return {cause: titles[cause] for cause in causes if cause in titles}


def format_title(error_class: str, message: str) -> str:
    return ": ".join(filter(None, (error_class, message)))


def _examples(engine: Engine, causes: Sequence[str]) -> TaskQuerySet:
    """Return the last failed task of each cause."""
    with connections[engine.database].cursor() as cursor:
        values = {"backend": engine.alias, "causes": json.dumps(list(causes))}
        cursor.execute(LAST_TASKS[cursor.db.vendor], values)
        ids = [pk for (pk,) in cursor.fetchall() if pk is not None]
    return engine.db.tasks.filter(pk__in=ids, status=Status.FAILED)


def _failure(engine: Engine, example: Any, now: datetime, *, with_payload: bool) -> Failure:
    """Read the cause of a task, which is the last one that failed with it."""
    rows = tasks_with_cause(engine, example.cause)
    error = _last_error(engine, example, with_payload=with_payload)
    last = rows.order_by("-finished_at")[: CAP + 1]
    totals = last.aggregate(number=CountOf("finished_at"), first_at=Min("finished_at"))  # columns of the index only
    number, first_at, edge = Count(totals["number"]), totals["first_at"], None
    if number.number > CAP:
        number, edge = count_or_estimate(rows), first_at
        first_at = rows.order_by("finished_at").values_list("finished_at", flat=True).first()
    return Failure(
        cause=example.cause if with_payload else "",
        task_type=example.task_type,
        error_class=class_name(error),
        message=mask_message(str(error.get("message") or "")),
        number=number,
        first_at=first_at or example.finished_at,
        last_at=example.finished_at,
        hours=_by_hour(rows, edge, now),
        example=example.pk,
        traceback=str(error.get("traceback") or ""),
    )


def _by_hour(rows: TaskQuerySet, edge: datetime | None, now: datetime) -> list[int]:
    now = now.replace(minute=0, second=0, microsecond=0)
    since = now - timedelta(hours=HOURS - 1)
    recent = rows.filter(finished_at__gte=since if edge is None else max(since, edge))
    # In UTC, as `now` is: in zones with half an hour, local hours begin between the hours of the chart.
    zone = UTC if settings.USE_TZ else None
    hours = recent.annotate(hour=TruncHour("finished_at", tzinfo=zone)).values("hour").order_by()
    hours = hours.annotate(number=CountOf("finished_at"))
    by_age = {(now - hour["hour"]) // timedelta(hours=1): hour["number"] for hour in hours}
    return [by_age.get(age, 0) for age in reversed(range(HOURS))]


def _last_error(engine: Engine, task: Any, *, with_payload: bool) -> Mapping[str, Any]:
    """Return the last error of a task, masked or hidden."""
    patterns = engine.options.redact
    secrets = find_secrets(task.task_type, parse_column(task.args_text), parse_column(task.kwargs_text), patterns)
    errors = shown_errors(parse_column(task.errors_text), patterns, secrets, with_payload=with_payload)
    return errors[-1] if errors else {}
