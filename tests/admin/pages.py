"""Helpers of the tests of the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.urls import reverse

from jobqueue.models import Task

LIST_URL = "/admin/jobqueue/task/"
SCRIPT = "<script>alert(1)</script>"
BOTH = pytest.mark.django_db(databases=["default", "sqlite"])


def task_url(row: Task, page: str = "change") -> str:
    return reverse(f"admin:jobqueue_task_{page}", args=[row.pk])


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def reload(row: Task) -> Task:
    return Task.objects.using(row.backend).get(pk=row.pk)


def status_of(row: Task) -> str:
    return reload(row).status
