"""Failures send no mails, or few."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.core import mail
from django.utils.log import AdminEmailHandler

from jobqueue.conf.compat import PACKAGE
from jobqueue.executor.telemetry import emails
from jobqueue.models import Task
from tests.executor import tasks
from tests.executor.harness import Burst, on_postgresql

pytestmark = on_postgresql


@pytest.fixture
def mailing(settings: Any) -> Iterator[AdminEmailHandler]:
    """Return a handler that mails errors to ADMINS, as in Django's default LOGGING."""
    settings.ADMINS = [("Ada", "ada@example.com")]
    level = logging.getLogger(PACKAGE).level
    handler = AdminEmailHandler()
    handler.setLevel(logging.ERROR)
    yield handler
    logging.getLogger(PACKAGE).setLevel(level)
    for name in ("jobqueue", PACKAGE, None):
        logging.getLogger(name).removeHandler(handler)


def fail_forty_times(burst: Burst) -> None:
    for body in (tasks.fail, tasks.fail_later):
        body.using(max_attempts=1).enqueue_many([((), {})] * 20)
    burst()
    assert Task.objects.failed().count() == 40


def test_line_of_django_about_a_failure_is_not_mailed(burst: Burst, mailing: AdminEmailHandler) -> None:
    mailing.addFilter(
        logging.Filter(PACKAGE)
    )  # as on the logger "django", where the lines of other packages do not come
    logging.root.addHandler(mailing)

    emails.limit_emails(ExitStack())

    fail_forty_times(burst)
    assert mail.outbox == []


def test_site_that_configures_the_logger_of_django_keeps_it(mailing: AdminEmailHandler) -> None:
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)

    emails.limit_emails(ExitStack())

    assert logging.getLogger(PACKAGE).level == logging.ERROR


@pytest.mark.parametrize("name", ["jobqueue", None])
def test_handler_of_the_site_emails_each_task_once_an_hour(
    burst: Burst, mailing: AdminEmailHandler, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger(name).addHandler(mailing)

    emails.limit_emails(ExitStack())

    fail_forty_times(burst)
    subjects = sorted(message.subject for message in mail.outbox)
    assert [subject.split(" id=")[0] for subject in subjects] == [
        f"[Django] ERROR: task.failed task=tests.executor.tasks.{name}" for name in ("fail", "fail_later")
    ]
    logging.getLogger("jobqueue").error("executor.failed")
    logging.getLogger("jobqueue").error("executor.failed")
    assert len(mail.outbox) == 4
    monkeypatch.setattr(emails, "QUIET_SECONDS", 0.0)
    tasks.fail.using(max_attempts=1).enqueue()
    burst()
    assert len(mail.outbox) == 5
