"""The admin in a browser, with its scripts."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobqueue.models import Task
from tests.browser.webdriver import Browser
from tests.factories import ExecutorFactory, TaskFactory, error

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])

LIST = "/admin/jobqueue/task/"
# Without double quotes: JSON would escape them and break the script.
EVIL = "<script>document.title='hacked'; alert(1)</script><img src=x onerror=alert(2)>"


def page_of(task: Task) -> str:
    return reverse("admin:jobqueue_task_change", args=[task.pk])


def status(task: Task) -> str:
    return Task.objects.get(pk=task.pk).status


def test_button_requeues_failed_task(admin: Browser) -> None:
    task = TaskFactory.create(failed=True)
    admin.open(page_of(task))
    assert "Failed" in admin.text(".jq-head .jq-badge")

    admin.click("button.jq-requeue")

    admin.wait_for(lambda: "Requeued 1 task." in admin.text(".messagelist"))
    assert "Ready" in admin.text(".jq-head .jq-badge")
    assert status(task) == "READY"


def test_button_cancels_queued_task(admin: Browser) -> None:
    task = TaskFactory.create()
    admin.open(page_of(task))
    assert "No executor is serving queue default" in admin.text(".jq-sentence")

    admin.click("button.jq-cancel")

    admin.wait_for(lambda: "Cancelled 1 task." in admin.text(".messagelist"))
    assert "Cancelled" in admin.text(".jq-head .jq-badge")
    assert status(task) == "CANCELLED"


def test_list_action_requeues_selected_tasks(admin: Browser) -> None:
    tasks = [TaskFactory.create(failed=True) for _ in range(3)]
    left = TaskFactory.create(failed=True)
    admin.open(f"{LIST}?status=FAILED")
    for task in tasks:
        admin.click(f'input.action-select[value="{task.pk}"]')
    admin.click('select[name="action"] option[value="requeue_selected"]')

    admin.click('button[name="index"]')
    admin.wait_for(lambda: "3 failed or cancelled" in admin.text(".jq-forecast"))
    admin.click('input[type="submit"].default')

    admin.wait_for(lambda: "Requeued 3 tasks." in admin.text(".messagelist"))
    assert {status(task) for task in tasks} == {"READY"}
    assert status(left) == "FAILED"


def test_list_action_requeues_all_matching_tasks(admin: Browser) -> None:
    for _ in range(105):
        TaskFactory.create(failed=True, queue_name="emails")
    other = TaskFactory.create(failed=True)
    admin.open(f"{LIST}?status=FAILED&queue=emails")
    admin.click("#action-toggle")
    admin.click(".actions .question a")
    admin.click('select[name="action"] option[value="requeue_selected"]')

    admin.click('button[name="index"]')
    admin.wait_for(lambda: "105 failed or cancelled" in admin.text(".jq-forecast"))
    admin.click('input[type="submit"].default')

    admin.wait_for(lambda: "Requeued 105 tasks." in admin.text(".messagelist"))
    assert Task.objects.filter(queue_name="emails", status="READY").count() == 105
    assert status(other) == "FAILED"


def test_script_in_task_is_shown_and_not_executed(admin: Browser) -> None:
    web = ExecutorFactory.create(name=EVIL, queues=[EVIL])
    task = TaskFactory.create(
        running=True,
        executor_id=web.pk,
        task_type=EVIL,
        queue_name=EVIL,
        key=EVIL,
        args=[EVIL],
        kwargs={EVIL: EVIL},
        metadata={EVIL: EVIL},
        errors=[error(EVIL, executor=EVIL, exception_class_path=EVIL, traceback=EVIL)],
    )

    for address in (page_of(task), LIST, f"{LIST}?status=RUNNING", "/admin/jobqueue/executor/"):
        admin.open(address)
        assert not admin.has_dialog()
        assert EVIL in admin.run("return document.body.textContent")
        assert admin.run("return document.title") != "hacked"
        assert admin.run("return document.querySelectorAll('img[onerror]').length") == 0


def test_colours_follow_the_theme(admin: Browser) -> None:
    task = TaskFactory.create(failed=True)
    colours = []
    for theme in ("light", "dark"):
        admin.open(page_of(task))
        admin.run("localStorage.setItem('theme', arguments[0])", theme)
        admin.open(page_of(task))
        colours.append(admin.run("return getComputedStyle(document.querySelector('.jq-badge')).color"))

    assert colours[0] != colours[1]


def test_task_page_updates_itself(admin: Browser) -> None:
    task = TaskFactory.create()
    admin.open(page_of(task))
    assert admin.text('.jq-live button[aria-pressed="true"]') == "off"
    admin.click('.jq-live button[data-seconds="2"]')

    Task.objects.filter(pk=task.pk).update(status="FAILED", finished_at=task.enqueued_at, errors=[error("it broke")])

    admin.wait_for(lambda: "Failed" in admin.text(".jq-head .jq-badge"))
    admin.wait_for(lambda: "it broke" in admin.text(".jq-errors summary"))
    admin.click("button.jq-requeue")
    admin.wait_for(lambda: "Requeued 1 task." in admin.text(".messagelist"))


def test_task_list_updates_itself_and_keeps_checkboxes(admin: Browser) -> None:
    TaskFactory.create()
    admin.open(LIST)
    admin.click('.jq-live button[data-seconds="2"]')

    new = TaskFactory.create(failed=True)

    box = f'input.action-select[value="{new.pk}"]'
    admin.wait_for(lambda: admin.find(box))
    admin.click(box)
    assert "1 of" in admin.text(".action-counter")
