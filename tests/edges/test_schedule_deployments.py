"""When declared schedules become rows: on `migrate`, beside old code, and after a deploy goes back to it."""

from __future__ import annotations

import pytest
from django.core import mail
from django.core.management import call_command
from django.db import connections

from jobqueue import Cron, Every, schedule
from jobqueue.declared_schedules import Declaration
from jobqueue.models import Schedule
from tests.tasks import add

pytestmark = [pytest.mark.django_db(databases=["default", "sqlite"]), pytest.mark.usefixtures("own_schedules")]


@pytest.fixture
def outside_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let code believe that no test is running."""
    monkeypatch.delattr(mail, "outbox")


def names(database: str = "default") -> list[str]:
    return [*Schedule.objects.using(database).active().order_by("name").values_list("name", flat=True)]


def migrate(*arguments: str, database: str = "default") -> None:
    call_command("migrate", *arguments, database=database, verbosity=0)


@pytest.mark.usefixtures("outside_of_tests")
class TestMigrate:
    def test_migrate_writes_the_schedules_of_the_database(self) -> None:
        schedule("here", add, Every(hours=1), args=[1])
        schedule("there", add, Every(hours=1), args=[1], backend="sqlite")
        migrate()
        assert (names(), names("sqlite")) == (["here"], [])
        migrate(database="sqlite")
        assert (names(), names("sqlite")) == (["here"], ["there"])

    def test_schedule_with_a_mistake_is_left_out(self) -> None:
        schedule("wrong", add, Cron("61 * * * *"), args=[1])
        schedule("right", add, Every(hours=1), args=[1])
        call_command("migrate", skip_checks=True, verbosity=0)

        assert names() == ["right"]

    def test_migrate_retires_what_code_no_longer_declares(self, own_schedules: list[Declaration]) -> None:
        schedule("old", add, Every(hours=1), args=[1])
        migrate()
        own_schedules.clear()
        migrate()

        assert names() == []
        assert Schedule.objects.get().retired_at is not None

    @pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
    def test_migrate_to_zero_and_back(self) -> None:
        schedule("there", add, Every(hours=1), args=[1], backend="sqlite")
        migrate("jobqueue", "zero", database="sqlite")
        assert "jobqueue_schedule" not in connections["sqlite"].introspection.table_names()
        migrate("auth", database="sqlite")  # the tables of jobqueue are missing still
        migrate("jobqueue", database="sqlite")
        assert names("sqlite") == ["there"]


def test_migrate_in_tests_writes_no_schedules() -> None:
    schedule("here", add, Every(hours=1), args=[1])
    migrate()

    assert names() == []
