"""A page with {% task_progress %} follows its task, under a strict content security policy."""

from __future__ import annotations

import pytest

from jobqueue.models import Task, TaskProgress
from tests.browser.webdriver import Browser
from tests.factories import TaskFactory, now

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]),
    pytest.mark.urls("tests.progress_site"),
    pytest.mark.slow,
]


def test_page_follows_its_task_to_the_end(browser: Browser, live_server: object) -> None:
    task = TaskFactory.create(running=True)
    browser.base = str(live_server)
    browser.open(f"/imports/{task.pk}/")
    browser.run("window.ends = []; addEventListener('jobqueue:end', (event) => window.ends.push(event.detail));")
    assert browser.run("return document.querySelector('progress').position") == -1

    TaskProgress.objects.create(task_id=task.pk, claim_number=1, done=3, total=4, note="<b>", reported_at=now())

    browser.wait_for(lambda: browser.text('[data-jobqueue="progress"]') == "3 of 4 (75 %)")
    assert browser.run("return document.querySelector('progress').position") == 0.75
    assert browser.text('[data-jobqueue="note"]') == "<b>"
    Task.objects.filter(pk=task.pk).update(status="FAILED", finished_at=now())
    browser.wait_for(lambda: browser.run("return window.ends.length") == 2)  # of the two tags
    assert browser.text(".jobqueue-status") == browser.text('.jobqueue-progress [role="status"]') == "Failed"
