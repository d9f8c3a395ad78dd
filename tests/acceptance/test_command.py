"""The command line: flags, environment variables, errors, output and log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.db import connection

from jobqueue.models import Executor, Task
from tests.acceptance.harness import Fleet, wait_for_end
from tests.acceptance.tasks import compute, tiny, work
from tests.tasks import add, fail

pytestmark = pytest.mark.slow


def test_banner_shows_queues_slots_and_versions(fleet: Fleet) -> None:
    process = fleet.start("-q", "emails", "-q", "reports", "-t", "3", "--async-slots", "7", "--name", "web")
    assert process.stop() == 0
    banner = "\n".join(process.output.lines[:5])
    assert "executor web · django " in banner
    assert process.output.lines[0].endswith(" · PostgreSQL (database 'default')")
    assert "queues      emails, reports " in banner
    assert "registered tasks: " in banner
    assert "slots       1 × (3 threads + 7 async)" in banner
    assert "shutdown    25 s for running tasks after SIGTERM; Ctrl-C twice releases them" in banner
    assert "ready, waiting for work (Ctrl-C to stop)" in banner
    row = Executor.objects.get()
    assert (row.name, row.queues, row.slots, row.pid) == ("web", ["emails", "reports"], 3, process.pid)
    assert set(row.versions) == {"django", "python", "jobqueue", "schedules"}


def test_flags_are_read_from_the_environment(fleet: Fleet) -> None:
    environment = {
        "JOBQUEUE_QUEUE": "emails, reports:2",
        "JOBQUEUE_THREADS": "3",
        "JOBQUEUE_ASYNC_SLOTS": "7",
        "JOBQUEUE_PROCESSES": "2",
        "JOBQUEUE_SHUTDOWN_TIMEOUT": "1.5s",
        "JOBQUEUE_NAME": "web",
        "JOBQUEUE_BURST": "yes",
    }
    process = fleet.launch(environment=environment)
    assert process.wait() == 0
    assert "queues      emails, reports (max 2 each) " in process.output.lines[1]
    assert "ignores variables" not in "\n".join(process.output.lines)
    assert {str(row.queue_limits) for row in Executor.objects.all()} == {"{'reports': 2}"}

    process = fleet.launch("-t", "4", "-q", "other", environment=environment | {"JOBQUEUE_THREAD": "5"})
    assert process.wait() == 0
    banner = "\n".join(process.output.lines)
    assert banner.count("JOBQUEUE_THREAD (did you mean JOBQUEUE_THREADS?)") == 1
    assert "queues      other " in banner  # the command line overrides the environment
    assert "slots       2 × (4 threads + 7 async)" in banner
    assert "shutdown    1.5 s" in banner
    assert "ends when no task is left to run" in banner
    assert set(Executor.objects.values_list("name", flat=True)) == {"web.1", "web.2"}


@pytest.mark.parametrize(
    ("flags", "environment", "code", "message"),
    [
        (["--threads", "0"], {}, 2, "argument -t/--threads: must be a whole number, 1 or more, not '0'"),
        (["--threads", "many"], {}, 2, "argument -t/--threads: must be a whole number, 1 or more, not 'many'"),
        (["--shutdown-timeout", "25"], {}, 2, "--shutdown-timeout: must be a number with a unit, such as 90s"),
        (["--poll-interval", "0s"], {}, 2, "argument --poll-interval: must be 0.01s or more, not '0s'"),
        (["--no-such-flag"], {}, 2, "unrecognized arguments: --no-such-flag"),
        (["-q", "emails:0"], {}, 2, "must be NAME or NAME:LIMIT with a limit of 1 or more, not 'emails:0'"),
        (["-q", "emails:high:4"], {}, 2, "start executors without --queue"),
        (
            [],
            {"JOBQUEUE_QUEUE": "emails:"},
            2,
            "JOBQUEUE_QUEUE='emails:' in the environment: must be NAME or NAME:LIMIT",
        ),
        (["-q", "emails:1", "-q", "emails"], {}, 1, "Queue 'emails' is named twice, with different limits."),
        ([], {"JOBQUEUE_THREADS": "many"}, 2, "JOBQUEUE_THREADS='many' in the environment: must be a whole number"),
        ([], {"JOBQUEUE_MAX_TASKS": "0"}, 2, "JOBQUEUE_MAX_TASKS='0' in the environment: must be a whole number"),
        ([], {"JOBQUEUE_CONNECT_TIMEOUT": "60"}, 2, "JOBQUEUE_CONNECT_TIMEOUT='60' in the environment: must be a nu"),
        ([], {"JOBQUEUE_BURST": "maybe"}, 2, "JOBQUEUE_BURST='maybe' in the environment: must be 1 or 0"),
        (
            ["--backend", "sqlite", "-q", "mails"],
            {"TESTS_QUEUES": "emails,default"},
            1,
            "Unknown queue 'mails'. QUEUES of TASKS['sqlite']: default, emails.",
        ),
        (["--backend", "other"], {}, 1, "TASKS has no jobqueue backend 'other'. Its backends: default, sqlite."),
        ([], {"TESTS_OPTIONS": '{"HEARTBEAT": 3}'}, 1, "unknown option 'HEARTBEAT'"),
        ([], {"TESTS_OPTIONS": '{"DATABASE": "nowhere"}'}, 1, "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list | dict) else None,
)
def test_wrong_usage_fails_with_a_reason(
    fleet: Fleet, flags: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    process = fleet.launch(*flags, environment=environment, checks=True)
    assert process.wait() == code
    output = "\n".join(process.output.lines)
    assert message in output
    assert "Traceback" not in output
    assert "ready" not in output


def test_start_without_tables_reports_missing_migrations(fleet: Fleet, tmp_path: Path) -> None:
    environment = {"SQLITE_PATH": str(tmp_path / "empty.sqlite3")}
    process = fleet.launch("--backend", "sqlite", "--connect-timeout", "3s", environment=environment)
    assert process.wait() == 69
    assert process.output.find(r" · SQLite \(database 'sqlite'\)$")
    lines = [line for line in process.output.lines if "WARNING" in line or "ERROR" in line]
    assert len(lines) == 2
    assert "ERROR   schema.outdated hint=The database 'sqlite' lacks tables (jobqueue_" in lines[0]
    assert "Run: manage.py migrate jobqueue --database sqlite" in lines[0]
    assert "database.connect_timed_out after_s=3 error=The database 'sqlite' lacks tables" in lines[1]


def test_start_with_one_missing_table_reports_it(fleet: Fleet) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobqueue_executor RENAME TO gone")
    try:
        process = fleet.launch()
        line = process.output.wait_for("WARNING|ERROR").string
        assert "The database 'default' lacks tables (jobqueue_executor). Its migrations make other tables" in line
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE gone RENAME TO jobqueue_executor")
    process.wait_until_ready()
    assert process.stop() == 0
    assert not process.output.find("database.unreachable|database.reconnected")


@pytest.mark.django_db(transaction=True, databases=["default", "sqlite"])
def test_two_backends_are_isolated(fleet: Fleet) -> None:
    tiny.enqueue()
    assert fleet.launch("--backend", "sqlite", "--burst").wait() == 0
    assert Task.objects.get().status == "READY"


def test_executor_serves_only_its_queues(fleet: Fleet) -> None:
    add.using(queue_name="emails").enqueue(1)
    add.using(queue_name="other").enqueue(1)
    assert fleet.launch("-q", "emails", "--burst").wait() == 0
    assert dict(Task.objects.values_list("queue_name", "status")) == {"emails": "SUCCESSFUL", "other": "READY"}


def test_log_lines_have_stable_keys(fleet: Fleet) -> None:
    process = fleet.start("--name", "web", "--log-format", "json")
    succeeds, fails = add.using(queue_name="sums").enqueue(1), fail.enqueue("no luck")
    assert wait_for_end() == {"SUCCESSFUL": 1, "FAILED": 1}
    assert process.stop() == 0
    lines = [json.loads(line) for line in process.output.lines if line.startswith("{")]
    of = {pk: [line for line in lines if line.get("task_id") == pk] for pk in (succeeds.id, fails.id)}
    keys = {"task_id", "task", "queue", "attempt", "wait_ms", "executor"}
    assert all(keys <= line.keys() and line["executor"] == "web" for group in of.values() for line in group)
    assert [(line["level"], line["event"], line["attempt"]) for line in of[succeeds.id]] == [
        ("INFO", "task.succeeded", 1),
    ]
    assert [(line["level"], line["event"], line["attempt"]) for line in of[fails.id]] == [
        ("WARNING", "task.retried", 1),
        ("ERROR", "task.failed", 2),
    ]
    assert all(line["duration_ms"] >= 0 for group in of.values() for line in group)
    assert "no luck" in of[fails.id][-1]["message"]
    assert of[fails.id][-1]["traceback"].endswith("ValueError: no luck")


@pytest.mark.parametrize(
    ("flags", "pattern", "is_logged"),
    [
        (["-v", "0"], "INFO .*task.succeeded task=tests.acceptance.tasks.compute", False),
        (["-v", "1"], "INFO .*task.succeeded task=tests.acceptance.tasks.compute", True),
        (["-v", "3"], "DEBUG .*INSERT INTO jobqueue_heartbeat", True),
        ([], "^[0-9-]+ [0-9:]+ [A-Z]+ ERROR +task.failed task=tests.tasks.fail", True),
        (["--force-color"], "\x1b\\[.*ERROR +task.failed task=tests.tasks.fail", True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_flags_select_and_color_log_lines(fleet: Fleet, flags: list[str], pattern: str, is_logged: bool) -> None:
    compute.enqueue(0)
    fail.using(max_attempts=1).enqueue()
    process = fleet.launch("--burst", *flags)
    assert process.wait() == 0
    assert bool(process.output.find(pattern)) is is_logged


def test_help_lists_environment_variables(fleet: Fleet) -> None:
    process = fleet.launch("--help")
    assert process.wait() == 0
    text = "\n".join(process.output.lines)
    for flag in (
        "queue",
        "threads",
        "async-slots",
        "processes",
        "burst",
        "max-tasks",
        "max-memory",
        "shutdown-timeout",
    ):
        assert f"--{flag}" in text
        assert f"[JOBQUEUE_{flag.upper().replace('-', '_')}]" in text.replace("\n", " ")
    assert work.module_path not in text
