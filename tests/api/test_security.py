"""Test that every address requires login, permission or token, and that submitted text is never run as code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client, TestCase
from django.urls import URLPattern, URLResolver, get_resolver

from jobqueue.admin.queues import FORMS
from jobqueue.declarations import registry
from jobqueue.models import Executor, InboxMessage, Limit, Queue, Schedule, Task
from tests.factories import ExecutorFactory, MessageFactory, QueueFactory, ScheduleFactory, TaskFactory, now
from tests.http.client import person
from tests.journals import make_checkout

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[2] / "jobqueue"
FILES = sorted(PACKAGE.rglob("*.py"))
OPEN_TO_ALL = {"jobqueue:health", "jobqueue:live", "jobqueue:ready", "jobqueue:openapi"}  # to be read, by anybody
ROWS = (Task, InboxMessage, Executor, Queue, Schedule, Limit)
VIEWING = ("view_task", "view_executor", "view_queue", "view_schedule", "view_limit")
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")


def addresses(patterns: list[URLPattern | URLResolver], path: str = "/", names: str = "") -> Iterator[tuple[str, str]]:
    """Walk through the site's addresses: the full name and the path with its parameters of each."""
    for pattern in patterns:
        here = path + str(pattern.pattern).replace("^", "")
        if isinstance(pattern, URLResolver):
            inside = f"{names}{pattern.namespace}:" if pattern.namespace else names
            yield from addresses(pattern.url_patterns, here, inside)
        elif not here.endswith(r"(?P<url>.*)$"):
            yield f"{names}{pattern.name}", here


ALL = dict(addresses(get_resolver().url_patterns))
IN_ADMIN = sorted(name for name in ALL if name.startswith("admin:jobqueue_"))
OVER_HTTP = sorted(name for name in ALL if name.startswith("jobqueue:"))


@pytest.fixture
def keys(db: None) -> dict[str, Any]:
    """Create rows of every kind. Return their keys for addresses."""
    task = TaskFactory.create(failed=True, task_type="tests.tasks.greet")
    waiting = TaskFactory.create(suspended=True, task_type="tests.actors.Diary")
    MessageFactory.create(task_id=waiting.pk)
    TaskFactory.create(running=True)
    Limit.objects.create(kind="concurrency", key="imports:", number=2, changed_at=now())
    return {
        "workflow": make_checkout().pk,
        "task": waiting.pk,
        "task_id": task.pk,
        "executor": ExecutorFactory.create().pk,
        "queue": QueueFactory.create(paused=True).pk,
        "schedule": ScheduleFactory.create().pk,
        "limit": quote("default:concurrency:imports:"),
    }


def path_of(name: str, keys: dict[str, Any]) -> str:
    """Return an address with its parameters filled in. A parameter that is missing from keys is an error."""
    model = name.removeprefix("admin:jobqueue_").partition("_")[0]
    return PARAMETER.sub(lambda match: str(keys[model if match[1] == "object_id" else match[1]]), ALL[name])


def stored() -> list[Any]:
    return [list(model._default_manager.order_by("pk").values()) for model in ROWS]


def member(*permissions: str, **options: bool) -> Client:
    return person(*permissions, **options).client


def test_addresses_are_found() -> None:
    assert {"admin:jobqueue_task_cancel", "admin:jobqueue_task_requeue", "admin:jobqueue_task_send"} <= set(IN_ADMIN)
    assert {"jobqueue:submit", "jobqueue:cancel", "jobqueue:messages"} <= set(OVER_HTTP)
    assert {model for model in ROWS if admin.site.is_registered(model)} == {Task, Executor, Queue, Schedule, Limit}


@pytest.mark.parametrize("name", IN_ADMIN)
def test_pages_of_the_admin_need_login_permission_and_token(client: Client, keys: dict[str, Any], name: str) -> None:
    path, before = path_of(name, keys), stored()
    for method in ("get", "post"):
        response = getattr(client, method)(path)
        assert (response.status_code, response.url.partition("?")[0]) == (302, "/admin/login/")
        refusals = (403,) if method == "post" else (403, 405)
        assert getattr(member(), method)(path).status_code in refusals
        getattr(member(*VIEWING, "view_payload"), method)(path, {"body": "1"})
        response = getattr(member(is_superuser=True, checks_csrf=True), method)(path, {"body": "1"})
        assert method == "get" or response.status_code == 403
    assert stored() == before


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """An action of the admin: its POST request, and the permission that it requires."""

    page: str
    permission: str
    data: Mapping[str, Any] = field(default_factory=dict)
    on: str = "task"  # the row that is meant, and ticked in a list

    def done_by(self, client: Client, keys: dict[str, Any], *, by_get: bool = False) -> Any:
        path = path_of(self.page, keys | {"task": keys[self.on]} if self.on in ("task_id", "workflow") else keys)
        data = {ACTION_CHECKBOX_NAME: [str(keys[self.on])], **self.data}
        with TestCase.captureOnCommitCallbacks(execute=True):  # executors are notified after the commit
            return client.get(path, data) if by_get else client.post(path, data)


