"""
Every page of the admin with axe-core, in both themes, on a wide and on a narrow window.

All that a page folds away is opened.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from jobqueue.models import Limit, Task, TaskLog
from jobqueue.operations.bulk.actor import NAME as BULK_ACTION
from jobqueue.values.batches import BATCH
from jobqueue.values.reports import LogLine, as_text
from tests.browser.webdriver import Browser
from tests.factories import (
    ExecutorFactory,
    MessageFactory,
    PeriodFactory,
    QueueFactory,
    ScheduleFactory,
    TaskFactory,
    TickFactory,
    error,
    make_user,
    now,
)
from tests.journals import add, make_checkout

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]),
    pytest.mark.slow,
]

LONG = "a_name_that_is_longer_than_what_a_narrow_window_has_room_for"
ALL = {ACTION_CHECKBOX_NAME: "all", "select_across": "1"}
POST = """
const form = document.createElement("form");
form.method = "post";
form.action = arguments[0];
const token = document.querySelector("[name=csrfmiddlewaretoken]");
for (const [name, value] of [...Object.entries(arguments[1]), [token.name, token.value]]) {
    form.append(Object.assign(document.createElement("input"), {type: "hidden", name, value}));
}
document.body.append(form);
form.submit();
"""
TOO_WIDE = """
const isTooWide = (one) => one.scrollWidth > Math.min(one.clientWidth, arguments[0]);
return [document.documentElement, ...document.querySelectorAll(".results, .module")].filter(isTooWide)
    .map((one) => `${one.localName} ${one.className} is ${one.scrollWidth} px wide, not ${one.clientWidth}`);
