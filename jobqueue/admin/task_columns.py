"""The columns of the task list, and which of them a user sees."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin.base import Page
from jobqueue.admin.extensions import extensions, links_html
from jobqueue.admin.html import badge, breakable, moment, with_moment
from jobqueue.models import Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import Text, attempts_text, duration, short_id, short_type, time_run, when

# The columns after status and task, which a user may choose, with their titles; and those shown at first.
COLUMNS: dict[str, Text] = {
    "arguments": gettext_lazy("arguments"),
    "queue": gettext_lazy("queue"),
    "attempt": gettext_lazy("attempt"),
    "time": gettext_lazy("when"),
    "enqueued": gettext_lazy("enqueued"),
    "error": gettext_lazy("error"),
}
SHOWN = [name for name in COLUMNS if name != "enqueued"]
SESSION_KEY = "jobqueue_columns"


class ColumnsPage(Page):
    """The address to which the form for columns posts. It has no page of its own."""

    def get_urls(self) -> list[URLPattern]:
        return [self.address("columns/", self.view, "columns")]

    def view(self, request: HttpRequest) -> HttpResponse:
        """Keep the chosen columns in the session."""
        if not self.admin.has_view_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        titles = {**COLUMNS, **extensions.titles}
        request.session[SESSION_KEY] = [name for name in titles if name in request.POST.getlist("column")]
        address = self.reverse("changelist")
        query = QueryDict(request.POST.get("query", "")).urlencode()
        return HttpResponseRedirect(f"{address}?{query}" if query else address)


def columns_for(request: HttpRequest) -> dict[str, bool]:
    """Return the columns that the user may choose, and whether each is shown."""
    titles = extensions.titles
    selected = getattr(request, "session", {}).get(SESSION_KEY, [*SHOWN, *titles])
    may_see = request.user.has_perm("jobqueue.view_payload")
    return {name: name in selected for name in (*COLUMNS, *titles) if may_see or name != "arguments"}


@admin.display(description=gettext_lazy("status"))
def state(task: Task) -> SafeString:
    return badge(task.status)


@admin.display(description=gettext_lazy("task"))
def name(task: Task) -> SafeString:
    short = breakable(short_type(task.task_type))
    name = format_html('<span class="jq-name" title="{} {}">{}</span>', task.task_type, task.pk, short)
    key = "" if task.key is None else format_html('<span class="jq-key">{}</span>', task.key)
    tags = format_html_join("", '<span class="jq-tag">{}</span>', ([tag] for tag in task.tags or ()))
    return format_html('{}{}<span class="jq-id">{}</span>{}', name, key, short_id(task.pk), tags)


@admin.display(description=COLUMNS["arguments"], empty_value="")
def arguments(task: Any) -> SafeString:
    """Show the arguments, and below them the links of the site."""
    call = format_html('<code class="jq-call">{}</code>', task.call) if task.call else ""
    return format_html("{}{}", call, links_html(extensions.read_links(task, task.named_arguments)))


@admin.display(description=COLUMNS["queue"])
def queue(task: Task) -> SafeString:
    if not task.priority:
        return format_html("{}", task.queue_name)
    text = _("priority %(number)d") % {"number": task.priority}
    return format_html('{} <span class="jq-quiet">{}</span>', task.queue_name, text)


@admin.display(description=COLUMNS["attempt"], empty_value="")
def attempt(task: Any) -> SafeString | None:
    """Show the number of the attempt, and below it how long it took."""
    text, length = attempts_text(task), time_run(task)
    if not text:
        return None
    # On a phone, columns have no titles.
    number = format_html('<span class="jq-label">{} </span>{}', _("attempt"), text)
    if length is None:
        return number
    return format_html('{}<span class="jq-clock">{}</span>', number, duration(length))


@admin.display(description=COLUMNS["time"])
def time(task: Any) -> SafeString:
    text, at = when(task, task.now, options_of(task.backend).aging, task.executor_name)
    text = re.sub(r"(?<=\d) ", "\xa0", text)  # units stay with their numbers
    return with_moment(moment(at, text=text), at, task.now)


@admin.display(description=COLUMNS["enqueued"])
def enqueued(task: Any) -> SafeString:
    return with_moment(moment(task.enqueued_at, task.now), task.enqueued_at, task.now)


@admin.display(description=COLUMNS["error"], empty_value="")
def error(task: Any) -> SafeString | None:
    if not task.headline:
        return None
    return format_html('<span class="jq-line-of-error jq-error" title="{0}">{0}</span>', task.headline)


CELLS = {cell.__name__: cell for cell in (arguments, queue, attempt, time, enqueued, error)}
