"""A task's page and its actions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from django import forms
from django.contrib import messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import api
from jobqueue.admin.base import Page
from jobqueue.admin.extensions import extensions, links_html
from jobqueue.admin.json_field import JsonField
from jobqueue.admin.message_forms import MessageKind, MessageKindForm, list_kinds, list_kinds_of_wait
from jobqueue.declarations import registry
from jobqueue.declarations.workflow import WorkflowTask
from jobqueue.engine import Count, engine_for
from jobqueue.exceptions import JobQueueError, TaskNotFound
from jobqueue.models import Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.bulk import actor as bulk_actor
from jobqueue.operations.bulk import audit_log
from jobqueue.operations.bulk.actions import (
    CANCEL,
    CANCEL_TREE,
    DELETE,
    DISCARD,
    REQUEUE,
    RUN_NOW,
    BulkAction,
    plural_values,
)
from jobqueue.operations.bulk.target import BulkRun
from jobqueue.operations.list.failures import read_titles
from jobqueue.operations.payloads import named_arguments, parse_column
from jobqueue.operations.task.batch import MemberCause, ShownBatch
from jobqueue.operations.task.detail import describe_task
from jobqueue.operations.task.inbox import check_message, find_actor, takes_messages
from jobqueue.operations.task.journal import ACTIONS as ENTRY_ACTIONS
from jobqueue.operations.task.journal import forecast_compensations, parse_state
from jobqueue.values.records import BULK_ACTION, is_internal

View = Callable[[HttpRequest, Task], HttpResponse]
ACTIONS = (RUN_NOW, REQUEUE, CANCEL, DISCARD, DELETE)


class MessageForm(forms.Form):
    """A message. It must be JSON and a valid `Message` of the actor, because others fail its polls."""

    body = JsonField(
        label=gettext_lazy("Message"),
        rows=4,
        error_messages={"required": gettext_lazy("A message is JSON. For an empty message write null.")},
    )

    def __init__(self, *args: Any, task: Task, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task = task

    @property
    def schema(self) -> str:
        """Return the JSON Schema of the actor's `Message`, or nothing if it has none."""
        actor = find_actor(self.task)
        try:
            schema = msgspec.json.schema(actor.Message) if actor else None
        except (TypeError, ValueError, RuntimeError):  # some types have no schema
            return ""
        return json.dumps(schema, indent=2, ensure_ascii=False) if schema else ""

    def clean_body(self) -> Any:
        """Return the message. Raises ValidationError if the actor does not take it."""
        value = self.cleaned_data["body"]
        try:
            check_message(self.task.task_type, value, options_of(self.task.backend).max_payload_bytes)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        return value


