"""The journal on the page of a workflow: its entries, and what readers without permissions see."""

import html
import re

from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.models import JournalEntry
from jobqueue.operations.task.journal import PAGE
from jobqueue.values.redaction import MASK
from tests.admin.pages import BOTH, SCRIPT, task_url
from tests.cli.commands import jobqueue
from tests.factories import error, make_user
from tests.journals import SECRET, add, make_checkout

pytestmark = BOTH


def text_of(content: str) -> str:
    """Return a page's text without tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", content.replace("<wbr>", ""))).split())


def test_page_of_a_workflow_says_what_ends_its_wait(show, backend):
    content = text_of(show(make_checkout(backend)))
    assert re.search(r"Waits for Shipped or CancelOrder until \w+day \d\d:\d\d\.", content)
    assert "Waiting for a message" not in content


def test_page_of_a_workflow_shows_each_entry_with_its_outcome(show, backend):
    content = text_of(show(make_checkout(backend)))
    for words in (
        "charge_card step ✓Successful", "refund compensation ❚❚Waiting runs after an error or a cancel",
        "pack child ❚❚Waiting", "notify step ↻Retrying next attempt:", "sleep sleep ✓Successful",
        "receive wait for a message ❚❚Waiting until",
    ):  # fmt: skip
        assert words in content
    assert 'charge="ch_42"' in content
    assert "Version of the code3f2a9c01" in content


def test_child_in_a_journal_has_a_bar_and_a_link(show, backend):
    task = make_checkout(backend)
    child = JournalEntry.objects.using(backend).get(task_id=task.pk, name="pack").child_id
    (cell,) = re.findall(r'<p class="jq-child">.*?</p>', show(task), re.DOTALL)
    assert "jq-span jq-running" in cell
    assert f"/task/{child}/change/" in cell


def test_values_of_a_journal_are_masked_like_arguments(show, backend):
    task = make_checkout(backend)
    content = show(task)
    assert MASK in content
    assert f"paid with {SECRET}" not in content  # the token is masked, so it is wherever it is repeated
    assert f"no answer for {SECRET}" not in content


def test_values_and_errors_of_a_journal_need_the_permission(client, backend):
    task = make_checkout(backend)
    client.force_login(make_user("view_task"))
    content = text_of(client.get(task_url(task)).content.decode())
    assert "charge_card" in content
    for hidden in ("ch_42", "order_id", "no answer", "Traceback"):
        assert hidden not in content


def test_values_of_a_journal_are_escaped(show, backend):
    task = make_checkout(backend)
    add(task, SCRIPT, kind=SCRIPT[:16], arguments={SCRIPT: SCRIPT}, value=SCRIPT, error=error(SCRIPT))
    assert SCRIPT not in show(task)


def test_journal_of_values_that_are_no_entries_is_shown(show, backend):
    task = make_checkout(backend, inner_state={"waiting": 3})
    add(task, "odd", arguments=[SECRET, 1], value=[1] * 30_000, error=7)
    content = text_of(show(task))
    assert "odd step" in content
    assert SECRET not in content.partition("odd step")[2]
    assert "Not shown: too large" in content


def test_long_journal_is_shown_in_pages_with_few_queries(show, backend, client):
    task = make_checkout(backend)
    with CaptureQueriesContext(connections[backend]) as few:
        show(task)
    JournalEntry.objects.using(backend).bulk_create(
        JournalEntry(task_id=task.pk, name=f"ship#{n}", kind="STEP", status="SUCCESSFUL") for n in range(2, PAGE * 2)
    )
    with CaptureQueriesContext(connections[backend]) as many:
        newest = show(task)
    (older,) = set(re.findall(r"\?before=(\d+)#jq-journal", newest))
    middle = show(task, before=older)
    numbers = sorted(map(int, re.findall(r"before=(\d+)#", middle)))
    oldest = show(task, before=numbers[0])

    assert len(many) <= len(few)
    assert newest.count('class="jq-above') == 0 or newest.count('<th scope="row">') <= PAGE + 20
    assert "ship#399" in newest.replace("<wbr>", "")
    assert "charge_card" not in text_of(newest)
    assert "charge_card" in text_of(oldest)
    assert "Older entries" not in oldest
    assert "charge_card" in text_of(show(task, before=str(10**30))) or "ship#399" in show(task, before="x")


def test_task_without_a_journal_shows_none(show, make):
    assert "jq-journal" not in show(make(suspended=True, inner_state={"total": 3}))


def test_state_of_a_workflow_is_not_shown_beside_its_journal(show, backend):
    assert 'id="jq-state"' not in show(make_checkout(backend, task_type="tests.workflows.approve"))


def test_show_prints_the_journal_on_request(backend):
    task = make_checkout(backend)
    without, printed = jobqueue("show", task.pk).out, jobqueue("show", task.pk, "--journal").out
    assert "Journal" not in without
    assert "charge_card step successful" in " ".join(printed.split())
    assert "refund compensation waiting, runs after an error or a cancel" in " ".join(printed.split())
    assert SECRET not in printed.partition("notify")[2]
    (entry, *_others) = jobqueue("show", task.pk, "--journal", "--json").json["journal"]["entries"]
    assert (entry["name"], entry["kind"], entry["status"]) == ("charge_card", "STEP", "SUCCESSFUL")
