"""manage.py jobqueue schedules: list, show, next, pause, resume, run and backfill."""

from __future__ import annotations

import getpass
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from jobqueue.models import STOPPED_BY, Schedule, ScheduleTick, Task
from tests.cli.commands import BOTH, CommandResult, jobqueue
from tests.factories import ScheduleFactory, TickFactory, ago, now, template_of

pytestmark = BOTH
Add = Callable[..., Schedule]
Run = Callable[..., CommandResult]

NOON = datetime(2030, 3, 4, 11, tzinfo=UTC)
PAUSED: dict[str, Any] = {"paused_at": ago(60), "paused_by": "anna", "pause_reason": "disk full"}
STOPPED: dict[str, Any] = {"paused_at": ago(60), "paused_by": STOPPED_BY, "pause_reason": "no such time zone"}
NOTHING_NEXT: dict[str, Any] = {"next_at": None, "due_at": None}
HOURLY: dict[str, Any] = {"expression": "@every 3600", "timezone": "", "anchor_at": datetime(2020, 1, 1, tzinfo=UTC)}


@pytest.fixture
def add(backend: str) -> Add:
    def create(name: str = "report", **columns: Any) -> Schedule:
        return ScheduleFactory.create(backend=backend, using=backend, name=name, **columns)

    return create


@pytest.fixture
def run(backend: str) -> Run:
    return lambda *words: jobqueue("schedules", *words, "--backend", backend)


def stored(row: Schedule) -> Schedule:
    return Schedule.objects.using(row.backend).get(pk=row.pk)


def tick(row: Schedule, **columns: Any) -> ScheduleTick:
    return TickFactory.create(using=row.backend, schedule=row, **columns)


def everything() -> list[Any]:
    models = (Schedule, ScheduleTick, Task)
    return [list(model._default_manager.using(name).values()) for model in models for name in ("default", "sqlite")]


