"""Requeue and cancel in the admin: permissions, POST only, honest counts, the log."""

from dataclasses import replace
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from jobqueue import api
from jobqueue.admin import actions, task_list
from jobqueue.models import Task
from jobqueue.records import CancelReport
from tests.factories import TaskFactory, ago, make_user, now

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])
URL = "/admin/jobqueue/task/"


@pytest.fixture(params=["default", "sqlite"])
def backend(request):
    return request.param


@pytest.fixture
def make(backend):
    return lambda **columns: TaskFactory.create(backend=backend, using=backend, **columns)


@pytest.fixture
def staff(client):
    user = make_user("view_task", "requeue_task", "cancel_task")
    client.force_login(user)
    return user


@pytest.fixture
def act(client, staff, backend):
    """POST an action of the list; `query` is the list's own address."""

    def post(action, *ticked, query="", **data):
        data = {"action": f"{action}_selected", "_selected_action": [row.pk for row in ticked], **data}
        return client.post(f"{URL}?backend={backend}{query}", data)

    return post


def url(row, deed):
    return reverse(f"admin:jobqueue_task_{deed}", args=[row.pk])


def status(row):
    return Task.objects.using(row.backend).get(pk=row.pk).status


def said(response):
    return [str(message) for message in get_messages(response.wsgi_request)]


def across(client_act, action, query=""):
    """Choose all that match and confirm."""
    page = client_act(action, query=query, select_across="1", index="0", _selected_action=["all"])
    assert page.status_code == 200
    return client_act(
        action, query=query, select_across="1", _selected_action=["all"], bounds=str(page.context["forecast"].bounds)
    )


# --- one task, from its page


def test_requeue_puts_a_failed_task_back(client, staff, make):
    row = make(failed=True)

    response = client.post(url(row, "requeue"))

    assert response.url == reverse("admin:jobqueue_task_change", args=[row.pk])
    assert said(response) == ["1 requeued."]
    assert status(row) == "READY"


def test_cancel_ends_a_waiting_task(client, staff, make):
    row = make()

    response = client.post(url(row, "cancel"))

    assert said(response) == ["1 cancelled."]
    assert status(row) == "CANCELLED"


def test_cancel_tells_a_running_task_to_stop(client, staff, make):
    row = make(running=True)

    response = client.post(url(row, "cancel"))

    assert said(response) == ["1 running: told to stop."]
    assert Task.objects.using(row.backend).get(pk=row.pk).cancel_requested_at is not None


def test_single_action_is_logged_in_the_tasks_history(client, staff, make):
    row = make(failed=True)

    client.post(url(row, "requeue"))

    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.get_change_message()) == (staff, str(row.pk), "Requeue")
    assert f"{staff}: Requeue" in client.get(reverse("admin:jobqueue_task_change", args=[row.pk])).content.decode()


@pytest.mark.parametrize(
    ("deed", "trait", "words"),
    [
        ("requeue", "successful", "1 skipped: not FAILED or CANCELLED."),
        ("cancel", "failed", "1 skipped: ended already."),
    ],
)
def test_a_task_that_moved_on_meanwhile_is_left_alone(client, staff, make, deed, trait, words):
    row = make(**{trait: True})
    before = status(row)

    response = client.post(url(row, deed))

    assert said(response) == [words]
    assert status(row) == before
    assert not LogEntry.objects.exists()


def test_requeue_is_refused_while_a_live_task_holds_the_key(client, staff, make):
    row = make(failed=True, key="order:7")
    make(key="order:7")

    response = client.post(url(row, "requeue"))

    assert said(response) == ["1 left alone: a live task holds the same key."]
    assert status(row) == "FAILED"


@pytest.mark.parametrize("deed", ["requeue", "cancel"])
def test_get_changes_nothing(client, staff, make, deed):
    row = make(**({"failed": True} if deed == "requeue" else {}))
    before = status(row)

    assert client.get(url(row, deed)).status_code == 405
    assert status(row) == before


