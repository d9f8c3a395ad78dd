"""The timeline of a task: attempts, polls and requeues, on its page and in `jobqueue show`."""

import json
from datetime import timedelta

import pytest
from django.urls import reverse

from jobqueue import task
from jobqueue.admin.html import foldable
from jobqueue.engine import engine_for
from jobqueue.models import TaskLog, TaskProgress
from jobqueue.operations.task.detail import describe_task, find_task
from jobqueue.values.history import Event, format_line
from jobqueue.values.reports import LogLine, as_text
from tests.actors import Fibonacci
from tests.admin.pages import BOTH, reload, task_url
from tests.cli.commands import jobqueue
from tests.factories import ago, error, make_user, now

pytestmark = BOTH
DIV = '<div class="jq-value jq-json" tabindex="0">'


@task
def send_secret(token: str) -> None: ...


@pytest.fixture
def timeline():
    def read(row):
        task = find_task(str(row.pk), [row.backend])
        assert task is not None
        return describe_task(task, with_payload=False)["timeline"]

    return read


def labels_of(steps):
    return [(step.label, step.status or step.note) for step in steps]


def test_timeline_of_plain_task_has_one_row_from_its_columns(make, timeline, make_executor):
    executor = make_executor(name="web-7")
    row = make(successful=True, worker_ids=[str(executor.pk)])

    (step,) = timeline(row).steps

    assert (step.label, step.status, step.executor, step.executor_id) == (
        "Attempt 1 of 4", "SUCCESSFUL", "web-7", executor.pk
    )  # fmt: skip
    assert (round(step.wait_seconds), round(step.run_seconds)) == (28, 2)


def test_timeline_shows_failed_attempts_and_the_last_one(make, timeline, show, make_executor):
    executor = make_executor(name="web-7")
    first = error(attempt=1, executor="web-7", wait_seconds=0.25, run_seconds=3.0)
    errors = [first, error("no start", run_seconds=None)]
    row = make(successful=True, attempts=1, errors=errors)

    steps = timeline(row).steps

    assert labels_of(steps) == [
        ("Attempt 2 of 4", "SUCCESSFUL"), ("Not counted", "FAILED"), ("Attempt 1 of 4", "FAILED")
    ]  # fmt: skip
    page = show(row)
    assert reverse("admin:jobqueue_executor_change", args=[executor.pk]) in page
    assert "250 ms" in page
    assert "3 s" in page


def test_timeline_has_divider_that_names_who_requeued(client, staff, make, timeline):
    row = make(failed=True, attempts=1, errors=[error(attempt=1)])
    client.post(task_url(row, "requeue"))

    assert labels_of(timeline(row).steps) == [("", f"Requeued by {staff}"), ("Attempt 1 of 4", "FAILED")]


def test_divider_does_not_name_who_did_something_else(client, staff, make, timeline, backend):
    row = make(failed=True, attempts=1, errors=[error(attempt=1)])
    engine_for(backend).tasks.requeue([row.pk])
    client.post(task_url(row, "cancel"))

    assert ("", "Requeued") in labels_of(timeline(row).steps)


def test_timeline_of_actor_numbers_its_polls(make, timeline):
    lines = [
        format_line(Event.POLLED, ago(50), 0.1, 0.2, "web-1", consumed=1, spawned=2, sent=3),
        format_line(Event.RELEASED, ago(45), 0.1, 0.2, "web-1"),
        format_line(Event.SUSPENDED, ago(40), 0.1, 0.2, "web-1"),
    ]
    row = make(
        successful=True, task_type=Fibonacci.task.task_type, polls=9, history="".join(lines),
        errors=[error(attempt=1, at=ago(42).isoformat())],
    )  # fmt: skip

    history = timeline(row)

    assert labels_of(history.steps) == [
        ("Poll 9", "SUCCESSFUL"),
        ("Poll 8", "SUSPENDED"),
        ("Poll 8, attempt 1 of 4", "FAILED"),
        ("Poll 8", "READY"),
        ("Poll 7", "READY"),
    ]
    assert history.steps[-1].note == "1 message read, 2 children spawned, 3 messages sent"
    assert history.is_truncated