class TestList:
    def test_list_is_cut_and_says_how_many_more_there_are(self, add: Add, run: Run, backend: str) -> None:
        for number in range(4):
            add(f"report-{number}")
        add("idle")

        result = run("--lines", "2", "--name", "PORT")

        assert [line.split()[0] for line in result.out.splitlines()] == ["SCHEDULE", "report-0", "report-1"]
        assert result.err == f"Backend {backend}: 2 more schedules. Pass --lines or --name to see others.\n"

    def test_table_has_words_next_and_last_tick(self, add: Add, run: Run, make: Any) -> None:
        row = add(next_at=NOON)
        tick(row, tick_at=datetime(2030, 3, 1, 7, tzinfo=UTC), task_id=make(failed=True).pk)
        tick(row, tick_at=datetime(2030, 2, 28, 7, tzinfo=UTC), reason="overlap")
        add("idle", **HOURLY, next_at=NOON)

        result = run()

        heading, idle, report = result.out.splitlines()
        assert heading.split("  ")[0] == "SCHEDULE"
        assert re.split(r" {2,}", idle) == ["idle", "Every hour", "2030-03-04 11:00:00 UTC", "–", "–"]
        assert re.split(r" {2,}", report) == [
            "report", "At 08:00, Monday through Friday, Europe/Berlin", "2030-03-04 11:00:00 UTC",
            "2030-03-01 07:00:00 UTC", "FAILED",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("columns", "state", "sentence"),
        [
            (PAUSED, "paused", "report is paused by anna. Its ticks are skipped. Reason: disk full."),
            ({**PAUSED, "resume_at": NOON}, "paused", "report is paused by anna until 2030-03-04 11:00:00 UTC. Its"),
            ({**STOPPED, **NOTHING_NEXT}, "stopped", "An error has stopped report: no such time zone"),
            (NOTHING_NEXT, "ended", "report has no next tick."),
        ],
    )
    def test_schedule_that_does_not_run_says_why(
        self, add: Add, run: Run, columns: dict[str, Any], state: str, sentence: str
    ) -> None:
        add(**columns)

        _, line, reason = run().out.splitlines()

        assert re.split(r" {2,}", line)[2] == state
        assert reason.startswith(sentence)
        assert run("show", "report").out.startswith(f"report  {state}\n")
        assert sentence in run("next", "report").err

    def test_json_has_the_columns(self, backend: str, add: Add, run: Run) -> None:
        row = add(declared=True, **PAUSED, next_at=NOON)
        tick(row, reason="paused", count=3)

        (entry,) = run("--json").json

        expected = {"name": "report", "backend": backend, "task_type": "tests.tasks.add", "state": "paused"}
        assert {name: entry[name] for name in expected} == expected
        assert entry["words"] == "At 08:00, Monday through Friday, Europe/Berlin"
        assert (entry["paused_by"], entry["pause_reason"], entry["declared_at"]) == (
            "anna", "disk full", "shop/tasks.py:42"
        )  # fmt: skip
        assert datetime.fromisoformat(entry["next_at"]) == NOON
        last = entry["last_tick"]
        assert (last["status"], last["reason"], last["task_id"]) == ("SKIPPED", "paused", None)
        assert (last["count"], last["is_count_exact"]) == (3, True)

    def test_retired_schedules_are_listed_on_request(self, add: Add, run: Run) -> None:
        add(retired=True)
        assert (run().out, run().err) == ("", "There are no schedules. Declare one with jobqueue.schedule().\n")
        assert "report is retired: code declared it at shop/tasks.py:42, and no longer does." in run("--all").out
        assert run("show", "report").out.startswith("report  retired\n")
        for action in ("pause", "resume", "run", "next"):
            assert run(action, "report").code == 1

    def test_list_reads_ticks_in_pages(self, add: Add, run: Run, backend: str, monkeypatch: Any) -> None:
        for number in range(5):
            tick(add(f"report-{number}"))
        monkeypatch.setattr("jobqueue.management.cli.schedules.PAGE", 2)
        with CaptureQueriesContext(connections[backend]) as queries:
            result = run()
        assert [line.split()[0] for line in result.out.splitlines()[1:]] == [f"report-{number}" for number in range(5)]
        assert len(queries) < 15

    def test_all_backends_are_listed_without_a_flag(self) -> None:
        for name in ("default", "sqlite"):
            ScheduleFactory.create(backend=name, using=name, name=f"of-{name}")
        assert [entry["name"] for entry in jobqueue("schedules", "--json").json] == ["of-default", "of-sqlite"]

    def test_table_fits_the_terminal(self, add: Add, run: Run, monkeypatch: Any) -> None:
        monkeypatch.setenv("COLUMNS", "100")
        add("a-name-that-is-far-too-long-for-a-table-of-so-many-columns")
        assert all(len(line) <= 100 for line in run().out.splitlines())


