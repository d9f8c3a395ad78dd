"""The list of schedules, and its bulk actions."""

import re

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.admin import schedules
from jobqueue.models import Schedule, Task
from tests.admin.pages import BOTH, SCRIPT, messages_of
from tests.factories import ScheduleFactory, TaskFactory, TickFactory, ago, make_user, now, template_of

pytestmark = BOTH
LIST = "/admin/jobqueue/schedule/"


@pytest.fixture
def add(backend):
    return lambda **columns: ScheduleFactory.create(backend=backend, using=backend, **columns)


@pytest.fixture
def names(client, staff, backend):
    """Return the names in the list."""

    def read(**query):
        response = client.get(LIST, {"backend": backend, **query})
        assert response.status_code == 200
        return [row.name for row in response.context["cl"].result_list]

    return read


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["active", "declared", "over", "paused"]),
        ({"state": "active"}, ["active", "declared", "over"]),
        ({"state": "paused"}, ["paused"]),
        ({"state": "retired"}, ["retired"]),
        ({"state": "nonsense"}, []),
        ({"origin": "code"}, ["declared"]),
        ({"origin": "people"}, ["active", "over", "paused"]),
        ({"origin": "code", "state": "retired"}, ["retired"]),
        ({"q": "ACTIV"}, ["active"]),
        ({"q": "tests.tasks.fail"}, ["declared"]),
        ({"q": "100%_"}, []),
    ],
)
def test_filters_and_search_select_schedules(add, names, query, expected):
    add(name="active")
    add(name="declared", declared=True, task_type="tests.tasks.fail")
    add(name="paused", paused=True)
    add(name="over", paused=True, resume_at=ago(5))  # the pause has ended
    add(name="retired", retired=True)

    assert names(**query) == expected


def test_number_of_queries_does_not_depend_on_the_rows(add, names, backend):
    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            names()
        return len(default) + len(sqlite)

    def with_runs(row):
        for number in range(3):
            tick = TickFactory.create(using=backend, schedule=row, tick_at=ago(60 * number))
            TaskFactory.create(using=backend, backend=backend, id=tick.task_id)

    with_runs(add())
    before = count()
    for _ in range(10):
        with_runs(add(paused=True, resume_at=now()))

    assert count() == before <= 9


def test_list_escapes_values(add, show):
    add(name=SCRIPT, task_type=SCRIPT, expression=SCRIPT, timezone=SCRIPT, declared_at=SCRIPT)
    add(paused_at=ago(60), paused_by=SCRIPT, pause_reason=SCRIPT)

    content = show("schedule/")

    assert content.count("&lt;script&gt;") >= 3
    assert SCRIPT not in content


def test_row_shows_words_next_tick_last_task_and_the_last_ticks(add, show, backend):
    row = add()
    traits = [{"running": True}, {"failed": True}, None, {"successful": True}]
    for number, trait in enumerate(traits):
        reason = "" if trait else "overlap"
        tick = TickFactory.create(using=backend, schedule=row, tick_at=ago(60 * (number + 1)), reason=reason)
        if trait:
            TaskFactory.create(using=backend, backend=backend, id=tick.task_id, **trait)

    content = show("schedule/")

    assert "At 08:00, Monday through Friday, Europe/Berlin" in content
    assert re.search(r"in (2 h|120 min)", content)
    marks = re.findall(r'class="jq-mark jq-(\w+)"', content)
    assert marks == ["successful", "skipped", "failed", "running"]
    assert 'title="Successful, took 3 s, ' in content
    assert 'role="img" aria-label="Skipped, The previous task had not ended, ' in content
    assert content.count('<span aria-hidden="true">✗</span></a>') == 1
    assert re.search(r'class="field-last_task"><span class="jq-badge jq-running">', content)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"paused": True, "pause_reason": "disk full"}, "By anna. Reason: disk full."),
        ({"next_at": None}, "No more ticks"),
        ({"expression": "61 * * * *"}, "is not valid"),
    ],
)
def test_row_says_why_it_does_not_run(add, show, columns, words):
    add(**columns)

    assert words in show("schedule/")


def test_list_is_sorted_by_name_or_next_tick(add, names):
    for name, hours in (("b", 1), ("a", 2)):
        add(name=name, due_at=ago(-3600 * hours))

    assert (names(), names(o="1"), names(o="-1"), names(o="3")) == (["a", "b"], ["a", "b"], ["b", "a"], ["b", "a"])


