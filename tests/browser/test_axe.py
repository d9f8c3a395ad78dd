"""Every page of the admin with axe-core, in both themes, on a wide and on a narrow window."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from jobqueue.body_log import LogLine, as_text
from jobqueue.models import Limit, TaskLog
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
    now,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "sqlite"]),
    pytest.mark.slow,
]

LONG = "a_name_that_is_longer_than_what_a_narrow_window_has_room_for"
CHECK = """
const done = arguments[arguments.length - 1];
axe.run(document).then((result) => done(result.violations.map(
    (one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`)));
"""


@pytest.fixture
def pages() -> dict[str, str]:
    """Create rows of every kind. Return the addresses of all pages."""
    executor = ExecutorFactory.create(queues=[LONG])
    failed = TaskFactory.create(
        failed=True, task_type=f"shop.tasks.{LONG}", kwargs={LONG: LONG * 3}, key=LONG, errors=[error(claim_number=1)]
    )
    lines = as_text([LogLine(at=0.0, level=level, logger=LONG, message=LONG * 3) for level in ("INFO", "ERROR")])
    TaskLog.objects.create(task_id=failed.pk, claim_number=1, dropped=3, lines=lines)
    actor = TaskFactory.create(suspended=True, task_type="tests.actors.Diary", tags=[LONG])
    MessageFactory.create(task_id=actor.pk, body={LONG: LONG * 3})
    TaskFactory.create(running=True, executor_id=executor.pk, parent_id=actor.pk, queue_name=LONG)
    TaskFactory.create(successful=True, priority=5)
    TaskFactory.create(blocked=True, concurrency_key=f"imports:{LONG}")
    PeriodFactory.create()
    queue = QueueFactory.create(paused=True, name=LONG, pause_reason=LONG)
    schedule = ScheduleFactory.create(name=LONG)
    TickFactory.create(schedule=schedule)
    Limit.objects.create(kind="concurrency", key="imports:", number=2, changed_at=now())

    def page(name: str, *args: Any, query: str = "") -> str:
        return reverse(f"admin:jobqueue_{name}", args=args) + query

    return {
        "overview": "/admin/jobqueue/",
        "tasks": page("task_changelist"),
        "failed task": page("task_change", failed.pk),
        "actor": page("task_change", actor.pk),
        "history of a task": page("task_history", actor.pk),
        "failures": page("task_failures"),
        "task type": page("task_summary", query=f"?name=shop.tasks.{LONG}"),
        "enqueue": page("task_enqueue"),
        "enqueue with arguments": page("task_enqueue", query="?task=tests.tasks.greet"),
        "queues": page("queue_changelist"),
        "queue": page("queue_change", queue.pk),
        "summary of a queue": page("queue_summary", query=f"?name={LONG}"),
        "executors": page("executor_changelist"),
        "executor": page("executor_change", executor.pk),
        "schedules": page("schedule_changelist"),
        "schedule": page("schedule_change", schedule.pk),
        "add a schedule": page("schedule_add"),
        "edit a schedule": page("schedule_edit", schedule.pk),
        "pause a schedule": page("schedule_pause", schedule.pk),
        "backfill": page("schedule_backfill", schedule.pk),
        "delete a schedule": page("schedule_delete", schedule.pk),
        "limits": page("limit_changelist"),
        "limit": page("limit_change", quote(f"default:concurrency:imports:{LONG}")),
    }


def emulate(browser: Browser, width: int, theme: str) -> None:
    def cdp(name: str, **params: Any) -> None:
        browser.command("POST", "/goog/cdp/execute", {"cmd": f"Emulation.{name}", "params": params})

    cdp("setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    cdp("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_and_no_page_scrolls_sideways(
    admin: Browser, pages: dict[str, str], width: int, theme: str
) -> None:
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    emulate(admin, width, theme)
    found: dict[str, list[str]] = {}
    for name, address in pages.items():
        admin.open(address)
        admin.run(f"{axe}; window.axe = axe;")
        problems = admin.command("POST", "/execute/async", {"script": CHECK, "args": []})
        wide = admin.run("return document.documentElement.scrollWidth")
        if wide > width:
            problems.append(f"{wide} px wide")
        if problems:
            found[name] = problems
    assert found == {}
