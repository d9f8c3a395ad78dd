"""manage.py jobqueue doctor: problems of a site, and advice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import Tags, run_checks
from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import AutoField
from django.test.utils import CaptureQueriesContext

from jobqueue.conf import connection_pool
from jobqueue.declarations import checks as system_checks
from jobqueue.declarations import registry
from jobqueue.engine import engine_for, statement
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.schema import schema_problem
from jobqueue.executor.pools.event_loop import MAX_BODY_THREADS
from jobqueue.management.cli import notification_checks
from jobqueue.models import STOPPED_BY, Schedule, Task
from jobqueue.operations.overview import code_findings, findings, server_findings
from jobqueue.operations.overview.schedule_findings import schedule_findings
from jobqueue.operations.overview.stats import read_stats
from tests import tasks
from tests.cli.commands import BOTH, jobqueue
from tests.factories import ExecutorFactory, QueueFactory, ScheduleFactory, TaskFactory, TickFactory, ago, error

pytestmark = BOTH


def findings_of(backend: str, level: str) -> list[str]:
    entries = jobqueue("doctor", "--backend", backend, "--json").json
    return [f"{entry['text']} {entry['advice']}" for entry in entries if entry["level"] == level]


def test_healthy_site_has_only_ok_findings() -> None:
    ExecutorFactory.create(backend="sqlite", using="sqlite")
    TaskFactory.create(backend="sqlite", using="sqlite")
    result = jobqueue("doctor", "--backend", "sqlite")
    assert result.code == 0
    assert {line.split()[0] for line in result.out.splitlines() if not line.startswith(" ")} == {"ok"}


UNKNOWN = {"task_type": "shop.tasks.removed", "awaiting_code": True, "using": "sqlite", "backend": "sqlite"}
UNBOUND = [error(awaited="missing a required argument: 'b'")]


def test_tasks_without_code_are_a_warning_with_a_remedy() -> None:
    executor = ExecutorFactory.create(backend="sqlite", using="sqlite", task_types=["shop.tasks.known"])
    TaskFactory.create_batch(3, **UNKNOWN)
    TaskFactory.create(**UNKNOWN, awaits_code_since=ago(7200))

    (warning,) = [text for text in findings_of("sqlite", "warning") if "removed" in text]

    assert warning == (
        "Backend sqlite: no running executor has code for 4 tasks of shop.tasks.removed. The first has waited for 2 h. "
        f"Executors that do not know the name: {executor.name}. "
        "Deploy code for them, or cancel them here or with: manage.py jobqueue cancel --backend sqlite "
        "--status AWAITING_CODE --task shop.tasks.removed"
    )
    command = warning.partition("manage.py jobqueue ")[2]
    jobqueue(*shlex.split(command), "--yes")
    assert not [text for text in findings_of("sqlite", "warning") if "removed" in text]


@pytest.mark.parametrize(
    ("since", "errors", "is_found"), [(600, UNBOUND, True), (60, UNBOUND, False), (600, [error()], False)]
)
def test_unbound_calls_are_a_warning_after_a_deploy(since: int, errors: list[Any], is_found: bool) -> None:
    ExecutorFactory.create(backend="sqlite", using="sqlite", task_types=["shop.tasks.removed"])
    TaskFactory.create(**UNKNOWN, awaits_code_since=ago(since), errors=errors)

    text = "no running executor has code that takes the arguments of 1 task of shop.tasks.removed. The first has waited"
    assert any(text in finding for finding in findings_of("sqlite", "warning")) is is_found


def test_many_names_without_code_are_counted() -> None:
    for number in range(findings.MAX_NAMES + 2):
        TaskFactory.create(**UNKNOWN | {"task_type": f"gone.{number}"})

    warnings = [text for text in findings_of("sqlite", "warning") if "code" in text]

    assert len(warnings) == findings.MAX_NAMES + 1
    assert "Backend sqlite: tasks of 2 more names wait for code." in warnings[-1]


SERVED, FORGOTTEN = {"queue_name": "served"}, {"queue_name": "forgotten"}
START = "manage.py run_executors --backend {backend} --queue forgotten"
RESUME = "manage.py jobqueue executors resume --all"


@pytest.mark.parametrize(
    ("executor", "queue", "tasks", "level", "text"),
    [
        ({"state": "PAUSED"}, None, [], "warning", "all executors are paused: they claim no tasks. " + RESUME),
        ({"lost": True}, None, [], "warning", "no executor is running. manage.py run_executors"),
        ({}, None, [SERVED, FORGOTTEN], "error", "Queue forgotten: 1 READY, a latency of .* serves it. " + START),
        (
            {},
            None,
            [{**FORGOTTEN, "scheduled": True}],
            "warning",
            "Queue forgotten: 1 task waits, and no executor will serve it. " + START,
        ),
        (
            {},
            None,
            [{**FORGOTTEN, "awaiting_code": True}] * 2,
            "warning",
            "Queue forgotten: 2 tasks wait, and no executor will serve them. " + START,
        ),
        (
            {},
            {"name": "emails", "paused_at": ago(3 * 86_400)},
            [{"queue_name": "emails"}],
            "warning",
            "Queue emails: paused for 3 d; 1 READY. manage.py jobqueue resume emails",
        ),
    ],
)
def test_problem_is_found_with_advice(make, make_executor, backend, executor, queue, tasks, level, text) -> None:
    make_executor(**{"queues": ["served"], **executor})
    if queue:
        QueueFactory.create(backend=backend, using=backend, **queue)
    for columns in tasks:
        make(**columns)
    assert [finding for finding in findings_of(backend, level) if re.search(text.format(backend=backend), finding)]
    if backend == "sqlite":  # the server of the tests is no durable one
        assert jobqueue("doctor", "--backend", backend).code == (level == "error")


def test_advice_quotes_queue_names(backend, make_executor) -> None:
    make_executor(queues=["served"])
    name = "x; touch /tmp/pwned"
    TaskFactory.create(backend=backend, using=backend, queue_name=name)
    TaskFactory.create(backend=backend, using=backend, queue_name=f"{name}2", scheduled=True)
    QueueFactory.create(backend=backend, using=backend, name=f"{name}3", paused_at=ago(3 * 86_400))
    advice = [entry["advice"] for entry in jobqueue("doctor", "--backend", backend, "--json").json]
    assert [shlex.split(text)[-1] for text in advice if "pwned" in text] == [name, f"{name}2", f"{name}3"]


def test_executor_that_does_not_respond_is_an_error(backend) -> None:
    lost = ExecutorFactory.create(backend=backend, using=backend, lost=True)
    TaskFactory.create(backend=backend, using=backend, running=True, executor_id=lost.pk)
    assert any(f"Executor {lost.name}" in text and "1 task" in text for text in findings_of(backend, "error"))


def test_executor_that_makes_no_progress_is_an_error(backend) -> None:
    for name in ("web-1", "web-2"):
        problem = f"Stuck for 40 s. No turn of {name} has succeeded."
        ExecutorFactory.create(backend=backend, using=backend, name=name, problem=problem)
    for changes in ({}, {"problem": "Old.", "lost": True}, {"problem": "Old.", "state": "STOPPED"}):
        ExecutorFactory.create(backend=backend, using=backend, **changes)

    (error,) = [text for text in findings_of(backend, "error") if "progress" in text]

    assert "2 executors without progress: web-" in error
    assert re.search(r"web-[12], web-[12]\. Stuck for 40 s\. No turn of web-[12] has succeeded\.", error)
    assert "Remove the cause" in error


def test_async_tasks_that_wait_for_connections_are_a_warning(backend) -> None:
    for number in (0, 3, 1):
        ExecutorFactory.create(backend=backend, using=backend, waiting_for_connections=number, name=f"web-{number}")
    ExecutorFactory.create(backend=backend, using=backend, waiting_for_connections=7, lost=True)

    (warning,) = [text for text in findings_of(backend, "warning") if "wait for database connections" in text]

    assert "4 tasks wait for database connections" in warning
    assert "in 2 executors: web-" in warning
    assert "Let actors wait" in warning


def test_very_many_names_without_code_are_counted_as_far_as_they_are_read(backend) -> None:
    waits = {"backend": backend, "status": "AWAITING_CODE", "rank": ago(60), "enqueued_at": ago(60)}
    rows = [Task(task_type=f"shop.gone{number}", awaits_code_since=ago(60), **waits) for number in range(1200)]
    Task.objects.using(backend).bulk_create(rows)
    ExecutorFactory.create(backend=backend, using=backend)

    assert any("tasks of 990+ more names wait for code" in text for text in findings_of(backend, "warning"))


def test_retention_unset_or_exceeded_is_a_warning(settings, backend) -> None:
    options = {**settings.TASKS[backend].get("OPTIONS", {}), "RETENTION": {"FAILED": None}}
    settings.TASKS = {**settings.TASKS, backend: {**settings.TASKS[backend], "OPTIONS": options}}
    TaskFactory.create(backend=backend, using=backend, failed=True, finished_at=ago(900 * 86_400))
    TaskFactory.create(backend=backend, using=backend, successful=True, finished_at=ago(3 * 86_400))
    warnings = findings_of(backend, "warning")
    assert any("FAILED tasks are never pruned" in text for text in warnings)
    assert any("prune --status SUCCESSFUL --older-than 86400s" in text for text in warnings)
    assert not any("CANCELLED" in text for text in warnings)


def test_missing_migration_is_an_error(backend) -> None:
    MigrationRecorder(connections[backend]).record_unapplied("jobqueue", "0002_postgresql")
    TaskFactory.create(backend=backend, using=backend)
    (error,) = findings_of(backend, "error")
    assert "0002_postgresql" in error
    assert f"manage.py migrate jobqueue --database {backend}" in error


def test_unreachable_database_is_an_error(backend, monkeypatch) -> None:
    def refuse() -> None:
        raise OperationalError("connection refused\nIs the server running?")

    monkeypatch.setattr(connections[backend], "ensure_connection", refuse)
    (error,) = findings_of(backend, "error")
    assert "is unreachable: connection refused Start it" in error


def test_wrong_options_are_reported_first(settings) -> None:
    wrong = {**settings.TASKS["default"], "OPTIONS": {"RETENTON": {}}}
    settings.TASKS = {**settings.TASKS, "default": wrong}
    result = jobqueue("doctor")
    assert result.code == 1
    # Django 6.1 cannot create the backend with these options, so the command fails.
    assert "did you mean 'RETENTION'?" in result.out + result.err
    assert "answers" not in result.out


def test_naive_moments_are_a_warning(settings, backend) -> None:
    assert not any("W004" in text for text in findings_of(backend, "warning"))
    settings.USE_TZ = False
    (warning,) = [text for text in findings_of(backend, "warning") if "W004" in text]
    assert "USE_TZ is False" in warning
    assert "Set USE_TZ = True" in warning


def test_warnings_of_system_checks_are_included(monkeypatch) -> None:
    monkeypatch.setattr(system_checks, "pool_size", lambda _: 10)
    assert any("jobqueue.W003" in text for text in findings_of("default", "warning"))


SKIPPED = "its last 10 ticks were all skipped."
NOTHING_NEXT: dict[str, Any] = {"next_at": None, "due_at": None}
STOPPED = {**NOTHING_NEXT, "paused_at": ago(60), "paused_by": STOPPED_BY, "pause_reason": "the minute is not valid."}


class TestSchedules:
    @pytest.fixture
    def add(self, backend, make_executor) -> Any:
        """Create a schedule beside an executor that knows its task."""
        make_executor(task_types=["tests.tasks.add"])
        return partial(ScheduleFactory.create, backend=backend, using=backend, name="report", declared=True)

    @pytest.mark.parametrize(
        ("columns", "ticks", "level", "text"),
        [
            (
                STOPPED,
                [],
                "error",
                "an error has stopped it: the minute is not valid. Correct the schedule, then run: {resume}",
            ),
            (
                {"task_type": "shop.gone"},
                [],
                "error",
                "no running executor that serves the queue default knows its task shop.gone.",
            ),
            (
                {"due_at": ago(3 * 86_400)},
                [],
                "error",
                "due 3 d ago, and not enqueued. Look for errors in the log of executors",
            ),
            (NOTHING_NEXT, [], "warning", "never fires, because its expression has no tick."),
            (
                {"paused_at": ago(3 * 86_400)},
                [],
                "warning",
                "paused for 3 d. Its ticks are skipped. To resume it, run: {resume}",
            ),
            ({}, [(12, "overlap")], "warning", "its last 12 ticks were all skipped. The previous task had not ended."),
            ({}, [(10, "missed")], "warning", f"{SKIPPED} No executor was running. Keep an executor running, or"),
            ({}, [(10, "key")], "warning", f"{SKIPPED} Another task had the key. Cancel the task that has"),
        ],
    )
    def test_schedule_that_does_not_run_is_found(self, add, backend, columns, ticks, level, text) -> None:
        row = add(**columns)
        for count, reason in ticks:
            TickFactory.create(using=backend, schedule=row, count=count, reason=reason)
        resume = f"manage.py jobqueue schedules resume --backend {backend} -- report"
        (finding,) = [finding for finding in findings_of(backend, level) if "Schedule report" in finding]
        assert finding.startswith(f"Schedule report (shop/tasks.py:42): {text.format(resume=resume)}")

    @pytest.mark.parametrize(
        ("columns", "ticks"),
        [
            ({}, []),
            ({"paused_at": ago(3600)}, [(50, "paused")]),
            ({"paused_at": ago(3 * 86_400), "resume_at": ago(60)}, []),
            (NOTHING_NEXT, [(1, "")]),
            ({"task_type": "shop.gone", "retired": True}, []),
            ({}, [(9, "overlap")]),
            ({}, [(12, "overlap"), (1, "")]),
        ],
    )
    def test_schedule_that_runs_is_no_finding(self, add, backend, columns, ticks) -> None:
        row = add(**columns)
        for age, (count, reason) in enumerate(reversed(ticks)):
            TickFactory.create(using=backend, schedule=row, count=count, reason=reason, tick_at=ago(60 * age + 60))
        assert not [
            finding for level in ("warning", "error") for finding in findings_of(backend, level) if "report" in finding
        ]

    @pytest.mark.parametrize(("queue", "is_known"), [("default", False), ("reports", True)])
    def test_schedule_whose_task_executors_of_another_queue_know_is_found(
        self, backend, make_executor, queue, is_known
    ) -> None:
        make_executor(task_types=["tests.tasks.add"], queues=["reports"])
        make_executor(task_types=["shop.other"], queues=[])
        row = ScheduleFactory.create(backend=backend, using=backend, name="report")
        Schedule.objects.using(backend).update(new_task={**row.new_task, "queue_name": queue})

        errors = [finding for finding in findings_of(backend, "error") if "knows its task" in finding]

        text = f"Schedule report: no running executor that serves the queue {queue} knows its task tests.tasks.add."
        assert [error.startswith(text) for error in errors] == [True] * (not is_known)

    def test_schedule_with_unknown_time_zone_is_found_before_it_is_due(self, add, backend) -> None:
        add(due_at=ago(-3600), expression="0 0 * * *", timezone="Atlantis/Poseidonis")
        (warning,) = [finding for finding in findings_of(backend, "warning") if "Schedule" in finding]
        text = "Schedule report (shop/tasks.py:42): this host does not have its time zone Atlantis/Poseidonis."
        assert warning.startswith(f"{text} Install the time zone: pip install tzdata.")

    def test_schedule_that_was_due_a_moment_ago_is_no_finding(self, add, backend) -> None:
        add(due_at=ago(5))
        assert not [finding for finding in findings_of(backend, "error") if "report" in finding]

    def test_sound_schedules_are_counted(self, add, backend) -> None:
        assert not [
            finding for finding in findings_of(backend, "ok") if "schedule" in finding.lower() and "Backend" in finding
        ]
        add()
        assert any("no problem in 1 schedule." in finding for finding in findings_of(backend, "ok"))

    def test_overdue_schedule_without_executors_needs_one(self, backend) -> None:
        ScheduleFactory.create(backend=backend, using=backend, name="report", due_at=ago(300))
        (error,) = [finding for finding in findings_of(backend, "error") if "Schedule" in finding]
        assert (
            error
            == "Schedule report: due 5 min ago, and not enqueued. No executor is running. Run: manage.py run_executors"
        )

    def test_overdue_schedule_that_this_host_cannot_use_says_why(self, add, backend) -> None:
        add(due_at=ago(300), expression="0 0 * * *", timezone="Atlantis/Poseidonis")
        (error,) = [finding for finding in findings_of(backend, "error") if "Schedule" in finding]
        assert "This host cannot use it: this host has no time zone 'Atlantis/Poseidonis'" in error
        assert error.endswith("Correct the schedule, or give each host of executors what it lacks.")

    @pytest.mark.parametrize("columns", [{}, {"due_at": ago(300)}, STOPPED])
    def test_number_of_statements_does_not_grow_with_schedules(self, add, backend, columns) -> None:
        def statements() -> int:
            with CaptureQueriesContext(connections[backend]) as queries:
                engine = engine_for(backend)
                list(schedule_findings(engine, read_stats(engine)))
            return len(queries)

        for number in range(12):
            add(name=f"report-{number}", **columns)
        few = statements()
        for number in range(40):
            add(name=f"other-{number}", **columns)
        assert statements() == few

    def test_live_task_of_a_schedule_that_overlaps_is_named(self, add, backend, make) -> None:
        row = add()
        TickFactory.create(using=backend, schedule=row, count=10, reason="overlap")
        task = make(running=True, schedule=row)
        (warning,) = [finding for finding in findings_of(backend, "warning") if "Schedule report" in finding]
        assert warning.endswith(f"See: manage.py jobqueue show {task.pk}")

    def test_many_findings_of_one_kind_are_counted(self, add, backend) -> None:
        for number in range(13):
            add(name=f"report-{number}", due_at=ago(300))
        errors = [finding for finding in findings_of(backend, "error") if "chedule" in finding]
        assert len(errors) == 11
        assert "the same problem in 3 more schedules." in errors[-1]


@pytest.fixture
def latin(settings, monkeypatch) -> Iterator[str]:
    """A backend with a LATIN1 database."""
    name = f"{connections['default'].settings_dict['NAME']}_latin"
    other = connections["default"].copy()
    other.set_autocommit(True)
    with other.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        try:
            monkeypatch.setitem(connections.settings, "latin", {**connections["default"].settings_dict, "NAME": name})
            backend = {**settings.TASKS["default"], "OPTIONS": {"DATABASE": "latin"}}
            settings.TASKS = {**settings.TASKS, "latin": backend}
            connections["latin"].connect()  # Django's test case forbids ensure_connection() of other databases
            yield "latin"
            connections["latin"].close()
            del connections["latin"]
        finally:
            cursor.execute(f"DROP DATABASE {name}")
    other.close()


def test_database_without_utf8_is_an_error(latin) -> None:
    (error,) = findings_of(latin, "error")
    assert "jobqueue.E010" in error
    assert "'latin' is encoded in LATIN1" in error
    assert "ENCODING 'UTF8'" in error
    (message,) = run_checks(databases=[latin], tags=[Tags.database])
    assert message.id == "jobqueue.E010"


def test_encoding_check_covers_requested_databases(latin) -> None:
    assert run_checks(databases=["default", "sqlite"], tags=[Tags.database]) == []
    assert not [message for message in run_checks() if message.id == "jobqueue.E010"]


class TestServer:
    @pytest.mark.parametrize(
        ("name", "level", "advice"),
        [
            (None, "ok", ""),
            ("synchronous_commit", "warning", "ALTER SYSTEM SET synchronous_commit = on"),
            ("fsync", "error", "ALTER SYSTEM SET fsync = on"),
            ("full_page_writes", "error", "ALTER SYSTEM SET full_page_writes = on"),
        ],
    )
    def test_unsafe_durability_settings_are_found(self, monkeypatch, name, level, advice) -> None:
        """Replace the server's settings: those of the server of the tests depend on how it was started."""
        query = PostgresDatabase.query

        def feed_in(database: Any, statement: str, **parameters: Any) -> Any:
            rows = query(database, statement, **parameters)
            unsafe = {key: "off" if key == name else "on" for key in server_findings.SAFETY}
            return list({**dict(rows), **unsafe}.items()) if statement == "server_settings" else rows

        monkeypatch.setattr(PostgresDatabase, "query", feed_in)
        text = f"{name} is off: a crash" if name else "committed data survives a crash"
        (finding,) = [finding for finding in findings_of("default", level) if text in finding]
        assert advice in finding
        others = {"ok", "warning", "error"} - {level}
        assert not any("is off: a crash" in finding for other in others for finding in findings_of("default", other))

    def test_durability_of_the_session_counts(self) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
        assert any("synchronous_commit is off" in text for text in findings_of("default", "warning"))

    def test_unlogged_table_is_an_error(self) -> None:
        assert not any("UNLOGGED" in text for text in findings_of("default", "error"))
        with connections["default"].cursor() as cursor:
            cursor.execute("ALTER TABLE jobqueue_inboxmessage SET UNLOGGED")
        (error,) = [text for text in findings_of("default", "error") if "UNLOGGED" in text]
        assert "jobqueue_inboxmessage is UNLOGGED" in error
        assert "ALTER TABLE jobqueue_inboxmessage SET LOGGED;" in error

    def test_invalid_index_is_an_error(self) -> None:
        assert not any("INVALID" in text for text in findings_of("default", "error"))
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'jobqueue_inbox_unread'::regclass"
            )
        (error,) = [text for text in findings_of("default", "error") if "INVALID" in text]
        assert "the index jobqueue_inbox_unread of jobqueue_inboxmessage is INVALID" in error
        assert "REINDEX INDEX CONCURRENTLY jobqueue_inbox_unread;" in error

    def test_long_transaction_is_a_warning(self, monkeypatch) -> None:
        def matching() -> list[str]:
            return [text for text in findings_of("default", "warning") if "transaction has been open" in text]

        other = connections["default"].copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL application_name = 'report'; SELECT 1")
            assert matching() == []
            monkeypatch.setattr(findings, "SNAPSHOT_LONG_SECONDS", 0.0)
            (warning,) = matching()
            assert "report, idle in transaction" in warning
            assert "SELECT pg_terminate_backend(" in warning
            assert engine_for("default").queues.gauges().oldest_snapshot_seconds > 0
        finally:
            other.close()

    @pytest.mark.parametrize(
        ("statement", "level", "words"),
        [
            ("SELECT FROM jobqueue_executor FOR UPDATE", "warning", "keeps rows of jobqueue_executor locked"),
            ("DELETE FROM jobqueue_executor", "warning", "keeps rows of jobqueue_executor locked"),
            ("SELECT FROM jobqueue_heartbeat FOR UPDATE", "error", "keeps rows of jobqueue_heartbeat locked"),
            ("LOCK TABLE jobqueue_heartbeat IN SHARE MODE", "error", "the table jobqueue_heartbeat locked (ShareLock)"),
            ("LOCK TABLE jobqueue_executor IN SHARE MODE", "error", "the table jobqueue_executor locked (ShareLock)"),
            ("ALTER TABLE jobqueue_task ADD COLUMN more int", "error", "the table jobqueue_task locked"),
            (
                "LOCK TABLE jobqueue_counterdelta",
                "error",
                "the table jobqueue_counterdelta locked (Acc",
            ),
            ("LOCK TABLE jobqueue_schedule IN SHARE MODE", "error", "the table jobqueue_schedule locked (ShareLock)"),
            (
                "SELECT pg_advisory_lock('jobqueue_executor'::regclass::oid::int, hashtext('default'))",
                "warning",
                "holds the advisory lock jobqueue_executor",
            ),
        ],
    )
    def test_session_that_blocks_executors_is_named(self, monkeypatch, statement, level, words) -> None:
        def matching() -> list[str]:
            return [text for text in findings_of("default", level) if "keeps" in text or "holds the" in text]

        other = connections["default"].copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("SET application_name = 'forgotten'")
                cursor.execute(f"BEGIN; {statement}")
                cursor.execute("SELECT pg_backend_pid()")
                ((pid,),) = cursor.fetchall()
            if "ALTER" not in statement and "counterdelta" not in statement:  # doctor itself would wait
                monkeypatch.setattr(server_findings, "LOCK_LONG_SECONDS", 3600.0)
                assert matching() == []
            monkeypatch.setattr(server_findings, "LOCK_LONG_SECONDS", 0.0)
            (finding,) = matching()
        finally:
            other.close()
        assert words in finding
        assert f"session {pid} of role " in finding
        assert "(forgotten, idle in transaction, its transaction open for " in finding
        assert f"SELECT pg_terminate_backend({pid});" in finding

    def test_pool_smaller_than_an_executor_is_a_warning(self, monkeypatch) -> None:
        ExecutorFactory.create(slots=8, name="small")
        ExecutorFactory.create(slots=16, name="wide")
        assert not any("its pool" in text for text in findings_of("default", "warning"))
        monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "pool", {"max_size": 12})
        (warning,) = [text for text in findings_of("default", "warning") if "its pool" in text]
        assert "wide needs 20 connections, but its pool has at most 12" in warning
        assert "'max_size': 20" in warning

    def test_more_slots_than_connections_is_a_warning(self, monkeypatch) -> None:
        assert connection_pool.CONNECTIONS_FOR_ASYNC_TASKS == MAX_BODY_THREADS
        ExecutorFactory.create(slots=10_000)
        (warning,) = [text for text in findings_of("default", "warning") if "may open" in text]
        assert "may open 10036 connections (each executor one per slot, 4 more, 32 for async tasks); the" in warning
        monkeypatch.setattr(registry, "declared", {"add": tasks.add})
        (warning,) = [text for text in findings_of("default", "warning") if "may open" in text]
        assert "may open 10004 connections (each executor one per slot, 4 more); the server allows" in warning

    def test_connection_limit_of_role_counts(self) -> None:
        ExecutorFactory.create(slots=8)
        assert any("executors may open 44 of " in text for text in findings_of("default", "ok"))
        with connections["default"].cursor() as cursor:
            cursor.execute("ALTER ROLE CURRENT_USER CONNECTION LIMIT 3")
        (warning,) = [text for text in findings_of("default", "warning") if "may open" in text]
        assert "the server allows 3. Raise the role's CONNECTION LIMIT" in warning

    def test_working_notifications_are_ok(self) -> None:
        assert any("LISTEN/NOTIFY works" in text for text in findings_of("default", "ok"))

    def test_pooler_without_notifications_is_a_warning(self, monkeypatch) -> None:
        real = statement

        def pooled(name: str) -> Any:
            return "SELECT 1" if name == "listen" else real(name)

        monkeypatch.setattr(notification_checks, "statement", pooled)
        monkeypatch.setattr(notification_checks, "PROBE_SECONDS", 0.2)
        assert any("notifications do not arrive" in text for text in findings_of("default", "warning"))


