"""The overview at the index of the app."""

from __future__ import annotations

import html
import re
from copy import copy
from datetime import timedelta

import pytest
from django.core import checks
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue import requeue
from jobqueue.models import Task
from jobqueue.operations.overview import server_findings
from jobqueue.values.counters import EDGES, bucket
from jobqueue.values.ids import new_id
from tests.admin.pages import BOTH, SCRIPT
from tests.factories import PeriodFactory, QueueFactory, ScheduleFactory, TaskFactory, ago, error, make_user, now

pytestmark = BOTH


@pytest.fixture(autouse=True)
def durable_server(monkeypatch):
    """The server of the tests may lose data."""
    monkeypatch.setattr(server_findings, "SAFETY", {})


def histogram(**seconds):
    """Return how many attempts took how long: histogram(_1=3) are three that took 1 s."""
    counts = [0] * (len(EDGES) + 1)
    for words, number in seconds.items():
        counts[bucket(float(words.removeprefix("_")))] += number
    return counts


@pytest.fixture
def period(backend):
    """Store the counters of a minute, or of an hour."""

    def create(**columns):
        return PeriodFactory.create(backend=backend, using=backend, **columns)

    return create


def block_many(make):
    row = make(blocked=True)
    copies = [copy(row) for _ in range(999)]
    for task_copy in copies:
        task_copy.pk = new_id()
    Task.objects.using(row._state.db).bulk_create(copies)


def figures(content):
    pairs = re.findall(r"jq-figure[^>]*>([^<]*)</span> <span>([^<]*)", content)
    return {name: number for number, name in pairs}


def test_overview_shows_five_numbers(make, make_executor, show):
    executor = make_executor()
    held = {"concurrency_key": "slots:a"}
    running = {"running": True, "executor_id": executor.pk, **held}
    for traits in (running, {}, {}, {"scheduled": True}, {"blocked": True, **held}):
        make(**traits)
    make(failed=True)
    make(failed=True, finished_at=ago(2 * 86_400))

    content = show("")

    assert figures(content) == {
        "Running": "1",
        "Ready": "2",
        "Blocked and scheduled": "2",
        "Failed in 24 h": "1",
        "Executors": "1",
    }
    assert "No problem found" in content


@pytest.mark.parametrize(
    ("link", "expected"), [("Running", 1), ("Failed in 24 h", 1), ("2 blocked", 2), ("1 scheduled", 1)]
)
def test_figures_lead_to_the_rows_that_they_count(client, make, show, link, expected):
    for traits in ({"running": True}, {"scheduled": True}, {"blocked": True}, {"blocked": True}):
        make(**traits)
    make(failed=True)
    make(failed=True, finished_at=ago(2 * 86_400))

    content = re.sub(r"<span[^>]*jq-figure[^>]*>[^<]*</span> <span>", "", show(""))
    (address,) = re.findall(rf'href="([^"]*)">{link}<', content)

    assert client.get(html.unescape(address)).context["cl"].result_count == expected


@pytest.mark.parametrize(
    ("rows", "words", "address"),
    [
        (
            lambda make, make_executor: make(queue_name="e mails"),
            "Queue e mails: 1 READY, a latency of 60 s, and no executor serves it.",
            "task/?status=READY&amp;queue=e+mails",
        ),
        (
            lambda make, make_executor: make_executor() and make(enqueued_at=ago(1000), rank=ago(1000)),
            "Queue default: 1 READY, a latency of 17 min, and 1 executor.",
            "task/?status=READY&amp;queue=default",
        ),
        (
            lambda make, make_executor: make_executor(lost=True),
            "1 executor died without shutting down in the last 24 h",
            "executor/?",
        ),
        (
            lambda make, make_executor: make_executor(problem="Stuck for 40 s.", name="web-1"),
            "1 executor without progress: web-1. Stuck for 40 s.",
            "executor/?",
        ),
        (
            lambda make, make_executor: make_executor(waiting_for_connections=2, name="web-1"),
            "2 tasks wait for database connections, which other async tasks keep",
            "executor/?",
        ),
        (
            lambda make, make_executor: make_executor() and block_many(make),
            "Queue default: limits block 1,000 tasks.",
            "task/?status=BLOCKED&amp;queue=default",
        ),
    ],
)
def test_problems_are_sentences_with_a_link_to_the_rows(make, make_executor, show, rows, words, address):
    rows(make, make_executor)

    content = show("")

    assert re.search(f'href="/admin/jobqueue/{re.escape(address)}[^"]*">[^<]*{re.escape(words)}', content)
    assert "No problem found" not in content


