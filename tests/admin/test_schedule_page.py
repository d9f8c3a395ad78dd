"""A schedule's page and its actions: run now, pause, resume, backfill, delete."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue.admin import schedule_page
from jobqueue.models import Schedule, ScheduleTick, Task
from jobqueue.values.redaction import MASK
from tests.admin.pages import BOTH, SCRIPT, messages_of
from tests.factories import ScheduleFactory, TaskFactory, TickFactory, ago, make_user, now, template_of

pytestmark = BOTH
LIST = "/admin/jobqueue/schedule/"


def url(row, page="change"):
    return reverse(f"admin:jobqueue_schedule_{page}", args=[row.pk]) + f"?backend={row.backend}"


@pytest.fixture
def add(backend):
    return lambda **columns: ScheduleFactory.create(backend=backend, using=backend, **columns)


@pytest.fixture
def tick(backend):
    """Record a tick; with `task`, one whose task has these traits."""

    def create(row, task=None, **columns):
        made = TickFactory.create(using=backend, schedule=row, **columns)
        if task is not None:
            TaskFactory.create(using=backend, backend=backend, id=made.task_id, schedule_id=row.pk, **task)
        return made

    return create


@pytest.fixture
def read(client, staff):
    def get(row, **query):
        response = client.get(url(row), query)
        assert response.status_code == 200
        return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())

    return get


@pytest.fixture
def post(client, staff, backend, django_capture_on_commit_callbacks):
    def post(row, page, **data):
        with django_capture_on_commit_callbacks(using=backend, execute=True):
            return client.post(url(row, page), data)

    return post


def reload(row):
    return Schedule.objects.using(row.backend).get(pk=row.pk)


def tasks_of(row):
    return Task.objects.using(row.backend).filter(schedule=row)


def logged():
    return list(LogEntry.objects.order_by("pk").values_list("object_repr", "change_message"))


# --- the page


def test_page_shows_when_it_runs_and_where_it_is_declared(add, read):
    text = read(add(declared=True, jitter_seconds=90.0, overlap="queue_one", catch_up="all", max_catch_up=7))

    for words in (
        "Active At 08:00, Monday through Friday, Europe/Berlin",
        "Code declares it at shop/tasks.py:42. Change it there.",
        "0 8 * * 1-5",
        "up to 90 s",
        "Let one tick wait",
        "Run each missed tick (at most 7)",
    ):
        assert words in text


def test_page_shows_ten_ticks_with_changes_of_the_clock(add, read):
    row = add(expression="30 2 * * *", next_at=datetime(2027, 3, 26, 1, 30, tzinfo=UTC))

    text = read(row)

    assert "Fri 2027-03-26 02:30 CET" in text
    assert "Sun 2027-03-28 03:00 CEST" in text
    assert (
        text.count("On this day, the clock skips the time of the tick. So the tick runs right after the change.") == 1
    )
    assert len(re.findall(r"2027-0[34]-\d\d 0[23]:\d\d", text)) == 10


def test_page_says_who_paused_it_and_why(add, read):
    text = read(add(paused=True, pause_reason="disk full", resume_at=now() + timedelta(hours=1)))

    assert "Paused At 08:00" in text
    assert "By anna. Reason: disk full. It resumes automatically" in text
    assert "Ticks are skipped while the schedule is paused." in text


def test_history_shows_runs_and_skipped_ticks_with_reasons(add, tick, read, client, backend):
    row = add(timezone="UTC")
    noon = datetime(2026, 11, 2, 12, tzinfo=UTC)
    done = tick(row, {"successful": True}, tick_at=noon)
    tick(row, tick_at=noon + timedelta(days=1), trigger="manual")  # its task was pruned
    skipped = noon + timedelta(days=2)
    tick(row, tick_at=skipped, last_at=skipped + timedelta(days=2), count=3, reason="overlap")

    week = skipped + timedelta(days=3)
    tick(row, tick_at=week, last_at=week + timedelta(days=7), count=1_000, reason="missed")

    text = read(row)

    assert re.search(r"Mon 2026-11-02 12:00 UTC ✓ Successful took 3 s", text)
    assert "Tue 2026-11-03 12:00 UTC Run now □ Task deleted" in text
    ticks = "3 ticks, from Wed 2026-11-04 12:00 UTC to Fri 2026-11-06 12:00 UTC"
    assert f"{ticks} ↷ Skipped The previous task had not ended" in text
    assert "at least 1,000 ticks, from Sat 2026-11-07 12:00 UTC to Sat 2026-11-14 12:00 UTC" in text
    content = client.get(url(row)).content.decode()
    assert f'href="/admin/jobqueue/task/{done.task_id}/change/"' in content
    assert f'href="/admin/jobqueue/task/?schedule={row.pk}&amp;backend={backend}"' in content


def test_history_has_pages(add, tick, read, monkeypatch):
    monkeypatch.setattr(schedule_page, "HISTORY_PAGE", 2)
    row = add(timezone="UTC")
    for day in range(1, 4):
        tick(row, tick_at=datetime(2026, 11, day, 12, tzinfo=UTC))

    first, second = read(row), read(row, p="2")

    assert ("2026-11-03" in first, "2026-11-01" in first, "Page 1 of 2" in first) == (True, False, True)
    assert ("2026-11-03" in second, "2026-11-01" in second) == (False, True)
    assert "2026-11-01" in read(row, p="99")
    assert "2026-11-03" in read(row, p="x")


def test_arguments_need_their_permission_and_are_masked(add, client, read):
    template = template_of("tests.tasks.greet", args='["Ada"]', kwargs='{"password": "geheim"}', metadata='{"a": "b"}')
    row = add(task_type="tests.tasks.greet", new_task=template)

    assert "geheim" not in read(row)
    assert all(words in read(row) for words in ("&quot;Ada&quot;", MASK, "Metadata"))
    client.force_login(make_user("view_schedule"))
    text = client.get(url(row)).content.decode()
    assert not any(words in text for words in ("Ada", "<code>password", "Metadata"))
    assert "Arguments are hidden" in text


@pytest.mark.parametrize(
    "columns",
    [
        {"expression": "61 * * * *"},
        {"expression": "@every 0", "timezone": ""},
        {"timezone": "Atlantis/Poseidonis"},
        {"new_task": {}},
        {"new_task": ["no", "task"]},
        {"new_task": {"args": 5, "kwargs": "{", "options": "nonsense"}},
        {"task_type": "tests.no_such_task"},
        {"overlap": "sometimes", "catch_up": "never"},
        {"next_at": None},
        {"retired": True},
    ],
)
def test_page_and_list_show_rows_that_cannot_be_used(add, tick, read, client, backend, columns):
    row = add(**columns)
    tick(row)

    assert row.name in read(row)
    assert row.name in client.get(LIST, {"backend": backend, "state": "retired" if row.retired_at else ""}).text


def test_pages_escape_values(add, tick, client, backend):
    template = template_of(SCRIPT, args=f'["{SCRIPT}"]', kwargs=f'{{"{SCRIPT}": 1}}', options=f'{{"a": "{SCRIPT}"}}')
    columns = {"task_type": SCRIPT, "new_task": {**template, "queue_name": SCRIPT, "key": SCRIPT, "priority": SCRIPT}}
    row = add(name=SCRIPT, paused_at=ago(9), paused_by=SCRIPT, pause_reason=SCRIPT, **columns)
    add(name=f"{SCRIPT}2", expression=SCRIPT, timezone=SCRIPT, declared_at=SCRIPT, **columns)
    tick(row, {}, trigger=SCRIPT[:16])
    addresses = [LIST, *(url(row, page) for page in ("change", "pause", "backfill", "delete"))]
    client.force_login(make_user(is_superuser=True))
    for address in addresses:
        content = client.get(address, {"backend": backend}).content.decode()
        assert "&lt;script&gt;" in content, address
        assert SCRIPT not in content, address


# --- actions


@pytest.mark.parametrize("columns", [{}, {"paused": True}, {"declared": True}])
def test_run_now_enqueues_a_task_and_is_logged(add, post, read, columns):
    row = add(**columns)

    answer = post(row, "run")

    assert (answer.url, messages_of(answer)) == (url(row), [f"Schedule {row.name}: Enqueued a task."])
    (task,) = tasks_of(row)
    assert ScheduleTick.objects.using(row.backend).get(schedule=row).trigger == "manual"
    assert logged() == [(row.name, "Enqueued a task.")]
    assert "Run now ○ Ready" in read(row)
    assert task.status == "READY"


def test_run_now_is_refused_while_a_task_has_the_key(add, post, backend):
    row = add(new_task=template_of("tests.tasks.add", key="digest"))
    TaskFactory.create(backend=backend, using=backend, key="digest")

    (message,) = messages_of(post(row, "run"))

    assert "has the key" in message
    assert logged() == []


def test_pause_asks_for_reason_and_end_and_is_logged(add, post, client, staff):
    row = add()
    assert b'name="reason"' in client.get(url(row, "pause")).content

    answer = post(row, "pause", reason="disk full", until="2099-01-31T09:00")

    assert (answer.url, messages_of(answer)) == (url(row), [f"Schedule {row.name}: Paused: disk full"])
    paused = reload(row)
    assert (paused.paused_by, paused.pause_reason, paused.resume_at.year) == (staff.username, "disk full", 2099)
    assert logged() == [(row.name, "Paused: disk full")]


@pytest.mark.parametrize("data", [{"until": "2020-01-31T09:00"}, {"until": "soon"}, {"reason": "x" * 256}])
def test_invalid_pause_is_refused_and_explained(add, post, data):
    row = add()

    answer = post(row, "pause", **data)

    assert "errorlist" in answer.content.decode()
    assert (reload(row).paused_at, logged()) == (None, [])


def test_pause_needs_no_reason(add, post):
    row = add()

    post(row, "pause")

    assert reload(row).paused_at is not None
    assert logged() == [(row.name, "Paused.")]


def test_resume_is_logged(add, post):
    row = add(paused=True)

    assert post(row, "resume").url == url(row)

    assert (reload(row).paused_at, logged()) == (None, [(row.name, "Resumed.")])


def test_backfill_names_the_number_before_it_enqueues(add, post, client):
    row = add(expression="0 0 * * *", timezone="UTC")
    days = {"start": "2026-03-01T00:00", "end": "2026-03-03T12:00"}
    assert b'name="start"' in client.get(url(row, "backfill")).content

    asked = post(row, "backfill", **days).content.decode()
    assert "3 ticks become tasks" in asked
    assert 'value="Enqueue 3 tasks"' in asked
    assert not tasks_of(row).exists()
    done = post(row, "backfill", **days, confirmed=1)

    assert done.url == url(row)
    assert tasks_of(row).count() == 3
    ((name, message),) = logged()
    assert (name, message.endswith(": 3 tasks.")) == (row.name, True)
    again = post(row, "backfill", **days).content.decode()
    assert "3 ticks of the range have a task already." in again
    assert "Enqueue" not in again
    post(row, "backfill", **days, confirmed=1)
    assert tasks_of(row).count() == 3


@pytest.mark.parametrize(
    ("days", "words"),
    [
        ({"start": "2026-03-03T00:00", "end": "2026-03-01T00:00"}, "The end is before the start."),
        ({"start": "2026-03-03T00:00", "end": "2099-03-01T00:00"}, "The end is in the future."),
        ({"start": "1999-03-03T00:00", "end": "2026-03-01T00:00"}, "more than 10,000 ticks"),
        ({"start": "x", "end": ""}, "errorlist"),
    ],
)
def test_invalid_backfill_is_refused_and_explained(add, post, days, words):
    row = add(expression="0 * * * *")

    for confirmed in ({}, {"confirmed": 1}):
        assert words in post(row, "backfill", **days, **confirmed).content.decode()
    assert (tasks_of(row).count(), logged()) == (0, [])


def test_delete_asks_and_removes_schedule_with_its_ticks(add, tick, client, post, read):
    row = add()
    tick(row, {})
    client.force_login(make_user("view_schedule", "delete_schedule"))
    assert "Its tasks stay." in client.get(url(row, "delete")).content.decode()

    assert post(row, "delete").url == LIST

    assert not Schedule.objects.using(row.backend).exists()
    assert Task.objects.using(row.backend).count() == 1
    assert logged() == [(row.name, "Deleted.")]


def test_schedule_that_code_declares_is_not_deleted(add, client, post):
    row = add(declared=True)
    client.force_login(make_user("view_schedule", "delete_schedule"))

    assert "at shop/tasks.py:42. Change it there." in messages_of(post(row, "delete"))[0]
    assert reload(row)


@pytest.mark.parametrize("page", ["run", "resume", "backfill", "pause"])
def test_action_on_a_schedule_that_was_retired_changes_nothing(add, post, page):
    row = add(retired=True)

    post(row, page, start="2026-03-01T00:00", end="2026-03-03T12:00", confirmed=1)

    assert (tasks_of(row).count(), logged(), reload(row).paused_at) == (0, [], None)


@pytest.mark.parametrize("page", ["change", "run", "resume", "backfill", "pause", "delete"])
def test_unknown_schedule_leads_to_the_list(client, page):
    client.force_login(make_user(is_superuser=True))
    for pk in ("99999999", "x", "9" * 30):
        address = reverse(f"admin:jobqueue_schedule_{page}", args=[pk])
        answer = client.get(address) if page == "change" else client.post(address)
        assert (answer.url, messages_of(answer)[-1]) == (LIST, f"Unknown schedule {pk}.")


def test_buttons_follow_permissions_and_state(add, client):
    def buttons(row, *permissions):
        client.force_login(make_user("view_schedule", *permissions))
        content = client.get(url(row)).content.decode()
        return [page for page in ("run", "pause", "resume", "backfill", "delete") if f'"{url(row, page)}"' in content]

    row = add()
    assert buttons(row) == []
    assert buttons(row, "run_schedule") == ["run", "backfill"]
    assert buttons(row, "pause_schedule") == ["pause"]
    assert buttons(row, "delete_schedule") == ["delete"]
    assert buttons(add(paused=True), "pause_schedule") == ["resume"]
    assert buttons(add(declared=True), "delete_schedule", "run_schedule") == ["run", "backfill"]
    assert buttons(add(retired=True), "run_schedule", "pause_schedule", "delete_schedule") == ["delete"]


HOSTILE = [
    """'; DROP TABLE jobqueue_task; -- %s %(x)s {0} "\\ \u0391""",
    "line\nline\t\x1b[31m",
    "\u202egnp.exe",
    "../../admin/logout/?next=//example.org#",
    "&lt;b&gt;</title>",
    "x" * 200,
    " ",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_actions_take_any_name(add, post, read, client, backend, name):
    row = add(name=name, expression="0 0 * * *", timezone="UTC", paused=True, paused_by=name[:150], pause_reason=name)
    days = {"start": "2026-03-01T00:00", "end": "2026-03-01T12:00", "confirmed": 1}

    for page, data in (("run", {}), ("resume", {}), ("backfill", days), ("pause", {"reason": name.strip()[:9]})):
        assert post(row, page, **data).url == url(row)
    assert tasks_of(row).count() == 2
    assert reload(row).paused_at is not None
    assert [entry for entry, _ in logged()] == [name] * 4
    assert read(row)
    listed = client.get(LIST, {"backend": backend, "q": name})
    assert [row.pk for row in listed.context["cl"].result_list] == [row.pk]