def change_tables(backend: str, *statements: str) -> None:
    with connections[backend].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("ALTER TABLE jobqueue_tasklog DROP COLUMN dropped", "lacks columns (jobqueue_tasklog.dropped)"),
        ("DROP TABLE jobqueue_tasklog", "lacks tables (jobqueue_tasklog)"),
    ],
)
def test_tables_that_lack_something_are_an_error(backend: str, statement: str, text: str) -> None:
    change_tables(backend, statement)

    (error,) = findings_of(backend, "error")

    assert text in error
    assert "Its migrations make other tables: people have changed these" in error
    assert f"manage.py migrate jobqueue --database {backend}" in error


def test_tables_before_first_release_are_error_before_new_migrations(backend: str) -> None:
    """Migrations of the same names made them. `migrate` would fail at the first new one."""
    change_tables(backend, "DROP TABLE jobqueue_tasklog")
    recorder = MigrationRecorder(connections[backend])
    later = recorder.migration_qs.filter(app="jobqueue").exclude(name__in=["0001_initial", "0002_postgresql"])
    later.delete()

    (error,) = findings_of(backend, "error")

    assert "lacks" in error
    assert "Its migrations make other tables" in error


def test_changes_of_a_migration_not_recorded_yet_ask_to_migrate(backend: str) -> None:
    """Executors look while `migrate` runs. It does not mean that other migrations made the tables."""
    recorded = MigrationRecorder(connections[backend]).migration_qs.filter(app="jobqueue").order_by("-name")
    for name in recorded.values_list("name", flat=True):
        recorded.filter(name=name).delete()
        if name <= "0003":
            break

        assert f"lacks migrations ({name}" in schema_problem(backend)


