"""The admin's pages of limits, and the filter of tasks by a key."""

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue.models import AdmissionRequest, Limit
from jobqueue.operations.holders import MAX_HOLDERS
from tests.admin.pages import BOTH, LIST_URL, SCRIPT, messages_of, task_url
from tests.api.limited import rated, started, waiting
from tests.cli.commands import jobqueue
from tests.factories import QueueFactory, ago, make_user

pytestmark = BOTH
LIMITS = "/admin/jobqueue/limit/"
ACCOUNT = "tests.imports:account-42"


def url(backend, key=ACCOUNT, kind="concurrency"):
    return reverse("admin:jobqueue_limit_change", args=[quote(f"{backend}:{kind}:{key}")])


def text_of(response):
    assert response.status_code == 200, response
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


@pytest.fixture
def read(client, staff, backend):
    return lambda **query: text_of(client.get(LIMITS, {"backend": backend, **query}))


@pytest.fixture
def page(client, staff, backend):
    return lambda key=ACCOUNT, kind="concurrency": text_of(client.get(url(backend, key, kind)))


@pytest.fixture
def post(client, staff, backend):
    return lambda key=ACCOUNT, kind="concurrency", **data: client.post(url(backend, key, kind), data)


class TestList:
    def test_list_has_most_blocked_keys_first(self, client, staff, backend):
        waiting(backend=backend)
        waiting("tests.imports:account-7", 3, backend=backend)
        rated(count=2, backend=backend)
        response = client.get(LIMITS, {"backend": backend})
        keys = [state.title for state, *_ in response.context["lines"]]
        assert keys[:3] == ["account-7", "api-7", "account-42"]

    def test_line_has_numbers_and_links_to_tasks(self, client, staff, backend):
        waiting(count=2, enqueued_at=ago(7200), concurrency_limit=3, backend=backend)
        waiting(status="RUNNING", backend=backend)
        response = client.get(LIMITS, {"backend": backend, "q": ACCOUNT})
        assert "Limit 3 at once Blocked 2 Active 1 Left 2 Blocked since 2 h ago" in text_of(response)
        tasks = f"{LIST_URL}?limit=concurrency%3Atests.imports%3Aaccount-42&amp;backend={backend}"
        assert f'href="{tasks}&amp;status=BLOCKED">2</a>' in response.content.decode()

    def test_line_of_a_rate_has_its_starts(self, read, backend):
        rated(backend=backend)
        started(count=2, backend=backend)
        assert "Limit 100 a minute Blocked 1 Active 2 Left 98" in read(kind="rate", q="api-7")

    def test_search_and_kind_narrow_the_list(self, read, backend):
        waiting(backend=backend)
        rated(backend=backend)
        assert "account-42" not in read(kind="rate")
        assert "api-7" not in read(q="account")
        assert "No limit matches." in read(q="no such")
        assert "account-42" in read(kind="nonsense", p="x")

    def test_list_has_pages_that_keep_the_search(self, client, staff, backend, monkeypatch):
        monkeypatch.setattr("jobqueue.admin.limits.KEYS_PER_PAGE", 2)
        for number in range(3):
            waiting(f"tests.imports:account-{number}", backend=backend)
        response = client.get(LIMITS, {"backend": backend, "q": "account"})
        assert f'href="?q=account&amp;backend={backend}&amp;p=2"' in response.content.decode()
        assert "account-2" in text_of(client.get(LIMITS, {"backend": backend, "q": "account", "p": 2}))

    def test_names_and_keys_are_escaped(self, read, backend, client):
        waiting(f"tests.imports:{SCRIPT}", backend=backend)
        assert SCRIPT not in client.get(LIMITS, {"backend": backend, "q": SCRIPT}).content.decode()
        assert SCRIPT not in client.get(url(backend, f"tests.imports:{SCRIPT}")).content.decode()

    def test_list_needs_the_permission_to_see_limits(self, client):
        client.force_login(make_user("view_task"))
        assert client.get(LIMITS).status_code == 403
        client.force_login(make_user("view_limit"))
        assert client.get(LIMITS).status_code == 200
        assert client.post(LIMITS).status_code == 405

    def test_number_of_queries_does_not_grow_with_tasks(self, client, staff, backend):
        def queries():
            with CaptureQueriesContext(connections[backend]) as captured:
                client.get(LIMITS, {"backend": backend})
            return len(captured)

        waiting(count=2, backend=backend)
        before = queries()
        waiting(count=30, backend=backend)
        assert queries() == before


