"""The admin lives with the first and the last moment that a row can hold, in any zone."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models import DateTimeField
from django.urls import reverse

from jobqueue.models import Executor, InboxMessage, Queue, Task
from tests.factories import ExecutorFactory, MessageFactory, QueueFactory, TaskFactory, make_user

pytestmark = pytest.mark.django_db
FIRST, LAST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9899, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
STATES = ["scheduled", "running", "suspended", "successful", "failed", "cancelled"]


@pytest.mark.parametrize(
    ("moment", "priority", "zone"), [(FIRST, -32_768, "Asia/Manila"), (LAST, 32_767, "Pacific/Kiritimati")]
)
def test_pages_show_moments_at_the_ends_of_the_calendar(
    client: Any, settings: Any, moment: datetime, priority: int, zone: str
) -> None:
    """In a zone that is far behind or before UTC, and with a rank that lies 90 years from what is shown."""
    settings.TIME_ZONE = zone
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": {"AGING": 86_400}}}
    rows = [TaskFactory.create(priority=priority), *(TaskFactory.create(**{state: True}) for state in STATES)]
    MessageFactory.create(task=rows[0])
    QueueFactory.create(paused=True)
    ExecutorFactory.create()
    for model in (Task, InboxMessage, Queue, Executor):
        moments = [field.name for field in model._meta.get_fields() if isinstance(field, DateTimeField)]
        model._default_manager.update(**dict.fromkeys(moments, moment))
    client.force_login(make_user(is_superuser=True))

    pages = ["/admin/jobqueue/task/", "/admin/jobqueue/queue/", "/admin/jobqueue/executor/"]
    pages += [f"/admin/jobqueue/task/?status={status}" for status in Task.Status]
    pages += [reverse("admin:jobqueue_task_change", args=[row.pk]) for row in rows]
    for page in pages:
        assert client.get(page).status_code == 200, page
    assert f"{moment.year}-" in client.get(pages[-1]).content.decode()
