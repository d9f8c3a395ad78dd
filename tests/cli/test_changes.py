"""manage.py jobqueue requeue, cancel, prune, pause, resume, limit, submit, send and executors: changes and refusals."""

from __future__ import annotations

import getpass
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue import api
from jobqueue.engine import engine_for
from jobqueue.models import Executor, InboxMessage, Queue, Task
from jobqueue.operations.bulk import target
from jobqueue.values.ids import new_id
from tests.admin.pages import status_of
from tests.cli.commands import BOTH, console, jobqueue
from tests.factories import MessageFactory, TaskFactory, ago, now

pytestmark = BOTH


@pytest.fixture
def run(backend):
    return lambda verb, *words: jobqueue(verb, "--backend", backend, *words)


def everything() -> list[Any]:
    return [
        list(model.objects.using(name).order_by("pk").values())
        for model in (Task, InboxMessage, Queue)
        for name in ("default", "sqlite")
    ]


class TestRequeueAndCancel:
    def test_ids_are_found_in_every_backend(self, make) -> None:
        failed, live = make(failed=True), make()
        result = jobqueue("requeue", failed.pk, live.pk)
        assert result.out == "Requeued 1 task. Skipped 1 task: not failed or cancelled, deleted, or a bulk action.\n"
        assert status_of(failed) == "READY"
        expected = {"cancelled": 1, "requested": 0, "skipped": 0, "busy": 0}
        assert jobqueue("cancel", failed.pk, "--json").json == expected
        assert jobqueue("requeue", new_id()).code == 1

    def test_filters_choose_the_requeued_tasks(self, make, run) -> None:
        matching = [make(failed=True, queue_name="emails") for _ in range(5)]
        others = [
            make(failed=True),
            make(cancelled=True, queue_name="emails"),
            make(failed=True, queue_name="emails", task_type="shop.tasks.other"),
        ]
        result = run("requeue", "--failed", "--queue", "emails", "--task", "send_receipt", "--batch", 2, "--yes")
        assert result.out == "Requeued 5 tasks.\n"
        assert {status_of(row) for row in matching} == {"READY"}
        assert [status_of(row) for row in others] == ["FAILED", "CANCELLED", "FAILED"]

    def test_tasks_that_enter_after_the_question_are_not_changed(self, make, run, monkeypatch) -> None:
        row, running, late = make(failed=True), make(running=True), []

        def answer() -> str:
            late.append(make(failed=True, finished_at=now()))
            Task.objects.using(running.backend).filter(pk=running.pk).update(status="FAILED", finished_at=now())
            return "y\n"

        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=answer))
        assert run("requeue", "--failed").out == "Requeued 1 task.\n"
        assert [status_of(task) for task in (row, running, *late)] == ["READY", "FAILED", "FAILED"]

    def test_task_that_fails_again_is_not_requeued_twice(self, make, run, monkeypatch) -> None:
        row, requeue, ends = make(failed=True, finished_at=ago(60)), api.requeue, [ago(-120), ago(-60)]

        def fail_again(ids: Any, **options: Any) -> Any:
            report = requeue(ids, **options)
            if ends:
                Task.objects.using(row.backend).filter(pk__in=ids).update(status="FAILED", finished_at=ends.pop())
            return report

        monkeypatch.setattr(api, "requeue", fail_again)
        monkeypatch.setattr(target, "WALKED", 1)
        assert run("requeue", "--failed", "--yes", "--batch", 1).out == "Requeued 1 task.\n"
        assert status_of(row) == "FAILED"

    def test_limit_bounds_the_number_of_changes(self, make, run) -> None:
        made = [make() for _ in range(5)]
        assert run("cancel", "--queue", "default", "--limit", 3, "--batch", 2, "--yes").out == "Cancelled 3 tasks.\n"
        assert sorted(map(status_of, made)) == ["CANCELLED"] * 3 + ["READY"] * 2

    def test_cancel_by_queue_takes_every_unfinished_status(self, make, run) -> None:
        made = [make(), make(scheduled=True), make(suspended=True)]
        running, ended = make(running=True), make(successful=True)
        result = run("cancel", "--queue", "default", "--yes")
        assert result.out == "Cancelled 3 tasks. Asked 1 running task to stop.\n"
        assert {status_of(row) for row in made} == {"CANCELLED"}
        assert (status_of(running), status_of(ended)) == ("RUNNING", "SUCCESSFUL")

    def test_descendants_are_cancelled_too(self, make) -> None:
        parent = make()
        child = make(parent_id=parent.pk)
        assert jobqueue("cancel", parent.pk, "--descendants").out == "Cancelled 2 tasks.\n"
        assert status_of(child) == "CANCELLED"

    def test_dry_run_only_counts(self, make, run) -> None:
        row = make(failed=True)
        assert run("requeue", "--failed", "--dry-run").out == "Would requeue 1 task (status FAILED).\n"
        assert run("requeue", "--failed", "--dry-run", "--json").json == {"would_change": 1}
        assert status_of(row) == "FAILED"

    @pytest.mark.parametrize("flags", [("--failed",), ("--failed", "--queue", "emails")])
    def test_preview_and_question_and_result_give_one_number(self, make, run, monkeypatch, flags) -> None:
        made = [make(failed=True, queue_name="emails", finished_at=ago(seconds)) for seconds in range(10, 17)]
        monkeypatch.setattr(target, "WALKED", 2)
        monkeypatch.setattr("sys.stdin", StringIO("y\n"))
        assert run("requeue", *flags, "--dry-run").out.startswith("Would requeue 7 tasks (status FAILED")
        assert "Requeue 7 tasks (status FAILED" in run("requeue", *flags).err
        assert run("requeue", *flags, "--yes", "--batch", 3).out == "Requeued 7 tasks.\n"
        assert {status_of(row) for row in made} == {"READY"}

    def test_tasks_that_change_after_the_question_are_counted_as_left_alone(self, make, run, monkeypatch) -> None:
        rows = [make(failed=True) for _ in range(3)]

        def answer() -> str:
            Task.objects.using(rows[0].backend).filter(pk=rows[0].pk).delete()
            return "y\n"

        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=answer))
        result = run("requeue", "--failed")
        assert result.out == "Requeued 2 tasks. 1 task has changed since it was counted, and was left alone.\n"

    def test_name_that_only_rows_have_is_no_mistake(self, make, run) -> None:
        make(failed=True, task_type="shop.tasks.gone")
        result = run("requeue", "--failed", "--task", "gone", "--yes")
        assert (result.out, result.err) == ("Requeued 1 task.\n", "")

    def test_names_that_do_not_exist_are_named_with_the_nearest(self, make, run) -> None:
        row, _other = make(failed=True, task_type="tests.tasks.add"), make(queue_name="default")
        nothing = run("requeue", "--failed", "--task", "ad", "--queue", "defautl", "--yes")
        assert nothing.code == 1
        assert "Unknown task 'ad' (did you mean 'add'?)." in nothing.err
        assert "Unknown queue 'defautl' (did you mean 'default'?)." in nothing.err
        assert status_of(row) == "FAILED"
        part = run("requeue", "--failed", "--task", "ad", "--task", "add", "--yes")
        assert (part.out, status_of(row)) == ("Requeued 1 task.\n", "READY")
        assert part.err == "Warning: Unknown task 'ad' (did you mean 'add'?).\n"

    @pytest.mark.parametrize(
        ("answer", "after"), [("y\n", "READY"), ("\n", "FAILED"), ("", "FAILED"), (None, "FAILED")]
    )
    def test_terminal_is_asked(self, make, run, monkeypatch, answer: str | None, after: str) -> None:
        row = make(failed=True)
        stdin = StringIO("y\n" if answer is None else answer)
        monkeypatch.setattr(stdin, "isatty", lambda: answer is not None)
        monkeypatch.setattr("sys.stdin", stdin)
        result = run("requeue", "--failed")
        question = "[y/N]" if answer is not None else "Not a terminal: pass --yes"
        assert f"Requeue 1 task (status FAILED)? {question}" in result.err
        assert (status_of(row), result.code) == (after, 0 if after == "READY" else 1)

    def test_rate_spreads_tasks_over_time(self, make, run, monkeypatch) -> None:
        made = [make(failed=True) for _ in range(5)]
        pauses: list[float] = []
        monkeypatch.setattr("jobqueue.management.cli.bulk.time.sleep", pauses.append)

        result = run("requeue", "--failed", "--yes", "--rate", 2)

        assert result.out == "Requeued 5 tasks.\n"
        assert pauses == [1.0, 1.0, 0.5]
        assert {status_of(row) for row in made} == {"READY"}

    def test_ctrl_c_ends_after_the_batch_and_reports(self, make, run, monkeypatch) -> None:
        made = [make(failed=True) for _ in range(6)]
        requeue, done = api.requeue, []

        def interrupted(ids: Any, **options: Any) -> Any:
            done.extend(ids)
            if len(done) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return requeue(ids, **options)

        monkeypatch.setattr(api, "requeue", interrupted)
        before = signal.getsignal(signal.SIGINT)

        result = run("requeue", "--failed", "--yes", "--batch", 2)

        assert (result.code, result.out) == (130, "Requeued 4 tasks.\n")
        assert "\nStopping after this batch" in result.err
        assert sorted(map(status_of, made)) == ["FAILED"] * 2 + ["READY"] * 4
        assert signal.getsignal(signal.SIGINT) is before


