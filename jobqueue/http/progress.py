"""
The progress of a task on the site's own pages: `path("progress/", include("jobqueue.http.progress"))`.

A signed token in the address is the permission to read one task's state and progress for a day. Under ASGI the view
sends events as long as the task is live; under WSGI, where each stream would occupy a thread, it answers once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import msgspec
from asgiref.sync import sync_to_async
from django.core import signing
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import path, reverse
from django.utils.translation import get_language, gettext, override
from django.views.decorators.http import require_GET

from jobqueue.conf.options import options_for
from jobqueue.models import Task, TaskProgress
from jobqueue.operations.payloads import find_secrets
from jobqueue.operations.task.reports import ShownProgress
from jobqueue.values.redaction import redact_text
from jobqueue.values.states import FINAL, Status

SALT = "jobqueue.progress"
MAX_AGE_SECONDS = 86_400
READ_SECONDS = 1.0  # between two reads of a stream
QUIET_READS = 15  # after which a stream sends an empty comment, so that no proxy closes it
STREAM_SECONDS = 600.0  # after which the browser connects again, so that a deploy need not wait for it
DELETED = "DELETED"  # in place of a status

# One thread reads for all streams, so that they share one connection. The ORM would keep one for each request.
_reader = ThreadPoolExecutor(1, "jobqueue-progress")
_streams: set[object] = set()  # the open ones. The last one closes the connection

# Begins a note of update_state() in jobqueue.contrib.celery. It is for the code that reads the AsyncResult.
OF_CELERY = '{"state": '


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The state and the progress of a task, as a page shows them."""

    state: str  # the status, or DELETED
    text: str  # the state for people, in the language of the request
    is_final: bool  # nothing will change
    value: str | None = None  # of the bar; None: without a total
    max: str | None = None  # of the bar
    progress: str = ""  # the progress as a text
    note: str = ""  # what the body has reported with it, masked


def address(pk: UUID | str, backend: str) -> str:
    """Return the address of a task's progress, with a new token. Raises NoReverseMatch without these URLs."""
    return reverse("jobqueue-progress:task", args=[signing.dumps([str(pk), backend], salt=SALT)])


def read_view(pk: str, backend: str) -> View:
    """Read the state and the last reported progress of a task."""
    options = options_for(backend)
    rows = Task.objects.using(options.database).filter(pk=pk, backend=backend)
    status = rows.values_list("status", flat=True).first()
    if status is None:
        return View(state=DELETED, text=gettext("No longer stored"), is_final=True)
    view = View(state=status, text=_state_text(status), is_final=status in FINAL)
    report = TaskProgress.objects.using(options.database).filter(pk=pk).first()
    if report is None:
        return view
    reported = ShownProgress(
        done=report.done,
        total=report.total,
        note=None,
        reported_at=report.reported_at,
        is_current=True,
        left_seconds=None,
    )
    value, maximum = reported.bar or (None, None)
    note = ""
    if report.note and not report.note.startswith(OF_CELERY):
        task_type, args, kwargs = rows.values_list("task_type", "args", "kwargs").get()
        note = redact_text(report.note, options.redact, find_secrets(task_type, args, kwargs, options.redact))
    return msgspec.structs.replace(view, value=value, max=maximum, progress=reported.text, note=note)


def _state_text(status: str) -> str:
    """Return a status in the words of a visitor, who knows no queues."""
    match status:
        case Status.RUNNING | Status.SUSPENDED:
            return gettext("Running")
        case Status.SUCCESSFUL | Status.FAILED | Status.CANCELLED:
            return str(Task.Status(status).label)
    return gettext("Waiting")


@require_GET
def show(request: HttpRequest, token: str) -> HttpResponseBase:
    """Answer with the state as JSON, or with a stream of it. 403 for a token that is wrong or older than a day."""
    try:
        pk, backend = signing.loads(token, salt=SALT, max_age=MAX_AGE_SECONDS)
    except signing.BadSignature:
        return HttpResponse(gettext("Reload the page."), status=403, content_type="text/plain; charset=utf-8")
    response: HttpResponseBase
    if isinstance(request, ASGIRequest) and "text/event-stream" in request.headers.get("Accept", ""):
        response = StreamingHttpResponse(_events(pk, backend, get_language()), content_type="text/event-stream")
        response["X-Accel-Buffering"] = "no"  # nginx passes on each event at once
    else:
        response = HttpResponse(msgspec.json.encode(read_view(pk, backend)), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


async def _events(pk: str, backend: str, language: str | None) -> AsyncIterator[str]:
    """Yield an event for each change, until the end. The browser connects again after a stream that was cut."""

    def read() -> View | None:
        with override(language):
            try:
                return read_view(pk, backend)
            except Error:
                connections.close_all()  # of this thread; the next read connects again
                return None

    last, quiet, stream = None, 0, object()
    _streams.add(stream)
    try:
        for _number in range(int(STREAM_SECONDS / READ_SECONDS)):
            view = await sync_to_async(read, thread_sensitive=False, executor=_reader)()
            if view is not None and view != last:
                last, quiet = view, 0
                yield f"data: {msgspec.json.encode(view).decode()}\n\n"
                if view.is_final:
                    return
            elif (quiet := quiet + 1) % QUIET_READS == 0:
                yield ": \n\n"
            await asyncio.sleep(READ_SECONDS)
    finally:
        _streams.discard(stream)
        if not _streams:
            _reader.submit(connections.close_all)


app_name = "jobqueue-progress"
urlpatterns: list[Any] = [path("<str:token>/", show, name="task")]