class TestPage:
    def test_page_shows_what_holds(self, page, backend):
        waiting(count=2, concurrency_limit=3, backend=backend)
        waiting(status="RUNNING", backend=backend)
        content = page()
        assert "Name of the limit tests. imports Kind Concurrency Limit 3 Blocked 2 tasks Active 1 Left 2" in content

    def test_set_changes_the_number_and_logs_user_and_reason(self, post, page, backend, staff):
        waiting(backend=backend)
        response = post(number="3", reason="a large customer")
        row = Limit.objects.using(backend).get()
        assert (row.number, row.changed_by, row.reason) == (3, staff.get_username(), "a large customer")
        assert messages_of(response) == ["Limit account-42: Limit set to 3. Reason: a large customer"]
        entry = LogEntry.objects.get()
        assert (entry.user, entry.get_change_message()) == (staff, "Limit set to 3. Reason: a large customer")
        assert entry.get_admin_url() == url(backend)
        content = page()
        assert "Limit 3 Declared 1 Set" in content
        assert f"{staff.get_username()}: Limit set to 3." in content

    def test_reset_removes_the_number_and_keeps_the_log(self, post, page, backend):
        waiting(backend=backend)
        post(number="3")
        response = post(reset="1")
        assert not Limit.objects.using(backend).exists()
        assert messages_of(response)[-1] == "Limit account-42: Limit reset."
        assert "Limit reset. " in page()
        assert "Limit set to 3." in page()
        assert messages_of(post(reset="1"))[-1] == "People had not set a limit for this key."

    @pytest.mark.parametrize("number", ["0", "-1", "five", "1.5", "", "99999999999"])
    def test_form_refuses_what_is_no_number(self, post, backend, number):
        response = post(number=number)
        assert response.status_code == 200
        assert response.context["form"].errors["number"]
        assert not Limit.objects.using(backend).exists()

    def test_page_of_all_keys_sets_the_number_of_each(self, post, page, backend):
        waiting(backend=backend)
        assert "Limit 1, for each key" in page("tests.imports:")
        post("tests.imports:", number="4")
        assert "Limit 4 Declared 1 Set for all keys" in page()

    def test_fixed_limit_has_no_form_and_refuses_a_number(self, post, page, backend):
        assert "adjustable=False" in page("payments:")
        assert "Change the limit" not in page("payments:")
        assert "Change its number there" in text_of(post("payments:", number="3"))
        assert not Limit.objects.using(backend).exists()

    def test_unknown_key_is_refused_with_what_to_do(self, post, backend):
        response = post("no.such:key", number="3")
        assert "No concurrency limit of the backend" in text_of(response)
        assert not Limit.objects.using(backend).exists()

    def test_page_of_a_wrong_address_leads_to_the_list(self, client, staff):
        for wrong in ("nonsense", "default:speed:a:b", "other:rate:a:b", "default:rate:a"):
            response = client.get(reverse("admin:jobqueue_limit_change", args=[quote(wrong)]))
            assert (response.status_code, response.url) == (302, LIMITS)

    def test_change_needs_a_permission_of_its_own(self, client, backend):
        waiting(backend=backend)
        client.force_login(make_user("view_limit", "pause_queue", "view_task"))
        assert "Change the limit" not in text_of(client.get(url(backend)))
        assert client.post(url(backend), {"number": "3"}).status_code == 403
        client.force_login(make_user("change_limit"))
        assert client.post(url(backend), {"number": "3"}).status_code == 302

    def test_index_of_the_admin_lists_limits(self, client, staff):
        assert f'href="{LIMITS}' in client.get("/admin/jobqueue/").content.decode()