class TestPrune:
    def test_old_tasks_are_deleted_with_their_messages(self, backend, make, run) -> None:
        old = [make(successful=True, finished_at=ago(3 * 86_400)) for _ in range(5)]
        MessageFactory.create(using=backend, task_id=old[0].pk)
        young, failed, live = make(successful=True), make(failed=True, finished_at=ago(3 * 86_400)), make()

        result = run("prune", "--older-than", "2d", "--status", "successful", "--batch", 2, "--yes")

        assert result.out == "Deleted 5 tasks that ended more than 2 d ago: 5 successful.\n"
        left = set(Task.objects.using(backend).values_list("pk", flat=True))
        assert left == {young.pk, failed.pk, live.pk}
        assert not InboxMessage.objects.using(backend).exists()

    def test_dry_run_and_question_delete_nothing(self, backend, make, run, monkeypatch) -> None:
        make(cancelled=True, finished_at=ago(7200))
        result = run("prune", "--older-than", "1h", "--dry-run", "--json")
        assert result.json == {"successful": 0, "failed": 0, "cancelled": 1}
        monkeypatch.setattr("sys.stdin", StringIO(""))
        assert run("prune", "--older-than", "0s").code == 1
        assert Task.objects.using(backend).count() == 1

    def test_engine_deletes_the_oldest_first(self, make, backend) -> None:
        made = [make(failed=True, finished_at=ago(seconds)) for seconds in (50, 70, 60)]
        assert engine_for(backend).tasks.prune_status("FAILED", 0, 2) == 2
        assert Task.objects.using(backend).get().pk == made[0].pk


