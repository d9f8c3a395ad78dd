"""Pages that update themselves, and the keys of lists and pages."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobqueue.values.causes import fingerprint
from tests.browser.webdriver import Browser
from tests.factories import TaskFactory

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]), pytest.mark.slow]

LIST = "/admin/jobqueue/task/"
ENTER, ESCAPE = "\ue007", "\ue00c"
STATUS = ".jq-live > span"


def press(admin: Browser, *keys: str) -> None:
    actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
    admin.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})


def focused(admin: Browser, script: str) -> object:
    return admin.run(f"return document.activeElement.{script}")


def refresh_soon(admin: Browser) -> None:
    """Let the page behave as if the user came back to its tab."""
    admin.run("document.dispatchEvent(new Event('visibilitychange'))")


def test_list_is_live_at_first_and_remembers_another_choice(admin: Browser) -> None:
    admin.open(LIST)
    assert admin.text('.jq-live button[aria-pressed="true"]') == "5 s"
    new = TaskFactory.create()
    admin.wait_for(lambda: admin.find(f'input.action-select[value="{new.pk}"]'))

    admin.click('.jq-live button[data-seconds="0"]')
    admin.open(LIST)

    assert admin.text('.jq-live button[aria-pressed="true"]') == "off"


def test_page_with_a_touched_form_is_paused_until_the_change_is_undone(admin: Browser) -> None:
    first = TaskFactory.create()
    admin.open(LIST)
    admin.click('select[name="action"] option[value="cancel_selected"]')
    new = TaskFactory.create()

    admin.run("document.activeElement.blur()")
    refresh_soon(admin)

    admin.wait_for(lambda: admin.text(STATUS) == "paused")
    assert str(new.pk) not in admin.run("return document.body.innerHTML")
    admin.click('select[name="action"] option[value=""]')
    admin.run("document.activeElement.blur()")
    admin.wait_for(lambda: admin.find(f'input.action-select[value="{new.pk}"]'))
    assert admin.find(f'input.action-select[value="{first.pk}"]')


def test_keys_move_select_and_requeue(admin: Browser) -> None:
    tasks = [TaskFactory.create(failed=True) for _ in range(3)][::-1]  # as the list shows them: newest first
    admin.open(LIST)

    press(admin, "j", "j", "x", "j", "x", "k")
    assert str(tasks[1].pk) in str(focused(admin, "href"))
    press(admin, "r")
    assert focused(admin, "name") == "index"
    press(admin, ENTER)
    admin.wait_for(lambda: "2 failed or cancelled" in admin.text(".jq-forecast"))
    admin.follow('input[type="submit"].default')

    admin.wait_for(lambda: "Requeued 2 tasks." in admin.text(".messagelist"))
    for task in tasks:
        task.refresh_from_db()
    assert [task.status for task in tasks] == ["FAILED", "READY", "READY"]


def test_key_of_an_action_leads_to_its_button_and_does_nothing_itself(admin: Browser) -> None:
    task = TaskFactory.create()
    admin.open(reverse("admin:jobqueue_task_change", args=[task.pk]))

    press(admin, "r", "c")

    assert "jq-cancel" in str(focused(admin, "className"))
    task.refresh_from_db()
    assert task.status == "READY"
    press(admin, ENTER)
    admin.wait_for(lambda: "Cancel 1 task?" in admin.text("#content"))
    admin.follow('input[type="submit"].default')
    admin.wait_for(lambda: "Cancelled 1 task." in admin.text(".messagelist"))


def test_key_on_failures_by_cause_leads_to_the_button_of_the_cause(admin: Browser) -> None:
    for task_type in ("shop.tasks.send_receipt", "shop.tasks.ship"):
        TaskFactory.create(failed=True, task_type=task_type, cause=fingerprint(task_type, "builtins.KeyError", "x"))
    admin.open(f"{LIST}failures/")
    addresses = admin.run(
        "return Array.from(document.querySelectorAll('.jq-cause-number'), (link) => link.getAttribute('href'))"
    )
    assert len(addresses) == 2

    press(admin, "j", "j", "r")

    assert focused(admin, "value") == "requeue_selected"
    assert focused(admin, "closest('form').getAttribute('action')") == addresses[1]


def test_keys_in_a_field_are_text(admin: Browser) -> None:
    admin.open(LIST)

    press(admin, "/", "j", "x", "?", "/")

    assert focused(admin, "id") == "searchbar"
    assert focused(admin, "value") == "jx?/"


def test_help_opens_closes_and_turns_the_keys_off(admin: Browser) -> None:
    TaskFactory.create()
    admin.open(LIST)
    press(admin, "?")
    assert "Next row, previous row" in admin.text("#jq-keys[open]")
    press(admin, ESCAPE)
    assert admin.run("return document.querySelector('#jq-keys[open]')") is None

    admin.click("#jq-keys-button")
    admin.click("#jq-keys-on")
    admin.click("#jq-keys button")
    admin.run("document.activeElement.blur()")
    press(admin, "j", "?")

    assert focused(admin, "tagName") == "BODY"
    assert admin.run("return document.querySelector('#jq-keys[open]')") is None