"""
CHECK = """
const done = arguments[arguments.length - 1];
axe.run(document, arguments[0]).then((result) => done(result.violations.map(
    (one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`)));
"""


class AxePage(NamedTuple):
    """posted: the fields of the form that leads to the page."""

    address: str
    posted: dict[str, str] | None = None


@pytest.fixture
def pages() -> dict[str, AxePage]:
    """Create rows of every kind. Return all pages."""
    executor = ExecutorFactory.create(queues=[LONG], async_slots=40)
    ExecutorFactory.create(lost=True)
    ExecutorFactory.create(backend="sqlite", versions={"python": "3.11.2", LONG: LONG})
    failed = TaskFactory.create(
        failed=True, task_type=f"shop.tasks.{LONG}", kwargs={LONG: LONG * 3}, key=LONG, errors=[error(claim_number=1)]
    )
    lines = as_text([LogLine(at=0.0, level=level, logger=LONG, message=LONG * 3) for level in ("INFO", "ERROR")])
    TaskLog.objects.create(task_id=failed.pk, claim_number=1, dropped=3, lines=lines)
    actor = TaskFactory.create(suspended=True, task_type="tests.actors.Diary", tags=[LONG * 3])
    MessageFactory.create(task_id=actor.pk, body={LONG: LONG * 3})
    TaskFactory.create(running=True, executor_id=executor.pk, parent_id=actor.pk, queue_name=LONG)
    TaskFactory.create(successful=True, priority=5)
    TaskFactory.create(blocked=True, concurrency_key=f"imports:{LONG}")
    workflow = make_checkout(key=LONG)
    add(workflow, f"{LONG}#2", arguments={LONG: LONG * 3}, value={LONG: LONG * 3}, error=error(LONG * 3))
    numbers = {"total": 1_000_000, "successful": 999_000, "failed": 1}
    batch = TaskFactory.create(suspended=True, task_type=BATCH, inner_state=numbers)
    add(batch, str(failed.pk), kind="MEMBER", status="FAILED", child_id=failed.pk)
    Task.objects.filter(pk=failed.pk).update(cause="c0ffee")
    PeriodFactory.create()
    queue = QueueFactory.create(paused=True, name=LONG, pause_reason=LONG)
    QueueFactory.create()
    schedule = ScheduleFactory.create(name=LONG)
    TickFactory.create(schedule=schedule)
    Limit.objects.create(kind="concurrency", key="imports:", number=2, changed_at=now())

    def page(name: str, /, *args: Any, **query: str) -> AxePage:
        return AxePage(f"{reverse(f'admin:jobqueue_{name}', args=args)}?{urlencode(query)}")

    tagged = page("task_changelist", tag=LONG * 3).address
    listed, queues, executors, schedules = (
        page(f"{name}_changelist").address for name in ("task", "queue", "executor", "schedule")
    )
    return {
        "overview": AxePage("/admin/jobqueue/"),
        "tasks": page("task_changelist"),
        "tasks of a time": page("task_changelist", enqueued_since="2026-01-01T00:00:00+00:00"),
        "failed task": page("task_change", failed.pk),
        "actor": page("task_change", actor.pk),
        "bulk action": page("task_change", start_bulk_action(tagged)),
        "history of a task": page("task_history", actor.pk),
        "failures": page("task_failures"),
        "workflow": page("task_change", workflow.pk),
        "workflows": page("task_workflows"),
        "batch": page("task_change", batch.pk),
        "task type": page("task_summary", name=f"shop.tasks.{LONG}"),
        "enqueue": page("task_enqueue"),
        "enqueue with arguments": page("task_enqueue", task="tests.tasks.greet"),
        "confirm a bulk action": AxePage(tagged, {"action": "requeue_selected", **ALL}),
        "confirm for ticked tasks": AxePage(listed, {"action": "delete_ended", ACTION_CHECKBOX_NAME: str(failed.pk)}),
        "confirm to delete a task": AxePage(page("task_delete", failed.pk).address, {}),
        "queues": page("queue_changelist"),
        "queue": page("queue_change", queue.pk),
        "summary of a queue": page("queue_summary", name=LONG),
        "confirm to pause a queue": AxePage(queues, {"row": "pause:default"}),
        "limit of a queue": AxePage(queues, {"row": f"limit:{LONG}"}),
        "executors": page("executor_changelist"),
        "executor": page("executor_change", executor.pk),
        "confirm to stop an executor": AxePage(
            executors, {"action": "stop_selected", ACTION_CHECKBOX_NAME: str(executor.pk)}
        ),
        "schedules": page("schedule_changelist"),
        "schedule": page("schedule_change", schedule.pk),
        "add a schedule": page("schedule_add"),
        "edit a schedule": page("schedule_edit", schedule.pk),
        "pause a schedule": page("schedule_pause", schedule.pk),
        "confirm to run schedules": AxePage(
            schedules, {"action": "run_schedules", ACTION_CHECKBOX_NAME: str(schedule.pk)}
        ),
        "backfill": page("schedule_backfill", schedule.pk),
        "delete a schedule": page("schedule_delete", schedule.pk),
        "limits": page("limit_changelist"),
        "limit": page("limit_change", quote(f"default:concurrency:imports:{LONG}")),
    }


def start_bulk_action(address: str) -> Any:
    """Requeue the tasks of a list, one a second. Return the key of the task that does it."""
    TaskFactory.create(failed=True, tags=[LONG * 3])
    client = Client()
    client.force_login(make_user(is_superuser=True))
    confirmation = client.post(address, {"action": "requeue_selected", **ALL})
    client.post(address, {**dict(confirmation.context["hidden"]), "rate": "1"})
    return Task.objects.get(task_type=BULK_ACTION).pk


def show(browser: Browser, page: AxePage) -> None:
    if page.posted is None:
        browser.open(page.address)
    else:
        browser.open("/admin/password_change/")  # any page with a token
        with browser.next_page():
            browser.run(POST, page.address, page.posted)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


@pytest.mark.parametrize(
    ("width", "theme", "rules"),
    [(390, "dark", {}), (1280, "light", {"runOnly": ["color-contrast"]})],  # all else is the same
    ids=["390-dark", "1280-light"],
)
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    admin: Browser, pages: dict[str, AxePage], width: int, theme: str, rules: dict[str, list[str]]
) -> None:
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    admin.emulate(width, theme)
    by_page: dict[str, list[str]] = {}
    for name, page in pages.items():
        show(admin, page)
        admin.run(f"{axe}; window.axe = axe;")
        problems = admin.command("POST", "/execute/async", {"script": CHECK, "args": [rules]})
        problems += admin.run(TOO_WIDE, width)
        if problems:
            by_page[name] = problems
    assert by_page == {}


@pytest.mark.parametrize("language", ["de", "fr"])
def test_pages_with_long_words_of_other_languages_fit_a_phone(
    admin: Browser, pages: dict[str, AxePage], settings: Any, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    admin.emulate(390)
    by_page: dict[str, list[str]] = {}
    for name, page in pages.items():
        show(admin, page)
        assert admin.run("return document.documentElement.lang") == language
        if problems := admin.run(TOO_WIDE, 390):
            by_page[name] = problems
    assert by_page == {}