class TestQueues:
    def test_pause_is_stored_until_the_resume(self, backend, run) -> None:
        result = run("pause", "emails", "--reason", "disk full", "--by", "anna")
        assert result.out.startswith("emails is paused")
        row = Queue.objects.using(backend).get(name="emails")
        assert (row.paused_by, row.pause_reason, row.paused_at is not None) == ("anna", "disk full", True)
        assert run("resume", "emails", "--json").json["emails"] == {
            "is_paused": False, "paused_by": "", "pause_reason": "", "resume_at": None, "max_running": None,
        }  # fmt: skip
        row.refresh_from_db()
        assert row.paused_at is None
        again = run("resume", "emails")
        assert (again.code, again.err) == (0, "emails was not paused.\n")

    @pytest.mark.parametrize("flag", ["--for", "--until"])
    def test_pause_may_have_an_end(self, backend, run, flag) -> None:
        end = "2h" if flag == "--for" else (now() + timedelta(hours=2)).isoformat()
        result = run("pause", "emails", "sms", flag, end)
        assert re.match(r"emails is paused until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\. Running", result.out)
        for row in Queue.objects.using(backend):
            assert row.resume_at is not None
            assert timedelta(minutes=115) < row.resume_at - now() <= timedelta(hours=2)
        assert run("pause", "emails").code == 0
        assert Queue.objects.using(backend).get(name="emails").resume_at is None

    @pytest.mark.parametrize(
        ("end", "says"),
        [
            (("--for", "0s"), "must be in the future"),
            (("--until", "2020-01-01T00:00"), "must be in the future"),
            (("--until", "9999-12-31T23:59"), "until must lie between the years 1970 and 9000"),
            (("--reason", "x" * 256), "reason must be a text of at most 255 characters"),
            (("x" * 129,), "A queue name must be a text of 1 to 128 characters"),
        ],
    )
    def test_pause_with_an_invalid_value_pauses_no_queue(self, backend, run, end, says) -> None:
        result = run("pause", "emails", *end)
        assert result.code == 1
        assert says in result.err
        assert not Queue.objects.using(backend).exists()

    def test_limit_is_set_shown_and_removed(self, backend, run) -> None:
        assert run("limit", "emails", 5).out == "emails is active with at most 5 tasks at once.\n"
        assert Queue.objects.using(backend).get().max_running == 5
        assert re.search(r"^emails +0 +0 +0/5 ", run("status").out, re.MULTILINE)
        assert run("status", "--json").json["backends"][0]["queues"][0]["max_running"] == 5
        run("pause", "emails")
        assert run("limit", "emails", "none", "--json").json["emails"]["max_running"] is None
        assert Queue.objects.using(backend).get().paused_at is not None

    def test_unknown_queue_pauses_none(self, settings) -> None:
        settings.TASKS = settings.TASKS | {"default": settings.TASKS["default"] | {"QUEUES": ["default", "emails"]}}
        result = jobqueue("pause", "emails", "emial")
        assert (result.code, Queue.objects.exists()) == (1, False)
        assert "default, emails" in result.err

    def test_queue_removed_from_settings_can_be_emptied(self, settings) -> None:
        settings.TASKS = settings.TASKS | {"default": settings.TASKS["default"] | {"QUEUES": ["default"]}}
        ready, later = TaskFactory.create(queue_name="old"), TaskFactory.create(queue_name="older", scheduled=True)
        assert jobqueue("pause", "old").code == 0
        assert jobqueue("cancel", "--queue", "old", "--yes").out == "Cancelled 1 task.\n"
        assert jobqueue("resume", "old").out == "old is active.\n"
        assert jobqueue("cancel", "--queue", "older", "--yes").out == "Cancelled 1 task.\n"
        assert {status_of(ready), status_of(later)} == {"CANCELLED"}


