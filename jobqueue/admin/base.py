"""The base of all pages: they read the queue's database, and cannot edit rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.core.exceptions import (
    BadRequest,
    ObjectDoesNotExist,
    PermissionDenied,
    ValidationError,
)
from django.db.models import Model, QuerySet
from django.forms import Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from jobqueue import api
from jobqueue.inspect.backends import databases, options_of

Row = TypeVar("Row", bound=Model)

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin
else:

    class ModelAdmin(admin.ModelAdmin):
        """Subscriptable without django-stubs, too."""

        def __class_getitem__(cls, _model: Any) -> type:
            return cls


def database_for(request: HttpRequest) -> str:
    """Return the database of the list: that of the selected backend, else that of the first."""
    chosen = request.GET.get("backend", "")
    return options_of(chosen).database if chosen in api.aliases() else databases()[0]


class ReadOnlyAdmin(ModelAdmin[Row]):
    """Rows that only the engine changes: only GET is allowed."""

    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_max_show_all = 0
    sortable_by = ()

    class Media:
        css = {"all": ["jobqueue/admin.css"]}
        js = [Script("jobqueue/live.js", type="module")]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Row]:
        return super().get_queryset(request).using(database_for(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Row | None:
        """Look up a row in the databases of all backends, because the address does not contain the backend."""
        for database in databases():
            try:
                return self.get_queryset(request).using(database).get(pk=object_id)
            except (ObjectDoesNotExist, ValidationError, ValueError):
                continue
        return None

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Refuse lookups that are no filters of the list: most would scan the table."""
        return lookup in self.filters(request)

    def filters(self, request: HttpRequest) -> list[str]:
        """Return the filter parameters of the list."""
        names = (getattr(spec, "parameter_name", "") for spec in self.get_list_filter(request))
        return [name for name in names if name]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = capfirst(str(self.opts.verbose_name_plural))
        try:
            return super().changelist_view(request, {"title": title, **(extra_context or {})})
        except ValidationError as error:  # an action on an invalid id
            raise BadRequest(str(error)) from error
        except DisallowedModelAdminLookup as error:
            text = _("%(problem)s: this list has the filters %(filters)s.")
            names = {"problem": error, "filters": ", ".join(self.filters(request))}
            self.message_user(request, text % names, messages.WARNING)
            return HttpResponseRedirect(request.path)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        return super().changeform_view(request, object_id, form_url, extra_context)