class TestShow:
    def test_show_has_details_next_and_last_ticks(self, add: Add, run: Run, make: Any) -> None:
        template = template_of("tests.tasks.greet", args='["Ada"]', kwargs='{"password": "s3cret"}')
        row = add(declared=True, task_type="tests.tasks.greet", new_task=template, next_at=NOON, jitter_seconds=30.0)
        task = make(successful=True, started_at=ago(90), finished_at=ago(60))
        tick(row, task_id=task.pk, tick_at=ago(120))
        tick(row, reason="overlap", count=7, tick_at=ago(1200), last_at=ago(600))
        tick(row, reason="missed", count=1_000, tick_at=ago(90_000), last_at=ago(2_000))

        result = run("show", "report")

        assert result.code == 0
        assert result.out.startswith("report  active\nAt 08:00, Monday through Friday, Europe/Berlin.\n")
        assert re.search(r"^Declared in +shop/tasks.py:42$", result.out, re.MULTILINE)
        assert re.search(r"^Jitter in seconds +30.0$", result.out, re.MULTILINE)
        assert 'name = "Ada"' in result.out
        assert "s3cret" not in result.out
        assert "2030-03-04 12:00:00 CET  2030-03-04 11:00:00" in result.out
        assert re.search(rf"SUCCESSFUL +30 s  {task.pk}", result.out)
        assert re.search(r"SKIPPED +–  The previous task had not ended. 7 ticks, the first 20", result.out)
        assert "No executor was running. At least 1,000 ticks, the first 20" in result.out

    def test_json_has_next_and_last_ticks(self, add: Add, run: Run, make: Any) -> None:
        row, task = add(next_at=NOON), make(failed=True, started_at=ago(90), finished_at=ago(60))
        tick(row, task_id=task.pk)

        reply = run("show", "report", "--json").json

        assert [datetime.fromisoformat(upcoming["tick_at"]) for upcoming in reply["next"][:2]] == [
            NOON, datetime(2030, 3, 5, 7, tzinfo=UTC)
        ]  # fmt: skip
        (last,) = reply["last"]
        assert (last["task_id"], last["status"], last["trigger"]) == (str(task.pk), "FAILED", "schedule")
        assert last["duration_seconds"] == pytest.approx(30, abs=1)

    def test_schedule_that_cannot_be_used_is_shown(self, add: Add, run: Run) -> None:
        add(expression="61 * * * *", new_task=[])
        result = run("show", "report")
        assert (result.code, "the minute of '61 * * * *' is not valid" in result.out) == (0, True)
        assert run().code == run("next", "report").code == 0

    @pytest.mark.parametrize(
        ("name", "advice"),
        [("reprot", "Did you mean report?"), ("x", "See: manage.py jobqueue schedules"), ("report\n", "report?")],
    )
    def test_unknown_name_is_an_error_with_similar_ones(self, add: Add, run: Run, name: str, advice: str) -> None:
        add()
        before = everything()
        for action in ("show", "next", "pause", "resume", "run", "backfill"):
            more = ["--from", "2020-01-01"] if action == "backfill" else []
            result = run(action, name, *more)
            assert (result.code, result.out, len(result.err.splitlines())) == (1, "", 1)
            assert f"is named {name!r}. " in result.err
            assert advice in result.err
        assert everything() == before


class TestNext:
    def test_shift_of_daylight_saving_is_noted(self, add: Add, run: Run) -> None:
        add(expression="30 2 * * *", next_at=datetime(2030, 3, 30, 1, 30, tzinfo=UTC))

        result = run("next", "report", "-n", "3")

        assert [re.split(r" {2,}", line) for line in result.out.splitlines()] == [
            ["LOCAL TIME", "UTC", "NOTE"],
            ["2030-03-30 02:30:00 CET", "2030-03-30 01:30:00"],
            [
                "2030-03-31 03:00:00 CEST", "2030-03-31 01:00:00",
                "On this day, the clock skips the time of the tick. So the tick runs right after the change.",
            ],
            ["2030-04-01 02:30:00 CEST", "2030-04-01 00:30:00"],
        ]  # fmt: skip
        notes = [bool(entry["note"]) for entry in run("next", "report", "--json").json]
        assert notes == [False, True, *[False] * 8]

    @pytest.mark.parametrize("number", ["0", "1001", "many"])
    def test_wrong_number_of_ticks_is_refused(self, add: Add, run: Run, number: str) -> None:
        add()
        result = run("next", "report", "-n", number)
        assert (result.code, len(result.err.splitlines())) == (2, 1)
        assert "whole number from 1 to 1,000" in result.err


