"""Pages of actors in a browser: messages, wakes and live updates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from jobqueue import Actor, PollContext, Suspend
from jobqueue.models import Task
from tests.browser.webdriver import Browser
from tests.executor.harness import Running, row_of
from tests.factories import ExecutorFactory, MessageFactory, TaskFactory, error, now

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]), pytest.mark.slow]

LIST = "/admin/jobqueue/task/"
# Without double quotes: JSON would escape them and break the script.
EVIL = "<script>document.title='hacked'; alert(1)</script><img src=x onerror=alert(2)>"


class Adder(Actor[Any]):
    """Adds the numbers of its messages."""

    @dataclass
    class State:
        total: int = 0

    Message = int

    def poll(self, context: PollContext[State]) -> Suspend:
        context.state.total += sum(message.body for message in context.inbox.take())
        return Suspend()


def run_what_is_ready() -> None:
    Running(burst=True, threads=1, shutdown_timeout=10.0).start().join()


def page_of(task: Any) -> str:
    return reverse("admin:jobqueue_task_change", args=[task.id])


def test_message_form_changes_state_of_actor(admin: Browser) -> None:
    counter = Adder.enqueue()
    run_what_is_ready()
    admin.open(page_of(counter))
    assert "without a timeout" in admin.text(".jq-sentence")
    assert '"total": 0' in admin.text('[data-live="state"] pre')

    admin.type(".jq-send textarea", "7")
    admin.follow(".jq-send button")

    admin.wait_for(lambda: "Message sent" in admin.text(".messagelist"))
    assert "unread" in admin.text(".jq-messages tbody")
    admin.click('.jq-live button[data-seconds="2"]')
    run_what_is_ready()
    admin.wait_for(lambda: '"total": 7' in admin.text('[data-live="state"] pre'))
    assert "Suspended" in admin.text(".jq-head .jq-badge")


def test_invalid_message_is_shown_again_with_reason(admin: Browser) -> None:
    counter = Adder.enqueue()
    admin.open(page_of(counter))

    admin.type(".jq-send textarea", '{"number": 7,}')
    admin.follow(".jq-send button")

    admin.wait_for(lambda: "Message not sent" in admin.text(".messagelist"))
    assert "Not valid JSON" in admin.text(".jq-send .errorlist")
    assert admin.run("return document.activeElement.value") == '{"number": 7,}'
    # The page has another address now and still updates itself.
    admin.click('.jq-live button[data-seconds="2"]')
    run_what_is_ready()
    admin.wait_for(lambda: "Suspended" in admin.text(".jq-head .jq-badge"))
    assert admin.run("return document.querySelector('.jq-send textarea').value") == '{"number": 7,}'


def test_run_now_button_polls_suspended_actor(admin: Browser) -> None:
    counter = Adder.enqueue()
    run_what_is_ready()
    Task.objects.filter(pk=counter.id).update(wake_at=now() + timedelta(days=3))
    admin.open(page_of(counter))
    assert "Waiting for a message, until" in admin.text(".jq-sentence")

    admin.follow("button.jq-wake")

    admin.wait_for(lambda: "1 task runs as soon as" in admin.text(".messagelist"))
    assert "Ready" in admin.text(".jq-head .jq-badge")
    run_what_is_ready()
    assert (row_of(counter).status, row_of(counter).polls) == ("SUSPENDED", 2)


def test_cancel_with_children_cancels_descendants(admin: Browser) -> None:
    parent = TaskFactory.create(suspended=True)
    child = TaskFactory.create(parent_id=parent.pk)
    admin.open(page_of(parent))

    admin.click('.jq-head input[name="tree"]')
    admin.follow("button.jq-cancel")
    admin.wait_for(lambda: "Cancel 2 tasks?" in admin.text("#content"))
    admin.follow('input[type="submit"].default')

    admin.wait_for(lambda: "Cancelled 2 tasks." in admin.text(".messagelist"))
    assert Task.objects.get(pk=child.pk).status == "CANCELLED"


def test_growing_tree_keeps_opened_nodes_open(admin: Browser) -> None:
    parent = TaskFactory.create(suspended=True)
    child = TaskFactory.create(suspended=True, parent_id=parent.pk)
    for _ in range(40):  # too many to show the tree open at first
        TaskFactory.create(parent_id=child.pk)
    admin.open(page_of(parent))
    branch = f'details[data-key="{child.pk}"]'
    assert not admin.run(f"return document.querySelector('{branch}').open")
    admin.click(f"{branch} > summary > .jq-quiet")
    admin.click('.jq-live button[data-seconds="2"]')

    # Before the open node in the tree.
    older = TaskFactory.create(suspended=True, parent_id=parent.pk, id="00000000-0000-7000-8000-000000000001")
    TaskFactory.create(parent_id=older.id)

    admin.wait_for(lambda: admin.find(f'details[data-key="{older.id}"]'))
    assert admin.run(f"return document.querySelector('{branch}').open")
    assert not admin.run(f"return document.querySelector('details[data-key=\"{older.id}\"]').open")


def test_script_in_rows_is_shown_and_not_executed(admin: Browser) -> None:
    web = ExecutorFactory.create(name=EVIL, queues=[EVIL])
    root = TaskFactory.create(
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
    actor = TaskFactory.create(
        suspended=True,
        task_type=Adder.task.task_type,
        key=EVIL + "!",
        parent_id=root.pk,
        inner_state={EVIL: EVIL},
    )
    TaskFactory.create(parent_id=actor.pk, task_type=EVIL, key=EVIL + "?")
    MessageFactory.create(task_id=actor.pk, body={EVIL: EVIL}, dedupe_key=EVIL, child_status="<script>")

    def check(count: int) -> None:
        assert not admin.has_dialog()
        assert admin.run("return document.body.textContent").count(EVIL) >= count
        assert admin.run("return document.title") != "hacked"
        assert admin.run("return document.querySelectorAll('img[onerror]').length") == 0

    addresses = {page_of(root): 10, LIST: 3, f"{LIST}?status=RUNNING": 3, "/admin/jobqueue/executor/": 1}
    for address, count in addresses.items():
        admin.open(address)
        check(count)
    admin.open(page_of(actor))
    admin.type(".jq-send textarea", f'"{EVIL}')
    admin.follow(".jq-send button")
    admin.wait_for(lambda: admin.text(".jq-send .errorlist"))
    check(7)


def test_actor_page_fits_phone_width(admin: Browser) -> None:
    actor = TaskFactory.create(suspended=True, task_type=Adder.task.task_type)
    MessageFactory.create(task_id=actor.pk, body={"photo": "x" * 200}, dedupe_key="photo:" + "y" * 80)
    admin.resize(500, 900)  # the narrowest window of Chromium

    admin.open(page_of(actor))

    assert admin.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth") <= 0
    assert "unread" in admin.text(".jq-messages tbody")


@pytest.mark.parametrize("width", [500, 1280, 1400])
def test_actor_list_fits_window_width(admin: Browser, width: int) -> None:
    web = ExecutorFactory.create(name="photographs-7f3a9c.customers.example.org:48213")
    TaskFactory.create(
        running=True, executor_id=web.pk, task_type="shop.tasks.make_contact_sheet_of_everything_there_is"
    )
    TaskFactory.create(
        suspended=True, key="photo:/srv/photographs/2026/holidays/DSC_0042.jpg", queue_name="contact-sheets"
    )
    TaskFactory.create(failed=True, errors=[error("cannot connect to " + "x" * 300)])
    admin.resize(width, 900)

    admin.open(LIST)

    assert admin.run("const r = document.querySelector('.results'); return r.scrollWidth - r.clientWidth") <= 0
    right = "return document.querySelector('td.field-error .jq-line-of-error').getBoundingClientRect().right"
    assert admin.run(right) < width
    assert "SMTPServerBusy" in admin.text(".jq-line-of-error")


def test_copy_button_copies_the_whole_of_folded_json(admin: Browser) -> None:
    value = {"lines": [{"article": "mug", "count": 2}], "note": "two\nlines"}
    row = TaskFactory.create(successful=True, return_value=value)
    admin.open(page_of(row))
    admin.run(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard',"
        " { value: { writeText: async (text) => window.copied.push(text) } })"
    )

    admin.click("[data-live=result] summary")  # folds it
    admin.click("[data-live=result] .jq-copy")

    assert json.loads(admin.wait_for(lambda: admin.run("return window.copied[0]"))) == value
    assert admin.text("[data-live=result] .jq-copy") == "Copied"


def test_errors_of_the_timeline_use_the_width_of_a_phone(admin: Browser) -> None:
    row = TaskFactory.create(failed=True, errors=[error("cannot connect to " + "x" * 300, traceback="x" * 300)])
    admin.resize(500, 900)

    admin.open(page_of(row))

    assert admin.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth") <= 0
    assert admin.run("return document.querySelector('.jq-below .jq-error').getBoundingClientRect().width") > 300