class TestActions:
    @pytest.fixture
    def post(self, client, staff, backend, django_capture_on_commit_callbacks):
        def post(action, *rows, **data):
            data = {"action": f"{action}_schedules", ACTION_CHECKBOX_NAME: [row.pk for row in rows], **data}
            with django_capture_on_commit_callbacks(using=backend, execute=True):
                return client.post(f"{LIST}?backend={backend}", data)

        return post

    @pytest.fixture
    def tasks(self, backend):
        return Task.objects.using(backend)

    def test_pause_names_the_schedules_and_asks_for_a_reason(self, add, post, backend):
        rows, other = [add(name="a"), add(name="b", declared=True)], add()

        asked = post("pause", *rows).content.decode()
        assert all(words in asked for words in ('name="reason"', "<strong>a</strong>", 'value="Pause 2 schedules"'))
        assert not Schedule.objects.using(backend).filter(paused_at__isnull=False).exists()
        done = post("pause", *rows, confirmed=1, reason="disk full")

        assert messages_of(done) == ["Schedules a, b: Paused: disk full"]
        paused = Schedule.objects.using(backend).filter(paused_at__isnull=False, pause_reason="disk full")
        assert {row.pk for row in paused} == {row.pk for row in rows}
        assert other.pk not in {row.pk for row in paused}
        assert set(LogEntry.objects.values_list("object_id", "change_message")) == {
            (str(row.pk), "Paused: disk full") for row in rows
        }

    def test_resume_needs_no_confirmation(self, add, post, backend):
        rows = [add(paused=True), add(paused=True)]

        assert post("resume", *rows).status_code == 302

        assert not Schedule.objects.using(backend).filter(paused_at__isnull=False).exists()
        assert LogEntry.objects.filter(change_message="Resumed.").count() == 2

    def test_run_names_the_number_before_it_enqueues(self, add, post, tasks):
        rows = [add() for _ in range(3)]

        assert 'value="Enqueue 3 tasks"' in post("run", *rows).content.decode()
        assert not tasks.exists()
        post("run", *rows, confirmed=1)

        assert tasks.count() == 3

    def test_failure_of_one_schedule_does_not_stop_the_others(self, add, post, tasks, backend):
        busy = add(name="busy", new_task=template_of("tests.tasks.add", key="k"))
        broken = add(name="broken", new_task={})
        TaskFactory.create(backend=backend, using=backend, key="k")

        answer = post("run", busy, broken, add(name="z"), confirmed=1)

        *problems, done = messages_of(answer)
        assert [problem.partition(":")[0] for problem in problems] == ["broken", "busy"]
        assert done == "Schedule z: Enqueued a task."
        assert tasks.count() == 2
        assert LogEntry.objects.count() == 1

    def test_schedule_of_an_unknown_backend_is_reported(self, client, staff):
        row = ScheduleFactory.create(backend="dropped", name="lost")
        data = {"action": "run_schedules", ACTION_CHECKBOX_NAME: row.pk, "confirmed": 1}

        (message,) = messages_of(client.post(LIST, data))

        assert message.startswith("lost: ")
        assert "dropped" in message

    def test_retired_schedules_are_not_changed(self, client, add, post, tasks, backend):
        retired = add(retired=True)
        data = {"action": "run_schedules", ACTION_CHECKBOX_NAME: retired.pk, "confirmed": 1}

        answer = client.post(f"{LIST}?backend={backend}&state=retired", data)

        assert messages_of(answer) == ["The selected schedules are retired: code no longer declares them."]
        assert not tasks.exists()

    def test_number_of_selected_schedules_is_limited(self, add, post, tasks, monkeypatch):
        monkeypatch.setattr(schedules, "MAX_SELECTED", 2)
        rows = [add() for _ in range(3)]

        answer = post("run", *rows, confirmed=1, select_across=1)

        assert messages_of(answer) == ["Select at most 2 schedules at a time."]
        assert not tasks.exists()

    def test_list_offers_permitted_actions(self, client, add):
        add()
        client.force_login(make_user("view_schedule", "pause_schedule"))
        content = client.get(LIST).content.decode()
        assert "pause_schedules" in content
        assert "run_schedules" not in content


@pytest.mark.parametrize("address", ["schedule/", "task/"])
def test_search_box_has_a_visible_label(show, address):
    content = show(address)

    assert re.search(r'<label for="searchbar">(Name or task|Search)</label>', content)
    assert re.search(r'<input type="(text|search)" size="40" name="q" value="" id="searchbar"', content)
