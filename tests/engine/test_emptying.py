"""What a test with real transactions leaves behind is gone before the next one begins."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection

from jobqueue.models import InboxMessage, Task
from tests import emptying
from tests.engine.bench import new
from tests.engine.conftest import make_bench
from tests.engine.sessions import session, threads, wait_until_somebody_waits
from tests.factories import MessageFactory, TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)


def empty() -> None:
    call_command("flush", verbosity=0, interactive=False)


def size() -> int:
    return emptying.size_of_largest(connection, ["jobqueue_task"])


def file() -> int:
    """Name the file that a TRUNCATE replaces; an empty one may have lost its pages to an autovacuum."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_filenode('jobqueue_task')")
        return int(cursor.fetchone()[0])


def test_few_rows_are_deleted_and_permissions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(emptying, "MOST_BYTES", -1)  # what tests before this one have left in any table
        empty()
    MessageFactory.create(task_id=TaskFactory.create(parent_id=TaskFactory.create().pk).pk)
    before, kept = Permission.objects.count(), file()

    empty()

    assert not InboxMessage.objects.exists()
    assert not Task.objects.exists()
    assert Permission.objects.count() == before > 0
    assert file() == kept


def test_a_table_that_has_grown_is_truncated() -> None:
    make_bench("postgresql").engine.enqueue([new() for _ in range(2_000)])
    assert size() > emptying.MOST_BYTES
    before = file()

    empty()

    assert not Task.objects.exists()
    assert file() != before


def test_what_another_session_is_about_to_commit_is_waited_for() -> None:
    """A server process whose client was killed may still be at it: the next test would meet its rows."""
    with threads(1) as start, session() as other:
        other.run("SELECT jobqueue_create_task(NULL, 'tests.noop')")
        emptied = start(empty)
        wait_until_somebody_waits()
        other.commit()
        emptied.result(60)

    assert not Task.objects.exists()
