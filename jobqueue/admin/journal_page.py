"""The actions on a workflow: on an entry of its journal, and its termination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue.admin.base import Page
from jobqueue.admin.json_field import JsonField
from jobqueue.api import workflows as api
from jobqueue.exceptions import ChangeRefused, JobQueueError
from jobqueue.models import Task
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.bulk.actions import CANCEL
from jobqueue.operations.task.journal import ACTIONS, EntryAction, list_deleted
from jobqueue.values.text import number_text

if TYPE_CHECKING:
    from jobqueue.admin.task_page import TaskPage

NAMES_SHOWN = 20  # of the entries that a rewind deletes


class ResultForm(forms.Form):
    """The result of a step, given by hand."""

    value = JsonField(
        label=gettext_lazy("Result (JSON; put strings in quotes)"),
        rows=6,
        error_messages={"required": gettext_lazy("A result is JSON. For no result write null.")},
    )


class JournalPage(Page):
    """The actions on the journal of a workflow. Each has an address; the task's page shows their buttons."""

    def __init__(self, task_page: TaskPage) -> None:
        super().__init__(task_page.admin)
        self.task_page = task_page

    def get_urls(self) -> list[URLPattern]:
        views = {name: self._view(action) for name, action in ACTIONS.items()}
        views["terminate"] = self.task_page.post_view(CANCEL.permission, self._terminate)
        return [self.address(f"<path:object_id>/{name}/", view, name) for name, view in views.items()]

    def _view(self, action: EntryAction) -> Any:
        """Return the view of an action on one entry. That of an action with a form has a page, too."""

        def do(request: HttpRequest, task: Task) -> HttpResponse:
            name = str(request.GET.get("entry") or request.POST.get("entry") or "")
            form = ResultForm(request.POST if request.method == "POST" else None) if action.has_form else None
            if form is not None and not form.is_valid():
                return self._ask(request, task, action, name, form=form, button=str(action.label))
            if action.is_destructive and "confirmed" not in request.POST:
                deleted = list_deleted(task, name)
                return self._ask(request, task, action, name, names=_forecast(deleted), button=str(action.label))
            more = () if form is None else (form.cleaned_data["value"],)
            return self._perform(
                request, task, action.done % {"name": name}, lambda: ENTRY_CALLS[action.name](task, name, *more)
            )

        return self.task_page.post_view(action.permission, do, shows=action.has_form)

    def _ask(self, request: HttpRequest, task: Task, action: EntryAction, name: str, **context: Any) -> HttpResponse:
        """Show the form of an action, or ask before it is performed."""
        return self.admin.confirm(
            request,
            [("confirmed", "1"), ("entry", name)],
            title=_("%(action)s: %(name)s") % {"action": action.label, "name": name},
            text=f"{task.task_type} {task.pk}",
            refusal=_("Keep it"),
            is_destructive=action.is_destructive,
            back=self.task_page.task_address(request, task),
            **context,
        )

    def _terminate(self, request: HttpRequest, task: Task) -> HttpResponse:
        if "confirmed" not in request.POST:
            return self.admin.confirm(
                request,
                [("confirmed", "1")],
                title=_("Terminate this workflow?"),
                text=f"{task.task_type} {task.pk}",
                names=[_("It ends at once as cancelled. Compensations do not run: what its steps did stays done.")],
                button=_("Terminate"),
                refusal=_("Keep it"),
                is_destructive=True,
                back=self.task_page.task_address(request, task),
            )
        return self._perform(request, task, _("Terminated."), lambda: _terminate(task))

    def _perform(self, request: HttpRequest, task: Task, done: str, call: Callable[[], object]) -> HttpResponse:
        """Perform an action, log it, and answer. What refuses it becomes the answer."""
        try:
            call()
        except OperationalError:  # lock timeout
            text = _("Nothing was changed: another transaction has locked the task. Try again in a moment.")
            return self.task_page.answer(request, task, text, messages.ERROR)
        except JobQueueError as error:
            text = _("Nothing was changed: %(error)s") % {"error": error}
            return self.task_page.answer(request, task, text, messages.WARNING)
        audit_log.write(request, [task], done)
        return self.task_page.answer(request, task, done, messages.SUCCESS)


ENTRY_CALLS: dict[str, Callable[..., object]] = {
    "retry": lambda task, name: api.retry(task.pk, name, backend=task.backend),
    "give": lambda task, name, value: api.give(task.pk, name, value, backend=task.backend),
    "skip": lambda task, name: api.skip(task.pk, name, backend=task.backend),
    "rewind": lambda task, name: api.rewind(task.pk, name, backend=task.backend),
}


def _terminate(task: Task) -> None:
    """End a workflow. Raises ChangeRefused if it has ended, or is locked."""
    if not api.terminate(task.pk, backend=task.backend).cancelled:
        raise ChangeRefused(_("it has ended, or another transaction has locked it."))


def _forecast(deleted: Sequence[tuple[str, bool]]) -> list[str]:
    """Describe the result of a rewind. deleted: the names of the entries, and whether each is a child."""
    children = sum(is_child for _name, is_child in deleted)
    names = ", ".join(name for name, _is_child in deleted[:NAMES_SHOWN]) + ("…" if len(deleted) > NAMES_SHOWN else "")
    texts = [
        ngettext(
            "%(number)s entry will be deleted, and its call runs again: %(names)s.",
            "%(number)s entries will be deleted, and their calls run again: %(names)s.",
            len(deleted),
        )
        % {"number": number_text(len(deleted)), "names": names}
    ]
    if children:
        text = ngettext(
            "%(number)s child will be cancelled if it has not ended.",
            "%(number)s children will be cancelled if they have not ended.",
            children,
        )
        texts.append(text % {"number": number_text(children)})
    return texts
