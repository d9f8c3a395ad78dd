"""Requeue and cancel in the admin: permissions, POST only, counts, the log."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue import api
from jobqueue.models import Task
from jobqueue.operations.bulk import target as bulk
from jobqueue.operations.bulk.actions import ACTIONS, CANCEL
from jobqueue.operations.bulk.target import Bounds
from jobqueue.operations.list import selection
from jobqueue.values.changes import CancelReport
from tests.admin.pages import BOTH, LIST_URL, SCRIPT, messages_of, reload, status_of, task_url
from tests.factories import TaskFactory, ago, make_user, now

pytestmark = BOTH


@pytest.fixture
def act(client, staff, backend):
    """POST an action of the list; `query` is the list's own address."""

    def post(action, *ticked, query="", **data):
        data = {"action": f"{action}_selected", "_selected_action": [row.pk for row in ticked], **data}
        return client.post(f"{LIST_URL}?backend={backend}{query}", data)

    return post


@pytest.fixture
def ask(act):
    """Select all that match, and return the confirmation page."""

    def post(action="requeue", query=""):
        page = act(action, query=query, select_across="1", index="0", _selected_action=["all"])
        assert page.status_code == 200
        return page

    return post


@pytest.fixture
def confirm(client, backend):
    """Click the button of a confirmation page."""

    def post(page, *, query="", **fields):
        data: dict[str, list[str]] = {}
        for name, value in page.context["hidden"]:
            data.setdefault(name, []).append(str(value))
        return client.post(f"{LIST_URL}?backend={backend}{query}", data | fields)

    return post


@pytest.fixture
def window(monkeypatch):
    """Let the window of the list end at the third row."""
    monkeypatch.setattr(selection, "WINDOW", 2)
    monkeypatch.setattr(selection, "WINDOW_OF_STATUS", 2)


def fail_in_order(make, count):
    """Create failed tasks of a queue, the last failed one first."""
    return [make(failed=True, queue_name="emails", finished_at=ago(100 - n)) for n in range(count)][::-1]


# --- one task, from its page


@pytest.mark.parametrize(
    ("action", "columns", "message", "status"),
    [
        ("requeue", {"failed": True}, "Requeued 1 task.", "READY"),
        ("cancel", {}, "Cancelled 1 task.", "CANCELLED"),
        ("cancel", {"running": True}, "Asked 1 running task to stop.", "RUNNING"),
        (
            "requeue",
            {"successful": True},
            "Skipped 1 task: not failed or cancelled, deleted, or a bulk action.",
            "SUCCESSFUL",
        ),
        ("cancel", {"failed": True}, "Skipped 1 task: already ended, or deleted.", "FAILED"),
    ],
)
def test_task_page_performs_action_and_reports(client, staff, make, action, columns, message, status):
    row = make(**columns)

    response = client.post(task_url(row, action), {"confirmed": "1"})

    assert response.url == task_url(row)
    assert messages_of(response) == [message]
    assert status_of(row) == status
    assert (reload(row).cancel_requested_at is not None) == (status in ("RUNNING", "CANCELLED"))
    assert LogEntry.objects.count() == (not message.startswith("Skipped"))


def test_requeue_skips_task_whose_key_is_taken(client, staff, make):
    row = make(failed=True, key="order:7")
    make(key="order:7")

    assert messages_of(client.post(task_url(row, "requeue"))) == ["Skipped 1 task: a live task has the same key."]
    assert status_of(row) == "FAILED"


def test_task_page_buttons_follow_status_and_permissions(client, make):
    def buttons(row, *permissions):
        client.force_login(make_user("view_task", *permissions))
        content = client.get(task_url(row)).content.decode()
        return [action for action in ("requeue", "cancel") if f'action="{task_url(row, action)}"' in content]

    assert buttons(make(failed=True), "requeue_task", "cancel_task") == ["requeue"]
    assert buttons(make(), "requeue_task", "cancel_task") == ["cancel"]
    assert buttons(make(), "requeue_task") == []


# --- many tasks, from the list


@pytest.mark.parametrize(("page", "action"), [("task", "cancel_selected"), ("executor", "pause_selected")])
def test_list_action_on_invalid_id_is_bad_request(client, page, action):
    client.force_login(make_user(is_superuser=True))
    address = reverse(f"admin:jobqueue_{page}_changelist")

    assert client.post(address, {"action": action, "_selected_action": "abc", "index": "0"}).status_code == 400


def test_list_offers_permitted_actions(client):
    client.force_login(make_user("view_task", "cancel_task"))
    TaskFactory.create()

    form = client.get(LIST_URL).context["action_form"]

    assert [name for name, _ in form.fields["action"].choices] == ["", "cancel_selected", "discard_selected"]


