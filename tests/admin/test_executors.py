"""The pages of executors and queues."""

import re

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.admin import executors as admin_executors
from jobqueue.models import Executor, Queue
from tests.admin.pages import BOTH, SCRIPT, messages_of
from tests.admin.test_overview import histogram
from tests.factories import ExecutorFactory, PeriodFactory, QueueFactory, TaskFactory, ago, make_user, now

pytestmark = BOTH


def test_queue_list_shows_queues_with_and_without_a_row(client, show, backend):
    TaskFactory.create(backend=backend, using=backend, queue_name="in use", enqueued_at=ago(665))
    QueueFactory.create(backend=backend, using=backend, name="emails", paused=True, pause_reason="mail server moves")

    content = show("queue/")

    for text in ("in use", "11 min", ">No executor<", "emails", "anna", "mail server moves", "action-select"):
        assert text in content
    client.force_login(make_user("view_queue"))
    assert "action-select" not in client.get("/admin/jobqueue/queue/").content.decode()


def test_queue_list_shows_numbers_of_each_queue(make_executor, show, backend):
    make_executor(queues=["emails"])
    for traits in ({}, {"running": True}, {"blocked": True}, {"scheduled": True}, {"failed": True}):
        for _ in range(2 if traits else 3):
            TaskFactory.create(backend=backend, using=backend, queue_name="emails", **traits)
    PeriodFactory.create(
        backend=backend, using=backend, scope="queue", name="emails", attempts=250, waits=histogram(_7=250)
    )

    text = " ".join(re.sub(r"<[^>]*>", " ", show("queue/")).split())
    assert re.search(
        r"emails Ready 3 Running 2 Blocked 2 Scheduled 2 Failed 2 Latency \S+ \w+ Attempts a minute 25 "
        r"Wait p95 10 s Executors 1 ",
        text,
    )


def test_queue_list_says_over_60_minutes_for_longer_waits(show, backend):
    period = {"scope": "queue", "name": "emails", "attempts": 1, "waits": histogram(_25000=1)}
    TaskFactory.create(backend=backend, using=backend, queue_name="emails")
    PeriodFactory.create(backend=backend, using=backend, **period)

    assert '<span class="jq-label">Wait p95</span> over 60 min</td>' in show("queue/")


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({}, "Alive"),
        ({"heartbeat": ago(1800)}, "Not responding"),
        ({"state": "STOPPING"}, "Stopping"),
        ({"state": "STOPPING", "heartbeat": ago(1800)}, "Not responding"),
        ({"state": "PAUSED"}, "Paused"),
    ],
)
def test_state_follows_the_heartbeats(make_executor, show, columns, word):
    make_executor(**columns)

    assert f"</span>{word}</span>" in show("executor/")


def test_problem_stands_beside_the_state(make_executor, show):
    row = make_executor(problem="Stuck for 40 s. <b>")

    for page in ("executor/", f"executor/{row.pk}/change/"):
        assert re.search(r"Alive</span><span [^>]*>Stuck for 40 s. &lt;b&gt;", show(page))


def test_stopped_executors_are_folded_away_below_the_list(make_executor, show):
    make_executor(name="here")
    stopped = make_executor(name="gone", state="STOPPED", heartbeat=ago(3600))

    content, _, folded = show("executor/").partition("<details>")

    assert "here" in content
    assert "gone" not in content
    assert "1 executor that is gone</summary>" in folded
    assert f"/admin/jobqueue/executor/{stopped.pk}/change/" in folded
    assert "</span>Stopped</span>" in show(f"executor/{stopped.pk}/change/")


def test_executors_killed_long_ago_are_folded_unless_they_have_tasks(make_executor, show, backend):
    make_executor(name="just-lost", heartbeat=ago(1800))
    make_executor(name="killed", heartbeat=ago(7200))
    with_task = make_executor(name="with-task", heartbeat=ago(7200))
    TaskFactory.create(backend=backend, using=backend, running=True, executor_id=with_task.pk)

    content, _, folded = show("executor/").partition("<details>")

    assert [name in content for name in ("just-lost", "killed", "with-task")] == [True, False, True]
    assert "1 executor that is gone</summary>" in folded
    assert re.search("killed</a>.*without shutting down", folded)
    overview = show("")
    assert [f">{name}</a>" in overview for name in ("just-lost", "killed", "with-task")] == [True, False, True]


def test_list_names_the_executors_that_stopped_last(make_executor, show, monkeypatch):
    monkeypatch.setattr(admin_executors, "GONE_SHOWN", 1)
    make_executor(state="STOPPED", name="first", heartbeat=ago(20))
    make_executor(state="STOPPED", name="last")

    content = show("executor/")

    assert "1+ executor that is gone</summary>" in content
    assert "last" in content
    assert "first" not in content


