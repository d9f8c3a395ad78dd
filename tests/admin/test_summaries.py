"""The pages of one task type and of one queue."""

from __future__ import annotations

import pytest

from tests.admin.pages import BOTH, SCRIPT
from tests.admin.test_overview import histogram
from tests.factories import PeriodFactory, error, make_user

pytestmark = BOTH
TASK = "shop.tasks.send_receipt"
PAGES = {"task": ("task/summary/", TASK), "queue": ("queue/summary/", "e mails/ü")}


@pytest.fixture(params=PAGES)
def scope(request):
    return request.param


@pytest.fixture
def period(backend, scope):
    def create(**columns):
        columns = {"scope": scope, "name": PAGES[scope][1], **columns}
        return PeriodFactory.create(backend=backend, using=backend, **columns)

    return create


def test_page_shows_the_numbers_of_one_name(period, show, scope):
    slow = histogram(**{"_0.3": 90, "_7": 10})
    numbers = {"completed": 75, "dead": 25, "retries": 8, "attempts": 108, "submitted": 1234, "lost": 3}
    period(**numbers, waits=slow, wait_seconds=50.0, runs=histogram(_2=100), run_seconds=200.0)
    period(name="other", completed=500, attempts=500)
    path, name = PAGES[scope]

    content = show(path, name=name)

    for text in ("1,234", ">108<", ">75<", ">25<", ">8<", "25.0 %", ">3<"):
        assert text in content
    assert "<td>500 ms</td><td>389 ms</td><td>8 s</td><td>10 s</td>" in content
    assert "75 successful, 8 failed with a retry, 25 failed." in content
    assert content.count('class="jq-hover"') == 120
    assert "500 successful" not in content


def test_times_above_an_hour_are_over_60_minutes_not_60(period, show, scope):
    slow = histogram(**{"_0.3": 90, "_25000": 10})
    period(attempts=100, completed=100, waits=slow, wait_seconds=250_000.0, runs=slow, run_seconds=250_000.0)
    path, name = PAGES[scope]

    assert show(path, name=name).count("<td>42 min</td><td>389 ms</td><td>over 60 min</td><td>over 60 min</td>") == 2


def test_range_is_kept_with_the_name(show, scope):
    path, name = PAGES[scope]
    content = show(path, name=name, range="week")

    assert content.count('class="jq-hover"') == 2 * 168
    assert "range=day" in content
    assert content.count("name=") >= 2


def test_page_lists_the_last_failures_and_links_to_tasks(make, show, scope):
    path, name = PAGES[scope]
    here = {"queue_name": name} if scope == "queue" else {"task_type": name}
    failed = make(failed=True, **here, errors=[error("no token hunter2hunter2")], kwargs={"token": "hunter2hunter2"})
    make(failed=True, task_type="other", queue_name="other", errors=[error("elsewhere")])

    content = show(path, name=name)

    assert f"/admin/jobqueue/task/{failed.pk}/change/" in content
    assert "SMTPServerBusy: no token" in content
    assert "hunter2" not in content
    assert "elsewhere" not in content
    assert f"/admin/jobqueue/task/?{scope}=" in content


def test_page_of_an_unknown_name_says_that_nothing_ran(show, scope):
    content = show(PAGES[scope][0], name=SCRIPT)

    assert content.count("Nothing ran in this time.") == 2
    assert "No failed task." in content
    assert SCRIPT not in content


def test_page_needs_the_permission_of_its_model(client, make, scope, backend):
    path, name = PAGES[scope]
    make(failed=True, queue_name=name)
    other = "queue" if scope == "task" else "task"
    client.force_login(make_user(f"view_{other}"))
    assert client.get(f"/admin/jobqueue/{path}").status_code == 403
    client.force_login(make_user(f"view_{scope}"))

    content = client.get(f"/admin/jobqueue/{path}", {"name": name, "backend": backend}).content.decode()

    assert ("SMTPServerBusy: hidden" in content) == (scope == "task")
    assert ("/admin/jobqueue/task/" in content) == (scope == "task")


def test_overview_and_queues_link_to_the_pages(show, backend, make):
    PeriodFactory.create(backend=backend, using=backend, scope="task", name=TASK, attempts=1)
    make(queue_name="e mails/ü")

    assert f"/admin/jobqueue/task/summary/?name={TASK}&amp;backend={backend}" in show("")
    assert f"/admin/jobqueue/queue/summary/?name=e%20mails%2F%C3%BC&amp;backend={backend}" in show("queue/")