TASKS, EXECUTORS, QUEUES, SCHEDULES = (
    f"admin:jobqueue_{name}_changelist" for name in ("task", "executor", "queue", "schedule")
)
FORM = {"name": "new", "task": "tests.tasks.greet", "argument-name": "a", "kind": "cron", "expression": "@daily"}
FORM |= {"timezone": "UTC", "unit": "1", "overlap": "skip", "catch_up": "latest", "max_catch_up": "1"}
RANGE = {"start": "2026-03-02T00:00", "end": "2026-03-03T00:00", "confirmed": "1"}
REQUESTS = {
    "task_wake": ActionRequest("admin:jobqueue_task_wake", "wake_task"),
    "task_enqueue": ActionRequest("admin:jobqueue_task_enqueue", "enqueue_task", FORM),
    "task_discard": ActionRequest("admin:jobqueue_task_discard", "cancel_task", {"confirmed": "1"}, on="task_id"),
    "task_delete": ActionRequest("admin:jobqueue_task_delete", "delete_task", {"confirmed": "1"}, on="task_id"),
    "wake_selected": ActionRequest(TASKS, "wake_task", {"action": "wake_selected"}),
    "discard_selected": ActionRequest(
        TASKS, "cancel_task", {"action": "discard_selected", "confirmed": "1"}, on="task_id"
    ),
    "delete_ended": ActionRequest(TASKS, "delete_task", {"action": "delete_ended", "confirmed": "1"}, on="task_id"),
    "task_cancel": ActionRequest("admin:jobqueue_task_cancel", "cancel_task", {"confirmed": "1"}),
    "task_requeue": ActionRequest("admin:jobqueue_task_requeue", "requeue_task", on="task_id"),
    **{
        f"task_{action}": ActionRequest(f"admin:jobqueue_task_{action}", permission, data, on="workflow")
        for action, permission, data in (
            ("retry", "requeue_task", {"entry": "notify"}),
            ("give", "change_journal", {"entry": "notify", "value": "1", "confirmed": "1"}),
            ("skip", "change_journal", {"entry": "receive", "confirmed": "1"}),
            ("rewind", "change_journal", {"entry": "notify", "confirmed": "1"}),
            ("terminate", "cancel_task", {"confirmed": "1"}),
        )
    },
    "task_send": ActionRequest("admin:jobqueue_task_send", "send_message", {"body": '"dear diary"'}),
    "cancel_selected": ActionRequest(TASKS, "cancel_task", {"action": "cancel_selected", "confirmed": "1"}),
    "requeue_selected": ActionRequest(TASKS, "requeue_task", {"action": "requeue_selected"}, on="task_id"),
    **{
        name: ActionRequest(EXECUTORS, "command_executor", {"action": name, "confirmed": "1"}, on="executor")
        for name in ("pause_selected", "resume_selected", "stop_selected")
    },
    "pause": ActionRequest(QUEUES, "pause_queue", {"action": "pause", "queue": "a", "confirmed": "1"}),
    "limit": ActionRequest(
        QUEUES, "pause_queue", {"action": "limit", "queue": "a", "max_running": "3", "confirmed": "1"}
    ),
    "resume": ActionRequest(QUEUES, "pause_queue", {"action": "resume", "queue": "paused"}),
    "schedule_run": ActionRequest("admin:jobqueue_schedule_run", "run_schedule", on="schedule"),
    "schedule_pause": ActionRequest("admin:jobqueue_schedule_pause", "pause_schedule", {"reason": "a"}, on="schedule"),
    "schedule_resume": ActionRequest("admin:jobqueue_schedule_resume", "pause_schedule", on="schedule"),
    "schedule_backfill": ActionRequest("admin:jobqueue_schedule_backfill", "run_schedule", RANGE, on="schedule"),
    "schedule_add": ActionRequest("admin:jobqueue_schedule_add", "add_schedule", FORM),
    "schedule_edit": ActionRequest("admin:jobqueue_schedule_edit", "change_schedule", FORM, on="schedule"),
    "schedule_delete": ActionRequest("admin:jobqueue_schedule_delete", "delete_schedule", on="schedule"),
    **{
        f"{name}_schedules": ActionRequest(
            SCHEDULES, f"{permission}_schedule", {"action": f"{name}_schedules", "confirmed": "1"}, on="schedule"
        )
        for name, permission in {"run": "run", "pause": "pause", "resume": "pause"}.items()
    },
    "limit_set": ActionRequest("admin:jobqueue_limit_change", "change_limit", {"number": "3"}, on="limit"),
    "limit_reset": ActionRequest("admin:jobqueue_limit_change", "change_limit", {"reset": "1"}, on="limit"),
}
# Pages that only show, the columns that a user chooses for the session, the preview of a form, and pages of Django's
# own. Of these, only those that create and delete schedules write rows of the queue.
SHOWN = ("changelist", "add", "history", "delete", "change", "preview", "failures", "summary", "columns", "workflows")


