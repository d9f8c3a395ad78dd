"""The pages that create and change schedules, and the preview of their ticks."""

from __future__ import annotations

from functools import cache
from typing import Any
from zoneinfo import available_timezones

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _

from jobqueue import api
from jobqueue.admin.base import Page
from jobqueue.admin.schedule_form import ScheduleForm
from jobqueue.admin.schedule_page import SchedulePage
from jobqueue.admin.timing_form import Preview
from jobqueue.exceptions import JobQueueError, ScheduleChanged
from jobqueue.models import Schedule
from jobqueue.operations.bulk import audit_log

REDISPLAYED = {"preview", "choose"}  # buttons that save nothing


class ScheduleEditor(Page):
    """Schedules that people create and change. Those that code declares have no form."""

    def get_urls(self) -> list[URLPattern]:
        return [
            self.address("preview/", self.preview_view, "preview"),
            self.address("<path:object_id>/edit/", self.edit_view, "edit"),
        ]

    def add_view(self, request: HttpRequest) -> HttpResponse:
        """Create a schedule."""
        if not self.admin.has_add_permission(request):
            raise PermissionDenied
        return self._edit(request, None)

    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Change a schedule that people created."""
        if not request.user.has_perm("jobqueue.change_schedule"):
            raise PermissionDenied
        row = self.admin.get_object(request, unquote(object_id))
        if row is None:
            return SchedulePage(self.admin).gone(request, object_id)
        if row.declared_at:
            raise PermissionDenied(_("Code declares this schedule at %s. Change it there.") % row.declared_at)
        return self._edit(request, row)

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Return the words and the next ticks of the fields in the address."""
        if not any(request.user.has_perm(f"jobqueue.{name}_schedule") for name in ("add", "change")):
            raise PermissionDenied
        return self.admin.page(request, "schedule/preview", preview=self._preview(request.GET.dict()))

    def _preview(self, typed: dict[str, Any]) -> Preview:
        backend = typed.get("backend", "")
        return Preview.of(typed, backend if backend in api.aliases() else api.aliases()[0])

    def _edit(self, request: HttpRequest, row: Schedule | None) -> HttpResponse:
        may_see = row is None or bool(request.user.has_perm("jobqueue.view_payload"))
        typed = request.POST.dict()
        if request.method == "POST" and not REDISPLAYED & typed.keys():
            form = ScheduleForm(request.POST, row=row, may_see=may_see)
            if form.is_valid() and (saved := self._save(request, form)):
                may_view = self.admin.has_view_permission(request, saved)
                index = reverse(f"{self.admin.admin_site.name}:index")
                return HttpResponseRedirect(SchedulePage(self.admin).page_of(saved) if may_view else index)
        else:
            form = ScheduleForm(row=row, may_see=may_see, typed=typed or request.GET.dict())
        return self.admin.page(
            request,
            "schedule/form",
            title=_("Change schedule") if row else _("Add schedule"),
            form=form,
            original=row,
            preview=self._preview(typed) if typed else None,
            zones=zones(),
        )

    def _save(self, request: HttpRequest, form: ScheduleForm) -> Schedule | None:
        """Save a valid form, log it and tell the user. An error becomes one of the form."""
        try:
            saved = form.save()
        except ScheduleChanged:
            assert form.row is not None
            form.row.refresh_from_db(fields=["updated_at"])
            form.version = form.row.updated_at.isoformat()
            text = _("This schedule was changed after you opened the form. Save again to replace that change.")
            form.add_error(None, text)
            return None
        except (JobQueueError, ValueError) as error:
            form.add_error("name" if form.row is None else None, str(error))
            return None
        except OperationalError:  # lock timeout
            form.add_error(None, _("Nothing was saved: another transaction has locked the schedule. Try again later."))
            return None
        sentence = form.changes() if form.row else _("Created.")
        audit_log.write(request, [saved], sentence, is_new=form.row is None)
        # Django's page capitalizes the first word, so a name must not come first.
        text = _("Schedule %(name)s: %(words)s") % {"name": saved.name, "words": sentence}
        self.admin.message_user(request, text, messages.SUCCESS)
        return saved


@cache
def zones() -> list[str]:
    return sorted(available_timezones())