def test_selected_tasks_are_confirmed_counted_and_logged(client, act, confirm, make, staff):
    rows = [make(failed=True), make(failed=True), make(cancelled=True)]
    others = [make(successful=True), make()]
    bystander = make(failed=True)

    page = act("requeue", *rows, *others, index="0")
    assert {status_of(row) for row in rows} == {"FAILED", "CANCELLED"}
    assert (page.context["number"], page.context["other"].number) == (3, 2)
    response = confirm(page)

    assert messages_of(response) == [
        "Requeued 3 tasks. Skipped 2 tasks: not failed or cancelled, deleted, or a bulk action."
    ]
    assert {status_of(row) for row in rows} == {"READY"}
    assert status_of(bystander) == "FAILED"
    logged = {entry.object_id: entry for entry in LogEntry.objects.all()}
    assert logged.keys() == {str(row.pk) for row in rows}
    assert {entry.user for entry in logged.values()} == {staff}
    assert logged[str(rows[0].pk)].object_repr == str(rows[0])
    assert f"{staff}: Requeue (one of 5 selected tasks)" in client.get(task_url(rows[0])).content.decode()


def test_many_tasks_share_one_log_entry(act, confirm, make, monkeypatch):
    monkeypatch.setattr(bulk, "MAX_SINGLE", 2)
    rows = [*(make(failed=True) for _ in range(3)), make(successful=True)]

    confirm(act("requeue", *rows, index="0"))

    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == (None, "4 tasks")
    assert entry.get_change_message().startswith("Requeue: Requeued 3 tasks. Skipped 1 task: ")
    assert "Selected by hand." in entry.get_change_message()


def test_one_selected_task_is_requeued_without_a_question(act, make):
    row = make(failed=True)

    assert messages_of(act("requeue", row, index="0")) == ["Requeued 1 task."]

    assert status_of(row) == "READY"
    assert LogEntry.objects.get().object_id == str(row.pk)


@pytest.mark.parametrize(
    ("action", "columns", "button", "after"),
    [
        ("cancel", {}, "Cancel 1 task", "CANCELLED"),
        ("cancel", {"suspended": True}, "Cancel 1 task", "CANCELLED"),
        ("discard", {"failed": True}, "Discard 1 task", "CANCELLED"),
    ],
)
def test_destructive_action_on_one_task_asks_once(client, staff, act, confirm, make, action, columns, button, after):
    of_list, of_page = make(**columns), make(**columns)
    before = of_list.status

    asked = act(action, of_list, index="0")
    assert f'value="{button}"' in asked.content.decode()
    assert f'value="{button}"' in client.post(task_url(of_page, action)).content.decode()
    assert [status_of(row) for row in (of_list, of_page)] == [before, before]

    confirm(asked)
    client.post(task_url(of_page, action), {"confirmed": "1"})
    assert [status_of(row) for row in (of_list, of_page)] == [after, after]


def test_action_that_cannot_change_the_task_asks_nothing(client, staff, make):
    row = make(failed=True)

    answer = client.post(task_url(row, "cancel"))

    assert messages_of(answer) == ["Skipped 1 task: already ended, or deleted."]


def test_locked_task_is_reported(act, confirm, make, monkeypatch):
    locked = make()
    monkeypatch.setattr(api, "cancel", lambda ids, **_: CancelReport(busy=frozenset(ids)))

    done = confirm(act("cancel", locked, index="0"))

    assert messages_of(done) == ["Skipped 1 task: another transaction has locked it. Try again later."]


def test_all_can_be_selected_without_javascript(client, act, make, backend):
    for _ in range(101):  # more than a page
        make(failed=True)
    page = client.get(f"{LIST_URL}?backend={backend}").content.decode()
    (choice,) = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    fields = re.findall(r'name="(\w+)" value="(\w+)"', choice)
    assert fields == [("_selected_action", "all"), ("select_across", "1")]

    asked = act(
        "requeue", index="0", _selected_action=["all"], select_across=["0", "1"]
    )  # "0" is the admin's own field

    assert 'value="Requeue 101 tasks"' in asked.content.decode()


def test_ticked_tasks_are_chosen_without_javascript(client, make, act, backend):
    first, second = make(failed=True), make(failed=True)
    form = {"action": "requeue_selected", "index": "0", "select_across": "0"}

    client.post(f"{LIST_URL}?backend={backend}", form | {"_selected_action": ["all"]})
    assert [status_of(row) for row in (first, second)] == ["FAILED", "FAILED"]
    client.post(f"{LIST_URL}?backend={backend}", form | {"_selected_action": ["all", str(first.pk)]})

    assert [status_of(row) for row in (first, second)] == ["READY", "FAILED"]