def test_warnings_of_the_system_checks_are_problems(make_executor, show, monkeypatch):
    make_executor()
    warning = checks.Warning("The template names no argument.", hint="Name one.", id="jobqueue.W006")
    monkeypatch.setattr("jobqueue.admin.overview.run_checks", lambda: [warning])

    content = show("")

    assert "The template names no argument." in content
    assert "Name one." in content


def test_causes_of_most_failures_come_first(make, show):
    for number, frequency in enumerate((1, 3, 1, 1, 1, 1)):  # the last one is the newest
        entry = error(f"cause {chr(97 + number)}")
        for _ in range(frequency):
            make(failed=True, errors=[entry], cause=f"{number:016}", finished_at=ago(9 - number))

    content = show("")

    assert re.findall(r'jq-error">[^<]*(cause \w)', content)[0] == "cause b"
    assert "Only the most frequent causes of the last failures are shown." in content


def test_failures_that_rise_are_a_problem_until_they_are_requeued(make_executor, show, period, make, backend):
    make_executor()
    failed = [make(failed=True, finished_at=ago(600)) for _ in range(12)]
    for hours in range(1, 25):
        start = (now() - timedelta(hours=hours)).replace(minute=0, second=0, microsecond=0)
        period(hour=True, start=start, dead=4)
    period(dead=11)
    period(hour=True, dead=11)
    assert "failures in the last hour" not in show("")

    period(dead=30, start=(now() - timedelta(minutes=3)).replace(second=0, microsecond=0))

    problem = "41 failures in the last hour, 3 an hour in the day before. Still failed: 12 tasks."
    assert problem in show("")
    requeue([row.pk for row in failed[:3]], backend=backend)
    assert "41 failures in the last hour" not in show("")


@pytest.mark.parametrize(("selected", "points"), [("hour", 60), ("day", 96), ("week", 168), ("year", 60)])
def test_charts_show_a_range_and_the_same_as_a_table(show, period, selected, points):
    for length in ("minute", "hour"):
        columns = {"hour": True} if length == "hour" else {}
        waits = histogram(**{"_0.3": 9, "_7": 1})
        period(**columns, attempts=10, completed=6, retries=3, dead=1, failed=4, waits=waits)

    content = show("", range=selected)

    assert content.count('class="jq-hover"') == 2 * points
    assert "6 successful, 3 failed with a retry, 1 failed." in content
    assert "Median wait at most 389 ms; 95% within 8 s." in content
    tables = re.findall(r"<tbody>(.*?)</tbody></table></details>", content, re.DOTALL)
    assert [table.count("<tr>") for table in tables] == [points, points]


@pytest.mark.parametrize(
    ("waits", "summary", "p50", "p95"),
    [
        (
            {"_7": 90, "_25000": 10},
            "Median wait at most 8 s; more than 5% waited over 60 min.",
            "8 s", "over 60 min",
        ),
        ({"_25000": 10}, "Median wait: over 60 min.", "over 60 min", "over 60 min"),
        ({"_3599": 10}, "Median wait at most 38 min; 95% within 58 min.", "38 min", "58 min"),
    ],
)  # fmt: skip
def test_waits_above_an_hour_are_over_60_minutes_not_60(show, period, waits, summary, p50, p95):
    period(attempts=100, completed=100, waits=histogram(**waits))

    content = show("")

    assert content.count(summary) == 3  # seen, heard, and after a column was shown
    assert re.search(rf"<td>{p50}</td><td>{p95}</td>", content)
    assert re.search(rf": p50 \(half of them\) {p50}, p95 \(95 of 100\) {p95}</title>", content)