class TestSubmitAndSend:
    def test_submit_finds_task_by_short_name(self, backend, run) -> None:
        result = run("submit", "greet", "--kwargs", '{"name": "Ada"}', "--run-after", "1h", "--priority", 5)
        row = Task.objects.using(backend).get(pk=result.out.strip())
        assert (row.task_type, row.args, row.kwargs) == ("tests.tasks.greet", [], {"name": "Ada"})
        assert (row.status, row.priority, row.queue_name) == ("SCHEDULED", 5, "default")

    def test_submit_with_a_taken_key_prints_that_task(self, run) -> None:
        first, second = (run("submit", "tests.tasks.echo", "--key", "k", "--json").json["id"] for _ in range(2))
        assert first == second

    def test_send_reaches_an_actor(self, backend, make, run) -> None:
        actor = make(task_type="tests.actors.Fibonacci", suspended=True, key="fib")
        result = run("send", "fib", "8", "--dedupe-key", "d")
        assert result.code == 0
        assert InboxMessage.objects.using(backend).get().body == 8
        assert run("send", actor.pk, "8", "--dedupe-key", "d", "--json").json["is_repeat"] is True

    @pytest.mark.parametrize(
        "words",
        [
            ("submit", "no_such_task"),
            ("submit", "add"),
            ("submit", "add", "--args", "[1, 2, 3]"),
            ("submit", "add", "--args", '{"a": 1}'),
            ("submit", "add", "--args", "[1"),
            ("submit", "add", "--args", "[NaN]"),
            ("submit", "add", "--args", "[1]", "--priority", "101"),
            ("submit", "add", "--args", "[1]", "--run-after", "soon"),
            ("submit", "add", "--args", "[1]", "--key", "x" * 256),
            ("submit", "add", "--args", "[1]", "--backend", "nowhere"),
            ("send", "nobody", "1"),
            ("send", "01900000-0000-7000-8000-000000000000", "1"),
            ("send", "nobody", "not json"),
            ("send", "nobody", "1", "--dedupe-key", "x" * 256),
            ("send", "function", "1"),
            ("requeue",),
            ("requeue", "42"),
            ("requeue", "01900000-0000-7000-8000-000000000000", "--failed"),
            ("requeue", "--status", "SUCCESSFUL"),
            *(("limit", "emails", number) for number in ("0", "-1", "many", "2.5")),
            ("cancel", "--queue", "default", "--batch", "0"),
            ("prune",),
            ("prune", "--older-than", "soon", "--yes"),
            ("prune", "--older-than", "14", "--yes"),
            ("prune", "--older-than", "1d", "--status", "READY", "--yes"),
            ("pause",),
            ("status", "--backend", "nowhere"),
            ("nonsense",),
        ],
        ids=" ".join,
    )
    def test_wrong_usage_is_one_line_and_changes_nothing(self, words: tuple[str, ...]) -> None:
        TaskFactory.create(failed=True)
        TaskFactory.create(key="function", task_type="tests.tasks.add")
        before = everything()
        result = jobqueue(*words)
        assert result.code in (1, 2)
        assert result.out == ""
        assert len(result.err.strip().splitlines()) == 1
        assert everything() == before


