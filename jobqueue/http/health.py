"""GET health/live, and health/ready: whether every queue in use drains."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.http.auth import Caller, authenticate
from jobqueue.http.responses import RETRY_AFTER_SECONDS, HttpError, endpoint, respond
from jobqueue.http.schemas import Health, NotReady, Problem
from jobqueue.printable import printable

logger = logging.getLogger(__name__)

NONE_ALIVE = "No executor is alive that serves this queue."
ALL_QUIET = "Every executor alive that serves this queue was told to claim nothing."
REMEMBERED_SECONDS = 1.0  # an answer is reused for all callers of this process
MOST_LOGGED = 10  # queues in one line of the log


@dataclass(frozen=True, slots=True)
class Failing:
    """A problem of a queue, or of a backend as a whole."""

    backend: str
    what: str
    queue_name: str | None = None

    @property
    def where(self) -> str:
        return self.backend if self.queue_name is None else f"{self.backend}/{self.queue_name}"


_latest: tuple[float, list[Failing]] = (-math.inf, [])  # the time of the last check, and its findings


@endpoint("GET", "HEAD")
def live(request: HttpRequest) -> HttpResponse:
    """Say that this process answers; without a look at the database, which restarts would not bring back."""
    return respond(Health())


@endpoint("GET", "HEAD")
def ready(request: HttpRequest) -> HttpResponse:
    """Return 200 if the queues drain, otherwise 503. Show queue names only to callers that may see them."""
    found = _failing()
    if not found:
        return respond(Health())
    caller = _viewer(request)
    shown = [
        Problem(problem.what, problem.where)
        for problem in found
        if caller is not None and caller.may_see_queue(problem.backend, problem.queue_name)
    ]
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return respond(NotReady(shown), 503, headers)


def _failing() -> list[Failing]:
    """Return problems, up to REMEMBERED_SECONDS old, so that many callers cause few statements and log lines."""
    global _latest
    looked_at, found = _latest
    if time.monotonic() - looked_at >= REMEMBERED_SECONDS:
        found = [one for alias in api.aliases() for one in _look(alias)]
        _latest = time.monotonic(), found
        if found:
            more = f"; and {len(found) - MOST_LOGGED} more" if len(found) > MOST_LOGGED else ""
            said = "; ".join(f"{one.where}: {one.what}" for one in found[:MOST_LOGGED])
            logger.warning("readiness.failed problems=%s%s", printable(said), more)
    return found


def _look(alias: str) -> Iterator[Failing]:
    engine = engine_for(alias)
    limit = engine.options.ready_age_limit
    try:
        queues = engine.draining()
        quiet = [] if all(queue.is_served for queue in queues) else engine.quiet()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("database.unreachable backend=%s error=%s", alias, printable(str(error)))
        yield Failing(alias, "The database is away.")
        return
    for queue in queues:
        name, waited = queue.queue_name, queue.oldest_seconds
        if queue.is_paused:  # as somebody wants it
            continue
        if not queue.is_served:
            is_quiet = any(not names or name in names for names in quiet)
            yield Failing(alias, ALL_QUIET if is_quiet else NONE_ALIVE, name)
        if limit is not None and waited > limit:
            yield Failing(alias, f"A task has been ready for {waited:.0f} s; {limit:g} s is the limit.", name)


def _viewer(request: HttpRequest) -> Caller | None:
    try:
        return authenticate(request, "view_task")
    except (HttpError, DatabaseError, InterfaceError):
        return None
