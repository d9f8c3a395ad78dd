"""The pages of executors and queues."""

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.factories import ExecutorFactory, QueueFactory, TaskFactory, ago, make_user

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(params=["default", "sqlite"])
def backend(request):
    return request.param


@pytest.fixture
def make(backend):
    return lambda **columns: ExecutorFactory.create(backend=backend, using=backend, **columns)


@pytest.fixture
def show(client, backend):
    client.force_login(make_user("view_executor", "view_queue"))

    def get(page, **query):
        response = client.get(f"/admin/jobqueue/{page}", {"backend": backend, **query})
        assert response.status_code == 200
        return response.content.decode()

    return get


def test_an_empty_list_of_queues_says_why(show):
    assert "Only queues that were paused once have a row here" in show("queue/")


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({}, "Alive"),
        ({"heartbeat": ago(3600)}, "Lost"),
        ({"state": "DRAINING"}, "Stopping"),
        ({"state": "DRAINING", "heartbeat": ago(3600)}, "Lost"),
        ({"state": "STOPPED", "heartbeat": ago(3600)}, "Stopped"),
    ],
)
def test_life_is_told_by_the_beats(make, show, columns, word):
    make(**columns)

    assert f"</span>{word}</span>" in show("executor/")


def test_list_says_what_each_runs(make, show, backend):
    web, idle = make(slots=8), make(slots=4)
    task = TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk)
    for _ in range(6):
        TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk)

    content = show("executor/")

    assert f"/admin/jobqueue/task/{task.pk}/change/" in content
    assert "and 2 more" in content
    assert "7/8" in content
    assert "0/4" in content
    assert idle.name in content


def test_page_of_one_executor(make, client, show, backend):
    web = make(queues=["emails"], versions={"django": "6.1"})
    TaskFactory.create(backend=backend, using=backend, running=True, executor_id=web.pk)

    content = show(f"executor/{web.pk}/change/")

    for text in ("send_receipt", "emails", "django 6.1", "1/8", "3 s ago"):
        assert text in content


def test_number_of_queries_does_not_depend_on_the_rows(make, show, backend):
    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            show("executor/")
        return len(default) + len(sqlite)

    make()
    before = count()
    for _ in range(10):
        TaskFactory.create(backend=backend, using=backend, running=True, executor_id=make().pk)

    assert count() == before <= 8


def test_queues_say_who_paused_them_and_why(show, backend):
    QueueFactory.create(backend=backend, using=backend, name="emails", paused=True, pause_reason="mail server moves")

    content = show("queue/")

    for text in ("emails", "anna", "mail server moves"):
        assert text in content


def test_nothing_is_rendered_unescaped(make, show, backend):
    make(name=SCRIPT, host=SCRIPT, queues=[SCRIPT], versions={SCRIPT: SCRIPT})
    QueueFactory.create(backend=backend, using=backend, name=SCRIPT, paused_by=SCRIPT, pause_reason=SCRIPT)

    for page in ("executor/", "queue/"):
        content = show(page)
        assert content.count("&lt;script&gt;") >= 3
        assert SCRIPT not in content


def test_odd_rows_do_not_fail_the_pages(make, show):
    web = make(queues={"not": "a list"}, versions=["not an object"])

    show("executor/")
    show(f"executor/{web.pk}/change/")


def test_pages_need_their_permissions(client):
    client.force_login(make_user("view_task"))

    assert client.get("/admin/jobqueue/executor/").status_code == 403
    assert client.get("/admin/jobqueue/queue/").status_code == 403