class TestLog:
    """The site's log has the user of each change, and no arguments of tasks."""

    @pytest.fixture
    def log(self, caplog: pytest.LogCaptureFixture) -> Any:
        caplog.set_level(logging.INFO, "jobqueue.cli")
        return lambda: [record.getMessage() for record in caplog.records if record.name == "jobqueue.cli"]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (("pause", "emails", "--reason", "disk\nfull"), "pause by={me} queue='emails' {b} reason='disk\\nfull'"),
            (("pause", "emails", "--by", "anna"), "pause by='anna' ({me}) queue='emails' {b}"),
            (("resume", "emails"), "resume by={me} queue='emails' {b}"),
            (("limit", "emails", "5"), "limit by={me} queue='emails' {b} max_running=5"),
            (("limit", "emails", "none"), "limit by={me} queue='emails' {b} max_running='none'"),
            (
                ("cancel", "--queue", "default", "--yes"),
                "cancel by={me} tasks='status ... {b} cancelled=2 ",
            ),
            (("prune", "--older-than", "1h", "--yes"), "prune by={me} older_than='60 min' {b} successful=1 failed=0 "),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_changes_are_logged_with_the_user(
        self, backend, make, run, log, words: tuple[str, ...], expected: str
    ) -> None:
        make(), make(), make(successful=True, finished_at=ago(7200))
        assert run(*words).code == 0
        me = f"shell user {getpass.getuser()}"
        begin, _, end = expected.format(me=me, b=f"backend='{backend}'").partition("...")
        (line,) = log()
        assert line.startswith(f"command.executed command={begin}")
        assert end in line

    def test_ids_are_logged_and_arguments_are_not(self, make, make_executor, run, log) -> None:
        failed = make(failed=True)
        run("requeue", failed.pk)
        pk = run("submit", "tests.tasks.echo", "--kwargs", '{"value": "s3cret"}').out.strip()
        actor = make(task_type="tests.actors.Fibonacci", suspended=True)
        run("send", actor.pk, "987654321")
        executor = make_executor(name="web-a")
        run("executors", "stop", "web-a", "--wait", "0s")
        requeued, submitted, sent, stopped = log()
        assert stopped.startswith("command.executed command=stop by=shell user ")
        assert f"executor='web-a' id='{executor.pk}'" in stopped
        assert f"ids='{failed.pk}' requeued=1" in requeued
        assert f"task='tests.tasks.echo' id='{pk}'" in submitted
        assert f"to='{actor.pk}'" in sent
        assert "s3cret" not in submitted + sent
        assert "987654321" not in sent

    def test_commands_without_a_change_are_not_logged(self, make, run, log) -> None:
        make(failed=True)
        run("requeue", "--failed", "--dry-run")
        run("requeue", "--failed")  # no terminal to ask
        run("pause", "emails", "--for", "0s")
        run("status")
        assert log() == []