def test_foreign_column_that_an_insert_must_name_is_an_error() -> None:
    change_tables("default", "ALTER TABLE jobqueue_counter ADD COLUMN minute timestamptz NOT NULL")

    (error,) = findings_of("default", "error")

    assert "has columns that are not ours (jobqueue_counter.minute)" in error


def test_foreign_columns_that_an_insert_may_leave_out_are_no_finding(backend: str) -> None:
    change_tables(
        backend,
        "ALTER TABLE jobqueue_task ADD COLUMN shop_note text",
        "ALTER TABLE jobqueue_task ADD COLUMN shop_number int NOT NULL DEFAULT 7",
    )

    assert schema_problem(backend) == ""


def test_tables_of_newer_code_that_lack_a_column_ask_for_newer_code() -> None:
    change_tables("default", "ALTER TABLE jobqueue_tasklog DROP COLUMN dropped")
    MigrationRecorder(connections["default"]).record_applied("jobqueue", "9999_newer")

    assert schema_problem("default") == (
        "The database 'default' is newer than this code: it lacks jobqueue_tasklog.dropped. Deploy newer code."
    )


def test_sequence_behind_its_rows_is_an_error_with_the_statement() -> None:
    """As after logical replication, which copies rows but no sequences."""
    statement = "SELECT setval('public.jobqueue_counterdelta_id_seq', (SELECT max(id) FROM jobqueue_counterdelta));"
    tasks.add.enqueue_many([((1,), {})] * 3)
    tasks.add.enqueue(1)
    assert not [finding for finding in findings_of("default", "error") if "sequence" in finding]
    behind = "SELECT setval('jobqueue_counterdelta_id_seq', (SELECT min(id) FROM jobqueue_counterdelta), false)"
    change_tables("default", behind)

    (error,) = [finding for finding in findings_of("default", "error") if "sequence" in finding]
    assert "the sequence of jobqueue_counterdelta is behind its rows" in error
    engine = engine_for("default")
    assert [
        problem for problem in findings.find_problems(engine, read_stats(engine)) if "sequence" in problem.msg
    ]  # on the overview
    assert error.endswith(statement)
    with pytest.raises(IntegrityError, match="jobqueue_counterdelta_pkey"), transaction.atomic():
        tasks.add.enqueue(1)

    change_tables("default", statement)
    assert tasks.add.enqueue(1).id
    assert not [finding for finding in findings_of("default", "error") if "sequence" in finding]