class TestTaskList:
    @pytest.fixture
    def listed(self, client, staff, backend):
        def get(**query):
            response = client.get(LIST_URL, {"backend": backend, **query})
            assert response.status_code == 200
            return {row.pk for row in response.context["cl"].result_list}

        return get

    def test_filter_by_key_finds_its_live_tasks(self, listed, backend):
        mine = [*waiting(count=2, backend=backend), *waiting(status="RUNNING", backend=backend)]
        waiting("tests.imports:account-7", backend=backend)
        waiting(status="SUCCESSFUL", finished_at=ago(5), backend=backend)
        assert listed(limit=f"concurrency:{ACCOUNT}") == {row.pk for row in mine}
        assert listed(limit=f"concurrency:{ACCOUNT}", status="RUNNING") == {mine[2].pk}
        assert listed(limit=f"concurrency:{ACCOUNT}", queue="other") == set()
        assert len(listed(limit="concurrency:tests.imports:")) == 4

    def test_filter_by_rate_finds_what_waits_for_it(self, listed, backend):
        mine = [*rated(backend=backend), *rated(status="READY", backend=backend)]
        started(backend=backend)
        assert listed(limit="rate:tests.call_api:api-7") == {row.pk for row in mine}

    @pytest.mark.parametrize("text", ["nonsense", "rate:", "speed:a:b", "concurrency:a", "concurrency:a:\0"])
    def test_filter_by_invalid_key_finds_nothing(self, listed, backend, text):
        waiting(backend=backend)
        assert listed(limit=text) == set()

    def test_filter_by_key_with_many_tasks_shows_the_newest(self, listed, backend, monkeypatch):
        monkeypatch.setattr("jobqueue.operations.list.selection.CAP", 2)
        rows = waiting(count=4, backend=backend)
        assert listed(limit=f"concurrency:{ACCOUNT}") == {row.pk for row in rows}

    def test_blocked_tasks_have_a_status_of_their_own(self, client, listed, backend, make):
        rows = waiting(count=2, backend=backend)
        make()
        assert listed(status="BLOCKED") == {row.pk for row in rows}
        assert "Blocked" in text_of(client.get(LIST_URL, {"backend": backend, "status": "BLOCKED"}))


