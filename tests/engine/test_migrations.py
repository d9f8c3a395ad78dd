"""What the migrations create, forward and back."""

from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils.timezone import now

from jobqueue.engine.schema import current_models, missing_tables, schema_problem
from jobqueue.models import AdmissionRequest, Executor, Heartbeat, KeyReservation, Schedule, Task
from jobqueue.values.states import Status
from tests.engine.conftest import make_bench
from tests.factories import ExecutorFactory, TaskFactory
from tests.unit.test_rollback import RELEASED

OLD = ("jobqueue", "0005_awaiting_code_indexes")

pytestmark = pytest.mark.django_db(transaction=True)


def storage() -> dict[str, list[str] | None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND relname LIKE 'jobqueue_%%'")
        return dict(cursor.fetchall())


def test_task_table_has_storage_parameters_of_a_queue() -> None:
    options = storage()["jobqueue_task"]

    assert options is not None
    assert {"fillfactor=55", "autovacuum_vacuum_scale_factor=0.01"} <= set(options)


def test_postgresql_migration_runs_again_after_it_was_reversed() -> None:
    before = storage()
    try:
        call_command("migrate", "jobqueue", "0001", verbosity=0)
    finally:
        call_command("migrate", "jobqueue", verbosity=0)

    assert storage() == before


def test_models_match_the_migrations() -> None:
    call_command("makemigrations", "jobqueue", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True, databases=["sqlite"])
def test_sqlite_migrates_back_and_forward() -> None:
    call_command("migrate", "jobqueue", "zero", database="sqlite", verbosity=0)
    try:
        assert missing_tables("sqlite") == sorted(current_models())
    finally:
        call_command("migrate", "jobqueue", database="sqlite", verbosity=0)
    assert schema_problem("sqlite") == ""


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_task_that_waited_for_the_end_of_another_runs_after_migrate(alias: str) -> None:
    call_command("migrate", *OLD, database=alias, verbosity=0)
    try:
        old = MigrationExecutor(connections[alias]).loader.project_state(OLD).apps
        tasks = old.get_model("jobqueue", "Task").objects.using(alias)
        values = {"rank": now(), "enqueued_at": now(), "key": "k", "task_type": "tests.noop", "backend": alias}
        limit = {"concurrency_key": "imports:anna", "concurrency_limit": 1}
        holder = tasks.create(**values, status="RUNNING", successor_id=uuid4())
        plain = tasks.create(**values, status="BLOCKED", predecessor_id=holder.pk)
        limited = tasks.create(**values | {"key": "l"}, **limit, status="BLOCKED", predecessor_id=holder.pk)
        later = tasks.create(**values | {"key": "m"}, status="SCHEDULED", wake_at=now(), predecessor_id=holder.pk)
        requests = old.get_model("jobqueue", "AdmissionRequest").objects.using(alias)
        requests.create(backend=alias, kind="predecessor", key=str(plain.pk), due_at=now())
    finally:
        call_command("migrate", "jobqueue", database=alias, verbosity=0)

    bench = make_bench({"default": "postgresql"}.get(alias, alias))
    assert bench.engine.admissions.admit().queues == {"default": 1}
    bench.engine.inbox.wake_due()
    assert {bench.status(task.pk) for task in (plain, limited, later)} == {"READY"}
    assert bench.row(holder.pk).taken_over_by_id == holder.successor_id
    assert bench.add(key="k") == plain.pk
    assert not AdmissionRequest.objects.using(alias).exists()


def test_index_of_rates_is_built_beside_writers_and_after_a_broken_attempt() -> None:
    call_command("migrate", *OLD, verbosity=0)
    statements: list[str] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    try:
        with connection.cursor() as cursor:
            cursor.execute("CREATE INDEX jobqueue_task_rate_new ON jobqueue_task (id)")  # as one that is not valid
        with connection.execute_wrapper(record):
            call_command("migrate", "jobqueue", "0007", verbosity=0)
    finally:
        call_command("migrate", "jobqueue", verbosity=0)

    built = [sql for sql in statements if sql.startswith("CREATE") and "INDEX" in sql]
    assert len(built) == 1
    assert built[0].startswith("CREATE INDEX CONCURRENTLY")


@pytest.mark.parametrize("kind", ["concurrency", "rate"])
def test_key_of_a_limit_keeps_its_order_when_its_column_changes(kind: str) -> None:
    """With another one, a range of keys contains those of other limits."""
    old = latest_state().get_model("jobqueue", "Task")._meta.get_field(f"{kind}_key")
    new = old.clone()
    new.max_length = 600
    new.set_attributes_from_name(f"{kind}_key")
    with transaction.atomic(), connection.cursor() as cursor:
        with connection.schema_editor(atomic=False) as editor:
            editor.alter_field(Task, old, new)
        cursor.execute(
            "SELECT character_maximum_length, collation_name FROM information_schema.columns"
            " WHERE table_name = 'jobqueue_task' AND column_name = %s",
            [f"{kind}_key"],
        )
        row = cursor.fetchone()
        transaction.set_rollback(True)

    assert row == (600, "C")


def latest_state() -> Any:
    loader = MigrationExecutor(connection).loader
    return loader.project_state(loader.graph.leaf_nodes("jobqueue")).apps


@pytest.mark.parametrize("status", Status)
def test_each_status_is_accepted(status: Status) -> None:
    row = TaskFactory.create()

    assert Task.objects.filter(pk=row.pk).update(status=status) == 1


def test_check_of_the_status_is_short() -> None:
    """Each statement reads it again: an expression with nine texts costs twice as much as a constant."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT conbin::text FROM pg_constraint WHERE conname = 'jobqueue_task_status'")
        ((tree,),) = cursor.fetchall()

    assert tree.count("{CONST") == 1
    assert "{ARRAYEXPR" not in tree


@pytest.mark.parametrize("status", ["", "READ", "ready"])
def test_unknown_status_is_refused(status: str) -> None:
    row = TaskFactory.create()

    with pytest.raises(IntegrityError, match="jobqueue_task_status"):
        Task.objects.filter(pk=row.pk).update(status=status)


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_heartbeats_survive_the_way_back(alias: str) -> None:
    kept = ExecutorFactory.create(using=alias, backend=alias, state="PAUSED")
    deleted = ExecutorFactory.create(using=alias, backend=alias)
    Heartbeat.objects.using(alias).filter(pk=deleted.pk).delete()
    try:
        call_command("migrate", "jobqueue", "0013", database=alias, verbosity=0)
        old = MigrationExecutor(connections[alias]).loader.project_state(("jobqueue", "0013_executor_shortage")).apps
        rows = old.get_model("jobqueue", "Executor").objects.using(alias)
        heartbeats = {row.pk: (row.heartbeat, row.state) for row in rows.all()}
    finally:
        call_command("migrate", "jobqueue", database=alias, verbosity=0)

    assert heartbeats == {kept.pk: (kept.heartbeat.at, "PAUSED"), deleted.pk: (deleted.started_at, "STOPPED")}


BEFORE = ("jobqueue", "0002_postgresql")


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_rows_of_every_kind_survive_all_later_migrations(alias: str) -> None:
    call_command("migrate", "jobqueue", "zero", database=alias, verbosity=0)
    try:
        call_command("migrate", *BEFORE, database=alias, verbosity=0)
        old = MigrationExecutor(connections[alias]).loader.project_state(BEFORE).apps
        tasks, schedules, reservations = (
            old.get_model("jobqueue", name).objects.using(alias) for name in ("Task", "Schedule", "KeyReservation")
        )
        values = {"rank": now(), "enqueued_at": now(), "task_type": "tests.noop", "backend": alias}
        for status in ("READY", "SCHEDULED", "RUNNING", "SUSPENDED"):
            tasks.create(**values, status=status, args=[status])
        for status in ("SUCCESSFUL", "FAILED", "CANCELLED"):
            tasks.create(**values, status=status, finished_at=now(), errors=[{"attempt": 1, "message": status}])
        holder = tasks.get(status="RUNNING").pk
        blocked = tasks.create(**values, status="BLOCKED", predecessor_id=holder).pk
        schedules.create(backend=alias, name="nightly", task_type="tests.noop", created_at=now(), updated_at=now())
        reservations.create(backend=alias, key="k", task_id=holder, expires_at=now())
        executors = old.get_model("jobqueue", "Executor").objects.using(alias)
        executor = executors.create(
            backend=alias, name="e", host="h", pid=1, started_at=now(), heartbeat=now(), state="PAUSED"
        )
        before = {row.pk: (row.status, row.args, row.errors) for row in tasks.all()}
    finally:
        call_command("migrate", "jobqueue", database=alias, verbosity=0)

    beat = Executor.objects.using(alias).get(pk=executor.pk).heartbeat
    assert (beat.at, beat.state, beat.problem) == (executor.heartbeat, "PAUSED", None)
    after = {row.pk: (row.status, row.args, row.errors) for row in Task.objects.using(alias)}
    assert after == before | {blocked: ("READY", [], [])}
    assert Schedule.objects.using(alias).get().name == "nightly"
    assert KeyReservation.objects.using(alias).get().task_id == holder


# Of the previous release: its code calls them with these parameters.
FUNCTIONS = {
    "jobqueue_enqueue(text,double precision,json)",
    "jobqueue_enqueue_plain(text[],uuid[],text,text)",
    "jobqueue_record(uuid,bigint,uuid,json)",
}


def test_functions_that_the_previous_release_calls_keep_their_parameters() -> None:
    with connection.cursor() as cursor:
        cursor.execute(r"SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'jobqueue\_%%'")
        assert {name for (name,) in cursor.fetchall()} >= FUNCTIONS


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_code_of_the_previous_release_writes_rows_of_the_newest_tables(alias: str) -> None:
    old = MigrationExecutor(connections[alias]).loader.project_state(("jobqueue", RELEASED)).apps
    task = (
        old.get_model("jobqueue", "Task")
        .objects.using(alias)
        .create(rank=now(), enqueued_at=now(), task_type="tests.tasks.add", args=[1], backend=alias)
    )
    old.get_model("jobqueue", "InboxMessage").objects.using(alias).create(task=task, sent_at=now())
    old.get_model("jobqueue", "Schedule").objects.using(alias).create(
        backend=alias, name="nightly", task_type="tests.noop", created_at=now(), updated_at=now()
    )
    assert Task.objects.using(alias).get(pk=task.pk).args == [1]
    assert schema_problem(alias) == ""
