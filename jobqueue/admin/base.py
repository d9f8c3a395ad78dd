"""The base of all pages: they read the queue's database, and cannot edit rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.core.exceptions import BadRequest, ObjectDoesNotExist, ValidationError
from django.db.models import QuerySet
from django.forms import Script
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import api
from jobqueue.operations.backends import databases, options_of

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


def database_for(request: HttpRequest) -> str:
    """Return the database of the list: that of the selected backend, else that of the first."""
    backend = request.GET.get("backend", "")
    return options_of(backend).database if backend in api.aliases() else databases()[0]


def requested_backend(request: HttpRequest) -> tuple[str, list[str]]:
    """
    Return the backend that an address names, otherwise the first one, and those that the page offers.

    The backend is "" if there is none. A site with one backend is offered none.
    """
    aliases = [*api.aliases()]
    requested = request.GET.get("backend", "")
    return requested if requested in aliases else next(iter(aliases), ""), aliases if len(aliases) > 1 else []


def permission(codename: str) -> Callable[[Any, HttpRequest], bool]:
    """Return a method has_..._permission(), which an action needs."""

    def has_permission(self: ReadOnlyAdmin, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"jobqueue.{codename}"))

    return has_permission


class PauseFields(forms.Form):
    """The reason and the end of a pause."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=255, required=False)
    until = forms.DateTimeField(
        label=gettext_lazy("Resume at"),
        required=False,
        help_text=gettext_lazy("The pause ends at this time. If it is empty, the pause lasts until a user resumes it."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )

    def clean_until(self) -> datetime | None:
        until: datetime | None = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise ValidationError(_("This time has passed."))
        return until

    def describe(self) -> str:
        """Return it for the log."""
        reason = self.cleaned_data["reason"]
        return _("Paused: %(reason)s") % {"reason": reason} if reason else _("Paused.")


class Page:
    """A page that Django's admin does not have, and its addresses: a part of the admin of a model."""

    def __init__(self, admin: ReadOnlyAdmin) -> None:
        self.admin = admin

    def get_urls(self) -> list[URLPattern]:
        raise NotImplementedError

    def address(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        """Return an address of the page. name: the last part of the address's name."""
        name = f"jobqueue_{self.admin.opts.model_name}_{name}"
        return path(route, self.admin.admin_site.admin_view(view), name=name)

    def reverse(self, name: str, *args: object) -> str:
        """Return the address of a page of the same admin."""
        return reverse(f"{self.admin.admin_site.name}:jobqueue_{self.admin.opts.model_name}_{name}", args=args)


class ReadOnlyAdmin(ModelAdmin):
    """Rows that only the engine changes. `pages` are those that Django's admin does not have."""

    pages: Sequence[Page] = ()

    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_max_show_all = 0
    sortable_by: ClassVar[tuple[str, ...]] = ()

    class Media:
        css = {"all": ["jobqueue/admin.css"]}
        js = [Script("jobqueue/live.js", type="module")]

    def get_urls(self) -> list[URLPattern]:
        return [*(address for page in self.pages for address in page.get_urls()), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(database_for(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Look up a row, first in the database of the backend that the address names. Ids may be UUIDs or numbers."""
        for database in dict.fromkeys([database_for(request), *databases()]):
            try:
                return self.get_queryset(request).using(database).get(pk=object_id)
            except (ObjectDoesNotExist, ValidationError, ValueError):
                continue
        return None

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Refuse lookups that are no filters of the list: most would scan the table."""
        filters = self.get_list_filter(request)
        return any(
            lookup in getattr(list_filter, "parameter_names", (getattr(list_filter, "parameter_name", None),))
            for list_filter in filters
        )

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = capfirst(str(self.opts.verbose_name_plural))
        try:
            return super().changelist_view(request, {"title": title, **(extra_context or {})})
        except ValidationError as error:  # an action on an invalid id
            raise BadRequest(str(error)) from error

    def page(self, request: HttpRequest, template: str, **context: Any) -> TemplateResponse:
        """Return a page that Django's admin does not have. The context needs a title."""
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "may_view_list": self.has_view_permission(request),
            "preserved_filters": self.get_preserved_filters(request),
        }
        return TemplateResponse(request, f"admin/jobqueue/{template}.html", {**common, **context})

    def confirm(
        self, request: HttpRequest, hidden: Iterable[tuple[str, object]], template: str = "confirm", **context: Any
    ) -> TemplateResponse:
        """
        Ask before an action is performed. The button posts the hidden fields to the same address.

        The page shows the `names` of what will change, a `text`, and a `form`. Without a `button` it only leads back.
        """
        return self.page(request, template, hidden=list(hidden), **context)