def test_confirmation_with_an_impossible_number_is_asked_again(ask, client, make, backend):
    make(failed=True)
    fields = dict(ask().context["hidden"])
    bounds = re.sub(r'"number":1', '"number":-5', str(fields["bounds"]))

    again = client.post(f"{LIST_URL}?backend={backend}", fields | {"bounds": bounds})

    assert 'value="Requeue 1 task"' in again.content.decode()


def test_locked_tasks_take_no_longer_than_the_budget(make, monkeypatch):
    rows = [make() for _ in range(3)]
    monkeypatch.setattr(bulk, "BUDGET_SECONDS", -1.0)

    run = bulk.perform_ids(CANCEL, [row.pk for row in rows])

    assert (run.numbers["cancelled"], run.numbers["busy"]) == (1, 2)


def test_cancelled_task_that_is_pruned_at_once_is_logged(act, confirm, make, monkeypatch):
    row = make()

    def cancel(ids, backend):
        Task.objects.using(row.backend).filter(pk__in=ids).delete()
        return CancelReport(cancelled=1)

    monkeypatch.setitem(ACTIONS, "cancel", replace(CANCEL, perform=cancel))

    assert confirm(act("cancel", row, index="0")).status_code == 302
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_selected_task_that_left_the_filter_is_skipped(act, confirm, make):
    rows = [make(failed=True), make(failed=True)]
    page = act("requeue", *rows, query="&status=FAILED", index="0")
    Task.objects.using(rows[0].backend).filter(pk=rows[0].pk).update(status="READY", finished_at=None)

    (message,) = messages_of(confirm(page, query="&status=FAILED"))

    assert message.startswith("Requeued 1 task. Skipped 1 task: ")


def test_select_across_changes_all_that_match(ask, confirm, make):
    rows = [make(failed=True, queue_name="emails") for _ in range(5)]
    other, ready = make(failed=True), make(queue_name="emails")

    response = confirm(ask(query="&queue=emails"), query="&queue=emails")

    assert messages_of(response) == ["Requeued 5 tasks."]
    assert {status_of(row) for row in rows} == {"READY"}
    assert (status_of(other), status_of(ready)) == ("FAILED", "READY")
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(row.pk) for row in rows}


def test_cancel_across_ends_waiting_and_asks_running_tasks(ask, confirm, make):
    waiting = [make(), make(scheduled=True), make(suspended=True)]
    running, ended = make(running=True), make(successful=True)

    response = confirm(ask("cancel"))

    assert messages_of(response) == ["Cancelled 3 tasks. Asked 1 running task to stop."]
    assert {status_of(row) for row in waiting} == {"CANCELLED"}
    assert (status_of(running), status_of(ended)) == ("RUNNING", "SUCCESSFUL")
    Task.objects.using(running.backend).filter(pk=running.pk).delete()
    logged = LogEntry.objects.count()
    assert messages_of(confirm(ask("cancel"))) == ["No task matched."]
    assert LogEntry.objects.count() == logged


def test_cancel_across_of_a_key_leaves_other_keys_alone(ask, confirm, make):
    rows = [make(blocked=True) for _ in range(3)]
    other, free = make(blocked=True, concurrency_key="imports:bob"), make()
    query = "&limit=concurrency:imports:anna"

    response = confirm(ask("cancel", query=query), query=query)

    assert messages_of(response) == ["Cancelled 3 tasks."]
    assert {status_of(row) for row in rows} == {"CANCELLED"}
    assert (status_of(other), status_of(free)) == ("BLOCKED", "READY")


def test_confirmation_is_small_and_says_what_will_happen(ask, make):
    for _ in range(150):
        make(failed=True)
    make()

    page = ask(query="&queue=default")

    content = page.content.decode()
    assert content.count('name="_selected_action"') == 1
    for text in (
        "150 failed or cancelled tasks will be requeued with a fresh set of attempts.",
        "1 task in another state is not changed.",
        "Requeue 150 tasks?",
        'value="Requeue 150 tasks"',
        "&amp;queue=default</code>",
    ):
        assert text in content
    assert len(page.context["examples"]) == 10


def test_confirmation_of_selected_tasks_escapes_and_names_no_filter(act, make):
    rows = [make(failed=True, task_type=SCRIPT) for _ in range(2)]

    content = act("requeue", *rows, query=f"&task={SCRIPT}", index="0").content.decode()

    assert "Selected by hand." in content
    assert "<code>backend=" not in content
    assert "&lt;script&gt;" in content
    assert SCRIPT not in content


