"""What the migrations install on PostgreSQL: functions, comments, grants."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

from jobqueue.apps import install_sql
from jobqueue.migrations.sql import run_files
from jobqueue.values.states import Status
from tests.api.sql import REFUSED, create, refused, send, sql

pytestmark = pytest.mark.django_db


def test_functions_use_the_schema_of_the_tables() -> None:
    ours = """"O'Reilly's ""queue\""""
    sql(f"CREATE SCHEMA {ours}; CREATE SCHEMA theirs; SET LOCAL search_path = {ours}, theirs")
    migrate_here()
    sql(
        """
        SET LOCAL search_path = theirs, pg_catalog;
        CREATE TEMPORARY TABLE jobqueue_task (id uuid);
        CREATE FUNCTION theirs.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$SELECT 'none'$$;
        """
    )

    pk = sql(f"SELECT {ours}.jobqueue_create_task(NULL, 't', key => 'k')")
    sql(f"SELECT {ours}.jobqueue_send_to_task(%s, NULL, '1')", pk)
    with refused(REFUSED):
        sql(f"SELECT {ours}.jobqueue_create_task(NULL, 't', args => '{{}}')")

    assert sql(f"SELECT count(*) FROM {ours}.jobqueue_task") == 1
    assert sql(f"SELECT count(*) FROM {ours}.jobqueue_inboxmessage") == 1
    assert sql("SELECT count(*) FROM public.jobqueue_task") == 0


def test_migrating_back_leaves_nothing() -> None:
    sql("CREATE SCHEMA apart; SET LOCAL search_path = apart")

    steps = migrate_here()
    names, comments = installed("apart")
    assert (names, comments) == installed("public")
    assert ("jobqueue_create_task" in names, "jobqueue_send_to_task" in names, comments > 30) == (True, True, True)

    for migration, state in reversed(steps):
        with connection.schema_editor() as editor:
            migration.unapply(state, editor)
    assert installed("apart") == ([], 0)
    assert sql("SELECT count(*) FROM pg_statistic_ext WHERE stxnamespace = 'apart'::regnamespace") == 0


def test_every_table_has_a_comment() -> None:
    tables = [model._meta.db_table for model in apps.get_app_config("jobqueue").get_models()]

    missing = [table for table in tables if not sql("SELECT obj_description(%s::regclass, 'pg_class')", table)]

    assert not missing, "Add the comments to jobqueue/migrations/sql/comments.sql."


@pytest.mark.parametrize("word", [*Status, "jobqueue_create_task", "jobqueue_send_to_task", "claim_number", "rank"])
def test_comment_of_task_table_explains_the_queue(word: str) -> None:
    assert word in sql("SELECT obj_description('jobqueue_task'::regclass, 'pg_class')")


def test_role_with_documented_grants_can_create_and_send() -> None:
    if not sql("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"):
        pytest.skip("may not create roles here")
    receiver = create()
    sql(
        """
        CREATE ROLE jobqueue_test_shop;
        GRANT SELECT, INSERT, UPDATE (id) ON jobqueue_task TO jobqueue_test_shop;
        GRANT INSERT ON jobqueue_inboxmessage, jobqueue_counterdelta TO jobqueue_test_shop;
        SET LOCAL ROLE jobqueue_test_shop;
        """
    )
    create(", key => 'k'")
    send(receiver)
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    with refused("42501"):
        sql("UPDATE jobqueue_task SET status = 'READY'")


def installed(schema: str) -> tuple[list[str], int]:
    """Return the names of our functions in a schema, and the number of our comments."""
    names = sql(
        "SELECT array_agg(proname::text ORDER BY proname) FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace AND proname LIKE %s",
        schema,
        "jobqueue%",
    )
    comments = sql(
        "SELECT count(*) FROM pg_description JOIN pg_class ON pg_class.oid = objoid"
        " WHERE relnamespace = %s::regnamespace AND relname LIKE %s",
        schema,
        "jobqueue%",
    )
    return names or [], comments


def migrate_here() -> list[tuple[Migration, ProjectState]]:
    """Apply our migrations in the first schema of search_path. Return each with the state before it."""
    loader, state, steps = MigrationLoader(None), ProjectState(), []
    (leaf,) = loader.graph.leaf_nodes("jobqueue")
    for node in loader.graph.forwards_plan(leaf):
        migration = loader.get_migration(*node)
        steps.append((migration, state.clone()))
        with connection.schema_editor() as editor:
            state = migration.apply(state, editor)
    return steps


def make_tables_from_models() -> None:
    with connection.schema_editor() as editor:
        for model in apps.get_app_config("jobqueue").get_models():
            editor.create_model(model)


