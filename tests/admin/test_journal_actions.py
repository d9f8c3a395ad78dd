"""What people do with the journal of a workflow, on its page and on the command line, and what the log keeps."""

import pytest
from django.contrib.admin.models import LogEntry

from jobqueue.models import InboxMessage, JournalEntry, Task
from tests.admin.pages import BOTH, messages_of, status_of, task_url
from tests.cli.commands import jobqueue
from tests.factories import make_user
from tests.journals import make_checkout

pytestmark = BOTH


def entries_of(task):
    rows = JournalEntry.objects.using(task.backend).filter(task_id=task.pk).order_by("pk")
    return dict(rows.values_list("name", "status"))


def post(client, task, action, **data):
    return client.post(task_url(task, action), data)


def test_retry_of_a_step_is_done_at_once_and_logged(client, staff, backend):
    task = make_checkout(backend)
    answer = post(client, task, "retry", entry="notify")
    assert messages_of(answer) == ["Retried notify."]
    assert status_of(task) == "READY"
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Retried notify."]


def test_result_given_by_hand_is_validated_and_recorded(client, staff, backend):
    task = make_checkout(backend)
    page = client.get(task_url(task, "give"), {"entry": "notify"}).content.decode()
    refused = post(client, task, "give", entry="notify", value="{sent").content.decode()
    answer = post(client, task, "give", entry="notify", value='{"sent": 3}')

    assert "Give its result: notify" in page
    assert "Not valid JSON" in refused
    assert messages_of(answer) == ["Gave the result of notify."]
    row = JournalEntry.objects.using(backend).get(task_id=task.pk, name="notify")
    assert (row.status, row.value) == ("SUCCESSFUL", {"sent": 3})


def test_end_of_a_wait_counts_as_its_timeout(client, staff, backend):
    task = make_checkout(backend)
    post(client, task, "skip", entry="receive")
    assert entries_of(task)["receive"] == "TIMED_OUT"


def test_rewind_asks_with_the_entries_that_it_deletes(client, staff, backend):
    task = make_checkout(backend)
    child = Task.objects.using(backend).get(parent_id=task.pk)
    Task.objects.using(backend).filter(pk=child.pk).update(status="READY", executor_id=None)

    asked = post(client, task, "rewind", entry="pack").content.decode()
    assert "4 entries will be deleted, and their calls run again: pack, notify, sleep, receive." in asked
    assert "1 child will be cancelled if it has not ended." in asked
    assert len(entries_of(task)) == 6

    answer = post(client, task, "rewind", entry="pack", confirmed="1")
    assert messages_of(answer) == ["Rewound to pack."]
    assert list(entries_of(task)) == ["charge_card", "refund"]
    assert status_of(child) == "CANCELLED"


def test_cancel_asks_with_the_compensations_that_it_runs(client, staff, backend):
    task = make_checkout(backend)
    assert "Before it ends, 1 compensation runs: refund." in post(client, task, "cancel").content.decode()


def test_terminate_asks_and_ends_without_compensations(client, staff, backend):
    task = make_checkout(backend)
    assert "Compensations do not run" in post(client, task, "terminate").content.decode()
    assert messages_of(post(client, task, "terminate", confirmed="1")) == ["Terminated."]
    assert status_of(task) == "CANCELLED"
    assert entries_of(task)["refund"] == "WAITING"
    assert messages_of(post(client, task, "terminate", confirmed="1"))[-1].startswith("Nothing was changed")


@pytest.mark.parametrize(
    ("action", "entry", "reason"),
    [("retry", "charge_card", "successful"), ("skip", "notify", "no wait"), ("rewind", "nothing", "no entry nothing")],
)
def test_refused_action_says_why_and_is_not_logged(client, staff, backend, action, entry, reason):
    task = make_checkout(backend)
    (message,) = messages_of(post(client, task, action, entry=entry, confirmed="1"))
    assert message.startswith("Nothing was changed: ")
    assert reason in message
    assert not LogEntry.objects.exists()


def test_page_offers_what_the_entry_and_the_reader_allow(client, show, backend):
    task = make_checkout(backend)
    content = show(task)
    for offered in ("/retry/", "/give/?entry=notify", "/skip/", "/rewind/", "/terminate/"):
        assert offered in content
    assert content.count("/retry/") == 1

    client.force_login(make_user("view_task"))
    content = client.get(task_url(task)).content.decode()
    assert not any(name in content for name in ("/retry/", "/give/", "/skip/", "/rewind/", "/terminate/"))


def test_commands_change_the_journal(backend):
    task = make_checkout(backend)
    assert jobqueue("workflow", "retry", task.pk, "notify").out == "Retried notify.\n"
    assert "not valid JSON" in jobqueue("workflow", "give", task.pk, "notify", "sent").err
    assert jobqueue("workflow", "give", task.pk, "notify", '"sent"', "--json").json["name"] == "notify"
    assert jobqueue("workflow", "skip", task.pk, "receive").code == 0
    would = jobqueue("workflow", "rewind", task.pk, "pack", "--dry-run")
    assert would.out.startswith("Would delete 4 entries (pack, notify, sleep, receive)")
    assert jobqueue("workflow", "rewind", task.pk, "notify", "--yes").code == 0
    assert list(entries_of(task)) == ["charge_card", "refund", "pack"]
    assert jobqueue("workflow", "terminate", task.pk, "--yes").out == "Terminated.\n"
    assert jobqueue("workflow", "terminate", task.pk, "--yes").code == 1
    assert jobqueue("workflow", "retry", task.pk, "nothing").code == 1
    assert jobqueue("workflow").code == 2


def test_waiting_workflow_of_the_site_takes_the_messages_it_waits_for(client, show, backend):
    waiting = {"name": "receive", "kind": "receive", "types": ["Approval", "dict"]}
    task = make_checkout(backend, task_type="tests.workflows.approve", inner_state={"code": "a", "waiting": waiting})
    content = show(task)
    assert "Send Approval" in content

    invalid = post(client, task, "send", **{"kind": "Approval", "Approval-by": "anna", "Approval-amount": "many"})
    assert "Please correct the error below" in invalid.content.decode()
    answer = post(client, task, "send", **{"kind": "Approval", "Approval-by": "anna", "Approval-amount": "3"})

    assert answer.status_code == 302
    body = InboxMessage.objects.using(backend).get(task_id=task.pk).body
    assert body == {"type": "Approval", "by": "anna", "amount": 3}
