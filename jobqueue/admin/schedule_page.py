"""A schedule's page, and what people do there: pause, resume, run now, backfill and delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue.admin.base import Page, PauseFields, ReadOnlyAdmin
from jobqueue.admin.task_list import CappedPaginator
from jobqueue.api import schedules as api
from jobqueue.exceptions import JobQueueError
from jobqueue.models import Schedule
from jobqueue.operations import log_entries
from jobqueue.operations.backends import options_of
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.formatting import describe_schedule_pause
from jobqueue.operations.payloads import parse_column, show_arguments, show_value
from jobqueue.operations.schedules import describe_schedule, history, next_ticks, with_tasks
from jobqueue.schedules.rows import from_row_time

ScheduleAction = Callable[[Schedule], object]
View = Callable[[HttpRequest, Schedule], HttpResponse]
UPCOMING = 10  # ticks
HISTORY_PAGE = 25  # ticks
NAMED = 5  # schedules in a message


class BackfillForm(forms.Form):
    """A range of ticks. A valid form has a `preview` of what a backfill would enqueue."""

    start = forms.DateTimeField(label=gettext_lazy("From"))
    end = forms.DateTimeField(label=gettext_lazy("To"))

    def __init__(self, *args: Any, schedule: Schedule, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.schedule = schedule
        for field in self.fields.values():
            field.widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M")
            field.help_text = _("In the time zone %(zone)s.") % {"zone": timezone.get_current_timezone_name()}

    @property
    def range(self) -> tuple[datetime, datetime]:
        return from_row_time(self.cleaned_data["start"]), from_row_time(self.cleaned_data["end"])

    def clean(self) -> None:
        if self.errors:
            return
        start, end = self.range
        if start > end:
            self.add_error("end", _("The end is before the start."))
            return
        if end > from_row_time(timezone.now()):
            self.add_error("end", _("The end is in the future."))
            return
        try:
            self.preview = api.preview_backfill(self.schedule.name, start, end, backend=self.schedule.backend)
        except (JobQueueError, ValueError, ImproperlyConfigured) as error:
            self.add_error(None, str(error))


class SchedulePage(Page):
    """One schedule. `now` and `new_task_text` are attributes that the query adds to it."""

    def get_urls(self) -> list[URLPattern]:
        views = {
            "run": self._view("run_schedule", self._run),
            "pause": self._view("pause_schedule", self._pause),
            "resume": self._view("pause_schedule", self._resume),
            "backfill": self._view("run_schedule", self._backfill),
            "delete": self._view("delete_schedule", self._delete),
        }
        return [self.address(f"<path:object_id>/{name}/", view, name) for name, view in views.items()]

    def view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a schedule."""
        schedule = self.admin.get_object(request, unquote(object_id))
        if request.method not in ("GET", "HEAD") or not self.admin.has_view_permission(request, schedule):
            raise PermissionDenied
        return self.gone(request, object_id) if schedule is None else self._show(request, schedule)

    def _show(self, request: HttpRequest, schedule: Any) -> HttpResponse:
        paginator = CappedPaginator(history(schedule), HISTORY_PAGE)
        page = paginator.get_page(request.GET.get("p"))
        call = parse_column(schedule.new_task_text)
        new_task = call if isinstance(call, dict) else {}
        patterns = options_of(schedule.backend).redact
        args, kwargs, options, metadata = (
            parse_column(text) if isinstance(text := new_task.get(name), str) else None
            for name in ("args", "kwargs", "options", "metadata")
        )
        is_paused = schedule.retired_at is None and schedule.is_paused_at(schedule.now)
        may = {
            name: bool(request.user.has_perm(f"jobqueue.{name}"))
            for name in ("run_schedule", "pause_schedule", "change_schedule", "delete_schedule", "view_payload")
        }
        return self.admin.page(
            request,
            "schedule/detail",
            title=schedule.name,
            schedule=schedule,
            original=schedule,
            words=describe_schedule(schedule),
            ticks=next_ticks(schedule, UPCOMING),
            records=with_tasks(list(page.object_list)),
            history=page,
            new_task=new_task,
            arguments=show_arguments(schedule.task_type, args, kwargs, patterns) if may["view_payload"] else None,
            metadata=show_value(metadata, patterns) if metadata and may["view_payload"] else None,
            options=show_value(options, ()) if options else None,
            log=log_entries.read_entries(schedule),
            is_paused=is_paused,
            pause=describe_schedule_pause(schedule),
            is_ours=not schedule.declared_at or schedule.retired_at is not None,
            may=may,
        )

    # --- actions

    def _view(self, permission: str, do: View) -> Any:
        """Return a view of one schedule. It needs the permission, and that to view schedules."""

        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            schedule = self.admin.get_object(request, unquote(object_id))
            may_view = self.admin.has_view_permission(request, schedule)
            if not may_view or not request.user.has_perm(f"jobqueue.{permission}"):
                raise PermissionDenied
            return self.gone(request, object_id) if schedule is None else do(request, schedule)

        return view

    def _run(self, request: HttpRequest, schedule: Schedule) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        perform(self.admin, request, [schedule], run, _("Enqueued a task."))
        return self._back_to(schedule)

    def _resume(self, request: HttpRequest, schedule: Schedule) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        perform(self.admin, request, [schedule], resume, _("Resumed."))
        return self._back_to(schedule)

    def _pause(self, request: HttpRequest, schedule: Schedule) -> HttpResponse:
        form = PauseFields(request.POST if request.method == "POST" else None)
        if form.is_valid():
            pause = pause_with(request, form)
            if perform(self.admin, request, [schedule], pause, form.describe(), form):
                return self._back_to(schedule)
        title = _("Pause the schedule?")
        return self._ask(request, schedule, title=title, names=[schedule.name], form=form, button=_("Pause"))

    def _backfill(self, request: HttpRequest, schedule: Schedule) -> HttpResponse:
        """Ask for a range, then show how many tasks that would enqueue, then enqueue them."""
        form = BackfillForm(request.POST if request.method == "POST" else None, schedule=schedule)
        title = _("Backfill")
        if not form.is_valid():
            text = _("Enqueue tasks for past ticks that have none.")
            return self._ask(
                request, schedule, title=title, text=text, names=[schedule.name], form=form, button=_("Preview")
            )
        start, end = form.range
        count = len(form.preview.ticks)
        if "confirmed" not in request.POST:
            return self._ask(
                request,
                schedule,
                [("start", request.POST["start"]), ("end", request.POST["end"]), ("confirmed", 1)],
                template="schedule/backfill",
                title=title,
                names=[schedule.name],
                preview=form.preview,
                button=ngettext("Enqueue %(count)d task", "Enqueue %(count)d tasks", count) % {"count": count}
                if count
                else "",
            )
        sentence = ngettext(
            "Backfill from %(start)s to %(end)s: %(count)d task.",
            "Backfill from %(start)s to %(end)s: %(count)d tasks.",
            count,
        ) % {"start": start.isoformat(), "end": end.isoformat(), "count": count}
        perform(self.admin, request, [schedule], partial(backfill, start=start, end=end), sentence)
        return self._back_to(schedule)

    def _delete(self, request: HttpRequest, schedule: Schedule) -> HttpResponse:
        if request.method != "POST":
            text = _("This deletes the schedule and the records of its ticks. Its tasks stay.")
            title = _("Delete the schedule?")
            return self._ask(request, schedule, title=title, text=text, names=[schedule.name], button=_("Delete"))
        if perform(self.admin, request, [schedule], delete, _("Deleted.")):
            return HttpResponseRedirect(self.reverse("changelist"))
        return self._back_to(schedule)

    def _ask(
        self, request: HttpRequest, schedule: Schedule, hidden: Sequence[tuple[str, object]] = (), **context: Any
    ) -> HttpResponse:
        return self.admin.confirm(
            request,
            hidden,
            **{"template": "schedule/confirm", **context},
            schedule=schedule,
            back=self.page_of(schedule),
        )

    def page_of(self, schedule: Schedule) -> str:
        address = self.reverse("change", schedule.pk)
        return f"{address}?{urlencode({'backend': schedule.backend})}"

    def _back_to(self, schedule: Schedule) -> HttpResponse:
        return HttpResponseRedirect(self.page_of(schedule))

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = _("Unknown schedule %(id)s.") % {"id": unquote(object_id)}
        self.admin.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self.reverse("changelist"))


