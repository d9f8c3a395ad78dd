"""manage.py jobqueue status, show and tail: output for people and programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.http import HttpRequest
from django.test.utils import CaptureQueriesContext

from jobqueue.engine import counting
from jobqueue.management.cli.backends import find_engine
from jobqueue.management.cli.console import TableColumn, table_lines
from jobqueue.operations import queries
from jobqueue.operations.bulk import audit_log, target
from jobqueue.operations.bulk.actions import REQUEUE
from jobqueue.operations.list.selection import Selection
from jobqueue.operations.overview import stats
from jobqueue.values.ids import new_id
from tests.cli.commands import BOTH, jobqueue
from tests.factories import ExecutorFactory, MessageFactory, QueueFactory, ago, error, make_user

pytestmark = BOTH


class TestStatus:
    def test_tables_fit_the_terminal(self, backend, make, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        make(queue_name="emails", enqueued_at=ago(660), rank=ago(660))
        make(queue_name="emails", scheduled=True)
        make(queue_name="a-name-that-is-far-too-long-for-a-table-of-eighty-columns", failed=True)
        QueueFactory.create(backend=backend, using=backend, name="emails", paused=True, pause_reason="disk full")
        web = ExecutorFactory.create(backend=backend, using=backend, name="web-7", queues=["emails"], async_slots=100)
        for _ in range(3):
            make(running=True, pool="async", executor_id=web.pk)

        result = jobqueue("status", "--backend", backend)

        assert result.code == 0
        assert all(len(line) <= 80 for line in result.out.splitlines())
        emails = next(line.split() for line in result.out.splitlines() if line.startswith("emails "))
        assert emails == ["emails", "1", "1", "0", "0", "0", "11", "min", "paused"]
        assert "Queue emails is paused by anna. Reason: disk full." in result.out
        assert ["web-7", "alive", "0/8", "3/100", "emails"] in [line.split()[:5] for line in result.out.splitlines()]

    def test_status_says_why_an_executor_makes_no_progress(self, make_executor, backend) -> None:
        make_executor(name="web-7", problem="Stuck for 40 s.")
        make_executor(name="web-8", problem="Old.", state="STOPPED")
        for command in ("status", "executors"):
            result = jobqueue(command, "--backend", backend)
            assert "\nweb-7: Stuck for 40 s.\n" in result.out
            assert "Old." not in result.out

    def test_status_json_has_numbers_and_latency(self, backend, make) -> None:
        make(queue_name="emails", enqueued_at=ago(90), rank=ago(90 + 60 * 50), priority=50)  # worth 3,000 s
        make(queue_name="emails", running=True)
        make(successful=True)

        (figures,) = jobqueue("status", "--backend", backend, "--json").json["backends"]

        emails = next(queue for queue in figures["queues"] if queue["name"] == "emails")
        assert (emails["ready"], emails["running"], emails["at_least"]) == (1, 1, [])
        assert 89 < emails["latency_seconds"] < 600
        assert (figures["totals"]["successful"], figures["last_minute"]["successful"]) == (1, 1)

    def test_counts_are_capped(self, backend, make, monkeypatch) -> None:
        for module in (counting, queries, stats):
            monkeypatch.setattr(module, "CAP", 2)
        for _ in range(3):
            make()
            make(failed=True)
        result = jobqueue("status", "--backend", backend)
        assert result.out.count("2+") == 4  # READY and FAILED of the queue, FAILED of the minute and of all
        assert jobqueue("status", "--backend", backend, "--json").json["backends"][0]["totals"]["at_least"] == [
            "ready",
            "failed",
        ]

    def test_status_limits_each_statement_on_tasks(self, make) -> None:
        make()
        with CaptureQueriesContext(connections["default"]) as queries:
            jobqueue("status", "--backend", "default")
        on_tasks = [q["sql"] for q in queries if 'FROM "jobqueue_task"' in q["sql"] or "FROM jobqueue_task" in q["sql"]]
        assert on_tasks
        assert [sql for sql in on_tasks if "LIMIT" not in sql] == []

    @pytest.mark.parametrize(
        ("flags", "problem"),
        [
            ("--max-latency 60s", "Queue emails has a latency of 90 s, more than 60 s."),
            ("--max-latency 5m", ""),
            ("--min-executors 1", ""),
            ("--min-executors 2", "1 executor active, fewer than 2."),
        ],
    )
    def test_exceeded_bounds_are_exit_code_1(self, backend, make, make_executor, flags: str, problem: str) -> None:
        make(queue_name="emails", enqueued_at=ago(90), rank=ago(90))
        make_executor(queues=["reports"])
        make_executor(lost=True)

        result = jobqueue("status", "--backend", backend, *flags.split())

        assert result.code == bool(problem)
        assert "QUEUE" in result.out
        assert re.sub(r"9\d s", "90 s", result.err) == problem

    @pytest.mark.parametrize("duration", ["14", "0", "x", "5 minutes", "-5m", "200000w"])
    def test_duration_without_a_unit_is_refused(self, duration: str) -> None:
        result = jobqueue("status", f"--max-latency={duration}")
        assert (result.code, result.out) == (2, "")
        assert "such as 90s, 30m, 12h, 14d or 2w, not" in result.err
        assert len(result.err.splitlines()) == 1


class TestShow:
    def test_show_has_the_details_of_the_page(self, backend, make) -> None:
        parent = make(task_type="shop.tasks.parent")
        task = make(failed=True, parent_id=parent.pk, key="k-1", kwargs={"order_id": 7, "api_token": "s3cret"})
        MessageFactory.create(using=backend, task_id=task.pk, body={"text": "hi", "password": "s3cret"})
        make(parent_id=task.pk, task_type="shop.tasks.child")

        result = jobqueue("show", task.pk)

        assert result.code == 0
        for words in ("FAILED", "k-1", "order_id = 7", "451 try again later", "Traceback", "shop.tasks.child"):
            assert words in result.out
        assert str(parent.pk) in result.out
        assert "s3cret" not in result.out
        assert "s3cret" not in jobqueue("show", task.pk, "--json").out

    def test_show_finds_the_live_or_the_last_task_of_a_key(self, backend, make) -> None:
        ended = [make(successful=True, key="order-1") for _ in range(2)]
        assert jobqueue("show", "order-1", "--json").json["id"] == str(max(task.pk for task in ended))
        live = make(key="order-1")
        assert jobqueue("show", "order-1", "--json").json["id"] == str(live.pk)
        assert "Unknown task order-2" in jobqueue("show", "order-2").err

    def test_show_uses_the_sites_time_zone(self, backend, make, settings) -> None:
        midnight = datetime(2026, 1, 1, tzinfo=UTC)
        task = make(failed=True, enqueued_at=midnight, errors=[error(at=midnight.isoformat())])
        MessageFactory.create(using=backend, task_id=task.pk, sent_at=midnight)
        request = HttpRequest()
        request.user = make_user()
        audit_log.write(request, [task], "Requeue")
        LogEntry.objects.update(action_time=midnight)
        settings.TIME_ZONE = "Asia/Tokyo"

        result = jobqueue("show", task.pk)

        assert result.out.count("2026-01-01 09:00:00") == 4

    def test_show_json_has_arguments_by_name(self, make) -> None:
        task = make(task_type="tests.tasks.add", args=[1, 2], successful=True, return_value=3)
        reply = jobqueue("show", task.pk, "--json").json
        assert (reply["arguments"], reply["result"], reply["status"]) == ({"a": 1, "b": 2}, 3, "SUCCESSFUL")

    def test_show_and_tail_count_attempts_alike(self, backend, make) -> None:
        task = make(successful=True, attempts=1, errors=[error()])

        tail = jobqueue("tail", "--backend", backend)
        tail_json = json.loads(jobqueue("tail", "--backend", backend, "--json").out)
        show, show_json = jobqueue("show", task.pk), jobqueue("show", task.pk, "--json").json

        assert " attempt 2 of 4 " in tail.out
        assert re.search(r"^Attempt +2 of 4$", show.out, re.MULTILINE)
        assert (tail_json["attempt"], show_json["attempt"]) == (2, 2)

    def test_output_escapes_terminal_sequences(self, make) -> None:
        task = make(failed=True, key="\x1b[2J", errors=[error("\x1b]0;title\x07 \x9b31m \u202eabc")])
        for result in (jobqueue("show", task.pk), jobqueue("tail", "--backend", task.backend)):
            assert not set(result.out) & set("\x1b\x07\x9b\u202e")
            assert "\\x1b]0;title\\x07" in result.out
        escaped = jobqueue("show", make(key="\x7f \x9b31m \u2028 é 😀").pk, "--json")
        assert escaped.json["key"] == "\x7f \x9b31m \u2028 é 😀"
        assert escaped.out.isascii()
        assert "\x7f" not in escaped.out

    def test_show_of_an_unknown_id_is_one_line(self) -> None:
        result = jobqueue("show", new_id())
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("Unknown task")
        assert jobqueue("show", "42").err.startswith("Unknown task 42")  # it may have been a key

    def test_show_and_status_work_without_the_admin(self, tmp_path: Path) -> None:
        settings = (
            "from tests.settings import *\n"
            "INSTALLED_APPS = ['jobqueue']\nTEMPLATES = MIDDLEWARE = []\nROOT_URLCONF = None\n"
            "DATABASES = {'default': DATABASES['sqlite'] | {'NAME': '" + str(tmp_path / "bare.sqlite3") + "'}}\n"
            "TASKS = {'default': {'BACKEND': JOBQUEUE, 'QUEUES': []}}\n"
        )
        (tmp_path / "bare.py").write_text(settings)
        (tmp_path / "bare_tasks.py").write_text("from jobqueue import task\n@task\ndef add(a, b): ...\n")
        script = """if True:
            import django, sys
            django.setup()
            from django.core.management import call_command
            call_command("migrate", verbosity=0)
            import bare_tasks
            result = bare_tasks.add.enqueue(1, 2)
            call_command("jobqueue", "show", result.id)
            call_command("jobqueue", "status")
            print("django.contrib.admin.models" in sys.modules)
        """
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "bare", "PYTHONPATH": f"{root}:{tmp_path}"},
        )
        assert done.returncode == 0, done.stderr
        assert "a = 1" in done.stdout
        assert done.stdout.endswith("False\n")


class TestTail:
    def test_tail_ends_with_the_newest(self, backend, make) -> None:
        for seconds in (30, 10, 20):
            make(successful=True, finished_at=ago(seconds), task_type=f"shop.tasks.ended_{seconds}")
        make(failed=True, finished_at=ago(15))
        make()

        lines = jobqueue("tail", "--backend", backend, "-n", 3).out.splitlines()

        assert [line.split()[5].rpartition(".")[2] for line in lines] == ["ended_20", "send_receipt", "ended_10"]
        assert "SMTPServerBusy: 451 try again later" in lines[1]

    def test_tail_filters_by_queue_status_and_task(self, backend, make) -> None:
        wanted = make(failed=True, queue_name="emails")
        make(failed=True)
        make(successful=True, queue_name="emails")
        make(failed=True, queue_name="emails", task_type="shop.tasks.other")
        result = jobqueue(
            "tail", "--backend", backend, "--queue", "emails", "--status", "failed", "--task", "send_receipt", "--json"
        )
        assert json.loads(result.out)["id"] == str(wanted.pk)

    @pytest.mark.parametrize("width", [None, "200"])
    def test_tail_escapes_line_breaks(self, backend, make, monkeypatch, width) -> None:
        make(failed=True, task_type="a\nb", queue_name="x\n13:59:59 FAILED", errors=[error("one\u2028two\x0b\x1b[2J")])
        if width:
            monkeypatch.setenv("COLUMNS", width)

        result = jobqueue("tail", "--backend", backend)

        assert len(result.out.splitlines()) == (2 if width else 1)  # the error has a line of its own
        assert all(character.isprintable() for character in result.out.replace("\n", ""))

    def test_tail_follow_shows_each_once_until_ctrl_c(self, backend, make, monkeypatch) -> None:
        make(successful=True, task_type="shop.tasks.before")
        looks = iter(["first", "", "second", ""])

        def sleep(seconds: float) -> None:
            name = next(looks, None)
            if name is None:
                raise KeyboardInterrupt
            if name:
                make(successful=True, task_type=f"shop.tasks.{name}", finished_at=ago(0))

        monkeypatch.setattr(time, "sleep", sleep)
        result = jobqueue("tail", "-f", "--backend", backend)
        assert result.code == 0
        assert [line.split()[5] for line in result.out.splitlines()] == [
            "shop.tasks.before",
            "shop.tasks.first",
            "shop.tasks.second",
        ]

    def test_tail_follow_names_an_unknown_task_and_waits_for_it(self, backend, monkeypatch) -> None:
        monkeypatch.setattr(time, "sleep", Mock(side_effect=KeyboardInterrupt))

        result = jobqueue("tail", "-f", "--task", "ad", "--backend", backend)

        assert (result.code, result.err) == (0, "Warning: Unknown task 'ad' (did you mean 'add'?).\n")


STATUS = [sys.executable, "-m", "django", "jobqueue", "status", "--backend", "sqlite"]


def test_djangos_options_work_before_and_after_the_verb(process_environment: dict[str, str]) -> None:
    options = ["--settings", "tests.settings", "--no-color", "--traceback", "--verbosity", "2"]
    environment = {name: value for name, value in process_environment.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "django", "jobqueue"]
    for words in (["status", *options], [*options, "status"]):
        done = subprocess.run(
            [*command, *words, "--backend", "sqlite"], capture_output=True, text=True, check=False, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "flags"),
    [("jobqueue", "dance"), ("jobqueue prune", "--older-than 14"), ("run_executors", "--threads many")],
)
def test_wrong_usage_has_one_form(process_environment: dict[str, str], command: str, flags: str) -> None:
    words = [sys.executable, "-m", "django", *command.split(), *flags.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=process_environment)
    problem, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert f" {command}: argument " in problem
    assert hint.endswith(f" {command} --help")


def test_closed_pipe_is_no_traceback(process_environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        STATUS, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=process_environment
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_ascii_stdout_is_no_traceback(process_environment: dict[str, str]) -> None:
    environment = process_environment | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(STATUS, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2013" in done.stdout  # the dash of a queue without READY tasks


def test_table_shortens_the_widest_flexible_column() -> None:
    columns = [TableColumn("NAME", is_flexible=True), TableColumn("N", is_right=True)]
    lines = list(table_lines(columns, [["shop.tasks.send_receipt", "1"], ["b", "1,000"]], width=20))
    assert lines == ["NAME               N", "shop…_receipt      1", "b              1,000"]


def test_walk_skips_no_row_with_equal_moments(make, monkeypatch) -> None:
    same: list[Any] = [make(failed=True, finished_at=ago(5)) for _ in range(1)]
    same += [make(failed=True, finished_at=same[0].finished_at) for _ in range(6)]
    engine = find_engine(same[0].backend)
    monkeypatch.setattr(target, "WALKED", 2)
    selection = Selection(engine.database, {"backend": engine.alias, "status": "FAILED"}, is_whole=True)
    pages = target.Target.of(selection, REQUEUE).walk(2)
    assert sorted(pk for ids in pages for pk in ids) == sorted(row.pk for row in same)


def test_times_of_all_verbs_are_on_the_clock_of_the_site(backend, make, settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    task = make(failed=True, queue_name="mail")
    clock = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d IST"

    paused = jobqueue("pause", "mail", "--for", "1h", "--backend", backend).out
    (until,) = re.findall(f"until ({clock})", paused)
    assert until in jobqueue("status", "--backend", backend).out
    assert re.search(clock, jobqueue("show", task.pk).out)
    assert re.search(clock, jobqueue("tail", "--backend", backend).out)
    since = jobqueue("requeue", "--since", "2h", "--dry-run", "--backend", backend)
    assert re.search(clock, since.out + since.err)
