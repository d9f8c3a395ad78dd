"""The keys of limits by key: which tasks wait, which number applies, and the form that changes it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import api as queue_api
from jobqueue.admin.base import ReadOnlyAdmin, requested_backend
from jobqueue.api import limits as api
from jobqueue.declarations.limits import MAX_LIMIT
from jobqueue.engine import engine_for
from jobqueue.exceptions import JobQueueError
from jobqueue.models import Limit
from jobqueue.operations import log_entries
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.holders import Holder, read_holders
from jobqueue.operations.limits import KeyState, kind_words, list_keys, parse_key, read_key_states
from jobqueue.values.text import number_text

KEYS_PER_PAGE = 25
MAX_SEARCH_CHARACTERS = 560


class NumberForm(forms.Form):
    """A number that replaces the declared one, and the reason."""

    number = forms.IntegerField(
        label=gettext_lazy("Limit"),
        min_value=1,
        max_value=MAX_LIMIT,
        help_text=gettext_lazy("At least 1. To run no tasks, pause their queue."),
    )
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=255, required=False)

    def describe(self) -> str:
        """Return it for the log."""
        number, reason = number_text(self.cleaned_data["number"]), self.cleaned_data["reason"]
        if reason:
            return _("Limit set to %(number)s. Reason: %(reason)s") % {"number": number, "reason": reason}
        return _("Limit set to %(number)s.") % {"number": number}


class LimitAdmin(ReadOnlyAdmin):
    """The list and the pages of keys. Most of them have no row: a row is a number that people have set."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET"])
        backend, offered = requested_backend(request)
        kind = next((kind for kind in api.KINDS if kind == request.GET.get("kind")), None)
        text = request.GET.get("q", "").replace("\x00", "").strip()[:MAX_SEARCH_CHARACTERS]
        listing = list_keys(engine_for(backend), kind, text) if backend else None
        page = Paginator(listing.keys if listing else [], KEYS_PER_PAGE).get_page(request.GET.get("p"))
        states = (
            read_key_states(engine_for(backend).database, backend, [listed.key for listed in page]) if backend else []
        )
        filters = {name: value for name, value in (("q", text), ("kind", kind), ("backend", backend)) if value}
        return self.page(
            request,
            "limit/change_list",
            title=_("Limits"),
            lines=[(state, self._address(state), self._tasks_of(state)) for state in states],
            keys=page,
            partial=listing.partial if listing else (),
            kinds=[(kind, kind_words(kind)) for kind in api.KINDS],
            kind=kind,
            text=text,
            query=urlencode(filters),
            backend=backend,
            backends=offered,
        )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a key. POST sets its number, or resets it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        parsed = parse_key(unquote(object_id), queue_api.aliases())
        if parsed is None:
            self.message_user(request, _("Unknown limit %(id)s.") % {"id": unquote(object_id)}, messages.WARNING)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobqueue_limit_changelist"))
        backend, key = parsed
        (state,) = read_key_states(engine_for(backend).database, backend, [key])
        if request.method == "POST":
            if not request.user.has_perm("jobqueue.change_limit"):
                raise PermissionDenied
            if "reset" in request.POST:
                return self._reset(request, state)
            return self._set(request, state)
        return self._show(request, state, NumberForm(initial={"number": state.number}))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead to the page of the key, which has its history."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobqueue_limit_change", args=[object_id]))

    def _show(self, request: HttpRequest, state: KeyState, form: NumberForm) -> HttpResponse:
        may_change = request.user.has_perm("jobqueue.change_limit")
        return self.page(
            request,
            "limit/detail",
            title=state.title,
            state=state,
            kind=kind_words(state.key.kind),
            tasks=self._tasks_of(state),
            holders=self._holders(request, state),
            form=form if may_change and (state.is_adjustable or form.is_bound) else None,
            may_change=may_change,
            log=log_entries.entries(Limit, state.id),
        )

    def _holders(self, request: HttpRequest, state: KeyState) -> list[Holder]:
        if not state.blocked:
            return []
        database, with_payload = engine_for(state.backend).database, request.user.has_perm("jobqueue.view_payload")
        return read_holders(database, state, with_payload=with_payload)

    def _set(self, request: HttpRequest, state: KeyState) -> HttpResponse:
        form = NumberForm(request.POST)
        if form.is_valid():
            try:
                api.set_limit(
                    state.key.kind,
                    state.key.stored,
                    form.cleaned_data["number"],
                    by=request.user.get_username()[:150],
                    reason=form.cleaned_data["reason"],
                    backend=state.backend,
                )
            except (JobQueueError, ValueError) as error:
                form.add_error(None, str(error))
            except OperationalError:  # lock timeout
                text = _("Nothing was changed: another transaction has locked the limit. Try again in a moment.")
                form.add_error(None, text)
            else:
                return self._changed(request, state, form.describe())
        return self._show(request, state, form)

    def _reset(self, request: HttpRequest, state: KeyState) -> HttpResponse:
        try:
            is_reset = api.reset_limit(state.key.kind, state.key.stored, backend=state.backend)
        except OperationalError:  # lock timeout
            text = _("Nothing was changed: another transaction has locked the limit. Try again in a moment.")
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(self._address(state))
        if is_reset:
            return self._changed(request, state, _("Limit reset."))
        self.message_user(request, _("People had not set a limit for this key."), messages.WARNING)
        return HttpResponseRedirect(self._address(state))

    def _changed(self, request: HttpRequest, state: KeyState, sentence: str) -> HttpResponse:
        audit_log.write_entry(request, Limit, state.id, state.title, sentence)
        # Django's page capitalizes the first word, so the key must not come first.
        text = _("Limit %(key)s: %(words)s") % {"key": state.title, "words": sentence}
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(self._address(state))

    def _address(self, state: KeyState) -> str:
        return address_of(state, self.admin_site.name)

    def _tasks_of(self, state: KeyState) -> str:
        """Return the address of the tasks of a key in the list."""
        query = urlencode({"limit": state.key.text, "backend": state.backend})
        return f"{reverse(f'{self.admin_site.name}:jobqueue_task_changelist')}?{query}"


def address_of(state: KeyState, site: str = "admin") -> str:
    """Return the address of a key's page."""
    return reverse(f"{site}:jobqueue_limit_change", args=[quote(state.id)])