def test_list_shows_running_tasks(make_executor, show, backend):
    web, idle = make_executor(slots=8), make_executor(slots=4)
    task = TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk)
    for _ in range(6):
        TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk)

    content = show("executor/")

    assert f"/admin/jobqueue/task/{task.pk}/change/" in content
    assert ", +2" in content
    assert "7/8 threads<" in content
    assert "0/4 threads<" in content
    assert idle.name in content


def test_threads_and_async_slots_are_counted_apart(make_executor, show, backend):
    web = make_executor(slots=8, async_slots=100)
    for pool in ("threads", "async", "async"):
        TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk, pool=pool)

    assert "1/8 threads, 2/100 async" in show("executor/")


def test_versions_other_than_those_of_the_newest_executor_are_marked(make_executor, show):
    make_executor(started_at=ago(60), versions={"django": "6.1", "python": "3.13"})
    make_executor(started_at=ago(50), versions={"django": "6.1", "python": "3.13"})
    assert "other versions" not in show("executor/")
    make_executor(started_at=ago(900), versions={"django": "5.2", "python": "3.13"})

    content = show("executor/")

    assert content.count("other versions than the newest") == 1
    assert "django 5.2 ≠ 6.1<" in content
    assert "other schedules" not in content


def test_other_schedules_than_those_of_the_newest_executor_are_marked(make_executor, show):
    make_executor(started_at=ago(50), versions={"jobqueue": "1.0", "schedules": "d1ge57"})
    old = make_executor(started_at=ago(900), versions={"jobqueue": "1.0", "schedules": "0ther"})

    content = show("executor/")

    assert content.count("declares other schedules than the newest executor") == 1
    assert "other versions" not in content
    assert "0ther" not in content + show(f"executor/{old.pk}/change/")


def test_executor_page_shows_details(make_executor, client, show, backend):
    web = make_executor(queues=["emails"], versions={"django": "6.1"}, heartbeat=ago(20))
    TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk)

    content = show(f"executor/{web.pk}/change/")

    for text in ("send_receipt", "emails", "django 6.1", "1/8"):
        assert text in content
    assert re.search(r"\b2\d s ago", content)


def test_number_of_queries_does_not_depend_on_the_rows(make_executor, show, backend):
    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            show("executor/")
        return len(default) + len(sqlite)

    make_executor()
    before = count()
    for _ in range(10):
        TaskFactory.create(backend=backend, using=backend, running=True, executor_id=make_executor().pk)

    assert count() == before <= 8


def test_pages_escape_values(make_executor, show, backend):
    make_executor(name=SCRIPT, host=SCRIPT, queues=[SCRIPT], versions={SCRIPT: SCRIPT})
    QueueFactory.create(
        backend=backend, using=backend, name=SCRIPT, paused_at=ago(60), paused_by=SCRIPT, pause_reason=SCRIPT
    )

    for page in ("executor/", "queue/"):
        content = show(page)
        assert content.count("&lt;script&gt;") >= 3
        assert SCRIPT not in content