def test_pages_work_without_time_zones(add, tick, post, read, client, settings, backend):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    local = datetime(2026, 3, 1, 9)
    row = add(
        expression="0 0 * * *",
        timezone="UTC",
        created_at=local,
        updated_at=local,
        next_at=datetime(2099, 3, 1, 9),
    )
    tick(row, tick_at=local, last_at=local, recorded_at=local)

    text = read(row)

    assert "Sun 2099-03-01 00:00 UTC" in text
    assert "Sun 2026-03-01 00:00 UTC" in text
    days = {"start": "2026-03-01T00:00", "end": "2026-03-03T12:00"}
    assert "In the time zone Asia/Tokyo." in client.get(url(row, "backfill")).content.decode()
    assert "2 ticks become tasks" in post(row, "backfill", **days).content.decode()
    assert post(row, "pause", reason="x", until="2099-01-31T09:00").url == url(row)
    assert client.get(LIST, {"backend": backend}).status_code == 200


# --- tasks


def test_task_page_links_to_its_schedule_and_tick(add, tick, show, make, backend):
    row = add()
    options = {"schedule": row.name, "scheduled_at": "2026-11-03T07:00:00+00:00"}
    task = make(schedule_id=row.pk, options=options)

    content = show(task)

    assert f'<a href="{url(row)}">{row.name}</a>' in content
    assert "Tue 2026-11-03 08:00 CET" in content
    gone = make(schedule_id=987654321, options={"schedule": "gone", "scheduled_at": 7})
    assert "<dt>Schedule</dt>" not in show(gone)


