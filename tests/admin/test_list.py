"""The task list: columns, filters, search, counts, and bounded queries."""

import re
import secrets
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.admin import filters as list_filters
from jobqueue.admin import task_list
from jobqueue.declarations import registry
from jobqueue.engine import counting
from jobqueue.models import Task
from jobqueue.operations.formatting import short_id
from jobqueue.operations.list import failures, names, selection
from jobqueue.values.ids import first_id, new_id
from jobqueue.values.redaction import MASK
from tests.admin.pages import BOTH, LIST_URL, SCRIPT
from tests.api.test_redaction import log_in
from tests.factories import QueueFactory, TaskFactory, ago, error, make_user, now
from tests.tasks import add

pytestmark = BOTH
PARENT = "0193a4b5-0000-7000-8000-000000000000"


@pytest.fixture
def show(client, staff, backend):
    return lambda **query: client.get(LIST_URL, {"backend": backend, **query})


def listed(response):
    assert response.status_code == 200, response
    return [row.pk for row in response.context["cl"].result_list]


def cells(response, name):
    """The text of one column, top to bottom."""

    class Cells(HTMLParser):
        texts: list[str] = []
        inside = False

        def handle_starttag(self, tag, attrs):
            if tag in ("td", "th"):
                self.inside = f"field-{name}" in (dict(attrs).get("class") or "").split()
                self.texts = [*self.texts, ""] if self.inside else self.texts

        def handle_endtag(self, tag):
            self.inside = self.inside and tag not in ("td", "th")

        def handle_data(self, data):
            if self.inside:
                self.texts[-1] += data.replace("\xa0", " ")

    parser = Cells()
    parser.feed(response.content.decode())
    return parser.texts


def choosable(response):
    """The filters with choices."""
    return [spec for spec in response.context["cl"].filter_specs if hasattr(spec, "lookup_choices")]


@pytest.fixture
def find(show, client):
    """Search as a person does. Return the page, after the redirect to the exact address."""

    def search(text, **query):
        response = show(q=text, **query)
        return response if response.status_code == 200 else client.get(response.url)

    return search


def columns_of(response: Any) -> list[str]:
    return [getattr(column, "__name__", column) for column in response.context["cl"].list_display]


def test_time_column_depends_on_the_status(make, show, make_executor):
    soon = now() + timedelta(minutes=5, seconds=1)
    rows = {
        "waiting 3 min": make(enqueued_at=ago(180), priority=10),
        "runs in 2 h": make(scheduled=True, wake_at=now() + timedelta(hours=2)),
        "retries in 5 min": make(scheduled=True, wake_at=soon, attempts=1),
        "running 2 min on web-1": make(running=True, claimed_at=ago(120), executor_id=make_executor(name="web-1").pk),
        "suspended 5 min": make(suspended=True, last_attempted_at=ago(300)),
        "wakes in 5 min": make(suspended=True, wake_at=soon),
        "5 min ago": make(successful=True, finished_at=ago(300)),
        "6 min ago": make(failed=True, finished_at=ago(360)),
        "7 min ago": make(cancelled=True, finished_at=ago(420)),
    }

    response = show()

    assert [re.sub(r"(\d+-\d+-\d+ )?\d\d:\d\d(:\d\d)?$", "", text) for text in cells(response, "time")[::-1]] == [*rows]
    assert listed(response)[::-1] == [row.pk for row in rows.values()]
    assert "6\xa0min ago" in response.content.decode()  # one word in a narrow column


def test_attempts_column_counts_running_and_last_attempts(make, show):
    make()
    make(scheduled=True, attempts=2)
    make(running=True, attempts=2)
    make(successful=True, attempts=1)
    make(failed=True)
    make(cancelled=True)

    assert cells(show(), "attempt")[::-1] == [
        "",
        "attempt 2 of 4",
        "attempt 3 of 4",
        "attempt 2 of 42 s",
        "attempt 4 of 42 s",
        "",
    ]


def test_failed_attempt_took_the_time_of_its_body(make, show):
    make(failed=True, errors=[error("first", run_seconds=60), error("second", run_seconds=0.004)])

    assert cells(show(), "attempt") == ["attempt 4 of 44 ms"]