def test_tasks_that_enter_after_the_confirmation_are_not_changed(ask, confirm, make):
    make(failed=True)
    running = make(running=True)
    page = ask()
    late = make(failed=True)
    Task.objects.using(running.backend).filter(pk=running.pk).update(status="FAILED", finished_at=now())

    assert messages_of(confirm(page)) == ["Requeued 1 task."]
    assert (status_of(late), status_of(running)) == ("FAILED", "FAILED")


def test_large_selections_are_changed_in_batches(ask, confirm, make, monkeypatch):
    for name, value in {"WALKED": 3, "BATCH": 2, "MAX_SINGLE": 1}.items():
        monkeypatch.setattr(bulk, name, value)
    rows = [make(failed=True) for _ in range(8)]

    assert messages_of(confirm(ask())) == ["Requeued 8 tasks."]
    assert {status_of(row) for row in rows} == {"READY"}


WINDOWED = pytest.mark.parametrize("query", ["&queue=emails", "&status=FAILED&queue=emails"])


@WINDOWED
def test_list_confirmation_and_reply_give_one_number(client, ask, confirm, make, backend, window, monkeypatch, query):
    monkeypatch.setattr("jobqueue.admin.tasks.TaskAdmin.list_per_page", 2)
    *inside, outside, older = fail_in_order(make, 5)

    listed = client.get(f"{LIST_URL}?backend={backend}{query}").content.decode()
    page = ask(query=query)
    content = page.content.decode()
    late = [make(failed=True, queue_name="emails", finished_at=now()) for _ in range(3)]  # moves the window
    response = confirm(page, query=query)

    assert "among the newest 2 tasks only" in listed
    assert "Select all 3 tasks" in listed
    assert ">3 tasks<" in listed
    assert "3 failed or cancelled tasks" in content
    assert "Only the newest 2 tasks were searched" in content
    assert messages_of(response) == ["Requeued 3 tasks."]
    assert {status_of(row) for row in inside} == {"READY"}
    assert {status_of(row) for row in (outside, older, *late)} == {"FAILED"}


@pytest.mark.parametrize("bounds", ["nonsense", "nonsense 2030-01-01 ", "00000000-0000-4000-8000-000000000000 never "])
def test_invalid_bounds_confirm_nothing(act, make, bounds):
    row = make(failed=True)

    response = act("requeue", select_across="1", _selected_action=["all"], bounds=bounds)

    assert response.context["number"] == 1
    assert status_of(row) == "FAILED"


def test_edge_of_another_list_is_bad_request(act, make):
    row = make(failed=True)
    data = {
        "select_across": "1",
        "_selected_action": ["all"],
        "bounds": str(Bounds(upto=row.pk, asked_at=now(), edge=str(row.pk))),
    }

    assert act("requeue", query="&status=FAILED", **data).status_code == 400
    assert status_of(row) == "FAILED"


@pytest.mark.parametrize(
    ("action", "state", "button", "words", "after"),
    [
        ("wake_selected", "scheduled", "Run 2 tasks now", "2 tasks run as soon as executors have free slots.", "READY"),
        ("discard_selected", "failed", "Discard 2 tasks", "Discarded 2 tasks.", "CANCELLED"),
        ("delete_ended", "successful", "Delete 2 tasks", "Deleted 2 tasks.", None),
    ],
)
def test_verbs_ask_then_change_what_the_list_shows(client, staff, make, backend, action, state, button, words, after):
    rows = [
        make(**{state: True}, **({"wake_at": now() + timedelta(days=1)} if state == "scheduled" else {})) for _ in "ab"
    ]
    left = make(running=True)
    address = f"{LIST_URL}?backend={backend}"
    asked = client.post(address, {"action": action, "_selected_action": "all", "select_across": "1"})

    response = client.post(address, dict(asked.context["hidden"]))

    assert f'value="{button}"' in asked.content.decode()
    assert "1 task in another state is not changed." in asked.content.decode()
    assert messages_of(response) == [words]
    statuses = dict(Task.objects.using(backend).values_list("pk", "status"))
    assert statuses == {left.pk: "RUNNING"} | ({row.pk: after for row in rows} if after else {})


@pytest.mark.parametrize(("action", "state"), [("delete", "failed"), ("cancel", "running")])
def test_page_asks_before_it_deletes_or_stops_a_task(client, staff, make, backend, action, state):
    row = make(**{state: True})

    asked = client.post(task_url(row, action))
    assert f'value="{action.capitalize()} 1 task"' in asked.content.decode()
    assert status_of(row) == state.upper()
    response = client.post(task_url(row, action), dict(asked.context["hidden"]))

    if action == "delete":
        assert not Task.objects.using(backend).filter(pk=row.pk).exists()
        assert response.url == LIST_URL
    else:
        assert reload(row).cancel_requested_at is not None