class TestPauseAndResume:
    @pytest.mark.parametrize("reason", ["disk full", "disk full."])
    def test_reason_of_a_pause_ends_with_one_period(self, add: Add, run: Run, reason: str) -> None:
        add()
        assert run("pause", "report", "--reason", reason).out.endswith(" Reason: disk full.\n")

    def test_pause_is_stored_until_the_resume(self, add: Add, run: Run) -> None:
        row = add()
        result = run("pause", "report", "--reason", "disk full", "--by", "anna")
        assert result.out == "report is paused by anna. Its ticks are skipped. Reason: disk full.\n"
        schedule = stored(row)
        assert (schedule.paused_by, schedule.pause_reason, schedule.paused_at is not None) == (
            "anna",
            "disk full",
            True,
        )

        result = run("resume", "report", "--json")
        assert [(entry["state"], entry["paused_at"]) for entry in result.json] == [("active", None)]
        assert stored(row).paused_at is None
        again = run("resume", "report")
        assert (again.code, again.err) == (0, "report was not paused.\n")
        assert again.out.startswith("report is active. Its next tick: 20")

    @pytest.mark.parametrize("flag", ["--for", "--until"])
    def test_pause_may_have_an_end(self, add: Add, run: Run, flag: str) -> None:
        rows = [add("report"), add("digest")]
        end = "2h" if flag == "--for" else (now() + timedelta(hours=2)).isoformat()
        result = run("pause", "report", "digest", flag, end)
        assert [line.split(" is paused by ")[0] for line in result.out.splitlines()] == ["report", "digest"]
        for row in rows:
            resume_at = stored(row).resume_at
            assert resume_at is not None
            assert timedelta(minutes=115) < resume_at - now() <= timedelta(hours=2)

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("report", "--for", "0s"), "must be in the future"),
            (("report", "--until", "2020-01-01"), "must be in the future"),
            (("report", "--reason", "x" * 256), "reason must be a text of at most 255 characters"),
            (("report", "digset"), "Did you mean digest?"),
        ],
    )
    def test_pause_with_an_invalid_value_pauses_none(
        self, add: Add, run: Run, words: tuple[str, ...], says: str
    ) -> None:
        add("report"), add("digest")
        before = everything()
        result = run("pause", *words)
        assert (result.code, everything()) == (1, before)
        assert says in result.err

    def test_stopped_schedule_that_is_still_wrong_is_not_resumed(self, add: Add, run: Run) -> None:
        row = add(expression="61 * * * *", **STOPPED, **NOTHING_NEXT)
        result = run("resume", "report")
        assert result.code == 1
        assert "the minute of '61 * * * *' is not valid" in result.err
        Schedule.objects.using(row.backend).update(expression="1 * * * *")
        assert run("resume", "report").out.startswith("report is active. Its next tick: 20")


class TestRun:
    def test_run_enqueues_a_task_and_prints_its_id(self, add: Add, run: Run, backend: str) -> None:
        row = add(**PAUSED)
        pk = UUID(run("run", "report").out.strip())
        task = Task.objects.using(backend).get()
        assert (task.pk, task.task_type, task.schedule_id) == (pk, "tests.tasks.add", row.pk)
        assert run("run", "report", "--json").json["task"] == "tests.tasks.add"

    def test_run_with_a_taken_key_is_an_error(self, add: Add, run: Run, make: Any) -> None:
        task = make(key="taken")
        add(new_task=template_of("tests.tasks.add", key="taken"))
        result = run("run", "report")
        assert (result.code, str(task.pk) in result.err) == (1, True)