def test_error_column_shows_the_last_error_of_unsuccessful_tasks(make, show):
    make(successful=True, errors=[error("first")])
    make(failed=True, errors=["text", 7])
    make(failed=True, errors={"not": "a list"})
    make(failed=True, errors=[error("first"), error("second\nand more")])

    assert cells(show(), "error") == ["SMTPServerBusy: second", "", "", ""]


def test_row_shows_status_and_name_with_key(make, show):
    row = make(failed=True, key="order:7")

    response = show()

    assert cells(response, "state") == ["✗Failed"]
    assert cells(response, "name") == [f"send_receiptorder:7{short_id(row.pk)}"]
    content = response.content.decode()
    for text in ('class="jq-badge jq-failed"', 'aria-hidden="true">✗', f'title="shop.tasks.send_receipt {row.pk}"'):
        assert text in content


@pytest.mark.parametrize("status", Task.Status.values)
def test_status_filter(make, show, status):
    rows = {
        name: make(**({name.lower(): True} if name != "READY" else {})) for name in Task.Status.values
    }  # fmt: skip

    assert listed(show(status=status)) == [rows[status].pk]


def test_order_of_ended_and_scheduled_tasks(make, show):
    late = make(failed=True, finished_at=ago(1))
    early = make(failed=True, finished_at=ago(100))
    later = make(scheduled=True, wake_at=now() + timedelta(hours=2))
    sooner = make(scheduled=True, wake_at=now() + timedelta(hours=1))

    assert listed(show(status="FAILED")) == [late.pk, early.pk]
    assert listed(show(status="SCHEDULED")) == [sooner.pk, later.pk]


@pytest.mark.parametrize(
    ("filters", "is_found"),
    [
        ({"queue": "emails"}, True),
        ({"task": "shop.tasks.other"}, True),
        ({"parent": PARENT}, True),
        ({"parent": PARENT, "status": "READY", "queue": "emails"}, True),
        ({"parent": PARENT, "status": "FAILED"}, False),
        ({"parent": "nonsense"}, False),
    ],
    ids=str,
)
def test_filters_by_queue_task_and_parent(make, show, filters, is_found):
    make()
    wanted = make(queue_name="emails", task_type="shop.tasks.other", parent_id=PARENT)

    assert listed(show(**filters)) == [wanted.pk] * is_found


def test_filters_offer_a_bounded_number_of_known_names(make, show, backend, monkeypatch):
    monkeypatch.setattr(registry, "by_name", lambda: {"tests.tasks.add": add})  # other tests declare hundreds of tasks
    for number in range(210):
        QueueFactory.create(backend=backend, using=backend, name=f"customer-{number:03}")
    make(queue_name="a-queue-in-use")

    specs = choosable(show(queue="zzz", task="gone.task"))

    filters = {spec.parameter_name: dict(spec.lookup_choices) for spec in specs}
    assert {"customer-000", "a-queue-in-use", "zzz"} <= filters["queue"].keys()
    assert len(filters["queue"]) <= 201
    assert {"tests.tasks.add", "gone.task"} <= filters["task"].keys()
    assert filters["backend"].keys() == {"default", "sqlite"}


def choices_of(response, name):
    """Return the texts and addresses of a filter, without "All"."""
    changelist = response.context["cl"]
    [spec] = [spec for spec in choosable(response) if spec.parameter_name == name]
    return {choice["display"]: choice["query_string"] for choice in [*spec.choices(changelist)][1:]}


def test_filter_offers_the_errors_that_failed_last(make, show, client, backend, monkeypatch):
    monkeypatch.setattr(list_filters, "CAUSES", 2)
    for number, message in enumerate(["no answer", "no route", "no space"]):
        make(failed=True, cause=f"cause-{number}", errors=[error(message)], finished_at=ago(100 - number))

    offered = choices_of(show(status="READY", p=1), "cause")

    assert list(offered) == ["SMTPServerBusy: no space", "SMTPServerBusy: no route"]
    assert '<details data-filter-title="error">' in show().content.decode()
    assert '<details data-filter-title="error" open>' in show(cause="cause-0").content.decode()
    response = client.get(f"{LIST_URL}{offered['SMTPServerBusy: no route']}")
    assert [row.cause for row in response.context["cl"].result_list] == ["cause-1"]
    assert list(choices_of(show(cause="cause-0"), "cause"))[:-2] == ["SMTPServerBusy: no answer"]
    assert list(choices_of(show(cause="cause-0,cause-1"), "cause"))[:-2] == ["2 errors"]
    client.force_login(make_user("view_task"))
    page = client.get(LIST_URL, {"backend": backend})
    assert "cause" not in {spec.parameter_name for spec in choosable(page)}
    assert "cause-" not in page.content.decode()