def perform(
    admin: ReadOnlyAdmin,
    request: HttpRequest,
    schedules: Sequence[Schedule],
    action: ScheduleAction,
    sentence: str,
    form: forms.Form | None = None,
) -> bool:
    """
    Do something with each schedule, log it, and tell the user. Return whether it was done with all.

    Errors become those of the form, if there is one.
    """
    changed = []
    for schedule in schedules:
        try:
            action(schedule)
        except (JobQueueError, ValueError, ImproperlyConfigured) as error:
            problem = str(error)
        except OperationalError:  # lock timeout
            problem = _("Nothing was changed: another transaction has locked the schedule. Try again in a moment.")
        else:
            changed.append(schedule)
            continue
        if form is not None:
            form.add_error(None, problem)
        else:
            admin.message_user(request, f"{schedule.name}: {problem}", messages.ERROR)
    if changed:
        audit_log.write(request, changed, sentence)
        # Django's page capitalizes the first word, so a name must not come first.
        text = ngettext("Schedule %(names)s: %(words)s", "Schedules %(names)s: %(words)s", len(changed))
        admin.message_user(request, text % {"names": join_names(changed), "words": sentence}, messages.SUCCESS)
    return len(changed) == len(schedules)


def run(schedule: Schedule) -> None:
    api.run(schedule.name, backend=schedule.backend)


def resume(schedule: Schedule) -> None:
    api.resume(schedule.name, backend=schedule.backend)


def delete(schedule: Schedule) -> None:
    api.delete(schedule.name, backend=schedule.backend)


def backfill(schedule: Schedule, start: datetime, end: datetime) -> None:
    api.backfill(schedule.name, start, end, backend=schedule.backend)


def pause_with(request: HttpRequest, form: PauseFields) -> ScheduleAction:
    """Return the pause that a valid form describes."""

    def pause(schedule: Schedule) -> None:
        api.pause(schedule.name, by=request.user.get_username()[:150], **form.cleaned_data, backend=schedule.backend)

    return pause


def join_names(schedules: Sequence[Schedule]) -> str:
    """Return the names for a message: the first ones, and how many others there are."""
    names = ", ".join(row.name for row in schedules[:NAMED])
    more = len(schedules) - NAMED
    return names if more <= 0 else _("%(names)s and %(count)d others") % {"names": names, "count": more}