def test_task_in_a_queue_whose_executors_lack_its_code_is_found(backend, make_executor) -> None:
    make_executor(queues=["other"], task_types=["shop.t"])
    make_executor(queues=["default"], task_types=["shop.u"])
    TaskFactory.create(backend=backend, using=backend, task_type="shop.t", awaiting_code=True)

    assert [
        finding
        for finding in findings_of(backend, "warning")
        if "no running executor has code for 1 task of shop.t" in finding
    ]


def test_doctor_says_which_executors_have_the_code_and_which_lack_it(backend, make_executor) -> None:
    new = make_executor(queues=["default"], task_types=["shop.t"])
    old = make_executor(queues=[], task_types=["shop.u"])
    make_executor(queues=["other"], task_types=[])
    TaskFactory.create(backend=backend, using=backend, task_type="shop.t", awaiting_code=True)

    (finding,) = [text for text in findings_of(backend, "ok") if "shop.t" in text]

    assert f"Backend {backend}: executors with their code will run 1 task of shop.t." in finding
    assert f"Executors that know the name: {new.name}. Executors that do not know the name: {old.name}." in finding


def test_check_names_tasks_and_schedules_without_code(backend) -> None:
    for state in ({}, {"scheduled": True}, {"awaiting_code": True}):
        TaskFactory.create(backend=backend, using=backend, task_type="shop.old", **state)
    TaskFactory.create(backend=backend, using=backend, task_type="shop.ended", successful=True)
    TaskFactory.create(backend=backend, using=backend, task_type="tests.tasks.add")
    ScheduleFactory.create(backend=backend, using=backend, task_type="shop.nightly", name="night")
    ScheduleFactory.create(backend=backend, using=backend, task_type="shop.retired", retired=True)

    (message,) = run_checks(databases=[backend], tags=[Tags.database])

    assert message.id == "jobqueue.W009"
    assert "does not have shop.nightly (the schedule night); shop.old (3 tasks). Tasks" in message.msg
    assert "@task(aliases=['shop.nightly'])" in str(message.hint)
    assert f"manage.py jobqueue cancel --backend {backend} --task shop.nightly" in str(message.hint)
    assert run_checks(databases=[], tags=[Tags.database]) == []  # without --database


