"""The admin in a browser, with its scripts."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from jobqueue.models import Task
from tests.browser.webdriver import Browser
from tests.factories import ExecutorFactory, TaskFactory, error

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])

LIST = "/admin/jobqueue/task/"


def page_of(task: Task) -> str:
    return reverse("admin:jobqueue_task_change", args=[task.pk])


def status(task: Task) -> str:
    return Task.objects.get(pk=task.pk).status


@pytest.mark.parametrize(
    ("traits", "before", "button", "words", "after"),
    [
        ({"failed": True}, "Failed", "requeue", "Requeued 1 task.", "Ready"),
        ({}, "Ready", "cancel", "Cancelled 1 task.", "Cancelled"),
    ],
)
def test_buttons_change_a_task(
    admin: Browser, traits: dict[str, bool], before: str, button: str, words: str, after: str
) -> None:
    task = TaskFactory.create(**traits)
    admin.open(page_of(task))
    assert before in admin.text(".jq-head .jq-badge")

    admin.follow(f"button.jq-{button}")
    if button == "cancel":
        admin.wait_for(lambda: "Cancel 1 task?" in admin.text("#content"))
        admin.follow('input[type="submit"].default')

    admin.wait_for(lambda: words in admin.text(".messagelist"))
    assert after in admin.text(".jq-head .jq-badge")
    assert status(task) == after.upper()


@pytest.mark.parametrize("is_across", [False, True])
def test_list_action_requeues_selected_or_all_tasks(admin: Browser, is_across: bool) -> None:
    tasks = [TaskFactory.create(failed=True, queue_name="emails") for _ in range(105 if is_across else 3)]
    left = TaskFactory.create(failed=True)
    admin.open(f"{LIST}?status=FAILED" + ("&queue=emails" if is_across else ""))
    boxes = ["#action-toggle", ".actions .question a"]
    for box in boxes if is_across else [f'input.action-select[value="{task.pk}"]' for task in tasks]:
        admin.click(box)
    admin.click('select[name="action"] option[value="requeue_selected"]')

    admin.follow('button[name="index"]')
    admin.wait_for(lambda: f"{len(tasks)} failed or cancelled" in admin.text(".jq-forecast"))
    admin.follow('input[type="submit"].default')

    admin.wait_for(lambda: f"Requeued {len(tasks)} tasks." in admin.text(".messagelist"))
    assert Task.objects.filter(queue_name="emails", status="READY").count() == len(tasks)
    assert status(left) == "FAILED"


def test_colours_follow_the_theme(admin: Browser) -> None:
    task = TaskFactory.create(failed=True)
    colours = []
    for theme in ("light", "dark"):
        admin.open(page_of(task))
        admin.run("localStorage.setItem('theme', arguments[0])", theme)
        admin.open(page_of(task))
        colours.append(admin.run("return getComputedStyle(document.querySelector('.jq-badge')).color"))

    assert colours[0] != colours[1]


def test_narrow_list_shows_the_attempt_and_how_long_it_took(admin: Browser) -> None:
    TaskFactory.create(failed=True)
    admin.emulate(390)

    admin.open(LIST)

    text = admin.text(".field-attempt")
    assert "attempt 4 of 4" in text
    assert "2 s" in text


def test_task_page_updates_itself(admin: Browser) -> None:
    task = TaskFactory.create()
    admin.open(page_of(task))
    admin.click('.jq-live button[data-seconds="2"]')

    Task.objects.filter(pk=task.pk).update(status="FAILED", finished_at=task.enqueued_at, errors=[error("it broke")])

    admin.wait_for(lambda: "Failed" in admin.text(".jq-head .jq-badge"))
    admin.wait_for(lambda: "it broke" in admin.text(".jq-errors summary"))
    admin.follow("button.jq-requeue")
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


def test_list_without_filters_fits_its_page(admin: Browser, settings: Any) -> None:
    settings.TASKS = {"default": settings.TASKS["default"]}  # with one backend, executors have no filter
    ExecutorFactory.create()
    admin.emulate(1280)

    admin.open("/admin/jobqueue/executor/")

    assert admin.run("return document.documentElement.scrollWidth") <= 1280
