"""`workflows`: live workflows by version and wait. What `doctor` finds about them, and their metrics."""

import pytest
from msgspec.structs import asdict

from jobqueue.http.metrics import read_metrics
from jobqueue.models import JournalEntry, Task
from jobqueue.operations.overview import workflows
from tests.cli.commands import BOTH, jobqueue
from tests.factories import ExecutorFactory, TaskFactory, ago, now
from tests.journals import CHECKOUT, make_checkout

pytestmark = BOTH


def doctor(backend):
    return " ".join(jobqueue("doctor", "--backend", backend).out.split())


def wait_for(backend, **waiting):
    state = {"code": "c0de", "waiting": {"name": "gather", **waiting}}
    return make_checkout(backend, inner_state=state, last_attempted_at=ago(3600))


def test_workflows_are_counted_by_version_and_wait(backend):
    make_checkout(backend)
    make_checkout(backend)
    make_checkout(backend, status="RUNNING", inner_state={"code": "c0de"})
    wait_for(backend, kind="sleep", until=now().isoformat())
    TaskFactory.create(backend=backend, using=backend, suspended=True, inner_state={"total": 3})

    printed = jobqueue("workflows", "--backend", backend).out
    rows = jobqueue("workflows", "--backend", backend, "--json").json

    assert [line.split() for line in printed.splitlines()[1:]] == [
        ["checkout", "3f2a9c01", "SUSPENDED", "Shipped", "or", "CancelOrder", "2"],
        ["checkout", "c0de", "RUNNING", "–", "1"],
        ["checkout", "c0de", "SUSPENDED", "a", "time", "1"],
    ]
    assert [(row["code"], row["status"], row["number"]) for row in rows] == [
        ("3f2a9c01", "SUSPENDED", 2), ("c0de", "RUNNING", 1), ("c0de", "SUSPENDED", 1),
    ]  # fmt: skip


def test_page_of_workflows_shows_their_versions(show, backend):
    assert "No workflow is live." in show("task/workflows/")
    make_checkout(backend)
    content = show("task/workflows/")
    for words in ("<code>3f2a9c01</code>", "Shipped or CancelOrder", "?task=shop.tasks.checkout&amp;status=SUSPENDED"):
        assert words in content


def test_metrics_count_workflows_by_version(backend):
    make_checkout(backend)
    make_checkout(backend, status="RUNNING", inner_state={"code": "c0de"})
    counted = [asdict(row) for row in read_metrics().workflows if row.backend == backend]
    assert counted == [
        {"backend": backend, "task_type": CHECKOUT, "code": "3f2a9c01", "waiting": 1, "running": 0},
        {"backend": backend, "task_type": CHECKOUT, "code": "c0de", "waiting": 0, "running": 1},
    ]


def test_workflows_without_any_says_so(backend):
    result = jobqueue("workflows", "--backend", backend)
    assert (result.out, result.err) == ("", "No workflow is live.\n")


def test_doctor_finds_waits_for_children_that_are_gone(backend):
    task = wait_for(backend, kind="children", children=["pack"], count=1)
    assert "nothing can end the wait" not in doctor(backend)

    Task.objects.using(backend).filter(parent_id=task.pk).update(status="SUCCESSFUL", finished_at=ago(3000))

    assert f"nothing can end the wait of 1 workflow, because its children are gone: {task.pk}." in doctor(backend)


@pytest.mark.parametrize("column", ["wake_at", "last_attempted_at"])
def test_doctor_accepts_waits_for_children_with_another_end(backend, column):
    task = wait_for(backend, kind="children", children=["pack"], count=1)
    Task.objects.using(backend).filter(parent_id=task.pk).delete()
    Task.objects.using(backend).filter(pk=task.pk).update(**{column: now()})
    assert "nothing can end the wait" not in doctor(backend)


def test_doctor_accepts_a_wait_for_messages_without_a_timeout(backend):
    wait_for(backend, kind="receive", types=["Shipped"])
    assert "nothing can end the wait" not in doctor(backend)


def test_doctor_finds_waiting_workflows_whose_code_is_gone(backend):
    make_checkout(backend)
    executor = ExecutorFactory.create(backend=backend, using=backend, task_types=["tests.tasks.add"])
    assert f"no running executor has the code of 1 waiting workflow {CHECKOUT}." in doctor(backend)

    type(executor).objects.using(backend).update(task_types=[CHECKOUT])

    assert "has the code of" not in doctor(backend)


def test_doctor_finds_journals_near_their_limit(backend, monkeypatch):
    monkeypatch.setattr(workflows, "NEAR_LIMIT", 20)
    task = make_checkout(backend)
    assert "has more than" not in doctor(backend)

    entries = (JournalEntry(task_id=task.pk, name=f"x#{n}", kind="STEP", status="SUCCESSFUL") for n in range(20))
    JournalEntry.objects.using(backend).bulk_create(entries)

    assert "the journal of 1 workflow has more than 20 of 10,000 entries" in doctor(backend)