@pytest.mark.parametrize("page", ["task", "executor"])
def test_what_is_no_id_is_a_bad_request(client, page):
    client.force_login(make_user(is_superuser=True))
    action = {"task": "cancel_selected", "executor": "quiet_selected"}[page]
    address = reverse(f"admin:jobqueue_{page}_changelist")

    assert client.post(address, {"action": action, "_selected_action": "abc", "index": "0"}).status_code == 400


@pytest.mark.parametrize("deed", ["requeue", "cancel"])
def test_post_without_the_csrf_token_is_refused(make, deed):
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user(is_superuser=True))
    row = make(**({"failed": True} if deed == "requeue" else {}))
    before = status(row)

    assert client.post(url(row, deed)).status_code == 403
    assert (
        client.post(URL, {"action": f"{deed}_selected", "_selected_action": [row.pk], "index": "0"}).status_code == 403
    )
    assert status(row) == before


@pytest.mark.parametrize(
    ("deed", "permissions"),
    [
        ("requeue", ["view_task", "cancel_task", "change_task"]),
        ("cancel", ["view_task", "requeue_task", "change_task"]),
        ("requeue", ["requeue_task"]),
        ("cancel", ["cancel_task"]),
    ],
)
def test_each_needs_a_permission_of_its_own_and_that_to_view(client, make, deed, permissions):
    client.force_login(make_user(*permissions))
    row = make(**({"failed": True} if deed == "requeue" else {}))
    before = status(row)

    assert client.post(url(row, deed)).status_code == 403
    client.post(URL, {"action": f"{deed}_selected", "_selected_action": [row.pk], "index": "0"})
    assert status(row) == before


def test_anonymous_is_sent_to_the_login(client, make):
    row = make(failed=True)

    assert "/login/" in client.post(url(row, "requeue")).url
    assert status(row) == "FAILED"


def test_buttons_are_those_of_the_state_and_the_permissions(client, make):
    failed, ready = make(failed=True), make()

    def buttons(row, *permissions):
        client.force_login(make_user("view_task", *permissions))
        content = client.get(reverse("admin:jobqueue_task_change", args=[row.pk])).content.decode()
        return [deed for deed in ("requeue", "cancel") if f'action="{url(row, deed)}"' in content]

    assert buttons(failed, "requeue_task", "cancel_task") == ["requeue"]
    assert buttons(ready, "requeue_task", "cancel_task") == ["cancel"]
    assert buttons(ready, "requeue_task") == []


@pytest.mark.parametrize("deed", ["requeue", "cancel"])
def test_a_task_that_is_gone_is_said_to_be_gone(client, staff, deed):
    response = client.post(f"/admin/jobqueue/task/{uuid4()}/{deed}/")

    assert response.url == URL
    assert "There is no task" in said(response)[0]


# --- many tasks, from the list


def test_actions_offered_are_those_permitted(client):
    client.force_login(make_user("view_task", "cancel_task"))
    TaskFactory.create()

    form = client.get(URL).context["action_form"]

    assert [name for name, _ in form.fields["action"].choices] == ["", "cancel_selected"]


def test_one_ticked_task_needs_no_confirmation(act, make):
    row = make(failed=True)

    response = act("requeue", row, index="0")

    assert response.status_code == 302
    assert status(row) == "READY"
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_several_ticked_tasks_are_confirmed_and_counted_honestly(act, make, backend):
    rows = [make(failed=True), make(failed=True), make(cancelled=True)]
    others = [make(successful=True), make()]
    bystander = make(failed=True)

    page = act("requeue", *rows, *others, index="0")
    assert page.status_code == 200
    assert {status(row) for row in rows} == {"FAILED", "CANCELLED"}
    forecast = page.context["forecast"]
    assert (forecast.acted, forecast.left) == (3, 2)

    response = act("requeue", *rows, *others, bounds=str(forecast.bounds))

    assert said(response) == ["3 requeued, 2 skipped: not FAILED or CANCELLED."]
    assert {status(row) for row in rows} == {"READY"}
    assert status(bystander) == "FAILED"


