"""The page that enqueues a task by hand, or a copy of one with other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import api
from jobqueue.admin.argument_fields import ArgumentsForm, Call
from jobqueue.admin.base import Page
from jobqueue.admin.option_fields import max_attempts_field, priority_field
from jobqueue.admin.task_page import TaskPage
from jobqueue.admin.timing_form import PLAIN
from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations import registry
from jobqueue.declarations.function import FunctionTask
from jobqueue.declarations.options import MAX_CHARACTERS
from jobqueue.engine import engine_for
from jobqueue.exceptions import DuplicateKey, JobQueueError
from jobqueue.operations.backends import databases, options_of
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.payloads import parse_column, tags_of
from jobqueue.operations.task.detail import find_task

COPIED = ("queue_name", "priority", "max_attempts", "backend")  # a copy cannot have the key of a live task


class OptionsForm(forms.Form):
    """The options of a task that is enqueued. An empty one is the option that the task declares."""

    queue_name = forms.CharField(label=gettext_lazy("Queue"), required=False, max_length=MAX_CHARACTERS["queue_name"])
    priority = priority_field()
    max_attempts = max_attempts_field()
    run_after = forms.DateTimeField(
        label=gettext_lazy("Not before"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    key = forms.CharField(
        label=gettext_lazy("Key"),
        required=False,
        max_length=MAX_CHARACTERS["key"],
        widget=forms.TextInput(attrs=PLAIN),
        help_text=gettext_lazy("While a task with this key has not ended, no other task with this key is enqueued."),
    )
    backend = forms.ChoiceField(label=gettext_lazy("Backend"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        aliases = api.aliases()
        field = self.fields["backend"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "---------"), *((name, name) for name in aliases)]
        if len(aliases) == 1:
            del self.fields["backend"]

    @property
    def changes(self) -> dict[str, Any]:
        values = {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}
        return {**values, "on_conflict": "raise"} if "key" in values else values


class EnqueuePage(Page):
    """The form of a task, with its arguments and options."""

    def get_urls(self) -> list[URLPattern]:
        return [self.address("enqueue/", self.view, "enqueue")]

    def view(self, request: HttpRequest) -> HttpResponse:
        """Show the form of the task in the address, or of the task to copy; else a list of tasks. POST enqueues it."""
        if not self.admin.has_view_permission(request) or not request.user.has_perm("jobqueue.enqueue_task"):
            raise PermissionDenied
        original, call = None, None
        if "copy" in request.GET:
            if not request.user.has_perm("jobqueue.view_payload"):
                raise PermissionDenied
            original = find_task(request.GET["copy"], databases())
            if original is None:
                return TaskPage(self.admin).gone(request, request.GET["copy"])
            call = _read_call(original)
        offered = registry.offered()
        name = original.task_type if original else request.POST.get("task") or request.GET.get("task", "")
        name = registry.name_now(name)
        task = offered.get(name)
        data = request.POST if request.method == "POST" and task else None
        first = {name: getattr(original, name) for name in COPIED} if original else None
        form = OptionsForm(data, initial=first)
        arguments = _arguments_form(data, task, original, call) if task else None
        if data is not None and arguments is not None and form.is_valid() and arguments.is_valid():
            assert task is not None
            tags = (tags_of(original) or None) if original else None
            if response := self._enqueue(request, task, form, arguments, tags):
                return response
        return self.admin.page(
            request,
            "task/enqueue",
            title=_("Enqueue a copy") if original else _("Enqueue a task"),
            original=original,
            known=offered,
            name=name,
            task=task,
            form=form,
            arguments=arguments,
        )

    def _enqueue(
        self,
        request: HttpRequest,
        task: FunctionTask[..., Any],
        form: OptionsForm,
        arguments: ArgumentsForm,
        tags: list[str] | None,
    ) -> HttpResponse | None:
        """Enqueue the task of valid forms, with the tags of the original. An error becomes one of the form."""
        args, kwargs = arguments.call()
        try:
            changed = task.using(**form.changes, tags=tags)
            with transaction.atomic(using=options_of(changed.backend).database):
                result = changed.enqueue(*args, **kwargs)
        except DuplicateKey:
            form.add_error("key", _("A task with this key has not ended. Search the list for the key to find it."))
            return None
        except (JobQueueError, InvalidTask, ValueError, TypeError) as error:
            form.add_error(None, str(error))
            return None
        row = engine_for(changed.backend).db.by_ids([UUID(result.id)]).only("task_type").get()
        audit_log.write(request, [row], _("Enqueued by hand."), is_new=True)
        self.admin.message_user(request, _("Enqueued 1 task."), messages.SUCCESS)
        return HttpResponseRedirect(self.reverse("change", result.id))


def _read_call(task: Any) -> Call | None:
    args, kwargs = parse_column(task.args_text), parse_column(task.kwargs_text)
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def _arguments_form(
    data: Mapping[str, Any] | None, task: FunctionTask[..., Any], original: Any, call: Call | None
) -> ArgumentsForm | None:
    parameters = registry.parameters(task.task_type)
    if parameters is None:
        return None
    patterns = options_of(original.backend).redact if original else ()
    return ArgumentsForm(data, parameters=parameters, stored=call, patterns=patterns, typed=None)