def test_filter_offers_the_executors_with_the_last_heartbeats(make, make_executor, show, monkeypatch):
    monkeypatch.setattr(list_filters, "EXECUTORS", 2)
    rows = [make_executor(name=f"web-{number}", heartbeat=ago(number)) for number in range(3)]

    assert list(choices_of(show(), "executor")) == ["web-0", "web-1"]
    assert list(choices_of(show(executor=rows[2].pk), "executor")) == ["web-0", "web-1", "web-2"]


def test_filter_and_suggestions_offer_tags_of_the_newest_tasks(make, show, monkeypatch):
    monkeypatch.setattr(names, "TASKS_READ", 4)
    monkeypatch.setattr("jobqueue.admin.task_list.MAX_SUGGESTIONS", 3)  # of names
    for tags in (["old"], ["vip", "b"], ["vip"], None, ["a"]):
        make(tags=tags)

    response = show()

    assert {"vip", "a", "b"} <= choices_of(response, "tag").keys()
    assert "old" not in choices_of(response, "tag")
    assert "tag:vip" in response.context["cl"].suggestions
    monkeypatch.setattr(names, "TAGS_OF_TASKS", 1)
    assert "a" not in choices_of(show(), "tag")
    assert "vip" in choices_of(show(), "tag")


def test_task_filter_uses_short_names_if_unique(show, monkeypatch):
    declared = dict.fromkeys(("a.b.run_it", "a.c.stop", "d.stop"), add)
    monkeypatch.setattr("jobqueue.admin.filters.registry.by_name", lambda: declared)

    specs = {spec.parameter_name: spec.lookup_choices for spec in choosable(show())}

    assert specs["task"] == [("a.c.stop", "a.c.stop"), ("d.stop", "d.stop"), ("a.b.run_it", "run_it")]


def test_backend_filter_needs_two_backends(client, settings):
    settings.TASKS = {"default": settings.TASKS["default"]}
    client.force_login(make_user("view_task"))

    specs = choosable(client.get(LIST_URL))

    assert [spec.parameter_name for spec in specs] == ["status", "queue", "task", "kind"]


def test_other_backends_tasks_are_not_listed(client):
    client.force_login(make_user("view_task"))
    ours, theirs = TaskFactory.create(), TaskFactory.create(backend="sqlite", using="sqlite")

    assert listed(client.get(LIST_URL)) == [ours.pk]
    assert listed(client.get(LIST_URL, {"backend": "sqlite"})) == [theirs.pk]


def test_search_by_id_and_its_first_characters(make, show):
    make()
    wanted = make(id=new_id())
    text = str(wanted.pk)

    assert listed(show(q=text)) == [wanted.pk]
    assert listed(show(q=text.replace("-", "").upper())) == [wanted.pk]
    assert wanted.pk in listed(show(q=text[:13]))
    assert listed(show(q="ffffffff")) == []


def test_search_by_key_finds_all_tasks_beyond_the_window(make, show, monkeypatch):
    new_holder = make(key="order:7")
    taken_over = make(running=True, key="order:7", taken_over_by_id=new_holder.pk)
    rows = [make(failed=True, key="order:7").pk, new_holder.pk, taken_over.pk]
    for number in range(8, 11):
        make(key=f"order:{number}")
    monkeypatch.setattr(selection, "WINDOW", 1)

    response = show(q="key:order:7")

    assert set(listed(response)) == set(rows)
    assert "tasks only" not in response.content.decode()
    monkeypatch.setattr(selection, "CAP", 1)
    assert set(listed(show(q="key:order:7"))) & set(rows[1:])


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("order:7", "key:order:7"),
        ("1999994", "key:1999994"),
        ("add", "task:add"),
        ("ADD_L", "task:ADD_L"),
        ("key:add", "key:add"),
        ("nothing of it", "nothing of it"),
    ],
)
def test_search_becomes_exact_before_it_is_searched(make, find, text, exact):
    make(key="order:7", successful=True)
    make(key="1999994")

    assert find(text).context["cl"].query == exact


