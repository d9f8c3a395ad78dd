"""
Test the table of the permissions that each page of the admin requires, for GET and for POST.

Each address of the admin needs a row. A page may offer only what its row allows to the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission
from django.db import transaction
from django.test import Client, TestCase
from django.urls import Resolver404, resolve

from jobqueue.models import Task
from tests.api.test_security import IN_ADMIN, keys, path_of, stored  # noqa: F401 - keys is a fixture
from tests.factories import ExecutorFactory, QueueFactory, TaskFactory, error, make_user

Needed = frozenset[str] | None  # the permissions that a request needs; None if everyone is refused


def needs(*names: str) -> frozenset[str]:
    """Return permissions. One with a bar stands for either of two."""
    return frozenset(names)


VIEW_TASK, VIEW_EXECUTOR, VIEW_QUEUE = needs("view_task"), needs("view_executor"), needs("view_queue")
VIEW_SCHEDULE, VIEW_LIMIT = needs("view_schedule"), needs("view_limit")
NEVER: tuple[Needed, Needed] = (None, None)


def shows(view: frozenset[str]) -> tuple[Needed, Needed]:
    """Return the row of a page that only shows, also to POST."""
    return view, view


def acts(view: frozenset[str], permission: str) -> tuple[Needed, Needed]:
    """Return the row of an address that has no page: POST performs one action."""
    return None, view | {permission}


def asks(view: frozenset[str], permission: str) -> tuple[Needed, Needed]:
    """Return the row of a page with a form. To see it requires the permission to submit it."""
    return view | {permission}, view | {permission}


# By address: what GET needs, and what POST needs. The actions of a list are in OFFERED.
TABLE: dict[str, tuple[Needed, Needed]] = {
    "task_changelist": shows(VIEW_TASK),
    "task_change": (VIEW_TASK, None),
    "task_history": shows(VIEW_TASK),
    "task_summary": shows(VIEW_TASK),
    "task_failures": shows(VIEW_TASK),
    "task_workflows": shows(VIEW_TASK),
    "task_columns": (None, VIEW_TASK),
    "task_add": NEVER,
    "task_enqueue": asks(VIEW_TASK, "enqueue_task"),
    "task_wake": acts(VIEW_TASK, "wake_task"),
    "task_requeue": acts(VIEW_TASK, "requeue_task"),
    "task_cancel": acts(VIEW_TASK, "cancel_task"),
    "task_discard": acts(VIEW_TASK, "cancel_task"),
    "task_delete": acts(VIEW_TASK, "delete_task"),
    "task_retry": acts(VIEW_TASK, "requeue_task"),
    "task_give": asks(VIEW_TASK, "change_journal"),
    "task_skip": acts(VIEW_TASK, "change_journal"),
    "task_rewind": acts(VIEW_TASK, "change_journal"),
    "task_terminate": acts(VIEW_TASK, "cancel_task"),
    "task_send": acts(VIEW_TASK, "send_message"),
    "executor_changelist": shows(VIEW_EXECUTOR),
    "executor_change": (VIEW_EXECUTOR, None),
    "executor_history": shows(VIEW_EXECUTOR),
    "executor_add": NEVER,
    "executor_delete": NEVER,
    "queue_changelist": (VIEW_QUEUE, VIEW_QUEUE | {"pause_queue"}),
    "queue_change": (VIEW_QUEUE, None),
    "queue_history": shows(VIEW_QUEUE),
    "queue_summary": shows(VIEW_QUEUE),
    "queue_add": NEVER,
    "queue_delete": NEVER,
    "schedule_changelist": shows(VIEW_SCHEDULE),
    "schedule_change": (VIEW_SCHEDULE, None),
    "schedule_history": shows(VIEW_SCHEDULE),
    "schedule_add": (needs("add_schedule"), needs("add_schedule")),
    "schedule_edit": (needs("change_schedule"), needs("change_schedule")),
    "schedule_delete": asks(VIEW_SCHEDULE, "delete_schedule"),
    "schedule_run": acts(VIEW_SCHEDULE, "run_schedule"),
    "schedule_pause": asks(VIEW_SCHEDULE, "pause_schedule"),
    "schedule_resume": acts(VIEW_SCHEDULE, "pause_schedule"),
    "schedule_backfill": asks(VIEW_SCHEDULE, "run_schedule"),
    "schedule_preview": shows(needs("add_schedule|change_schedule")),
    "limit_changelist": (VIEW_LIMIT, None),
    "limit_change": (VIEW_LIMIT, VIEW_LIMIT | {"change_limit"}),
    "limit_history": shows(VIEW_LIMIT),
    "limit_add": NEVER,
    "limit_delete": NEVER,
}
# By list: its bulk actions, each with the permission that it needs besides that to view.
OFFERED = {
    "task_changelist": {
        "requeue_selected": "requeue_task",
        "cancel_selected": "cancel_task",
        "wake_selected": "wake_task",
        "discard_selected": "cancel_task",
        "delete_ended": "delete_task",
    },
    "executor_changelist": dict.fromkeys(("pause_selected", "resume_selected", "stop_selected"), "command_executor"),
    "schedule_changelist": {
        "run_schedules": "run_schedule",
        "pause_schedules": "pause_schedule",
        "resume_schedules": "pause_schedule",
    },
}
# By page: its buttons for rows, each with the permissions that it needs besides that to view.
BUTTONS = {
    "executor_changelist": dict.fromkeys(OFFERED["executor_changelist"], needs("command_executor")),
    "queue_changelist": dict.fromkeys(("pause", "resume", "limit"), needs("pause_queue")),
    # The filter by cause needs view_payload.
    "task_failures": {
        "requeue_selected": needs("requeue_task", "view_payload"),
        "discard_selected": needs("cancel_task", "view_payload"),
    },
}
VIEWS = VIEW_TASK | VIEW_EXECUTOR | VIEW_QUEUE | VIEW_SCHEDULE | VIEW_LIMIT
LINK = re.compile(r'<(a|form|button|input)\b[^>]*?\s(?:href|action|formaction)="([^"]*)"[^>]*>')
OPTION = re.compile(r'<option value="(\w+)"')
BUTTON = re.compile(r'<button\b[^>]*\sname="(?:row|action)" value="(\w+)')
PAYLOAD, CAUSE = "only-for-some", "c0ffee00c0ffee00"
REFUSED = (403, 405)


def people() -> Iterator[tuple[frozenset[str], bool]]:
    """Yield users: the permissions of each, and whether it is a superuser."""
    ours = Permission.objects.filter(content_type__app_label="jobqueue")
    every = frozenset(ours.values_list("codename", flat=True))
    yield frozenset(), False
    yield every - VIEWS, False  # may do nothing: each action requires to view, too
    for name in sorted(VIEWS):
        yield frozenset({name}), False
    yield VIEWS, False
    for name in sorted(every - VIEWS):
        yield VIEWS | {name}, False
    yield every, True


def allows(needed: Needed, has: frozenset[str]) -> bool:
    """Whether a user may. For Django, the permission to change includes that to view."""
    all_of = has | {name.replace("change_", "view_") for name in has}
    return needed is not None and all(any(permission in all_of for permission in names.split("|")) for names in needed)


def links(page: str, path: str) -> Iterator[tuple[str, bool]]:
    """Yield the addresses of the queue's admin that a page offers, and whether each is posted to."""
    for match in LINK.finditer(page):
        there = urlsplit(urljoin(path, unescape(match[2]))).path
        try:
            name = resolve(there).view_name
        except Resolver404:
            continue
        if name.startswith("admin:jobqueue_"):
            yield name.removeprefix("admin:jobqueue_"), match[1] != "a" and 'method="get"' not in match[0]


