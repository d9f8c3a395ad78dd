"""A task's page and its actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from jobqueue import api
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.admin.message_form import MessageForm
from jobqueue.exceptions import JobQueueError, TaskFinished, TaskNotFound
from jobqueue.inspect import audit_log
from jobqueue.inspect.backends import databases
from jobqueue.inspect.bulk import CANCEL, CANCEL_TREE, REQUEUE, WAKE, BulkAction, BulkRun
from jobqueue.inspect.inbox import takes_messages
from jobqueue.inspect.task_detail import describe, read_task
from jobqueue.models import Task

View = Callable[[HttpRequest, Task], HttpResponse]
ACTIONS = (WAKE, REQUEUE, CANCEL)


class TaskPage(ReadOnlyAdmin[Task]):
    """One task: GET shows it, POST performs one of the actions."""

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Task | None:
        for database in databases():
            try:
                return read_task(database, object_id)
            except (Task.DoesNotExist, ValidationError, ValueError):
                continue
        return None

    def get_urls(self) -> list[URLPattern]:
        views = {one.name: self._post_view(f"{one.name}_task", self._action_view(one)) for one in ACTIONS}
        views["send"] = self._post_view("send_message", self._send)
        return [
            path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=f"jobqueue_task_{name}")
            for name, view in views.items()
        ] + super().get_urls()

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show a task; the only field on its page is for a message."""
        if request.method not in ("GET", "HEAD") or object_id is None:
            raise PermissionDenied
        task = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, task):
            raise PermissionDenied
        return self._gone(request, object_id) if task is None else self._page(request, task, extra=extra_context)

    def _page(
        self, request: HttpRequest, task: Task, form: MessageForm | None = None, extra: dict[str, Any] | None = None
    ) -> HttpResponse:
        database = task._state.db or databases()[0]
        may_send = bool(request.user.has_perm("jobqueue.send_message"))
        context = {
            **self.admin_site.each_context(request),
            **describe(task, database, with_payload=request.user.has_perm("jobqueue.view_payload")),
            "actions": [one for one in ACTIONS if self._allows(request, one) and task.status in one.statuses],
            "may_cancel": self._allows(request, CANCEL),
            "form": form or (MessageForm(task=task) if may_send and takes_messages(task) else None),
            "opts": self.opts,
            "media": self.media,
            "original": task,
            "title": task.task_type,
            "has_view_permission": True,
            **(extra or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/jobqueue/task/detail.html", context)

    def _post_view(self, permission: str, do: View) -> Any:
        """Return a view of POST for one task. It needs the permission, and that to view tasks."""

        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            task = self.get_object(request, unquote(object_id))
            if not self.has_view_permission(request, task) or not request.user.has_perm(f"jobqueue.{permission}"):
                raise PermissionDenied
            return self._gone(request, object_id) if task is None else do(request, task)

        return view

    def _action_view(self, action: BulkAction) -> View:
        def view(request: HttpRequest, task: Task) -> HttpResponse:
            run = BulkRun(CANCEL_TREE if action is CANCEL and request.POST.get("tree") else action)
            try:
                run.perform([task.pk])
            except OperationalError:  # lock timeout
                text = _("Nothing was changed: another transaction has locked the task. Try again in a moment.")
                self.message_user(request, text, messages.ERROR)
                return self._redirect("change", task.pk)
            self._report(request, run)
            if run.result.affected:
                audit_log.write(request, [task], str(run.action.label))
            return self._redirect("change", task.pk)

        return view

    def _send(self, request: HttpRequest, task: Task) -> HttpResponse:
        form = MessageForm(request.POST, task=task)
        if task.is_finished:
            return self._not_sent(request, task, _("Message not sent: the task has ended."))
        if not takes_messages(task):
            return self._not_sent(request, task, _("Message not sent: this site has no actor of this name."))
        if not form.is_valid():
            form.fields["body"].widget.attrs["autofocus"] = True
            self.message_user(request, _("Message not sent. Please correct the error below."), messages.ERROR)
            return self._page(request, task, form)
        try:
            number = api.send(task.pk, form.cleaned_data["body"], backend=task.backend)
        except TaskFinished:
            return self._not_sent(request, task, _("Message not sent: the task has ended."))
        except TaskNotFound:
            return self._gone(request, str(task.pk))
        except JobQueueError as error:
            return self._not_sent(request, task, _("Message not sent: %(error)s") % {"error": error})
        self.message_user(request, _("Message sent (no. %(number)s).") % {"number": number}, messages.SUCCESS)
        # Without the body: readers of the log may lack the permission to see messages.
        audit_log.write(request, [task], _("Send message %(number)s") % {"number": number})
        return self._redirect("change", task.pk)

    def _not_sent(self, request: HttpRequest, task: Task, text: str) -> HttpResponse:
        self.message_user(request, text, messages.WARNING)
        return self._redirect("change", task.pk)

    def _gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        text = _("Unknown task %(id)s. Ended tasks are pruned after a while.") % {"id": unquote(object_id)}
        self.message_user(request, text, messages.WARNING)
        return self._redirect("changelist")

    def _redirect(self, name: str, *args: object) -> HttpResponse:
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobqueue_task_{name}", args=args))

    def _allows(self, request: HttpRequest, action: BulkAction) -> bool:
        return bool(request.user.has_perm(f"jobqueue.{action.name}_task"))

    def _report(self, request: HttpRequest, run: BulkRun) -> None:
        level = messages.SUCCESS if run.result.affected else messages.WARNING
        text = str(run) if run.resume_at is None else _("%(result)s There are more.") % {"result": run}
        self.message_user(request, text, level)
