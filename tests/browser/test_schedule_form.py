"""The form of a schedule in a browser, with its script."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.api import schedules
from jobqueue.declarations.schedules import Declaration
from jobqueue.models import Schedule
from jobqueue.schedules.expressions import Every
from tests.browser.webdriver import Browser
from tests.tasks import greet

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]), pytest.mark.slow]

ADD = "/admin/jobqueue/schedule/add/"
PREVIEW = "#jq-preview"


@pytest.fixture(autouse=True)
def strict_policy(settings: Any) -> None:
    """Let the browser refuse inline scripts and styles."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "demo_project.middleware.strict_policy"]


def choose(admin: Browser, selector: str, value: str) -> None:
    admin.click(f'{selector} option[value="{value}"]')


def test_form_previews_shows_arguments_and_saves(admin: Browser) -> None:
    admin.open(ADD)
    assert admin.run("return document.querySelectorAll('button[name=preview], button[name=choose]').length") == 0
    admin.type("#id_name", "greetings")
    choose(admin, "#id_task", greet.task_type)
    admin.wait_for(lambda: admin.find("#id_argument-times"))
    admin.type("#id_argument-name", "Anna")

    admin.type("#id_expression", "0 8 * * mon")
    admin.wait_for(lambda: "At 08:00, only on Monday, UTC" in admin.text(PREVIEW))
    assert admin.run(f"return document.querySelectorAll('{PREVIEW} li').length") == 5
    admin.type("#id_expression", "x")
    admin.wait_for(lambda: "The day-of-week of '0 8 * * monx' is not valid" in admin.text(PREVIEW))
    admin.click("#id_kind_1")
    admin.type("#id_interval", "90")
    admin.wait_for(lambda: "Every 90 minutes" in admin.text(PREVIEW))
    assert not admin.run("return document.getElementById('id_expression').checkVisibility()")
    admin.type("#id_interval", "\ue007")  # Enter

    admin.wait_for(lambda: "Schedule greetings: Created." in admin.text(".messagelist"))
    row = Schedule.objects.get()
    assert (row.expression, row.new_task["kwargs"]) == ("@every 5400", '{"name":"Anna"}')


def test_form_keeps_what_was_typed_when_the_task_changes(admin: Browser) -> None:
    declaration = Declaration("warm", greet, Every(hours=1), location="", kwargs={"name": "Anna"})
    row = schedules.create(declaration)
    admin.open(f"/admin/jobqueue/schedule/{row.pk}/edit/")
    admin.wait_for(lambda: "Every hour" in admin.text(PREVIEW))
    admin.type("#id_queue_name", "mail")
    choose(admin, "#id_task", "tests.tasks.add")
    admin.wait_for(lambda: admin.find("#id_argument-a"))
    choose(admin, "#id_task", greet.task_type)
    admin.wait_for(lambda: admin.find("#id_argument-name"))

    assert admin.run("return document.getElementById('id_argument-name').value") == "Anna"
    assert admin.run("return document.getElementById('id_queue_name').value") == "mail"