class TestBackfill:
    RANGE = ("--from", "2026-01-01T00:00", "--to", "2026-01-01T09:30")

    def test_backfill_enqueues_each_tick_once(self, add: Add, run: Run, backend: str) -> None:
        add(**HOURLY)
        result = run("backfill", "report", *self.RANGE, "--yes")
        assert (result.code, result.out) == (0, "Enqueued 10 tasks.\n")
        assert Task.objects.using(backend).count() == 10

        again = run("backfill", "report", *self.RANGE)
        assert again.out == "Enqueued 0 tasks. Ticks of the range that have a task already: 10.\n"
        assert run("backfill", "report", *self.RANGE, "--json").json == {"enqueued": 0, "existing": 10}
        assert Task.objects.using(backend).count() == 10

    def test_dry_run_only_shows_the_ticks(self, add: Add, run: Run) -> None:
        add(**HOURLY)
        before = everything()
        result = run("backfill", "report", *self.RANGE, "--dry-run")
        assert result.out == (
            "Would enqueue 10 tasks of report, for ticks between 2026-01-01 00:00:00 UTC and 2026-01-01 09:00:00 UTC.\n"
        )
        reply = run("backfill", "report", *self.RANGE, "--dry-run", "--json").json
        assert (reply["would_enqueue"], reply["existing"], len(reply["ticks"])) == (10, 0, 10)
        assert everything() == before

    @pytest.mark.parametrize(("answer", "enqueued"), [("y\n", 10), ("\n", 0), (None, 0)])
    def test_terminal_is_asked(
        self, add: Add, run: Run, backend: str, monkeypatch: Any, answer: str | None, enqueued: int
    ) -> None:
        add(**HOURLY)
        stdin = StringIO("y\n" if answer is None else answer)
        monkeypatch.setattr(stdin, "isatty", lambda: answer is not None)
        monkeypatch.setattr("sys.stdin", stdin)
        result = run("backfill", "report", *self.RANGE)
        question = "[y/N]" if answer is not None else "Not a terminal: pass --yes, or --dry-run to preview."
        assert "Enqueue 10 tasks of report, for ticks between 2026-01-01 00:00:00 UTC and " in result.err
        assert question in result.err
        assert (Task.objects.using(backend).count(), result.code) == (enqueued, int(not enqueued))

    def test_duration_counts_back_from_now(self, add: Add, run: Run) -> None:
        add(**HOURLY)
        for end in ((), ("--to", "0s")):
            result = run("backfill", "report", "--from", "5h", *end, "--dry-run", "--json")
            assert result.json["would_enqueue"] == 5

    @pytest.mark.parametrize(
        ("words", "code", "says"),
        [
            (("--from", "2026-01-02", "--to", "2026-01-01"), 1, "before it starts"),
            (("--from", "2026-01-01", "--to", "2999-01-01"), 1, "must not end after now"),
            (("--from", "2021-01-01", "--to", "2026-01-01"), 1, "more than 10,000 ticks"),
            (("--from", "soon"), 2, "must be a duration (30m) or a time (2030-01-31T09:00), not 'soon'"),
            ((), 2, "the following arguments are required: --from"),
        ],
    )
    def test_range_that_cannot_be_used_is_refused(
        self, add: Add, run: Run, words: tuple[str, ...], code: int, says: str
    ) -> None:
        add(**HOURLY)
        before = everything()
        result = run("backfill", "report", *words, "--yes")
        assert (result.code, everything()) == (code, before)
        assert says in result.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pause", "report", "--reason", "disk\nfull"), "pause by={me} schedule='report' {b} reason='disk\\nfull'"),
        (("pause", "report", "--by", "anna"), "pause by='anna' ({me}) schedule='report' {b}"),
        (("resume", "report"), "resume by={me} schedule='report' {b}"),
        (("run", "report"), "run by={me} schedule='report' id='"),
        (("backfill", "report", *TestBackfill.RANGE, "--yes"), "backfill by={me} schedule='report' start='2026-01-01"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_changes_are_logged_with_the_user(
    backend: str, add: Add, run: Run, caplog: pytest.LogCaptureFixture, words: tuple[str, ...], expected: str
) -> None:
    caplog.set_level(logging.INFO, "jobqueue.cli")
    add(**HOURLY)
    assert run(*words).code == 0
    (line,) = [record.getMessage() for record in caplog.records if record.name == "jobqueue.cli"]
    me = f"shell user {getpass.getuser()}"
    assert line.startswith(f"command.executed command={expected.format(me=me, b=f'backend={backend!r}')}")


def test_flags_before_the_action_are_kept(add: Add, backend: str) -> None:
    add()
    result = jobqueue("schedules", "--json", "--backend", backend, "show", "report")
    assert result.json["backend"] == backend


@pytest.mark.parametrize("words", [("shwo", "report"), ("show",), ("pause",), ("run", "a", "b"), ("--backend", "x")])
def test_wrong_usage_is_one_line(words: tuple[str, ...]) -> None:
    result = jobqueue("schedules", *words)
    assert (result.code in (1, 2), result.out, len(result.err.splitlines())) == (True, "", 1)


@pytest.mark.parametrize("action", ["", "show", "next", "pause", "resume", "run", "backfill"])
def test_help_names_the_flags(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        jobqueue("schedules", *filter(None, [action]), "--help")
    text = capsys.readouterr().out
    assert "--json" in text
    assert "--backend ALIAS" in text
    assert action != "pause" or "--until WHEN" in text


def test_control_characters_are_escaped(add: Add, run: Run) -> None:
    add("bad\x1b[31m", paused_at=ago(60), paused_by="\x1b[32m", pause_reason="\x1b[33m")
    for words in ((), ("show", "bad\x1b[31m")):
        result = run(*words)
        assert "\x1b" not in result.out
        assert r"bad\x1b[31m" in result.out