class TaskPage(Page):
    """One task: GET shows it, POST performs one of the actions."""

    def get_urls(self) -> list[URLPattern]:
        views = {action.name: self.post_view(action.permission, self._action_view(action)) for action in ACTIONS}
        views["send"] = self.post_view("send_message", self._send)
        return [self.address(f"<path:object_id>/{name}/", view, name) for name, view in views.items()]

    def view(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        """Show a task; the only field on its page is for a message."""
        if request.method not in ("GET", "HEAD") or object_id is None:
            raise PermissionDenied
        task = self.admin.get_object(request, unquote(object_id))
        if not self.admin.has_view_permission(request, task):
            raise PermissionDenied
        return self.gone(request, object_id) if task is None else self._show(request, task)

    def _show(
        self,
        request: HttpRequest,
        task: Task,
        form: MessageForm | None = None,
        kind_form: MessageKindForm | None = None,
    ) -> HttpResponse:
        def may(permission: str) -> bool:
            return bool(request.user.has_perm(f"jobqueue.{permission}"))

        # A backend that TASKS no longer has cannot change its tasks.
        allowed = [action for action in ACTIONS if may(action.permission)] if task.backend in api.aliases() else []
        before = request.GET.get("before", "")
        description = describe_task(
            task,
            with_payload=may("view_payload"),
            entries_before=int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None,
        )
        is_asked = task.status == Task.Status.RUNNING and task.cancel_requested_at is not None
        left_out = [CANCEL] if is_asked and not description["children"].live else []
        left_out += [REQUEUE] if task.task_type == BULK_ACTION else []
        context = {
            **description,
            "actions": [action for action in allowed if task.status in action.statuses and action not in left_out],
            "may_cancel": CANCEL in allowed,
            "may_terminate": CANCEL in allowed and description["journal"] is not None and not task.is_finished,
            "entry_actions": [name for name, action in ENTRY_ACTIONS.items() if allowed and may(action.permission)],
            "may_copy": may("enqueue_task") and may("view_payload") and _is_copyable(task),
            **(_message_forms(task, form, kind_form) if may("send_message") and takes_messages(task) else {}),
            "batch_causes": _title_causes(task, description["batch"], with_payload=may("view_payload")),
            "original": task,
            "progress": self._progress(task),
            **_read_extensions(task, with_payload=may("view_payload")),
            "has_view_permission": True,
        }
        return self.admin.page(request, "task/detail", title=task.task_type, **context)

    def _progress(self, task: Any) -> bulk_actor.ShownBulkProgress | None:
        """Return the progress of a bulk action: numbers, which everyone may see. None for other tasks."""
        if task.task_type != BULK_ACTION:
            return None
        return bulk_actor.read_bulk_progress(
            parse_column(task.args_text), parse_column(task.kwargs_text), parse_column(task.inner_state_text)
        )

    def post_view(self, permission: str, do: View, *, shows: bool = False) -> Any:
        """Return a view of POST for one task. It needs the permission, and that to view tasks. shows: of GET, too."""

        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method != "POST" and not (shows and request.method == "GET"):
                return HttpResponseNotAllowed(["POST"])
            task = self.admin.get_object(request, unquote(object_id))
            if not self.admin.has_view_permission(request, task) or not request.user.has_perm(f"jobqueue.{permission}"):
                raise PermissionDenied
            return self.gone(request, object_id) if task is None else do(request, task)

        return view

    def _action_view(self, action: BulkAction) -> View:
        def view(request: HttpRequest, task: Task) -> HttpResponse:
            is_tree = action is CANCEL and bool(request.POST.get("tree"))
            number = _number_to_change(task, action, is_tree=is_tree)
            if action.is_destructive and number and "confirmed" not in request.POST:
                return self._confirm_one(request, task, action, number, [("tree", "1")] if is_tree else [])
            run = BulkRun(CANCEL_TREE if is_tree else action)
            try:
                run.perform([task.pk])
            except OperationalError:  # lock timeout
                text = _("Nothing was changed: another transaction has locked the task. Try again in a moment.")
                return self.answer(request, task, text, messages.ERROR)
            if run.affected:
                audit_log.write(request, [task], str(run.action.label))
                if action is DELETE:
                    self.admin.message_user(request, str(run), level_of(run))
                    return HttpResponseRedirect(self._list_address(request))
            return self.answer(request, task, str(run), level_of(run))

        return view

    def _confirm_one(
        self, request: HttpRequest, task: Task, action: BulkAction, number: int, hidden: list[tuple[str, object]]
    ) -> HttpResponse:
        """Ask before a task is changed, perhaps with its live descendants. number: how many tasks that are."""
        numbers = plural_values(Count(number))
        button = str(action.button % numbers)
        return self.admin.confirm(
            request,
            [("confirmed", "1"), *hidden],
            title=_("%(action)s?") % {"action": button},
            text=f"{task.task_type} {task.pk}",
            names=[action.forecast % numbers, *(forecast_compensations(task) if action is CANCEL else ())],
            button=button,
            refusal=_("Keep it") if number == 1 else action.refusal,
            is_destructive=action.is_destructive,
            back=self.task_address(request, task),
        )

    def task_address(self, request: HttpRequest, task: Task) -> str:
        return self._keep_filters(request, self.reverse("change", task.pk))

    def _list_address(self, request: HttpRequest) -> str:
        return self._keep_filters(request, self.reverse("changelist"))

    def _keep_filters(self, request: HttpRequest, address: str) -> str:
        """Return an address with the filters of the list that led to the page."""
        context: Any = {"preserved_filters": self.admin.get_preserved_filters(request), "opts": self.admin.opts}
        return add_preserved_filters(context, address)

    def _send(self, request: HttpRequest, task: Task) -> HttpResponse:
        """Send the message of one of the page's forms: of a class of messages, or of JSON."""
        if not takes_messages(task):
            unknown = _("Message not sent: this site has no actor of this name.")
            ended = _("Message not sent: the task has ended.")
            return self.answer(request, task, ended if task.is_finished else unknown, messages.WARNING)
        kind = next(
            (message_kind for message_kind in _kinds(task) if message_kind.name == request.POST.get("kind")), None
        )
        form = MessageForm(request.POST, task=task) if kind is None else kind.form(request.POST)
        if not form.is_valid() or (isinstance(form, MessageKindForm) and not _is_taken(form, task)):
            self.admin.message_user(request, _("Message not sent. Please correct the error below."), messages.ERROR)
            if isinstance(form, MessageKindForm):
                return self._show(request, task, kind_form=form)
            form.fields["body"].widget.attrs["autofocus"] = True
            return self._show(request, task, form)
        body = form.body if isinstance(form, MessageKindForm) else form.cleaned_data["body"]
        try:
            number = api.send(task.pk, body, backend=task.backend)
        except TaskNotFound:
            return self.gone(request, str(task.pk))
        except OperationalError:  # lock timeout
            text = _("Message not sent: another transaction has locked the task. Try again in a moment.")
            return self.answer(request, task, text, messages.ERROR)
        except JobQueueError as error:
            return self.answer(request, task, _("Message not sent: %(error)s") % {"error": error}, messages.WARNING)
        # Without the body: readers of the log may lack the permission to see messages.
        audit_log.write(request, [task], _("Send message %(number)s") % {"number": number})
        text = _("Message sent (no. %(number)s).") % {"number": number}
        return self.answer(request, task, text, messages.SUCCESS)

    def answer(self, request: HttpRequest, task: Task, text: str, level: int) -> HttpResponse:
        self.admin.message_user(request, text, level)
        return HttpResponseRedirect(self.task_address(request, task))

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = _("Unknown task %(id)s. Ended tasks are pruned after a while.") % {"id": unquote(object_id)}
        self.admin.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._list_address(request))