def test_each_of_a_few_tasks_has_it_in_its_history(client, act, make, staff):
    rows = [make(failed=True), make(cancelled=True)]
    ended, held = make(successful=True), make(failed=True, key="order:7")
    make(key="order:7")

    page = act("requeue", *rows, ended, held, index="0")
    act("requeue", *rows, ended, held, bounds=str(page.context["forecast"].bounds))

    logged = {entry.object_id: entry for entry in LogEntry.objects.all()}
    assert logged.keys() == {str(row.pk) for row in rows}
    assert {entry.user for entry in logged.values()} == {staff}
    assert logged[str(rows[0].pk)].object_repr == str(rows[0])
    page = client.get(reverse("admin:jobqueue_task_change", args=[rows[0].pk])).content.decode()
    assert f"{staff}: Requeue, one of 4 chosen together" in page


def test_many_tasks_share_one_entry_that_says_so(act, make, backend, monkeypatch):
    monkeypatch.setattr(actions, "EACH", 2)
    rows = [make(failed=True) for _ in range(3)]
    ended = make(successful=True)

    page = act("requeue", *rows, ended, index="0")
    act("requeue", *rows, ended, bounds=str(page.context["forecast"].bounds))

    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == (None, "4 tasks")
    assert entry.get_change_message() == (
        "Requeue: 3 requeued, 1 skipped: not FAILED or CANCELLED. "
        "Chosen by: hand. No entry for each: they were more than 2."
    )


LOCKED = "left as they are: another transaction has locked them, try again when it is over"


def test_a_locked_task_is_said_to_be_locked(act, make, monkeypatch):
    row = make()
    monkeypatch.setattr(api, "cancel", lambda ids: CancelReport(busy=frozenset(ids)))

    assert said(act("cancel", row, index="0")) == [f"1 {LOCKED}."]


def test_locked_tasks_hold_up_nobody_for_longer_than_the_budget(make, monkeypatch):
    rows = [make() for _ in range(3)]
    monkeypatch.setattr(actions, "BUDGET_SECONDS", -1.0)

    tally = actions.perform_ticked(actions.CANCEL, [row.pk for row in rows])

    assert str(tally) == f"1 cancelled, 2 {LOCKED}"


def test_a_cancelled_task_that_is_pruned_at_once_is_logged_all_the_same(act, make, monkeypatch):
    row = make()

    def cancel(ids):
        Task.objects.using(row.backend).filter(pk__in=ids).delete()
        return 1, 0, 0, 0

    monkeypatch.setattr("jobqueue.admin.tasks.CANCEL", replace(actions.CANCEL, perform=cancel))
    response = act("cancel", row, index="0")

    assert response.status_code == 302
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_a_ticked_task_that_left_the_filter_meanwhile_is_counted_as_skipped(act, make):
    rows = [make(failed=True), make(failed=True)]
    page = act("requeue", *rows, query="&status=FAILED", index="0")
    Task.objects.using(rows[0].backend).filter(pk=rows[0].pk).update(status="READY", finished_at=None)

    response = act("requeue", *rows, query="&status=FAILED", bounds=str(page.context["forecast"].bounds))

    assert said(response) == ["1 requeued, 1 skipped: not FAILED or CANCELLED."]


def test_select_across_acts_on_all_that_match_the_filter(act, make):
    rows = [make(failed=True, queue_name="emails") for _ in range(5)]
    other = make(failed=True)
    ready = make(queue_name="emails")

    response = across(act, "requeue", query="&queue=emails")

    assert said(response) == ["5 requeued."]
    assert {status(row) for row in rows} == {"READY"}
    assert (status(other), status(ready)) == ("FAILED", "READY")
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(row.pk) for row in rows}