def test_every_address_of_the_admin_has_a_row() -> None:
    assert {name.removeprefix("admin:jobqueue_") for name in IN_ADMIN} == TABLE.keys()


@pytest.mark.slow
@pytest.mark.django_db(databases=["default", "sqlite"])
def test_answers_and_offers_of_every_page_are_those_of_the_table(
    keys: dict[str, Any],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "django.request")  # a traceback for each refusal takes most of the time
    TaskFactory.create(failed=True, task_type="tests.tasks.greet", kwargs={"name": PAYLOAD})
    QueueFactory.create(name="active")  # to pause; the other one is paused
    ExecutorFactory.create(state="PAUSED")
    Task.objects.update(errors=[error(f"not {PAYLOAD}")], cause=CAUSE)
    before, wrong, with_errors = stored(), list[tuple[Any, ...]](), set[str]()
    for has, is_superuser in people():
        client = Client()
        client.force_login(make_user(*has, is_superuser=is_superuser))
        who = ", ".join(sorted(has))
        for name, (to_get, to_post) in TABLE.items():
            if has > VIEWS and not is_superuser and name.endswith(("_history", "_summary")):
                continue  # pages without a button, which VIEWS has seen
            path = path_of(f"admin:jobqueue_{name}", keys)
            response = client.get(path)
            if (response.status_code not in REFUSED) != allows(to_get, has):
                wrong.append((who, "GET", name, response.status_code))
            if response.status_code == 200:
                page = response.content.decode()
                wrong += [(who, name, *problem) for problem in problems_of(page, path, name, has)]
                with_errors |= {name} if f"not {PAYLOAD}" in page else set()
            if to_post == to_get and has > VIEWS:
                continue  # a page that was seen
            with transaction.atomic():
                response = client.post(path)
                transaction.set_rollback(True)
            if (response.status_code not in REFUSED) != allows(to_post, has):
                wrong.append((who, "POST", name, response.status_code))
    assert wrong == [], "\n".join(map(str, wrong))
    assert stored() == before
    assert with_errors == {"task_changelist", "task_change", "task_failures"}