def test_search_finds_tasks_by_their_name(make, find):
    rows = [make(task_type=name) for name in ("tests.tasks.add", "tests.tasks.add_later", "shop.other")]

    assert listed(find("tests.tasks.add")) == listed(find("add")) == [rows[0].pk]
    response = find("add_")
    assert rows[1].pk in listed(response)
    assert rows[2].pk not in listed(response)
    assert "Searched: tasks with “add_” in their name: " in response.content.decode()


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("args.a:57", [0, 1, 2]),
        ('args.a:"57"', [1]),
        ("args.order.lines.1:x", [3]),
        ("args.a:58", []),
        ("args.contains:57", []),
        ("args.exact:57", [4]),
        ("args.a:NaN", []),
    ],
)
def test_search_finds_arguments(make, find, text, matches):
    rows = [
        make(task_type="tests.tasks.add", args=[57, 2]),
        make(task_type="tests.tasks.add", kwargs={"a": "57"}),
        make(kwargs={"a": 57}),
        make(kwargs={"order": {"lines": ["w", "x"]}}),
        make(args=[57], kwargs={"exact": 57}),  # of a task without names for its arguments
    ]

    assert listed(find(text)) == [rows[index].pk for index in reversed(matches)]


def test_search_does_not_answer_guesses_of_masked_arguments(make, find):
    make(kwargs={"password": "hunter2", "login": {"token": "hunter2"}})

    for text in ("args.password:hunter2", "args.login.token:hunter2", 'args.login:{"token": "hunter2"}'):
        response = find(text)
        assert listed(response) == []
    assert "is masked, so it was not searched" in find("args.password:x").content.decode()


def test_search_for_an_error_finds_the_failed_tasks_with_it(make, find, client):
    rows = [
        make(failed=True, cause=f"cause-{number}", errors=[error(message)])
        for number, message in enumerate(["no answer from 10", "no answer after 5 s", "no such user", "login hunter2"])
    ]
    Task.objects.using(rows[3].backend).filter(pk=rows[3].pk).update(kwargs={"password": "hunter2"})

    assert listed(find("error:NO ANSWER")) == [rows[1].pk, rows[0].pk]
    assert listed(find("error:such")) == [rows[2].pk]
    assert listed(find("error:SMTPServerBusy")) == [row.pk for row in reversed(rows)]
    response = find("error:hunter2")
    assert listed(response) == []
    assert "No failed task has “hunter2” in its error" in response.content.decode()


def test_page_says_which_errors_and_tags_were_searched(make, find, show):
    for number, message in enumerate(["no answer", "no route", "no space", "no user"]):
        make(failed=True, cause=f"cause-{number}", errors=[error(message)])
    make(tags=["vip", "order-57"])

    assert "Searched: tasks with the error “SMTPServerBusy: no space”." in find("error:space").content.decode()
    many = find("error:no").content.decode()
    assert "Searched: tasks with one of 4 errors, such as “SMTPServerBusy: no answer”; “" in many
    assert "no user" not in "".join(re.findall(r"jq-searched[^>]*>([^<]*)", many))
    assert "Searched: tasks with the tag “vip”." in find("tag:vip").content.decode()
    assert "Searched: tasks with the tag “order-57”." in find("order-57").content.decode()
    assert "Searched: tasks with the error “gone”." in show(status="FAILED", cause="gone").content.decode()
    assert "write tag:TAG" in find("tag:").content.decode()
    assert "write error:TEXT" in find("error:").content.decode()