def test_timeline_skips_lines_of_history_that_cannot_be_read(make, show, timeline):
    last = format_line(Event.SUSPENDED, ago(9))
    row = make(suspended=True, history=f'ED",1]\n[]\nx\n["NEW",1]\n["POLLED",1e300]\n{last}')

    assert [step.status for step in timeline(row).steps] == ["SUSPENDED", "READY"]
    assert "Timeline" in show(row)


def test_timeline_shows_running_attempt(make, timeline, make_executor):
    executor = make_executor()
    (step,) = timeline(make(running=True, executor_id=executor.pk, attempts=2)).steps

    assert (step.label, step.status, step.executor_id) == ("Attempt 3 of 4", "RUNNING", executor.pk)
    assert 11 < step.run_seconds < 60


def test_show_prints_the_timeline(make):
    row = make(successful=True, attempts=1, errors=[error(attempt=1, run_seconds=3.0)])

    lines = jobqueue("show", row.pk).out.splitlines()
    steps = json.loads(jobqueue("show", row.pk, "--json").out)["timeline"]

    timeline = lines[lines.index("Timeline") :]
    assert timeline[1].endswith("Attempt 1 of 4: failed, took 3 s, on web-1")
    assert any("Attempt 2 of 4: successful, waited" in line for line in timeline)
    assert [(step["event"], step["attempt"]) for step in steps] == [("FAILED", 1), ("SUCCESSFUL", 2)]


def test_requeue_is_remembered_by_the_row(make):
    row = make(failed=True)

    jobqueue("requeue", row.pk)

    assert str(reload(row).history).startswith('["REQUEUED",')


@pytest.mark.parametrize("value", [{"a": [1, {"b": "]"}], "c": {}, "d": "{"}, ["<b>", [], [[1], 2]], [[[[[[1]]]]]]])
def test_folded_json_keeps_its_text(value):
    text = json.dumps(value, indent=2)

    html = foldable(text)

    assert html.count("<details") == html.count("</details>") > 0
    plain = str(html)
    for tag in ("<details open>", "</details>", "<summary>", "</summary>"):
        plain = plain.replace(tag, "")
    assert "<b>" not in html
    for escaped, character in (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">")):
        plain = plain.replace(escaped, character)
    assert plain.removeprefix(DIV).removesuffix("\n</div>") == text


def test_folded_json_that_was_cut_closes_its_tags():
    html = foldable('{\n  "a": [\n    1,\n    2,\n    "unfini')

    assert html.count("<details") == html.count("</details>") == 2


def test_children_have_bars_on_one_scale(make, show):
    parent = make(suspended=True, task_type=Fibonacci.task.task_type)
    end = now()
    first, middle = end - timedelta(seconds=100), end - timedelta(seconds=50)
    make(parent_id=parent.pk, successful=True, enqueued_at=first, started_at=middle, finished_at=end)
    make(parent_id=parent.pk, cancelled=True, enqueued_at=first, finished_at=end)

    page = show(parent)

    assert '<rect x="500" y="1" width="500" height="8"/>' in page
    assert "waited 50 s, since then 50 s" in page
    assert 'aria-label="waited 2 min"' in page


# --- progress


@pytest.fixture
def report(backend):
    def write(row, **columns):
        values = {"claim_number": row.claim_number, "done": 450, "total": 1000, "note": "", "reported_at": ago(1)}
        TaskProgress.objects.using(backend).create(task_id=row.pk, **values | columns)

    return write


def test_page_shows_progress_with_a_bar(make, show, report, make_executor):
    row = make(running=True, executor_id=make_executor().pk)
    report(row, note="row 450")

    page = show(row)

    assert '<progress class="jq-progress" max="1000" value="450"' in page
    assert "450 of 1,000 (45 %)" in page
    assert "row 450" in page
    assert "About 1" in page  # 13 or 14 s left
    assert "By an earlier attempt." not in page