def test_confirmation_of_all_is_small_and_says_what_will_happen(act, make):
    for _ in range(150):
        make(failed=True)
    make()

    page = act("requeue", select_across="1", index="0", _selected_action=["all"])
    content = page.content.decode()

    assert content.count('name="_selected_action"') == 1
    assert "<strong>150</strong> FAILED or CANCELLED: put back in its queue" in content
    assert "<strong>1</strong> in other states: left alone." in content
    assert len(page.context["forecast"].samples) == 10


def test_tasks_enqueued_after_the_confirmation_are_left_alone(act, make, backend):
    make(failed=True)
    page = act("requeue", select_across="1", index="0", _selected_action=["all"])
    late = make(failed=True)

    response = act("requeue", select_across="1", _selected_action=["all"], bounds=str(page.context["forecast"].bounds))

    assert said(response) == ["1 requeued."]
    assert status(late) == "FAILED"


def test_large_selections_go_in_batches(act, make, monkeypatch):
    monkeypatch.setattr(actions, "READ", 3)
    monkeypatch.setattr(actions, "BATCH", 2)
    monkeypatch.setattr(actions, "EACH", 1)
    rows = [make(failed=True) for _ in range(8)]

    response = across(act, "requeue")

    assert said(response) == ["8 requeued."]
    assert {status(row) for row in rows} == {"READY"}


def test_when_time_is_up_the_rest_is_offered_again(act, make, monkeypatch):
    monkeypatch.setattr(actions, "BATCH", 2)
    monkeypatch.setattr(actions, "EACH", 1)
    monkeypatch.setattr(actions, "BUDGET_SECONDS", -1.0)
    rows = [make(failed=True) for _ in range(5)]

    first = across(act, "requeue")
    assert first.status_code == 200
    assert said(first) == ["2 requeued; there are more."]
    assert first.context["forecast"].acted == 3

    bounds = str(first.context["forecast"].bounds)
    second = act("requeue", select_across="1", _selected_action=["all"], bounds=bounds)
    third = act("requeue", select_across="1", _selected_action=["all"], bounds=str(second.context["forecast"].bounds))

    assert third.status_code == 302
    assert {status(row) for row in rows} == {"READY"}
    assert LogEntry.objects.count() == 3


def test_cancel_across_ends_what_waits_and_tells_what_runs(act, make):
    waiting = [make(), make(scheduled=True), make(suspended=True)]
    running, ended = make(running=True), make(successful=True)

    response = across(act, "cancel")

    assert said(response) == ["3 cancelled, 1 running: told to stop."]
    assert {status(row) for row in waiting} == {"CANCELLED"}
    assert (status(running), status(ended)) == ("RUNNING", "SUCCESSFUL")


def test_nothing_to_do_is_said_and_not_logged(act, make):
    make(successful=True)

    response = across(act, "cancel")

    assert said(response) == ["no task matched."]
    assert not LogEntry.objects.exists()


@pytest.fixture
def window(monkeypatch):
    """Make the window of the list end at the third row."""
    monkeypatch.setattr(task_list, "WINDOW", 2)
    monkeypatch.setattr(task_list, "WINDOW_OF_STATUS", 2)


def failed(make, count, **columns):
    """Make tasks of a queue, the newest first, each of which failed after the one before."""
    return [make(failed=True, queue_name="emails", finished_at=ago(100 - n), **columns) for n in range(count)][::-1]


def confirm(act, page, action="requeue", query=""):
    bounds = str(page.context["forecast"].bounds)
    return act(action, query=query, select_across="1", _selected_action=["all"], bounds=bounds)


EMAILS = pytest.mark.parametrize("query", ["&queue=emails", "&status=FAILED&queue=emails"])