def test_every_action_of_the_admin_is_tried() -> None:
    registered: dict[Any, Any] = {model: admin.site._registry[model] for model in (Task, Executor, Queue, Schedule)}
    actions = {
        getattr(action, "__name__", action)
        for model_admin in registered.values()
        for action in model_admin.actions or ()
    }
    views = {name.removeprefix("admin:jobqueue_") for name in IN_ADMIN if not name.endswith(SHOWN)}
    assert (
        actions | views | {*FORMS, "task_delete", "schedule_add", "schedule_delete", "limit_set", "limit_reset"}
        == REQUESTS.keys()
    )


@pytest.mark.parametrize("action", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.django_db(databases=["default", "sqlite"])  # to wake looks at every backend
def test_action_needs_its_permission_login_post_and_token(
    client: Client, keys: dict[str, Any], action: ActionRequest
) -> None:
    QueueFactory.create(paused=True, name="paused")
    ours = Permission.objects.filter(content_type__app_label="jobqueue").values_list("codename", flat=True)
    before = stored()

    action.done_by(member(*(name for name in ours if name != action.permission)), keys)
    action.done_by(member(is_superuser=True), keys, by_get=True)
    assert action.done_by(member(is_superuser=True, checks_csrf=True), keys).status_code == 403
    assert action.done_by(client, keys).url.startswith("/admin/login/")
    assert stored() == before

    # Without this, the test would prove nothing.
    assert action.done_by(member(*VIEWING, action.permission), keys).status_code == 302
    assert stored() != before


def call(client: Client, method: str, path: str) -> Any:
    return client.generic(method, path, b"{}", content_type="application/json")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("name", OVER_HTTP)
@pytest.mark.django_db(databases=["default", "sqlite"])  # health looks at every backend
def test_http_needs_token_or_permission_and_csrf_token(
    client: Client, keys: dict[str, Any], name: str, method: str
) -> None:
    before, path, is_open = stored(), path_of(name, keys), name in OPEN_TO_ALL

    status = call(client, method, path).status_code
    assert status in ((200, 503) if is_open and method == "GET" else (401, 405))
    assert call(member(), method, path).status_code in ((200, 405, 503) if is_open else (403, 405))
    if method != "GET":
        assert call(member(is_superuser=True, checks_csrf=True), method, path).status_code in (403, 405)
    else:
        call(member(is_superuser=True), "GET", path)
    assert stored() == before


# --- code. Ruff looks for pickle, shells, eval, and SQL that is built from values.


RUNNERS = {"execute", "executemany", "raw", "extra", "RawSQL", "fetch_prepared"}
IMPORTERS = {"import_string", "import_module", "__import__", "eval", "exec", "compile"}
# Where code is found by its name, each a decision. None of these names comes out of a row.
KNOWN = {
    ("__init__.py", "__getattr__"),  # jobqueue's own public names, imported when they are used
    ("apps.py", "embed_in_runserver"),  # our own module, not loaded by other web processes
    ("conf/compat.py", ""),  # the task framework, whichever there is
    ("contrib/celery/application.py", "_import_related"),  # tasks.py of the installed apps
    ("contrib/celery/application.py", "finalize"),  # the site's settings: CELERY_IMPORTS
    ("contrib/celery/conf.py", "read_from"),  # the argument of the site's config_from_object()
    ("contrib/celery/options.py", "route"),  # the site's settings: CELERY_TASK_ROUTES
    ("contrib/middleware.py", "__enter__"),  # django_tenants
    ("contrib/middleware.py", "_installed"),  # django_guid, structlog
    ("contrib/middleware.py", "_connection"),  # django_tenants
    ("contrib/middleware.py", "capture"),  # django_tenants
    ("declarations/middleware.py", "load"),  # the site's settings: OPTIONS["MIDDLEWARE"]
    ("engine/schema.py", "known_migrations"),  # where MIGRATION_MODULES of the site's settings has our migrations
    ("executor/running/body_process.py", "run"),  # the module of a function that the executor has declared
    ("management/migrate_from/broker.py", "_move"),  # a script of ours that Redis runs
    ("migrations/0010_task_rated_index.py", ""),  # an earlier migration, whose name no import statement can spell
}


def calls(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in a tree, with the function that contains each."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.Call):
            yield within, child
        yield from calls(child, child.name if is_function else within)  # type: ignore[attr-defined]


def name_of(function: ast.expr) -> str:
    """Return the called name. Methods named compile() are not the builtin."""
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr="compile"):
            return ""
        case ast.Attribute(attr=name):
            return name
    return ""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in FILES:
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_code_is_found_by_name_nowhere_but_where_we_know() -> None:
    uses = {(file, within) for file, tree in trees() for within, call in calls(tree) if name_of(call.func) in IMPORTERS}
    assert uses == KNOWN


def test_only_our_own_words_are_marked_safe() -> None:
    for file, tree in trees():
        for _, call in calls(tree):
            if name_of(call.func) in {"mark_safe", "SafeString", "SafeText", "format_html"}:
                assert isinstance(call.args[0], ast.Constant), (file, call.lineno)
            if name_of(call.func) == "format_html_join":
                between, pattern, _ = call.args
                assert isinstance(pattern, ast.Constant), (file, call.lineno)
                is_safe = isinstance(between, ast.Call) and name_of(between.func) == "mark_safe"
                assert is_safe or isinstance(between, ast.Constant), (file, call.lineno)


def test_no_statement_is_built_from_values() -> None:
    """Ruff's rule S608 finds only texts that look like a query. Migrations put in the name of their own schema."""
    for file, tree in trees():
        built = {name for name, value in assigned(tree) if is_built(value)}
        for _, call in calls(tree):
            if name_of(call.func) in RUNNERS and call.args and not file.startswith("migrations/"):
                text = call.args[0]
                assert not is_built(text), (file, call.lineno)
                assert not isinstance(text, ast.Name) or text.id not in built, (file, call.lineno)


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield what the names in a file are assigned to."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AugAssign(target=ast.Name(id=name), value=value)
            ):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value