def features(schema: str) -> list[object]:
    """Return everything that the SQL files install in a schema."""
    return [
        installed(schema),
        sql("SELECT array_agg((relname, reloptions)::text ORDER BY relname) FROM pg_class"
            " WHERE relnamespace = %s::regnamespace AND relkind = 'r' AND relname LIKE %s", schema, "jobqueue%"),
        sql("SELECT array_agg(stxname::text ORDER BY stxname) FROM pg_statistic_ext WHERE"
            " stxnamespace = %s::regnamespace", schema),
        sql("SELECT array_agg(indexname::text ORDER BY indexname) FROM pg_indexes WHERE schemaname = %s"
            " AND tablename LIKE %s", schema, "jobqueue%"),
        sql("SELECT array_agg((table_name, column_name, collation_name)::text ORDER BY 1) FROM"
            " information_schema.columns WHERE table_schema = %s AND table_name LIKE %s AND collation_name IS NOT NULL",
            schema, "jobqueue%"),
    ]  # fmt: skip


def test_tables_from_models_get_what_migrations_install(settings: Any) -> None:
    settings.MIGRATION_MODULES = {"jobqueue": None}
    sql("CREATE SCHEMA apart; SET LOCAL search_path = apart, public")
    make_tables_from_models()

    install_sql(using="default", plan=[])

    assert features("apart") == features("public")


def test_tables_that_were_dropped_can_be_migrated_again() -> None:
    sql("CREATE SCHEMA apart; SET LOCAL search_path = apart")
    migrate_here()
    for model in apps.get_app_config("jobqueue").get_models():
        sql(f"DROP TABLE {model._meta.db_table} CASCADE")

    migrate_here()

    assert features("apart") == features("public")


def test_dropped_functions_do_not_keep_migrations_from_going_back() -> None:
    sql("CREATE SCHEMA apart; SET LOCAL search_path = apart")
    steps = migrate_here()
    sql("DROP FUNCTION jobqueue_enqueue; DROP INDEX jobqueue_task_tags; DROP STATISTICS jobqueue_task_depths")

    for migration, state in reversed(steps):
        with connection.schema_editor() as editor:
            migration.unapply(state, editor)

    assert installed("apart") == ([], 0)


def test_database_without_our_tables_is_left_alone(settings: Any) -> None:
    """A router that answers by the model keeps tables away, but not a migration that runs SQL."""
    sql("CREATE SCHEMA apart; SET LOCAL search_path = apart")
    settings.MIGRATION_MODULES = {"jobqueue": None}

    with connection.schema_editor() as editor:
        run_files("storage", "enqueue", "comments")(apps, editor)
    install_sql(using="default", plan=[])

    assert installed("apart") == ([], 0)


@pytest.mark.parametrize("applied", [{"0001_initial"}, None])
def test_nothing_is_installed_on_tables_of_another_version(applied: set[str] | None) -> None:
    sql("DROP FUNCTION jobqueue_enqueue")
    recorder = MigrationRecorder(connection)
    if applied is None:
        recorder.record_applied("jobqueue", "9999_from_the_future")
    else:
        recorder.migration_qs.filter(app="jobqueue").exclude(name__in=applied).delete()

    install_sql(using="default", plan=[])

    assert "jobqueue_enqueue" not in installed("public")[0]


def test_migrated_database_is_asked_once_and_not_changed(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(3):  # whether django_migrations exists, its rows, what is missing
        install_sql(using="default", plan=[])
    with django_assert_num_queries(0):  # a flush after a test
        install_sql(using="default")


WITHOUT_MIGRATIONS = """
import sys
from django.conf import settings
way = sys.argv[1]
if way == "setting":
    settings.MIGRATION_MODULES = {"jobqueue": None}
settings.DATABASES["default"]["TEST"] = {"MIGRATE": way != "TEST", "NAME": sys.argv[2]}
import django
django.setup()
from django.db import connection
from django.test.utils import setup_databases, setup_test_environment, teardown_databases
from jobqueue.models import Task
from tests.tasks import add
setup_test_environment()
old = setup_databases(verbosity=0, interactive=False, aliases={"default"})
add.using(key="k").enqueue(1)
add.enqueue_many([((1,), {})] * 2)
with connection.cursor() as cursor:
    cursor.execute("SELECT jobqueue_create_task(NULL, 'tests.tasks.add', args => '[1]')")
print(Task.objects.count())
teardown_databases(old, verbosity=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["setting", "TEST"])
def test_site_enqueues_in_test_databases_without_migrations(way: str, process_environment: dict[str, str]) -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_MIGRATIONS, way, f"test_models_{os.getpid()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=process_environment)
    assert (done.returncode, done.stdout.strip()) == (0, "4"), done.stderr