class TestTaskPage:
    @pytest.fixture
    def show_task(self, client, staff):
        return lambda task: client.get(task_url(task)).content.decode()

    def test_page_says_which_key_is_full_and_links_to_it(self, show_task, backend):
        waiting(status="RUNNING", backend=backend)
        (task,) = waiting(backend=backend)
        html = show_task(task)
        assert "Blocked: the concurrency limit of account-42 is reached (1 of 1 active)." in html
        tasks = f"{LIST_URL}?limit=concurrency%3Atests.imports%3Aaccount-42&amp;backend={backend}"
        assert f'<a href="{tasks}">Show the tasks of this key</a>' in html
        assert f'<a href="{url(backend)}">account-42</a>: 1 of 1 at once' in html

    @pytest.mark.parametrize(
        ("holder", "words"),
        [
            ({"status": "READY", "queue_name": "paused"}, "Queue paused is paused by anna."),
            ({"status": "READY", "queue_name": "nobodys"}, "No executor is serving queue nobodys."),
            ({"status": "SCHEDULED", "wake_at": ago(-604_800), "attempts": 1}, "It still counts for the concurrency"),
            ({"status": "AWAITING_CODE", "awaits_code_since": ago(60)}, "Waiting for code for"),
            ({"status": "RUNNING", "claimed_at": ago(7200), "executor_id": None}, "Running for 2 h"),
        ],
        ids=["paused", "unserved", "retry", "without code", "running"],
    )
    def test_page_names_who_holds_the_key_and_why_it_has_not_ended(self, show_task, backend, holder, words):
        QueueFactory.create(backend=backend, using=backend, name="paused", paused=True)
        counts = holder["status"] in ("SCHEDULED", "AWAITING_CODE")
        (held,) = waiting(backend=backend, counts_while_waiting=counts, **holder)
        (task,) = waiting(backend=backend)

        html = show_task(task)

        assert f'Held by <a href="{task_url(held)}">' in html
        assert words in html
        assert words in jobqueue("show", task.pk).out.replace("\n  ", " ")
        assert [holding["id"] for holding in jobqueue("show", task.pk, "--json").json["held_by"]] == [str(held.pk)]

    def test_page_of_a_key_names_who_holds_it(self, client, staff, backend):
        (held,) = waiting(status="RUNNING", backend=backend)
        waiting(backend=backend)
        assert f'Held by <a href="{task_url(held)}">' in client.get(url(backend)).content.decode()

    def test_page_of_a_key_links_to_its_holder_for_those_who_may_see_tasks(self, client, backend):
        client.force_login(make_user("view_limit"))
        (held,) = waiting(status="RUNNING", backend=backend)
        waiting(backend=backend)
        html = client.get(url(backend)).content.decode()
        assert "Held by" in html
        assert task_url(held) not in html

    def test_page_shows_few_of_many_holders(self, show_task, backend):
        waiting(count=5, concurrency_limit=5, status="RUNNING", backend=backend)
        (task,) = waiting(concurrency_limit=5, backend=backend)
        assert show_task(task).count("Held by") == MAX_HOLDERS

    def test_key_that_may_start_another_task_has_no_holders(self, show_task, backend):
        waiting(status="RUNNING", concurrency_limit=2, backend=backend)
        (task,) = waiting(concurrency_limit=2, backend=backend)
        assert "Held by" not in show_task(task)

    def test_rate_names_admitted_tasks_that_have_not_started(self, show_task, backend):
        QueueFactory.create(backend=backend, using=backend, name="paused", paused=True)
        (held,) = rated(status="READY", rate_limit=1, queue_name="paused", backend=backend)
        (task,) = rated(rate_limit=1, backend=backend)
        assert f'Held by <a href="{task_url(held)}">' in show_task(task)

    def test_show_names_a_limit_without_code_and_no_number(self, backend):
        (task,) = rated("shop.tasks.push_contact:", status="SUCCESSFUL", finished_at=ago(1), backend=backend)
        assert re.search(r"^Rate +shop\.tasks\.push_contact$", jobqueue("show", task.pk).out, re.MULTILINE)

    def test_page_of_an_ended_task_shows_no_number_of_a_limit_that_has_none(self, show_task, backend):
        key = "tests.albums:album-7"  # no code declares it
        (task,) = waiting(key, status="SUCCESSFUL", finished_at=ago(1), backend=backend)
        assert f'<a href="{url(backend, key)}">album-7</a></dd>' in show_task(task)

    def test_page_says_when_a_rate_starts_the_next_task(self, show_task, backend):
        (task,) = rated(rate_limit=2, backend=backend)
        started(count=2, rate_limit=2, backend=backend)
        AdmissionRequest.objects.using(backend).create(
            backend=backend, kind="rate", key="tests.call_api:api-7", due_at=ago(-50)
        )
        html = show_task(task)
        assert re.search(r"Blocked: the rate of api-7 is used up \(2 a minute\)\. Next start in (50|49|48) s\.", html)
        assert "2 of 2 a minute" in html

    def test_page_of_a_task_with_both_limits_names_the_one_it_waits_for(self, show_task, backend):
        both: dict[str, Any] = {"rate_key": "tests.call_api:api-7", "rate_limit": 1, "rate_seconds": 60.0}
        waiting(status="RUNNING", backend=backend)
        rated(status="READY", rate_limit=1, backend=backend)
        first, *_ = waiting(backend=backend, **both)
        second, *_ = waiting("tests.imports:account-7", counts_while_waiting=True, backend=backend, **both)
        assert "Blocked: the concurrency limit of account-42 is reached (1 of 1 active)." in show_task(first)
        assert "Blocked: the rate of api-7 is used up (1 a minute)." in show_task(second)

    def test_page_of_a_task_links_to_the_one_that_took_over_its_key(self, show_task, backend, make):
        second = make(key="digest")
        first = make(running=True, key="digest", taken_over_by_id=second.pk)
        html = show_task(first)
        assert f"Task {second.pk} has taken over its unique key" in html
        assert "Key taken over by" in html
        assert f'<a href="{task_url(second)}">' in html

    def test_links_to_limits_need_the_permission_to_see_them(self, client, backend):
        client.force_login(make_user("view_task"))
        (task,) = waiting(backend=backend)
        html = client.get(task_url(task)).content.decode()
        assert "account-42: " in html
        assert LIMITS not in html

    def test_show_prints_limits_as_text_and_json(self, backend):
        waiting(status="RUNNING", backend=backend)
        (task,) = waiting(backend=backend)
        assert re.search(r"Concurrency limit +tests.imports:account-42: 1 of 1\n", jobqueue("show", task.pk).out)
        assert jobqueue("show", task.pk, "--json").json["limits"] == [
            {"kind": "concurrency", "key": ACCOUNT, "number": 1, "active": 1}
        ]