def is_built(text: ast.expr) -> bool:
    """Return whether an expression builds a text."""
    if isinstance(text, ast.Call):
        return name_of(text.func) in {"format", "join", "replace"}
    return isinstance(text, ast.JoinedStr | ast.BinOp)


def test_templates_escape_what_they_show() -> None:
    for path in PACKAGE.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+off|safeseq", text), path


@pytest.mark.parametrize(
    "name",
    ["os.system", "builtins.eval", "subprocess.run", "jobqueue.api.cancel", "tests.factories.make_user", "..", ""],
)
def test_a_row_names_registered_tasks_only(name: str) -> None:
    assert registry.get(name) is None


NASTY = """'; DROP TABLE jobqueue_task; -- %s %(x)s "\\ \u0391"""


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        *(("task", name) for name in ("q", "o", "status", "queue", "task", "p", "parent", "schedule", "all", "e")),
        *(("schedule", name) for name in ("q", "o", "state", "origin", "backend", "p", "all", "e")),
    ],
)
def test_lists_take_any_text_for_a_parameter(name: str, parameter: str) -> None:
    TaskFactory.create(queue_name=NASTY, task_type="tests.tasks.greet")
    response = member(is_superuser=True).get(f"/admin/jobqueue/{name}/", {parameter: NASTY})
    assert response.status_code in (200, 302)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM jobqueue_task")
        assert cursor.fetchone() == (1,)