def test_search_for_an_error_with_many_causes_asks_for_more_of_the_text(make, find, monkeypatch):
    monkeypatch.setattr(failures, "MAX_CAUSES", 2)
    for number, message in enumerate(["no answer", "no route", "no space"]):
        make(failed=True, cause=f"cause-{number}", errors=[error(message)])

    response = find("error:no ")

    assert listed(response) == []
    assert "3 different errors contain “no”, too many to list." in response.content.decode()
    assert len(listed(find("error:no s"))) == 1
    monkeypatch.setattr(failures, "MAX_CAUSES_FOUND", 2)
    assert "More than 2 different errors are stored." in find("error:no s").content.decode()


def test_search_for_an_error_reads_many_causes_in_few_statements(make, find, backend, monkeypatch):
    def count():
        with CaptureQueriesContext(connections[backend]) as queries:
            assert listed(find("error:nothing")) == []
        return len(queries)

    make(failed=True, cause="cause", errors=[error("the door is broken")])
    before = count()
    for number in range(20):
        make(failed=True, cause=f"cause-{number}", errors=[error(f"the door is {'very ' * number} broken")])
    assert count() == before
    monkeypatch.setattr(failures, "READ_AT_ONCE", 7)
    assert count() == before + 12  # two more batches for the search, for why it found nothing, and for the filter


def test_search_of_arguments_needs_the_permission_to_see_them(make, client, backend):
    make(kwargs={"a": 57})
    client.force_login(make_user("view_task"))

    response = client.get(LIST_URL, {"backend": backend, "q": "args.a:57"})

    assert listed(response) == []
    assert "lack the permission to see arguments" in response.content.decode()
    assert "args.a:" not in response.context["cl"].suggestions
    assert "arguments" not in columns_of(response)


def test_row_shows_arguments_duration_and_priority(make, show):
    make(task_type=log_in.task_type, args=["anna", "hunter2"], successful=True, priority=5)
    make(args=[secrets.token_hex(5000)])

    large, small = cells(show(), "arguments")

    assert small == f'name="anna", password="{MASK}"'
    assert large == "too large to show here"
    assert cells(show(), "attempt") == ["", "attempt 1 of 42 s"]
    assert cells(show(), "queue") == ["default", "default priority 5"]


def test_tabs_count_the_tasks_of_each_status(make, show):
    for _ in range(3):
        make(failed=True, queue_name="emails")
    make()

    tabs = {tab.status: tab for tab in show(status="FAILED", queue="other").context["cl"].tabs}

    assert (str(tabs["FAILED"].number), str(tabs["READY"].number)) == ("3", "1")
    assert [tab.status for tab in tabs.values() if tab.is_selected] == ["FAILED"]
    assert "queue=other" in tabs["READY"].address


def test_columns_are_chosen_and_kept(make, show, client, backend):
    make()
    choice = {"column": ["enqueued", "error", "nonsense"], "query": f"backend={backend}&queue=default"}

    response = client.post(f"{LIST_URL}columns/", choice)

    assert response.url == f"{LIST_URL}?backend={backend}&queue=default"
    assert columns_of(show()) == ["action_checkbox", "state", "name", "enqueued", "error"]


def test_filter_by_executor_finds_what_it_runs_and_has_run(make, show, make_executor):
    web, other = make_executor(), make_executor()
    rows = [make(running=True, executor_id=web.pk), make(successful=True, worker_ids=[str(web.pk)])]
    make(successful=True, worker_ids=[str(other.pk)])

    assert listed(show(executor=web.pk)) == [row.pk for row in reversed(rows)]


def test_filters_by_time_of_enqueue_and_of_end(make, show, monkeypatch):
    monkeypatch.setattr(selection, "WINDOW", 1)
    monkeypatch.setattr(selection, "WINDOW_OF_STATUS", 1)
    old = make(failed=True, id=first_id(ago(7200)), enqueued_at=ago(7200), finished_at=ago(7000))
    rows = [make(failed=True, finished_at=ago(seconds)) for seconds in (200, 100)]
    recent = now() - timedelta(hours=1)

    assert listed(show(enqueued_since=recent.isoformat())) == [row.pk for row in reversed(rows)]
    assert listed(show(enqueued_until=recent.isoformat())) == [old.pk]
    until = ago(150).isoformat()
    response = show(status="FAILED", ended_since=recent.isoformat(), ended_until=until)
    assert listed(response) == [rows[0].pk]
    assert "tasks only" not in response.content.decode()