@EMAILS
def test_list_link_confirmation_and_reply_give_one_number(client, act, make, backend, window, monkeypatch, query):
    monkeypatch.setattr("jobqueue.admin.tasks.TaskAdmin.list_per_page", 2)
    *inside, outside, older = failed(make, 5)

    listed = client.get(f"{URL}?backend={backend}{query}").content.decode()
    page = act("requeue", query=query, select_across="1", index="0", _selected_action=["all"])
    content = page.content.decode()
    response = confirm(act, page, query=query)

    assert "Only 2 tasks were searched" in listed
    assert "Select all 3 tasks" in listed
    assert ">3 tasks<" in listed
    assert "<strong>3</strong> FAILED or CANCELLED" in content
    assert "Only 2 tasks were searched: this filter has no index. The others" in content
    assert said(response) == ["3 requeued."]
    assert {status(row) for row in inside} == {"READY"}
    assert (status(outside), status(older)) == ("FAILED", "FAILED")


@EMAILS
def test_action_finds_the_confirmed_rows_though_the_window_moved(act, make, window, query):
    *inside, outside, older = failed(make, 5)
    page = act("requeue", query=query, select_across="1", index="0", _selected_action=["all"])
    late = [make(failed=True, queue_name="emails", finished_at=now()) for _ in range(3)]

    response = confirm(act, page, query=query)

    assert said(response) == ["3 requeued."]
    assert {status(row) for row in inside} == {"READY"}
    assert {status(row) for row in (outside, older, *late)} == {"FAILED"}


@EMAILS
def test_window_does_not_move_while_the_rest_is_offered_again(act, make, window, monkeypatch, query):
    monkeypatch.setattr(actions, "EACH", 0)
    monkeypatch.setattr(actions, "BATCH", 1)
    monkeypatch.setattr(actions, "BUDGET_SECONDS", -1.0)
    *inside, outside, older = failed(make, 5)

    page = act("requeue", query=query, select_across="1", index="0", _selected_action=["all"])
    left = []
    while page.status_code == 200:
        left.append(page.context["forecast"].acted)
        page = confirm(act, page, query=query)

    assert left == [3, 2, 1]
    assert {status(row) for row in inside} == {"READY"}
    assert (status(outside), status(older)) == ("FAILED", "FAILED")


def test_a_task_that_ends_after_the_confirmation_is_left_alone(act, make):
    make(failed=True)
    row = make(running=True)
    page = act("requeue", select_across="1", index="0", _selected_action=["all"])
    Task.objects.using(row.backend).filter(pk=row.pk).update(status="FAILED", finished_at=now())

    response = confirm(act, page)

    assert said(response) == ["1 requeued."]
    assert status(row) == "FAILED"


@pytest.mark.parametrize("bounds", ["nonsense", "nonsense 2030-01-01 ", "00000000-0000-4000-8000-000000000000 never "])
def test_bounds_that_cannot_be_read_confirm_nothing(act, make, bounds):
    row = make(failed=True)

    response = act("requeue", select_across="1", _selected_action=["all"], bounds=bounds)

    assert response.context["forecast"].acted == 1
    assert status(row) == "FAILED"


def test_an_edge_of_another_list_is_a_bad_request(act, make):
    row = make(failed=True)
    bounds = f"{row.pk} {now().isoformat()} {row.pk}"

    assert (
        act("requeue", query="&status=FAILED", select_across="1", _selected_action=["all"], bounds=bounds).status_code
        == 400
    )
    assert status(row) == "FAILED"


def test_confirmation_says_whether_tasks_were_chosen_by_hand(act, make):
    rows = [make(failed=True), make(failed=True)]

    ticked = act("requeue", *rows, query="&status=FAILED", index="0").content.decode()
    across = act("requeue", query="&status=FAILED", select_across="1", index="0", _selected_action=["all"])

    assert "Chosen by hand." in ticked
    assert "<code>backend=" not in ticked
    assert "&amp;status=FAILED</code>" in across.content.decode()


def test_confirmation_escapes_what_it_shows(act, make):
    script = "<script>alert(1)</script>"
    rows = [make(failed=True, task_type=script) for _ in range(2)]

    content = act("requeue", *rows, query=f"&task={script}", index="0").content.decode()

    assert "&lt;script&gt;" in content
    assert script not in content
