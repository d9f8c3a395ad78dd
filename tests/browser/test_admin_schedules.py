"""Schedules in a browser."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse

from jobqueue.models import Schedule, Task
from tests.browser.webdriver import Browser
from tests.factories import ScheduleFactory, TaskFactory, TickFactory, ago, now, template_of

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]), pytest.mark.slow]

LIST = "/admin/jobqueue/schedule/"
LONG = "send_a_report_to_each_customer_of_the_shop_" * 4


def page_of(row: Schedule, page: str = "change") -> str:
    return reverse(f"admin:jobqueue_schedule_{page}", args=[row.pk])


@pytest.fixture
def row(transactional_db: None) -> Schedule:
    """A paused schedule with long names and twenty runs."""
    row = ScheduleFactory.create(
        name=LONG,
        task_type=f"shop.tasks.{LONG}",
        new_task=template_of("tests.tasks.add", options=f'{{"note": "{LONG}"}}'),
        declared_at=f"shop/{LONG}.py:42",
        paused=True,
        pause_reason=LONG,
        resume_at=now() + timedelta(hours=1),
    )
    for number in range(20):
        tick = TickFactory.create(schedule=row, tick_at=ago(60 * number), reason="overlap" if number % 3 == 0 else "")
        if tick.task_id:
            TaskFactory.create(id=tick.task_id, schedule_id=row.pk, successful=True)
    return row


def test_pages_of_schedules_fit_a_phone(admin: Browser, row: Schedule) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    admin.command("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
    for address in (LIST, *(page_of(row, page) for page in ("change", "pause", "backfill", "delete"))):
        admin.open(address)
        assert admin.run("return document.documentElement.scrollWidth") <= 390, address
        assert LONG[:40] in admin.text("#content")


def test_marks_of_runs_have_text_and_lead_to_their_tasks(admin: Browser, row: Schedule) -> None:
    admin.open(LIST)
    names = admin.run(
        "return Array.from(document.querySelectorAll('.jq-mark'), (mark) => mark.ariaLabel || mark.title)"
    )
    assert len(names) == 20
    assert all(name.startswith(("Successful, took 3 s, ", "Skipped, The previous task")) for name in names)

    admin.follow("a.jq-mark")

    assert "Successful" in admin.text(".jq-head .jq-badge")
    admin.follow(f'dd a[href^="{page_of(row)}"]')
    assert "Paused" in admin.text(".jq-head .jq-badge")


def test_selected_schedules_are_resumed_and_run(admin: Browser, row: Schedule) -> None:
    admin.open(LIST)
    admin.click("input.action-select")
    admin.click('select[name="action"] option[value="resume_schedules"]')
    admin.follow('button[name="index"]')
    admin.wait_for(lambda: "Resumed." in admin.text(".messagelist"))
    assert Schedule.objects.get(pk=row.pk).paused_at is None

    admin.click("input.action-select")
    admin.click('select[name="action"] option[value="run_schedules"]')
    admin.follow('button[name="index"]')
    admin.wait_for(lambda: LONG in admin.text(".jq-forecast"))
    admin.follow('input[type="submit"].default')

    admin.wait_for(lambda: "Enqueued a task." in admin.text(".messagelist"))
    assert Task.objects.filter(schedule=row, status="READY").count() == 1


def test_backfill_is_confirmed_in_the_browser(admin: Browser) -> None:
    row = ScheduleFactory.create(expression="0 0 * * *", timezone="UTC")
    admin.open(page_of(row))
    admin.follow(f'a[href^="{page_of(row, "backfill")}"]')
    for name, value in (("start", "2026-03-01T00:00"), ("end", "2026-03-03T12:00")):
        admin.run("document.querySelector(`input[name=${arguments[0]}]`).value = arguments[1]", name, value)
    admin.follow('input[type="submit"].default')
    admin.wait_for(lambda: "3 ticks become tasks" in admin.text(".jq-forecast"))

    admin.follow('input[type="submit"].default')

    admin.wait_for(lambda: "3 tasks" in admin.text(".messagelist"))
    assert Task.objects.filter(schedule=row).count() == 3