def test_time_without_a_zone_becomes_exact(show):
    response = show(ended_since="2026-11-25T10:00", ended_until="", status="FAILED")

    assert response.status_code == 302
    assert "ended_since=2026-11-25T10%3A00%3A00%2B00%3A00" in response.url
    assert "ended_until" not in response.url


def test_search_for_other_text_shows_a_hint(make, show):
    make()

    response = show(q=f"send_receipt {SCRIPT}")

    assert listed(response) == []
    assert "is neither the start of an id, nor a key, nor a tag, nor part of a task" in response.content.decode()
    assert SCRIPT not in response.content.decode()


def test_filter_without_index_searches_the_window(make, show, monkeypatch):
    make(queue_name="emails")
    newer = make(queue_name="emails")
    make()
    monkeypatch.setattr(selection, "WINDOW", 1)

    response = show(queue="emails")

    assert listed(response) == [newer.pk]
    assert "among the newest 1 tasks only" in response.content.decode()
    assert "tasks only" not in show().content.decode()


def test_filter_with_index_searches_all_rows(make, show, monkeypatch):
    failed = [make(failed=True, task_type="shop.tasks.other", finished_at=ago(100 - n)).pk for n in range(2)]
    suspended = [make(suspended=True).pk for _ in range(2)]
    make(failed=True)
    make()
    monkeypatch.setattr(selection, "WINDOW", 1)
    monkeypatch.setattr(selection, "WINDOW_OF_STATUS", 1)

    of_a_task, asleep = show(status="FAILED", task="shop.tasks.other"), show(status="SUSPENDED")

    assert listed(of_a_task) == failed[::-1]
    assert listed(asleep) == suspended[::-1]
    assert "tasks only" not in of_a_task.content.decode() + asleep.content.decode()
    assert "among the newest 1 tasks only" in show(status="SUSPENDED", queue="default").content.decode()


def test_suspended_tasks_of_several_backends_in_one_database(client, settings):
    theirs = {**settings.TASKS["default"], "OPTIONS": {"DATABASE": "default"}}
    settings.TASKS = {**settings.TASKS, "second": theirs}
    client.force_login(make_user("view_task"))
    rows = [TaskFactory.create(suspended=True, backend=backend).pk for backend in ("default", "second", "default")]

    assert listed(client.get(LIST_URL, {"status": "SUSPENDED"})) == rows[::-1]
    assert listed(client.get(LIST_URL, {"status": "SUSPENDED", "backend": "second"})) == [rows[1]]


def test_number_is_exact_until_the_planner_estimates_more(make, show, backend, monkeypatch):
    for _ in range(4):
        make(failed=True)
    with connections[backend].cursor() as cursor:
        cursor.execute("ANALYZE")
    for module in (counting, selection, task_list):
        monkeypatch.setattr(module, "CAP", 2)

    content = show(status="FAILED").content.decode()
    assert ">4 tasks " in content
    assert "The pages show the first" in content
    monkeypatch.setattr(counting, "EXACT", 3)

    number = "about 4 tasks" if backend == "default" else "4 tasks"
    assert f">{number} " in show(status="FAILED").content.decode()


def test_pages_follow_each_other(make, show, monkeypatch):
    monkeypatch.setattr("jobqueue.admin.tasks.TaskAdmin.list_per_page", 2)
    rows = [make().pk for _ in range(5)][::-1]

    assert listed(show(p=1)) + listed(show(p=2)) + listed(show(p=3)) == rows
    assert listed(show(status="READY", p=2)) == rows[2:4]
    assert show(p=4).status_code == 302


@pytest.mark.parametrize("query", [{"args__icontains": "x"}, {"task_type__contains": "x"}, {"parent__status": "READY"}])
def test_other_lookups_are_refused(show, query):
    assert show(**query).status_code == 400


@pytest.mark.parametrize("filters", [{}, {"status": "FAILED"}, {"queue": "default"}, {"status": "RUNNING"}, {"q": "0"}])
def test_number_of_queries_does_not_depend_on_the_rows(make, make_executor, show, backend, filters):
    def fill():
        for trait in ("failed", "running", "scheduled", "suspended", "successful"):
            make(**{trait: True}, tags=[f"tag-{len(made)}"])
        made.append(make(failed=True, cause=f"cause-{len(made)}", errors=[error(f"the {len(made)} is broken")]))
        make_executor()

    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            show(**filters)
        return len(default) + len(sqlite)

    made = []
    fill()
    before = count()
    for _ in range(4):
        fill()

    assert count() == before <= 29  # one for each state's tab