def rows_with_links(keys: dict[str, Any]) -> dict[str, str]:  # noqa: F811
    """Create a task that links to rows of each kind. Return the pages that show it, besides those of the table."""
    task = TaskFactory.create(
        running=True, executor_id=keys["executor"], schedule_id=keys["schedule"],
        parent_id=keys["task"], concurrency_key="imports:anna", concurrency_limit=1,
    )  # fmt: skip
    return {
        "overview": "/admin/jobqueue/",
        "task of a schedule": path_of("admin:jobqueue_task_change", keys | {"task": task.pk}),
        "its parent": path_of("admin:jobqueue_task_change", keys),
        "its executor": path_of("admin:jobqueue_executor_change", keys),
        "its limit": path_of(
            "admin:jobqueue_limit_change", keys | {"limit": quote("default:concurrency:imports:anna")}
        ),
    }


@pytest.mark.slow
@pytest.mark.django_db(databases=["default", "sqlite"])
def test_pages_link_to_no_page_that_their_reader_may_not_see(
    keys: dict[str, Any],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "django.request")
    pages, linked, wrong = rows_with_links(keys), set[tuple[str, str]](), list[tuple[Any, ...]]()
    for has, is_superuser in people():
        client = Client()
        client.force_login(make_user(*has, is_superuser=is_superuser))
        for name, path in pages.items():
            response = client.get(path)
            if response.status_code == 200:
                page = response.content.decode()
                wrong += [(", ".join(sorted(has)), name, *problem) for problem in problems_of(page, path, "", has)]
                linked |= {(name, target) for target, _posted in links(page, path)} if is_superuser else set()
    assert wrong == [], "\n".join(map(str, wrong))
    assert {name for name, _target in linked} == pages.keys()
    assert {("task of a schedule", f"{name}_change") for name in ("schedule", "executor", "limit", "task")} <= linked