class TestProgress:
    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_terminal_shows_a_bar_if_tqdm_is_installed(self, monkeypatch, is_terminal: bool) -> None:
        calls: list[Any] = []
        bar = SimpleNamespace(update=calls.append, close=lambda: calls.append("closed"))

        def tqdm(**options: Any) -> Any:
            calls.append((options["total"], options["desc"], options["file"]))
            return bar

        monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=tqdm))
        err = StringIO()
        monkeypatch.setattr(err, "isatty", lambda: is_terminal)
        monkeypatch.setattr("sys.stderr", err)
        assert not console(err).progress(iter([1000]), "prune", 9000)
        assert calls == ([(9000, "prune", err), 1000, "closed"] if is_terminal else [])
        assert err.getvalue() == ""

    def test_second_ctrl_c_ends_at_once(self) -> None:
        def batches() -> Iterator[int]:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            yield 1

        with pytest.raises(KeyboardInterrupt):
            console().progress(batches(), "prune", 0)


class TestExecutors:
    def test_running_executors_are_listed(self, make_executor, run) -> None:
        make_executor(name="web-a", queues=["emails"], queue_limits={"emails": 2})
        make_executor(name="web-b", state="PAUSED")
        make_executor(name="web-c", state="STOPPED")
        result = run("executors")
        assert re.search(r"^web-a +alive .*emails \(max 2\)", result.out, re.MULTILINE)
        assert re.search(r"^web-b +paused ", result.out, re.MULTILINE)
        assert "web-c" not in result.out
        assert {entry["state"] for entry in run("executors", "--json").json} == {"alive", "paused"}

    def test_threads_and_async_slots_are_counted_apart(self, make, make_executor, run) -> None:
        web = make_executor(name="web-a", slots=8, async_slots=100)
        make_executor(name="web-b", slots=4)
        for pool in ("threads", "async", "async"):
            make(running=True, executor_id=web.pk, pool=pool)

        lines = [line.split()[:4] for line in run("executors").out.splitlines()]
        assert lines[0] == ["EXECUTOR", "STATE", "THREADS", "ASYNC"]
        assert sorted(lines[1:]) == [["web-a", "alive", "1/8", "2/100"], ["web-b", "alive", "0/4", "–"]]
        web_entry = next(entry for entry in run("executors", "--json").json if entry["name"] == "web-a")
        assert (web_entry["busy"], web_entry["slots"], web_entry["busy_async"], web_entry["async_slots"]) == (
            1,
            8,
            2,
            100,
        )

    @pytest.mark.parametrize("by", ["name", "id", "all"])
    def test_executor_that_does_not_answer_is_named(self, backend, make_executor, run, by, monkeypatch) -> None:
        monkeypatch.setattr("jobqueue.api.queues.transaction.on_commit", lambda call, **_: call())
        row = make_executor(name="web-a")
        lost = make_executor(lost=True, name="web-a")
        whom = {"name": "web-a", "id": str(row.pk), "all": "--all"}[by]
        result = run("executors", "pause", whom, "--wait", "0s")
        assert (result.code, result.out) == (1, "web-a has not answered the command pause yet.\n")
        assert "1 executor did not answer within 0 s." in result.err
        commands = dict(Executor.objects.using(backend).values_list("pk", "command"))
        assert commands == {row.pk: "PAUSE", lost.pk: ""}

    @pytest.mark.parametrize(
        "words",
        [("stop",), ("stop", "web-a", "--all"), ("stop", "web-a", "web-z"), ("dance", "web-a"), ("stop", "--all")],
    )
    def test_unclear_arguments_send_no_command(self, backend, make_executor, run, words) -> None:
        if words[1:] != ("--all",):
            make_executor(name="web-a")
        assert run("executors", *words).code in (1, 2)
        assert not Executor.objects.using(backend).exclude(command="").exists()
