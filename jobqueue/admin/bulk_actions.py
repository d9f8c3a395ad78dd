"""The actions of the task list: at once, after a confirmation, or as a task of the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.admin.task_list import TaskChangeList
from jobqueue.admin.task_page import level_of
from jobqueue.engine import Count
from jobqueue.models import Task
from jobqueue.operations.bulk import actor as bulk_actor
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.bulk.actions import ACTIONS, BulkAction, plural_values
from jobqueue.operations.bulk.target import EXAMPLES, MAX_IN_REQUEST, BulkRun, Target, perform_ids, perform_now
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.selection import to_uuid

# The names in requests, by action. Django has a `delete_selected` of its own.
NAMES = {name: "delete_ended" if name == "delete" else f"{name}_selected" for name in ACTIONS}
# What has_..._permission() of the list each needs. Django asks has_delete_permission() for its own pages.
PERMISSIONS = {"requeue": "requeue", "cancel": "cancel", "wake": "wake", "discard": "cancel", "delete": "remove"}


class RateForm(forms.Form):
    """A rate: how many tasks a second an action may change."""

    rate = forms.IntegerField(
        label=gettext_lazy("Tasks a second"),
        required=False,
        min_value=1,
        max_value=bulk_actor.MAX_RATE,
        help_text=gettext_lazy("For example 100, to spare a service that was down. Leave it empty for no limit."),
    )


class BulkActions:
    """Performs an action on the selected tasks of the list, or asks before."""

    def __init__(self, admin: ReadOnlyAdmin) -> None:
        self.admin = admin

    def perform(self, request: HttpRequest, rows: QuerySet[Task], action: BulkAction) -> HttpResponse | None:
        """
        Perform an action at once if it is not destructive and one task is ticked. Otherwise ask for confirmation first.

        The address (the list's filters) and the bounds identify the rows, not a list of ids. So the confirmation of a
        million tasks is as small as that of ten.
        """
        task_list: TaskChangeList = request.task_list  # type: ignore[attr-defined]
        if request.POST.get("select_across") != "1":
            ticked = [pk for text in request.POST.getlist(ACTION_CHECKBOX_NAME) if (pk := to_uuid(text))]
            if "confirmed" not in request.POST and (len(ticked) != 1 or action.is_destructive):
                return self._confirm_ticked(request, action, ticked)
            run = perform_ids(action, ticked)
            self._report(request, run, rows.db, None)
            return None
        if task_list.confirmed is None:
            return self._confirm_all(request, Target.of(task_list.selection, action))
        target = Target(task_list.selection, action, task_list.confirmed)
        form = RateForm(request.POST) if action.has_rate else None
        if form is not None and not form.is_valid():
            return self._confirm_all(request, target, form)
        rate = form.cleaned_data["rate"] if form is not None else None
        if rate or (target.bounds.number or 0) > MAX_IN_REQUEST:
            return self._start(request, target, rate)
        self._report(request, perform_now(target), rows.db, request.META.get("QUERY_STRING") or _("no filter"))
        return None

    def _report(self, request: HttpRequest, run: BulkRun, database: str, chosen_by: str | None) -> None:
        self.admin.message_user(request, str(run), level_of(run))
        if run.affected:
            audit_log.write_run(request, run, database, chosen_by)

    def _start(self, request: HttpRequest, target: Target, rate: int | None) -> HttpResponse:
        """Let a task of the queue perform the action, and show its page."""
        result = bulk_actor.start(target, rate)
        chosen_by = request.META.get("QUERY_STRING") or _("no filter")
        audit_log.write_start(request, target.action, target.bounds.number or 0, result.id, chosen_by)
        self.admin.message_user(request, _("This runs in the background; cancel this task to stop it."))
        return HttpResponseRedirect(reverse(f"{self.admin.admin_site.name}:jobqueue_task_change", args=[result.id]))

    def _confirm_ticked(self, request: HttpRequest, action: BulkAction, ticked: list[UUID]) -> HttpResponse:
        rows = self.admin.get_queryset(request).filter(pk__in=ticked)
        matching = set(rows.filter(status__in=action.statuses).values_list("pk", flat=True))
        return self._confirm(
            request,
            action,
            number=len(matching),
            other=Count(len(ticked) - len(matching)),
            examples=[pk for pk in ticked if pk in matching][:EXAMPLES],
            hidden=[("confirmed", "1"), ("select_across", "0"), *((ACTION_CHECKBOX_NAME, pk) for pk in ticked)],
        )

    def _confirm_all(self, request: HttpRequest, target: Target, form: RateForm | None = None) -> HttpResponse:
        number = target.bounds.number or 0
        return self._confirm(
            request,
            target.action,
            number=number,
            other=target.other,
            examples=target.examples,
            hidden=[("select_across", "1"), ("bounds", target.bounds), (ACTION_CHECKBOX_NAME, "all")],
            form=form or (RateForm() if target.action.has_rate and number > 1 else None),
            words=target.selection.description,
            window=target.selection.window,
            is_across=True,
            is_task=number > MAX_IN_REQUEST,
        )

    def _confirm(
        self,
        request: HttpRequest,
        action: BulkAction,
        *,
        number: int,
        examples: list[UUID],
        hidden: list[tuple[str, object]],
        **context: Any,
    ) -> HttpResponse:
        numbers = plural_values(Count(number))
        button = str(action.button % numbers)
        return self.admin.confirm(
            request,
            [("action", NAMES[action.name]), *hidden],
            template="task/confirm",
            title=_("%(action)s?") % {"action": button} if number else _("Nothing to change"),
            names=[action.forecast % numbers],
            button=button if number else "",
            refusal=action.refusal if number else _("Go back"),
            is_destructive=action.is_destructive,
            number=number,
            examples=read_rows(
                self.admin.get_queryset(request), examples, with_payload=request.user.has_perm("jobqueue.view_payload")
            ),
            **context,
        )


def _function(name: str) -> Callable[..., HttpResponse | None]:
    """Return an action as Django's admin takes it."""

    @admin.action(description=ACTIONS[name].label_many, permissions=[PERMISSIONS[name]])
    def perform(model_admin: ReadOnlyAdmin, request: HttpRequest, rows: QuerySet[Task]) -> HttpResponse | None:
        return BulkActions(model_admin).perform(request, rows, ACTIONS[name])

    perform.__name__ = NAMES[name]
    return perform


FUNCTIONS = tuple(map(_function, ACTIONS))
