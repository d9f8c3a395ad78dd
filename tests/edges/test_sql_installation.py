"""What the migrations install on PostgreSQL: functions, comments, grants."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from jobqueue.records import Status
from tests.edges.sql import REFUSED, create, refused, send, sql

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