def test_progress_of_an_earlier_attempt_is_marked(make, show, report):
    row = make(running=True, claim_number=2)
    report(row, claim_number=1, total=None)

    page = show(row)

    assert "By an earlier attempt." in page
    assert "left." not in page
    assert "<progress" not in page


def test_note_of_progress_is_masked_and_hidden_like_arguments(client, make, show, report):
    row = make(successful=True, task_type=send_secret.task_type, kwargs={"token": "hunter22"})
    report(row, note="used hunter22 for it")

    page = show(row)
    assert "used" in page
    assert "hunter22" not in page
    client.force_login(make_user("view_task"))
    assert "for it" not in client.get(task_url(row)).content.decode()
    assert "450 of 1,000" in client.get(task_url(row)).content.decode()


def test_show_prints_progress(make, report):
    row = make(successful=True)
    report(row, note="nearly")

    assert "450 of 1,000 (45 %), nearly" in jobqueue("show", row.pk).out
    assert json.loads(jobqueue("show", row.pk, "--json").out)["progress"]["done"] == 450


# --- the log


@pytest.fixture
def log(backend):
    def write(row, *messages, claim_number=1, dropped=0, level="INFO"):
        lines = as_text(
            [LogLine(at=1_795_000_000.25, level=level, logger="shop.mail", message=message) for message in messages]
        )
        TaskLog.objects.using(backend).create(task_id=row.pk, claim_number=claim_number, dropped=dropped, lines=lines)

    return write


def test_log_is_shown_with_the_attempt_that_wrote_it(make, show, timeline, log):
    errors = [error(attempt=1, claim_number=1), error(attempt=2, claim_number=["no number"])]
    history = format_line(Event.RELEASED, ago(50), claim_number=3)
    row = make(successful=True, attempts=2, errors=errors, history=history, claim_number=4)
    for number in (1, 3, 4, 5):
        log(row, f"of claim {number}", claim_number=number)
    log(row, "last", claim_number=7, dropped=3, level="ERROR")

    page = show(row)

    assert "Log: 1 line" in page
    assert [page.count(f"of claim {number}") for number in (1, 3, 4, 5)] == [1, 1, 1, 0]


def test_log_says_how_many_lines_are_missing(make, show, log):
    row = make(successful=True, claim_number=1)
    log(row, "one", "two", dropped=1200, level="ERROR")

    page = show(row)

    assert "Log: 2 lines" in page
    assert "1200 earlier lines were not kept." in page
    assert "ERROR shop.mail: one" in page


def test_log_is_masked_and_hidden_like_arguments(client, make, show, log):
    row = make(successful=True, task_type=send_secret.task_type, kwargs={"token": "hunter22"}, claim_number=1)
    log(row, "used hunter22 for it")

    page = show(row)
    assert "for it" in page
    assert "hunter22" not in page
    client.force_login(make_user("view_task"))
    assert "for it" not in client.get(task_url(row)).content.decode()


def test_log_that_cannot_be_read_shows_no_lines(make, show, backend):
    row = make(successful=True, claim_number=1)
    TaskLog.objects.using(backend).create(task_id=row.pk, claim_number=1, dropped=0, lines="[1")

    assert "Log: 0 lines" in show(row)


def test_show_prints_the_log(make, log):
    row = make(successful=True, claim_number=1)
    log(row, "sent", dropped=2)

    lines = [line.strip() for line in jobqueue("show", row.pk).out.splitlines()]
    steps = json.loads(jobqueue("show", row.pk, "--json").out)["timeline"]

    start = lines.index("Log: 1 line")
    assert lines[start + 1] == "2 earlier lines were not kept."
    assert lines[start + 2].endswith(".250 INFO shop.mail: sent")
    assert steps[0]["log"]["dropped"] == 2
    assert steps[0]["log"]["lines"][0]["message"] == "sent"