def test_check_of_names_reads_a_bounded_number_of_tasks(backend, monkeypatch) -> None:
    monkeypatch.setattr(code_findings, "READ", 2)
    for number in range(4):
        TaskFactory.create(backend=backend, using=backend, task_type="shop.old", rank=ago(number))
    (message,) = run_checks(databases=[backend], tags=[Tags.database])
    assert "shop.old (2+ tasks)" in message.msg


def test_check_of_names_is_silent_before_migrate(backend) -> None:
    TaskFactory.create(backend=backend, using=backend, task_type="shop.old")
    MigrationRecorder(connections[backend]).record_unapplied("jobqueue", "0002_postgresql")
    assert run_checks(databases=[backend], tags=[Tags.database]) == []


def test_sequences_of_all_numbered_tables_are_watched() -> None:
    models = apps.get_app_config("jobqueue").get_models()
    names = [model._meta.db_table for model in models if isinstance(model._meta.pk, AutoField)]

    rows = engine_for("default").db.query("sequences", names=names)  # type: ignore[attr-defined]

    assert {"jobqueue_counterdelta", "jobqueue_inboxmessage", "jobqueue_schedule"} <= {*names}
    assert {row[0] for row in rows} == {*names}


class TestUnknownBackends:
    def test_tasks_of_a_backend_that_tasks_lacks_are_an_error(self, backend) -> None:
        """SQL takes any name: a misspelled one creates a task that no executor ever claims."""
        for name in ("defualt", "old"):
            TaskFactory.create(backend=name, using=backend)
        TaskFactory.create(backend="later", using=backend, scheduled=True)
        TaskFactory.create(backend="gone", using=backend, successful=True)

        errors = [finding for finding in findings_of(backend, "error") if "which TASKS does not have" in finding]

        assert [error.split("'")[1] for error in errors] == ["defualt", "later", "old"]
        assert "or give the tasks one that it has: 'default', 'sqlite'." in errors[0]

    def test_tasks_of_known_backends_are_no_finding(self, backend) -> None:
        TaskFactory.create(backend=backend, using=backend)
        assert not [finding for finding in findings_of(backend, "error") if "which TASKS does not have" in finding]

    def test_tasks_of_a_backend_that_another_site_serves_are_no_finding(self, backend) -> None:
        ExecutorFactory.create(backend="other", using=backend)
        ExecutorFactory.create(backend="old", using=backend, lost=True)
        ExecutorFactory.create(backend="stopped", using=backend, state="STOPPED")
        for name in ("other", "old", "stopped"):
            TaskFactory.create(backend=name, using=backend)

        errors = [finding for finding in findings_of(backend, "error") if "which TASKS does not have" in finding]

        assert [error.split("'")[1] for error in errors] == ["old", "stopped"]
