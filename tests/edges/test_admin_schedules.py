"""The list of schedules."""

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.edges.admin import BOTH, SCRIPT
from tests.factories import ScheduleFactory, ago, now

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
        ({"state": "removed"}, ["removed"]),
        ({"state": "nonsense"}, []),
        ({"origin": "code"}, ["declared"]),
        ({"origin": "people"}, ["active", "over", "paused"]),
        ({"origin": "code", "state": "removed"}, ["removed"]),
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
    add(name="removed", retired=True)

    assert names(**query) == expected


def test_number_of_queries_does_not_depend_on_the_rows(add, names):
    def count():
        default, sqlite = (CaptureQueriesContext(connections[name]) for name in ("default", "sqlite"))
        with default, sqlite:
            names()
        return len(default) + len(sqlite)

    add()
    before = count()
    for _ in range(10):
        add(paused=True, resume_at=now())

    assert count() == before <= 8


def test_list_escapes_values(add, show):
    add(name=SCRIPT, task_type=SCRIPT, expression=SCRIPT, timezone=SCRIPT, declared_at=SCRIPT)
    add(paused_at=ago(60), paused_by=SCRIPT, pause_reason=SCRIPT)

    content = show("schedule/")

    assert content.count("&lt;script&gt;") >= 3
    assert SCRIPT not in content
