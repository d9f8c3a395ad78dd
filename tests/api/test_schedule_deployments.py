"""When declared schedules become rows: on `migrate`, beside old code, and after a deploy goes back to it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core import mail
from django.core.management import call_command
from django.db import connections
from django.db.models import F

from jobqueue import Cron, Every, schedule
from jobqueue.api.schedule_deployments import VERSION, DeclaredSchedules
from jobqueue.api.schedules import create
from jobqueue.declarations.schedules import Declaration
from jobqueue.engine import engine_for
from jobqueue.models import Executor, Heartbeat, Schedule, ScheduleDeployment
from tests.factories import ExecutorFactory
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

    def test_host_without_a_time_zone_keeps_the_schedules_that_use_it(
        self, own_schedules: list[Declaration], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        schedule("pacific", add, Cron("0 8 * * *", timezone="US/Pacific"), args=[1])
        schedule("hourly", add, Every(hours=1), args=[1])
        migrate()
        with monkeypatch.context() as without_zones:
            without_zones.setattr("jobqueue.schedules.expressions._is_zone", lambda name: not name.startswith("US/"))
            call_command("migrate", skip_checks=True, verbosity=0)
        assert names() == ["hourly", "pacific"]
        own_schedules.clear()  # code that no longer declares them
        migrate()
        assert names() == []

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


class Code:
    """One version of a site's code: what it declares, its executor, and its `migrate`."""

    def __init__(self, own_schedules: list[Declaration], **intervals: int) -> None:
        self.declared = own_schedules
        self.intervals = intervals

    def load(self) -> None:
        self.declared.clear()
        for name, hours in self.intervals.items():
            schedule(name, add, Every(hours=hours), args=[1])

    def migrate(self) -> None:
        self.load()
        migrate()

    def start(self) -> Executor:
        """Start an executor. Return its row."""
        self.load()
        declared, engine = DeclaredSchedules.of("default"), engine_for("default")
        now = engine.db.now()
        row = ExecutorFactory.create(versions={VERSION: declared.digest}, started_at=now, heartbeat=now)
        declared.synchronize(engine)
        return row

    def continue_running(self) -> None:
        """Do what an executor does every 30 s."""
        self.load()
        DeclaredSchedules.of("default").synchronize(engine_for("default"))


def stop(executor: Executor) -> None:
    """Stop an executor. A heartbeat timeout passes."""
    timeout = timedelta(seconds=engine_for("default").options.heartbeat_timeout)
    Heartbeat.objects.filter(pk=executor.pk).update(state=Executor.State.STOPPED, at=F("at") - 2 * timeout)


def rows() -> dict[str, str]:
    return dict(Schedule.objects.active().order_by("name").values_list("name", "expression"))


OLD_ROWS = {"changed": "@every 3600", "retired": "@every 3600"}
NEW_ROWS = {"added": "@every 3600", "changed": "@every 7200"}


@pytest.mark.usefixtures("outside_of_tests")
class TestDeploy:
    @pytest.fixture
    def old(self, own_schedules: list[Declaration]) -> Code:
        return Code(own_schedules, changed=1, retired=1)

    @pytest.fixture
    def new(self, own_schedules: list[Declaration]) -> Code:
        return Code(own_schedules, changed=2, added=1)

    def test_old_executors_do_not_undo_migrate(self, old: Code, new: Code) -> None:
        old.migrate()
        running = old.start()
        assert rows() == OLD_ROWS
        new.migrate()
        assert rows() == NEW_ROWS
        ScheduleDeployment.objects.update(applied_at=F("applied_at") - timedelta(minutes=10))
        old.continue_running()
        assert rows() == NEW_ROWS, "new code was migrated, and has no executor yet"
        new.start()
        old.continue_running()
        old.migrate()
        assert rows() == NEW_ROWS, "both run"
        stop(running)
        new.continue_running()
        assert rows() == NEW_ROWS

    def test_restart_of_old_executors_during_a_deploy_changes_nothing(self, old: Code, new: Code) -> None:
        old.start()
        new.migrate()
        old.start()
        assert rows() == NEW_ROWS

    def test_site_goes_back_to_old_code(self, old: Code, new: Code) -> None:
        before = old.start()
        new.migrate()
        after = new.start()
        stop(before)
        again = old.start()
        assert rows() == NEW_ROWS, "both run"
        stop(after)
        old.continue_running()
        assert rows() == OLD_ROWS
        new.migrate()
        assert rows() == OLD_ROWS, "the old executors run"
        new.start()
        stop(again)
        new.continue_running()
        assert rows() == NEW_ROWS

    def test_history_of_a_retired_schedule_stays(self, old: Code, new: Code) -> None:
        old.migrate()
        row = Schedule.objects.get(name="retired")
        new.migrate()
        row.refresh_from_db()
        assert (row.next_at, row.due_at) == (None, None)
        assert row.retired_at is not None

    def test_schedules_of_people_are_kept(self, old: Code, new: Code) -> None:
        create(Declaration("theirs", add, Every(hours=1), "", args=[1]))
        old.migrate()
        new.migrate()
        assert rows() == NEW_ROWS | {"theirs": "@every 3600"}
