"""What a site says about its queues."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import render
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.admin.filters import BackendFilter
from jobqueue.models import Queue


class QueueAdmin(ReadOnlyAdmin[Queue]):
    list_display = ("name", "backend", "paused", "paused_by", "pause_reason", "resumes")
    list_filter = (BackendFilter,)
    change_list_template = "admin/jobqueue/queue/change_list.html"
    ordering = ("backend", "name")
    actions = None
    fields = ("name", "backend", "paused", "paused_by", "pause_reason", "resumes")
    readonly_fields = fields

    @admin.display(description=_("paused since"))
    def paused(self, queue: Queue) -> SafeString:
        return render.moment(queue.paused_at)

    @admin.display(description=_("resumes"))
    def resumes(self, queue: Queue) -> SafeString:
        return render.moment(queue.resume_at)