def test_task_list_can_be_filtered_by_schedule(add, tick, client, staff, backend):
    row, other = add(), add()
    ticks = [tick(row, {"failed": True}), tick(row, {}, tick_at=ago(30))]
    tick(other, {})

    def listed(**query):
        response = client.get("/admin/jobqueue/task/", {"backend": backend, **query})
        assert response.status_code == 200
        return {task.pk for task in response.context["cl"].result_list}

    assert listed(schedule=row.pk) == {tick.task_id for tick in ticks}
    assert listed(schedule=row.pk, status="FAILED") == {ticks[0].task_id}
    assert listed(schedule="x") == listed(schedule="9" * 40) == set()


def test_links_lead_to_the_schedule_of_the_same_database(client):
    client.force_login(
        make_user("view_schedule", "change_schedule", "delete_schedule", "run_schedule", "pause_schedule")
    )
    rows = [ScheduleFactory.create(pk=7, backend=name, using=name, name=f"of-{name}") for name in ("default", "sqlite")]

    for row in rows:
        page = client.get(LIST, {"backend": row.backend}).content.decode()
        (address,) = re.findall(r'href="(/admin/jobqueue/schedule/7/change/[^"]*)"', page)
        page = client.get(address.replace("&amp;", "&")).content.decode()
        links = re.findall(r'"(/admin/jobqueue/schedule/7/(?:edit|pause|backfill|delete)/[^"]*)"', page)
        assert len(links) == 4
        for link in links:
            content = client.get(link).content.decode()
            assert row.name in content, link
            assert f"schedule/7/change/?backend={row.backend}" in content, link
        client.post(links[-1])

        assert not Schedule.objects.using(row.backend).exists()