def test_charts_without_counters_say_that_nothing_ran(show):
    assert show("").count("Nothing ran in this time.") == 2


def test_tasks_are_listed_by_frequency_and_by_time(show, period):
    period(scope="task", name="shop.tasks.frequent", attempts=100, run_seconds=10.0)
    period(scope="task", name="shop.tasks.slow", attempts=2, run_seconds=20.0, dead=1)

    content = show("")

    frequent, slow = content.index("Most frequent tasks"), content.index("Slowest tasks")
    tables = content[frequent:slow], content[slow:]
    rows = [re.findall(r"shop\.tasks\.(\w+)\">", table) for table in tables]
    assert rows == [["frequent", "slow"], ["slow", "frequent"]]
    assert "<td>100 ms</td>" in tables[0]
    assert "<td>10 s</td>" in tables[1]


@pytest.mark.parametrize(
    ("codename", "visible"),
    [
        ("view_task", ["Running", "Successes and failures per minute", "no executor serves it"]),
        ("view_executor", ["Last heartbeat"]),
        ("view_queue", []),
        ("view_schedule", ["due 17 min ago"]),
    ],
)
def test_overview_shows_only_what_the_user_may_view(client, make, make_executor, backend, codename, visible):
    make(queue_name="forgotten")
    make_executor(queues=["default"])
    ScheduleFactory.create(backend=backend, using=backend, next_at=ago(1000))
    client.force_login(make_user(codename))

    content = client.get("/admin/jobqueue/", {"backend": backend}).content.decode()

    every = ["Successes and failures per minute", "no executor serves it", "Last heartbeat", "due 17 min ago"]
    assert [words for words in every if words in content] == [words for words in every if words in visible]
    assert all(words in content for words in visible)


def test_overview_escapes_values(make, make_executor, show, backend, period):
    make_executor(name=SCRIPT, queues=["other"])
    make(queue_name=SCRIPT)
    period(scope="task", name=SCRIPT, attempts=1)
    QueueFactory.create(backend=backend, using=backend, name=f"{SCRIPT}2", paused_at=ago(2 * 86_400))

    content = show("")

    assert content.count("&lt;script&gt;") >= 4
    assert SCRIPT not in content


def test_number_of_queries_does_not_depend_on_the_rows(make, make_executor, show, backend, period):
    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            show("")
        return len(default) + len(sqlite)

    make_executor()
    make()
    before = count()
    for number in range(10):
        make_executor()
        TaskFactory.create(backend=backend, using=backend, failed=True)
        period(scope="task", name=f"task_{number}", attempts=1)

    assert count() == before


def test_tasks_without_code_can_be_cancelled_from_the_overview(client, make, make_executor, show, backend):
    make_executor(task_types=["shop.tasks.known"])
    rows = [make(awaiting_code=True, task_type="shop.tasks.removed") for _ in range(3)]
    other = make(awaiting_code=True, task_type="shop.tasks.other")

    pattern = r'<form class="jq-problem-action" method="post" action="([^"]*task=shop.tasks.removed[^"]*)">'
    (address,) = map(html.unescape, re.findall(pattern, show("")))
    asked = {"action": "cancel_selected", "select_across": "1", "_selected_action": "all"}
    (bounds,) = re.findall(r'name="bounds" value="([^"]*)"', client.post(address, asked).content.decode())
    client.post(address, {**asked, "confirmed": "1", "bounds": html.unescape(bounds)})

    statuses = dict(Task.objects.using(backend).values_list("pk", "status"))
    assert statuses == {**{row.pk: "CANCELLED" for row in rows}, other.pk: "AWAITING_CODE"}


def test_reader_is_offered_no_cancel_of_tasks_without_code(client, make, backend):
    make(awaiting_code=True, task_type="shop.tasks.removed")
    client.force_login(make_user("view_task"))

    content = client.get("/admin/jobqueue/").content.decode()

    assert "jq-problem-action" not in content