def changes(keys: dict[str, Any]) -> Iterator[tuple[str, frozenset[str], dict[str, Any]]]:  # noqa: F811
    """Yield the first request of each change from a list: the list, the needed permissions, and the fields."""
    across = {ACTION_CHECKBOX_NAME: "all", "select_across": "1"}
    for name, actions in OFFERED.items():
        model = name.partition("_")[0]
        ticked = across if model == "task" else {ACTION_CHECKBOX_NAME: str(keys[model])}
        for action, permission in actions.items():
            yield name, needs(f"view_{model}", permission), {"action": action, **ticked}
    for action, needed in BUTTONS["executor_changelist"].items():
        yield "executor_changelist", VIEW_EXECUTOR | needed, {"row": f"{action}:{keys['executor']}"}
    for action, needed in BUTTONS["queue_changelist"].items():
        yield "queue_changelist", VIEW_QUEUE | needed, {"row": f"{action}:default"}
        yield "queue_changelist", VIEW_QUEUE | needed, {"action": action, "queue": "default"}


@pytest.mark.slow
@pytest.mark.django_db(databases=["default", "sqlite"])
def test_buttons_and_confirmations_of_lists_need_their_permission(
    keys: dict[str, Any],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "django.request")
    for traits in ({"failed": True}, {"scheduled": True}, {"running": True, "executor_id": keys["executor"]}):
        TaskFactory.create(**traits, task_type="tests.tasks.greet", kwargs={"name": PAYLOAD})
    Task.objects.update(errors=[error(f"not {PAYLOAD}")], cause=CAUSE)
    before, wrong, with_errors = stored(), list[tuple[Any, ...]](), set[str]()
    least = {needed for _name, needed, _data in changes(keys)}
    for has, is_superuser in (*people(), *((needed, False) for needed in least)):
        client = Client()
        client.force_login(make_user(*has, is_superuser=is_superuser))
        who = ", ".join(sorted(has))
        for name, needed, data in changes(keys):
            path = path_of(f"admin:jobqueue_{name}", keys)
            with transaction.atomic():
                with TestCase.captureOnCommitCallbacks(execute=True):  # a command of executors waits for the commit
                    response = client.post(path, data)
                asks = "admin/jobqueue/confirm.html" in [template.name for template in response.templates]
                has_acted = asks or stored() != before
                transaction.set_rollback(True)
            if has_acted != allows(needed, has):
                wrong.append((who, name, data, response.status_code))
            if asks:
                page = response.content.decode()
                wrong += [(who, name, data, *problem) for problem in problems_of(page, path, "", has)]
                with_errors |= {data["action"]} if f"not {PAYLOAD}" in page else set()
    assert wrong == [], "\n".join(map(str, wrong))
    assert stored() == before
    assert with_errors == OFFERED["task_changelist"].keys()


@pytest.mark.django_db(databases=["default", "sqlite"])
def test_post_without_a_csrf_token_is_refused_on_every_page(keys: dict[str, Any]) -> None:  # noqa: F811
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user(is_superuser=True))
    before = stored()
    statuses = {client.post(path_of(name, keys), {"confirmed": "1"}).status_code for name in IN_ADMIN}
    assert statuses == {403}
    assert stored() == before


def problems_of(page: str, path: str, name: str, has: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield what a page shows or offers beyond the reader's permissions, and the actions that are missing."""
    for target, is_posted in links(page, path):
        if not allows(TABLE[target][is_posted], has):
            yield "offers", target
    actions = OFFERED.get(name, {})
    offered = set(OPTION.findall(page)) & actions.keys()
    if offered != {action for action, permission in actions.items() if permission in has}:
        yield "has actions", *sorted(offered)
    buttons = set(BUTTON.findall(page))
    if buttons != {value for value, needed in BUTTONS.get(name, {}).items() if allows(needed, has)}:
        yield "has buttons", *sorted(buttons)
    if (PAYLOAD in page or CAUSE in page) and "view_payload" not in has:
        yield ("shows a payload",)