def _kinds(task: Task) -> list[MessageKind]:
    """Return the classes of messages that an actor takes, or that a workflow waits for now."""
    declared = registry.get(task.task_type)
    if isinstance(declared, WorkflowTask):
        waiting = parse_state(parse_column(getattr(task, "inner_state_text", None))).waiting
        return list_kinds_of_wait(declared.func, waiting.types if waiting is not None else ())
    actor = find_actor(task)
    return list_kinds(actor) if actor else []


def _message_forms(task: Task, form: MessageForm | None, kind_form: MessageKindForm | None) -> dict[str, Any]:
    """Return the forms for messages. One with an error is open, and the first one otherwise."""
    by_name = {kind.name: kind.form() for kind in _kinds(task)}
    if kind_form is not None:
        by_name[kind_form.kind.name] = kind_form
    opened = kind_form.kind.name if kind_form else next(iter(by_name), None) if form is None else None
    return {"form": form or MessageForm(task=task), "kind_forms": list(by_name.values()), "open_kind": opened}


def _is_taken(form: MessageKindForm, task: Task) -> bool:
    """Return whether the actor takes the message of a valid form. If not, the form gets an error."""
    try:
        limit = options_of(task.backend).max_payload_bytes
        form.kind.check(form.body, limit)
        check_message(task.task_type, form.body, limit)
    except ValueError as error:
        form.add_error(None, str(error))
        return False
    return True


def _title_causes(task: Task, batch: ShownBatch | None, *, with_payload: bool) -> list[tuple[MemberCause, str]]:
    """Return the causes of a batch with their errors: with messages, if the reader may see them."""
    causes = batch.causes if batch is not None else ()
    titles = read_titles([task.backend], [cause.cause for cause in causes]) if with_payload and causes else {}
    return [(cause, titles.get(cause.cause, cause.error_class)) for cause in causes]


def _number_to_change(task: Task, action: BulkAction, *, is_tree: bool) -> int:
    """Return how many tasks an action can change: the task, and of a tree its live descendants."""
    if task.backend not in api.aliases():
        return 0
    number = int(task.status in action.statuses)
    return number + len(engine_for(task.backend).tasks.descendants([task.pk])) if is_tree else number


def _read_extensions(task: Any, *, with_payload: bool) -> dict[str, Any]:
    """Return the site's additions to the page of a task."""
    patterns = options_of(task.backend).redact
    by_name = named_arguments(task.task_type, parse_column(task.args_text), parse_column(task.kwargs_text), patterns)
    arguments = by_name if with_payload else {}
    return {
        "site_links": links_html(extensions.read_links(task, arguments)),
        "site_values": extensions.read_values(task, arguments),
    }


def _is_copyable(task: Task) -> bool:
    return registry.get(task.task_type) is not None and not is_internal(task.task_type)


def level_of(run: BulkRun) -> int:
    return messages.SUCCESS if run.affected else messages.WARNING