class TestActions:
    @pytest.fixture
    def post(self, client, staff, backend, django_capture_on_commit_callbacks):
        def post(page, **data):
            with django_capture_on_commit_callbacks(using=backend, execute=True):
                return client.post(f"/admin/jobqueue/{page}?backend={backend}", data)

        return post

    @pytest.fixture
    def queue(self, backend):
        return lambda name="emails": Queue.objects.using(backend).get(name=name)

    def test_button_of_a_row_changes_only_this_queue(self, post, queue):
        asked = post("queue/", row="pause:e:mails", queue=["sms"])
        assert b'value="e:mails"' in asked.content
        assert b'value="sms"' not in asked.content

        done = post("queue/", row="resume:e:mails", queue=["sms"])
        assert messages_of(done) == ["Queue e:mails: Resumed."]

    def test_pause_asks_for_details_and_is_logged(self, post, queue, staff, backend):
        asked = post("queue/", action="pause", queue=["emails", "sms"])
        assert b'name="reason"' in asked.content
        assert not Queue.objects.using(backend).exists()

        done = post(
            "queue/", action="pause", queue=["emails", "sms"], confirmed=1, reason="disk full", until="2099-01-31T09:00"
        )

        assert (done.status_code, messages_of(done)) == (302, ["Queues emails, sms: Paused: disk full"])
        row = queue()
        assert (row.paused_by, row.pause_reason, row.resume_at.year) == (staff.username, "disk full", 2099)
        assert row.is_paused_at(now())
        assert queue("sms").is_paused_at(now())
        entries = LogEntry.objects.filter(object_id=str(row.pk)).values_list("user", "change_message")
        assert list(entries) == [(staff.pk, "Paused: disk full")]

    def test_pause_with_a_past_end_is_refused(self, post, backend):
        answer = post("queue/", action="pause", queue="emails", confirmed=1, until="2020-01-31T09:00")

        assert "This time has passed." in answer.content.decode()
        assert not Queue.objects.using(backend).exists()

    def test_resume(self, post, queue, backend):
        QueueFactory.create(backend=backend, using=backend, name="emails", paused=True)

        assert post("queue/", action="resume", queue="emails").status_code == 302

        assert queue().paused_at is None
        assert LogEntry.objects.get().change_message == "Resumed."

    def test_limit_is_set_shown_and_removed(self, post, queue, show):
        assert post("queue/", action="limit", queue="emails", confirmed=1, max_running=5).status_code == 302
        assert queue().max_running == 5
        assert "</span> 5</td>" in show("queue/")
        post("queue/", action="limit", queue="emails", confirmed=1, max_running="")
        assert queue().max_running is None

    @pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "9999999999999"])
    def test_invalid_limits_are_refused(self, post, backend, limit):
        assert b"errorlist" in post("queue/", action="limit", queue="emails", confirmed=1, max_running=limit).content
        assert not Queue.objects.using(backend).exists()

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            ({"action": "dance", "queue": "a"}, 400),
            ({"action": "pause", "queue": "a" * 129}, 400),
            ({"action": "pause"}, 302),
        ],
    )
    def test_invalid_requests_change_nothing(self, post, backend, data, status):
        assert post("queue/", **data).status_code == status
        assert not Queue.objects.using(backend).exists()

    @pytest.mark.parametrize(
        ("action", "command"), [("pause_selected", "PAUSE"), ("resume_selected", "RESUME"), ("stop_selected", "STOP")]
    )
    def test_command_is_sent_and_logged(self, post, make_executor, show, backend, action, command):
        selected, other = make_executor(), make_executor()
        ended = make_executor(state="STOPPED")
        data = {"action": action, ACTION_CHECKBOX_NAME: [str(selected.pk), str(ended.pk)]}
        if command == "STOP":
            assert selected.name in post("executor/", **data).content.decode()
            assert not Executor.objects.using(backend).exclude(command="").exists()
            data["confirmed"] = 1

        assert post("executor/", **data).status_code == 302

        commands = dict(Executor.objects.using(backend).values_list("pk", "command"))
        assert commands == {selected.pk: command, other.pk: "", ended.pk: ""}
        assert LogEntry.objects.get().object_id == str(selected.pk)
        assert f"command sent: {command.lower()}" in show("executor/")

    @pytest.mark.parametrize(
        ("state", "action", "command"),
        [
            ("RUNNING", "pause_selected", "PAUSE"),
            ("PAUSED", "resume_selected", "RESUME"),
            ("RUNNING", "stop_selected", ""),
        ],
    )
    def test_button_of_a_row_is_an_action_of_this_executor(
        self, post, make_executor, show, backend, state, action, command
    ):
        selected, other = make_executor(state=state), make_executor()
        row = f"{action}:{selected.pk}"
        assert f'name="row" value="{row}"' in show("executor/")

        answer = post("executor/", row=row, action="")

        commands = dict(Executor.objects.using(backend).values_list("pk", "command"))
        assert commands == {selected.pk: command, other.pk: ""}
        if not command:
            assert "Stop 1 executor" in answer.content.decode()

    def test_buttons_need_the_permission(self, client, make_executor, backend):
        make_executor()
        client.force_login(make_user("view_executor"))
        assert 'name="row"' not in client.get("/admin/jobqueue/executor/", {"backend": backend}).content.decode()

    def test_stop_names_the_tasks_that_start_again(self, post, make_executor, backend):
        selected, other = make_executor(), make_executor()
        task, elsewhere = (
            TaskFactory.create(backend=backend, using=backend, running=True, executor_id=row.pk)
            for row in (selected, other)
        )

        content = post("executor/", row=f"stop_selected:{selected.pk}").content.decode()

        assert "will start again from the beginning" in content
        assert str(task.pk) in content
        assert str(elsewhere.pk) not in content

    def test_executor_of_an_unknown_backend_is_reported(self, client, staff):
        ours, strange = ExecutorFactory.create(), ExecutorFactory.create(backend="dropped", name="Old-1")
        data = {"action": "pause_selected", ACTION_CHECKBOX_NAME: [str(ours.pk), str(strange.pk)]}

        response = client.post("/admin/jobqueue/executor/", data, follow=True)

        assert "Old-1 received no command: TASKS of this site has no backend dropped." in response.content.decode()
        assert LogEntry.objects.get().object_id == str(ours.pk)