def test_list_never_reads_the_big_columns(make, show, backend):
    make(successful=True)

    with CaptureQueriesContext(connections[backend]) as queries:
        show()

    read = " ".join(query["sql"] for query in queries)
    for column in ("inner_state", "return_value", "metadata"):
        assert f'"jobqueue_task"."{column}"' not in read
    for column in ("args", "kwargs"):  # only if they are small
        assert f'"jobqueue_task"."{column}",' not in read


def test_error_of_task_with_large_arguments_is_masked(make, show):
    make(failed=True, args=[secrets.token_hex(100_000)], errors=[error("no login with hunter2")])
    make(failed=True, kwargs={"password": "hunter2"}, errors=[error("no login with hunter2")])

    masked, unread = cells(show(), "error")

    assert masked == f"SMTPServerBusy: no login with {MASK}"
    assert unread == f"SMTPServerBusy: {MASK}"


def test_list_never_reads_the_whole_table(make, show, backend):
    make()

    for filters in ({}, {"status": "SUCCESSFUL"}, {"queue": "default"}, {"task": "x"}):
        with CaptureQueriesContext(connections[backend]) as queries:
            show(**filters)
        for query in queries:
            sql = query["sql"]
            if "jobqueue_task" in sql and "status\" = 'READY'" not in sql and "WITH RECURSIVE" not in sql.upper():
                assert "DISTINCT" not in sql
                assert "LIKE" not in sql
                assert "COUNT" not in sql or "LIMIT" in sql


def test_list_escapes_values(make, show, make_executor):
    make(
        running=True,
        executor_id=make_executor(name=SCRIPT).pk,
        task_type=f"shop.{SCRIPT}",
        queue_name=SCRIPT,
        key=SCRIPT,
        errors=[error(SCRIPT, exception_class_path=SCRIPT)],
    )

    content = show(queue=SCRIPT, task=f"shop.{SCRIPT}").content.decode()

    assert content.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 6
    assert SCRIPT not in content
    make(failed=True, cause="cause", errors=[error(SCRIPT)], tags=[SCRIPT])
    for filters in ({}, {"cause": "cause"}, {"cause": SCRIPT}, {"tag": SCRIPT}):
        content = show(**filters).content.decode()
        assert "tag:&lt;script&gt;" in content
        assert SCRIPT not in content


def test_list_needs_the_permission_to_view(client):
    client.force_login(make_user())

    assert client.get(LIST_URL).status_code == 403


@pytest.mark.slow
def test_filters_take_any_text(show, client):
    def follow(response):
        return client.get(response.url)

    names = ("status", "queue", "task", "parent", "executor", "limit", "ended_since", "enqueued_until")
    texts = ("\x00'\"%s_", "2026-13-99", "key:\x00%", "task:'\"", "args.a'\"%s:%s_", 'args.x.0.y:"\\u0000"')
    for query in [*({name: text} for name in names for text in texts), *({"q": text} for text in texts)]:
        response = show(**query)
        assert (response if response.status_code == 200 else follow(response)).status_code == 200


@pytest.mark.parametrize(
    "filters",
    [
        {"enqueued_since": "0001-01-01T00:00:00Z"},
        {"enqueued_until": "9999-12-31T23:59:59Z"},
        {"status": "FAILED", "ended_since": "0001-01-01T00:00+05:00"},
    ],
)
def test_time_outside_of_the_calendar_matches_nothing(make, show, filters):
    make(failed=True)

    assert show(**filters).context["cl"].result_count == 0


def test_another_search_drops_what_the_last_one_set(make, find):
    make(failed=True, queue_name="emails", errors=[error("no space")], cause="0123456789abcdef")

    for text in ("error:space", "tag:vip"):
        kept = find(text).context["cl"].kept_by_search
        assert not {"cause", "status", "tag", "q"} & kept.keys()
