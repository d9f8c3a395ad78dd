"""The connection of one of the executor's own threads."""

from collections.abc import Iterator

import pytest
from django.db import connection

from jobqueue.executor.outage import PREPARE_AT, Line

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh_connection() -> Iterator[None]:
    connection.close()
    connection.ensure_connection()
    yield
    connection.close()


def asked(line: Line) -> tuple[object, int | None]:
    with line, connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        return cursor.fetchone()[0], connection.connection.prepare_threshold


def test_statements_are_prepared_and_planned_once() -> None:
    assert asked(Line("pulse", "default", 10.0, prepares=True)) == ("force_generic_plan", PREPARE_AT)


def test_a_line_that_is_not_to_prepare_leaves_its_connection_alone() -> None:
    assert asked(Line("heartbeat", "default", 10.0)) == ("auto", None)


def test_behind_a_pooler_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that a pooler gave at login is not that of the session which answers."""
    monkeypatch.setattr("jobqueue.executor.outage.statement", lambda name: {"session": "SELECT 0"}[name])

    assert asked(Line("pulse", "default", 10.0, prepares=True)) == ("auto", None)
