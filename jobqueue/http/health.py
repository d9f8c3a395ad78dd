"""GET health/live and health/ready. A site is ready if executors serve every queue in use in time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.http.auth import authenticate
from jobqueue.http.endpoint import endpoint
from jobqueue.http.responses import RETRY_AFTER_SECONDS, HttpError, respond
from jobqueue.http.schemas import Health, NotReady, Problem
from jobqueue.values.text import printable

logger = logging.getLogger(__name__)

NO_EXECUTOR = "No active executor serves this queue."
ALL_PAUSED = "All active executors that serve this queue are paused."
CACHE_SECONDS = 1.0  # a result is reused for all callers of this process
MAX_LOGGED = 10  # queues in one log line


class QueueProblem(NamedTuple):
    """A problem of a queue, or of a backend as a whole."""

    what: str
    backend: str
    queue_name: str | None = None

    @property
    def where(self) -> str:
        return self.backend if self.queue_name is None else f"{self.backend}/{self.queue_name}"


_latest: tuple[float, list[QueueProblem]] = (-math.inf, [])  # when the last check was, and its result


@endpoint("GET", {200: ("It does.", Health)})
def live(request: HttpRequest) -> HttpResponse:
    """Tell that the process answers. The database is not asked, because a restart would not repair it."""
    return respond(Health())


@endpoint("GET", {200: ("They do.", Health), 503: ("They do not.", NotReady)})
def ready(request: HttpRequest) -> HttpResponse:
    """Tell whether executors serve all queues in time. Only callers with permission see the names of queues."""
    problems = _problems()
    if not problems:
        return respond(Health())
    try:
        sees = authenticate(request, "view_task").may_see_queue
        visible = [
            Problem(problem.what, problem.where) for problem in problems if sees(problem.backend, problem.queue_name)
        ]
    except (HttpError, DatabaseError, InterfaceError):
        visible = []
    return respond(NotReady(visible), 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def _problems() -> list[QueueProblem]:
    """Return problems, up to CACHE_SECONDS old, so that many callers cause few statements and log lines."""
    global _latest
    checked_at, problems = _latest
    if time.monotonic() - checked_at >= CACHE_SECONDS:
        problems = [problem for alias in api.aliases() for problem in _check(alias)]
        _latest = time.monotonic(), problems
        if problems:
            more = f"; and {len(problems) - MAX_LOGGED} more" if len(problems) > MAX_LOGGED else ""
            listed = "; ".join(f"{problem.where}: {problem.what}" for problem in problems[:MAX_LOGGED])
            logger.warning("readiness.failed problems=%s%s", printable(listed), more)
    return problems


def _check(alias: str) -> Iterator[QueueProblem]:
    engine = engine_for(alias)
    limit = engine.options.ready_age_limit
    try:
        queues = [queue for queue in engine.queues.queue_latency() if not queue.is_paused]
        paused = [] if all(queue.is_served for queue in queues) else engine.queues.paused_executors()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("database.unreachable backend=%s error=%s", alias, printable(str(error)))
        yield QueueProblem("The database is unreachable.", alias)
        return
    for queue in queues:
        name, waited = queue.queue_name, queue.latency_seconds
        if not queue.is_served:
            is_paused = any(not names or name in names for names in paused)
            yield QueueProblem(ALL_PAUSED if is_paused else NO_EXECUTOR, alias, name)
        if limit is not None and waited > limit:
            yield QueueProblem(f"A task has been ready for {waited:.0f} s; {limit:g} s is the limit.", alias, name)
