"""GET health/live, and health/ready: whether every queue in use drains."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.http.answers import RETRY_AFTER_SECONDS, Problem, Refused, answer, endpoint
from jobqueue.http.callers import caller_of
from jobqueue.printable import printable

logger = logging.getLogger(__name__)

NONE_ALIVE = "No executor is alive that serves this queue."
ALL_QUIET = "Every executor alive that serves this queue was told to claim nothing."


@endpoint("GET", "HEAD")
def live(request: HttpRequest) -> HttpResponse:
    """Say that this process answers; without a look at the database, which restarts would not bring back."""
    return answer({"status": "ok"})


@endpoint("GET", "HEAD")
def ready(request: HttpRequest) -> HttpResponse:
    """Say whether the queues drain: 200, or 503. Names of queues are for those who may see tasks."""
    problems = [problem for alias in api.aliases() for problem in _problems(alias)]
    if not problems:
        return answer({"status": "ok"})
    logger.warning("not ready: %s", printable("; ".join(f"{problem.where}: {problem.what}" for problem in problems)))
    shown = [{"where": p.where, "what": p.what} for p in problems] if _may_look_closer(request) else []
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return answer({"status": "failing", "problems": shown}, 503, headers)


def _problems(alias: str) -> Iterator[Problem]:
    engine = engine_for(alias)
    limit = engine.options.ready_age_limit
    try:
        queues = engine.draining()
        quiet = [] if all(queue.is_served for queue in queues) else engine.quiet()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("database away backend=%s error=%s", alias, printable(str(error)))
        yield Problem("The database is away.", alias)
        return
    for queue in queues:
        here = f"{alias}/{queue.queue_name}"
        if queue.is_paused:  # as somebody wants it
            continue
        if not queue.is_served:
            is_quiet = any(not names or queue.queue_name in names for names in quiet)
            yield Problem(ALL_QUIET if is_quiet else NONE_ALIVE, here)
        if limit is not None and queue.oldest_seconds > limit:
            yield Problem(f"A task has been ready for {queue.oldest_seconds:.0f} s; {limit:g} s is the limit.", here)


def _may_look_closer(request: HttpRequest) -> bool:
    try:
        caller_of(request, "view_task")
    except (Refused, DatabaseError, InterfaceError):
        return False
    return True
