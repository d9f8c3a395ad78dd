"""manage.py jobqueue requeue, cancel, purge, pause, resume, submit and send: what they change, and what they refuse."""

from __future__ import annotations

import getpass
import logging
import os
import re
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue import api
from jobqueue.cli import deeds, progress
from jobqueue.engine import engine_for
from jobqueue.inspect.queries import walk
from jobqueue.inspect.task_filter import Choice
from jobqueue.models import Executor, InboxMessage, Queue, Task
from jobqueue.records import Status
from jobqueue.serialization.ids import new_id
from tests.edges.cli import BOTH, console, jobqueue
from tests.factories import ExecutorFactory, MessageFactory, TaskFactory, ago, now

pytestmark = BOTH


@pytest.fixture(params=["default", "sqlite"])
def backend(request):
    return request.param


@pytest.fixture
def make(backend):
    return lambda **columns: TaskFactory.create(backend=backend, using=backend, **columns)


@pytest.fixture
def run(backend):
    return lambda what, *words: jobqueue(what, "--backend", backend, *words)


def status(row: Task) -> str:
    return Task.objects.using(row.backend).get(pk=row.pk).status


def everything() -> list[Any]:
    return [
        list(model.objects.using(name).order_by("pk").values())
        for model in (Task, InboxMessage, Queue)
        for name in ("default", "sqlite")
    ]


class TestRequeueAndCancel:
    def test_ids_are_found_in_every_backend(self, make) -> None:
        failed, live = make(failed=True), make()
        said = jobqueue("requeue", failed.pk, live.pk)
        assert (said.code, said.out) == (0, "1 requeued, 1 skipped: not FAILED or CANCELLED, or not there\n")
        assert status(failed) == "READY"
        assert jobqueue("cancel", failed.pk, "--json").json == {
            "cancelled": 1,
            "requested": 0,
            "skipped": 0,
            "busy": 0,
        }

    def test_an_id_that_nobody_has_is_exit_code_1(self) -> None:
        assert jobqueue("requeue", new_id()).code == 1

    def test_the_chosen_are_requeued_and_no_others(self, make, run) -> None:
        chosen = [make(failed=True, queue_name="emails") for _ in range(5)]
        others = [
            make(failed=True),
            make(cancelled=True, queue_name="emails"),
            make(failed=True, queue_name="emails", task_type="shop.tasks.other"),
        ]
        said = run("requeue", "--failed", "--queue", "emails", "--task", "send_receipt", "--batch", 2, "--yes")
        assert said.out == "5 requeued\n"
        assert {status(row) for row in chosen} == {"READY"}
        assert [status(row) for row in others] == ["FAILED", "CANCELLED", "FAILED"]

    def test_what_ends_badly_meanwhile_is_not_requeued_again(self, make) -> None:
        row = make(failed=True)
        calls: list[Any] = []

        def perform(ids: Any, **options: Any) -> Any:
            calls.append(ids)
            report = api.requeue(ids, **options)
            Task.objects.using(row.backend).filter(pk__in=ids).update(status="FAILED", finished_at=ago(-60))
            return report

        deed = replace(deeds.REQUEUE, perform=perform)
        choice = Choice(statuses=(Status.FAILED,))
        deeds.perform(console(), deeds.Request(deed=deed, ids=[], choice=choice, backend=row.backend, is_sure=True))
        assert len(calls) == 1

    def test_the_limit_is_kept(self, make, run) -> None:
        made = [make() for _ in range(5)]
        assert run("cancel", "--queue", "default", "--limit", 3, "--batch", 2, "--yes").out == "3 cancelled\n"
        assert sorted(map(status, made)) == ["CANCELLED"] * 3 + ["READY"] * 2

    def test_cancel_takes_every_living_status(self, make, run) -> None:
        made = [make(), make(scheduled=True), make(suspended=True)]
        running, ended = make(running=True), make(successful=True)
        assert run("cancel", "--queue", "default", "--yes").out == "3 cancelled, 1 running: told to stop\n"
        assert {status(row) for row in made} == {"CANCELLED"}
        assert (status(running), status(ended)) == ("RUNNING", "SUCCESSFUL")

    def test_the_tree_goes_along(self, make) -> None:
        parent = make()
        child = make(parent_id=parent.pk)
        assert jobqueue("cancel", parent.pk, "--tree").out == "2 cancelled\n"
        assert status(child) == "CANCELLED"

    def test_a_dry_run_only_counts(self, make, run) -> None:
        row = make(failed=True)
        assert run("requeue", "--failed", "--dry-run").out == "Would requeue 1 FAILED tasks.\n"
        assert status(row) == "FAILED"

    def test_nothing_is_done_where_nobody_can_be_asked(self, make, run, monkeypatch) -> None:
        row = make(failed=True)
        monkeypatch.setattr("sys.stdin", StringIO("y\n"))
        said = run("requeue", "--failed")
        assert (said.code, status(row)) == (1, "FAILED")
        assert "--yes" in said.err

    def test_it_asks_too_where_the_first_is_behind_all_that_were_looked_at(self, make, run, monkeypatch) -> None:
        for seconds in (30, 20):
            make(failed=True, finished_at=ago(seconds))
        row = make(failed=True, finished_at=ago(10), queue_name="emails")
        monkeypatch.setattr(deeds, "LOOKED", 2)
        monkeypatch.setattr(deeds, "walk", partial(walk, page=1))
        monkeypatch.setattr("sys.stdin", StringIO("y\n"))
        said = run("requeue", "--failed", "--queue", "emails")
        assert (said.code, status(row)) == (1, "FAILED")
        assert "Requeue ? FAILED tasks in emails?" in said.err

    @pytest.mark.parametrize(("answer", "after"), [("y\n", "READY"), ("\n", "FAILED"), ("", "FAILED")])
    def test_a_terminal_is_asked(self, make, run, monkeypatch, answer: str, after: str) -> None:
        row = make(failed=True)
        stdin = StringIO(answer)
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", stdin)
        said = run("requeue", "--failed")
        assert "Requeue 1 FAILED tasks? [y/N]" in said.err
        assert (status(row), said.code) == (after, 0 if after == "READY" else 1)

    def test_ctrl_c_ends_it_after_the_batch_and_says_what_was_done(self, make, run, monkeypatch) -> None:
        made = [make(failed=True) for _ in range(6)]
        original = progress.Progress.add

        def add(self: progress.Progress, count: int) -> None:
            original(self, count)
            if self.done == 4:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(progress.Progress, "add", add)
        before = signal.getsignal(signal.SIGINT)

        said = run("requeue", "--failed", "--yes", "--batch", 2)

        assert (said.code, said.out) == (130, "4 requeued\n")
        assert "Stopping after this batch" in said.err
        assert sorted(map(status, made)) == ["FAILED"] * 2 + ["READY"] * 4
        assert signal.getsignal(signal.SIGINT) is before


class TestPurge:
    def test_old_ones_go_with_their_mail(self, backend, make, run) -> None:
        old = [make(successful=True, finished_at=ago(3 * 86_400)) for _ in range(5)]
        MessageFactory.create(using=backend, task_id=old[0].pk)
        young, failed, live = make(successful=True), make(failed=True, finished_at=ago(3 * 86_400)), make()

        said = run("purge", "--older-than", "2d", "--status", "successful", "--batch", 2, "--yes")

        assert said.out == "Deleted 5 tasks that ended more than 2 d ago: 5 successful.\n"
        left = set(Task.objects.using(backend).values_list("pk", flat=True))
        assert left == {young.pk, failed.pk, live.pk}
        assert not InboxMessage.objects.using(backend).exists()

    def test_a_dry_run_deletes_nothing(self, backend, make, run) -> None:
        make(cancelled=True, finished_at=ago(7200))
        said = run("purge", "--older-than", "1h", "--dry-run", "--json")
        assert said.json == {"successful": 0, "failed": 0, "cancelled": 1}
        assert Task.objects.using(backend).count() == 1

    def test_it_asks(self, backend, make, run, monkeypatch) -> None:
        make(successful=True)
        monkeypatch.setattr("sys.stdin", StringIO(""))
        assert run("purge", "--older-than", 0).code == 1
        assert Task.objects.using(backend).count() == 1


class TestQueues:
    def test_a_paused_queue_says_by_whom_and_why_until_it_runs_again(self, backend, run) -> None:
        said = run("pause", "emails", "--reason", "disk full", "--by", "anna")
        assert said.out.startswith("emails is paused")
        row = Queue.objects.using(backend).get(name="emails")
        assert (row.paused_by, row.pause_reason, row.paused_at is not None) == ("anna", "disk full", True)
        assert run("resume", "emails", "--json").json["emails"] == {
            "is_paused": False, "paused_by": "", "pause_reason": "", "resume_at": None, "max_running": None,
        }  # fmt: skip
        row.refresh_from_db()
        assert row.paused_at is None

    def test_resuming_what_runs_is_no_error(self, run) -> None:
        said = run("resume", "emails")
        assert (said.code, said.err) == (0, "emails was not paused.\n")

    @pytest.mark.parametrize("flag", ["--for", "--until"])
    def test_a_pause_may_have_an_end(self, backend, run, flag) -> None:
        end = "2h" if flag == "--for" else (now() + timedelta(hours=2)).isoformat()
        said = run("pause", "emails", "sms", flag, end)
        assert re.match(r"emails is paused until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC: executors", said.out)
        for row in Queue.objects.using(backend):
            assert row.resume_at is not None
            assert timedelta(minutes=115) < row.resume_at - now() <= timedelta(hours=2)
        assert run("pause", "emails").code == 0
        assert Queue.objects.using(backend).get(name="emails").resume_at is None

    @pytest.mark.parametrize(
        ("end", "says"),
        [
            (("--for", "0"), "has ended already"),
            (("--until", "2020-01-01T00:00"), "has ended already"),
            (("--until", "9999-12-31T23:59"), "until must lie between the years 1970 and 9000"),
        ],
    )
    def test_a_pause_without_a_proper_end_is_refused(self, backend, run, end, says) -> None:
        said = run("pause", "emails", *end)
        assert said.code == 1
        assert says in said.err
        assert not Queue.objects.using(backend).exists()

    def test_a_limit_is_set_shown_and_taken_back(self, backend, run) -> None:
        assert run("limit", "emails", 5).out == "emails runs, at most 5 tasks at once.\n"
        assert Queue.objects.using(backend).get().max_running == 5
        assert re.search(r"^emails +0 +0 +0/5 ", run("status").out, re.MULTILINE)
        assert run("status", "--json").json["backends"][0]["queues"][0]["max_running"] == 5
        run("pause", "emails")
        assert run("limit", "emails", "none", "--json").json["emails"]["max_running"] is None
        assert Queue.objects.using(backend).get().paused_at is not None

    @pytest.mark.parametrize("most", ["0", "-1", "many", "2.5"])
    def test_a_limit_is_a_number_or_none(self, backend, run, most) -> None:
        said = run("limit", "emails", most)
        assert said.code == 1
        assert "or none" in said.err
        assert not Queue.objects.using(backend).exists()

    def test_an_unknown_queue_pauses_none(self, settings) -> None:
        settings.TASKS = settings.TASKS | {"default": settings.TASKS["default"] | {"QUEUES": ["default", "emails"]}}
        said = jobqueue("pause", "emails", "emial")
        assert (said.code, Queue.objects.exists()) == (1, False)
        assert "default, emails" in said.err

    def test_a_queue_that_the_settings_name_no_more_can_be_emptied(self, settings) -> None:
        settings.TASKS = settings.TASKS | {"default": settings.TASKS["default"] | {"QUEUES": ["default"]}}
        ready, later = TaskFactory.create(queue_name="old"), TaskFactory.create(queue_name="older", scheduled=True)
        assert jobqueue("pause", "old").code == 0
        assert jobqueue("cancel", "--queue", "old", "--yes").out == "1 cancelled\n"
        assert jobqueue("resume", "old").out == "old runs.\n"
        assert jobqueue("cancel", "--queue", "older", "--yes").out == "1 cancelled\n"
        assert {status(ready), status(later)} == {"CANCELLED"}


class TestSubmitAndSend:
    def test_a_task_is_enqueued_by_its_short_name(self, backend, run) -> None:
        said = run("submit", "echo", "--kwargs", '{"value": 2}', "--run-after", "1h", "--priority", 5)
        row = Task.objects.using(backend).get(pk=said.out.strip())
        assert (row.task_type, row.args, row.kwargs) == ("tests.tasks.echo", [], {"value": 2})
        assert (row.status, row.priority, row.queue_name) == ("SCHEDULED", 5, "default")

    def test_a_key_that_is_taken_gives_the_task_that_has_it(self, run) -> None:
        first, second = (run("submit", "echo", "--key", "k", "--json").json["id"] for _ in range(2))
        assert first == second

    def test_a_message_reaches_an_actor(self, backend, make, run) -> None:
        actor = make(task_type="tests.actors.Fibonacci", suspended=True, key="fib")
        said = run("send", "fib", "8", "--dedupe-key", "d")
        assert said.code == 0
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
            ("requeue",),
            ("requeue", "42"),
            ("requeue", "01900000-0000-7000-8000-000000000000", "--failed"),
            ("requeue", "--status", "SUCCESSFUL"),
            ("cancel", "--queue", "default", "--batch", "0"),
            ("purge",),
            ("purge", "--older-than", "soon", "--yes"),
            ("purge", "--older-than", "1d", "--status", "READY", "--yes"),
            ("pause",),
            ("pause", "x" * 129),
            ("pause", "emails", "--reason", "x" * 256),
            ("status", "--backend", "nowhere"),
            ("nonsense",),
        ],
        ids=" ".join,
    )
    def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(self, words: tuple[str, ...]) -> None:
        TaskFactory.create(failed=True)
        TaskFactory.create()
        before = everything()
        said = jobqueue(*words)
        assert (said.code, said.out) == (1, "")
        assert len(said.err.strip().splitlines()) == 1
        assert everything() == before

    def test_a_message_that_the_actor_would_not_read_is_refused(self, make) -> None:
        function = make(task_type="tests.tasks.add")
        said = jobqueue("send", function.pk, "1")
        assert said.code == 1
        assert "reads no messages" in said.err


class TestLog:
    """What people change by command stands in the site's log, with who did it, and without what tasks are given."""

    @pytest.fixture
    def log(self, caplog: pytest.LogCaptureFixture) -> Any:
        caplog.set_level(logging.INFO, "jobqueue.cli")
        return lambda: [one.getMessage() for one in caplog.records if one.name == "jobqueue.cli"]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("pause", "emails", "--reason", "disk\nfull"), "pause by={me} queue='emails' {b} reason='disk\\nfull'"),
            (("pause", "emails", "--by", "anna"), "pause by='anna' ({me}) queue='emails' {b}"),
            (("resume", "emails"), "resume by={me} queue='emails' {b}"),
            (("limit", "emails", "5"), "limit by={me} queue='emails' {b} max_running=5"),
            (("limit", "emails", "none"), "limit by={me} queue='emails' {b} max_running='none'"),
            (("cancel", "--queue", "default", "--yes"), "cancel by={me} tasks='SCHEDULED or ... {b} cancelled=2 "),
            (("purge", "--older-than", "1h", "--yes"), "purge by={me} older_than='60 min' {b} successful=1 failed=0 "),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_who_did_what(self, backend, make, run, log, words: tuple[str, ...], said: str) -> None:
        make(), make(), make(successful=True, finished_at=ago(7200))
        assert run(*words).code == 0
        me = f"shell user {getpass.getuser()}"
        begin, _, end = said.format(me=me, b=f"backend='{backend}'").partition("...")
        (line,) = log()
        assert line.startswith(begin)
        assert end in line

    def test_executors_are_named(self, backend, run, log) -> None:
        row = ExecutorFactory.create(backend=backend, using=backend, name="web-a")
        run("executors", "stop", "web-a", "--wait", 0)
        (line,) = log()
        assert line.startswith("stop by=shell user ")
        assert f"executor='web-a' id='{row.pk}'" in line

    def test_ids_are_named_and_arguments_are_not(self, make, run, log) -> None:
        failed = make(failed=True)
        run("requeue", failed.pk)
        pk = run("submit", "echo", "--kwargs", '{"value": "s3cret"}').out.strip()
        actor = make(task_type="tests.actors.Fibonacci", suspended=True)
        run("send", actor.pk, "987654321")
        requeued, submitted, sent = log()
        assert f"ids='{failed.pk}' requeued=1" in requeued
        assert f"task='tests.tasks.echo' id='{pk}'" in submitted
        assert f"to='{actor.pk}'" in sent
        assert "s3cret" not in submitted + sent
        assert "987654321" not in sent

    def test_nothing_is_said_of_what_was_not_done(self, make, run, log) -> None:
        make(failed=True)
        run("requeue", "--failed", "--dry-run")
        run("requeue", "--failed")  # nobody can be asked
        run("pause", "emails", "--for", "0")
        run("status")
        assert log() == []


class TestProgress:
    def test_a_line_is_said_every_ten_seconds(self, monkeypatch) -> None:
        now = [100.0]
        monkeypatch.setattr("jobqueue.cli.progress.time.monotonic", lambda: now[0])
        err = StringIO()
        with progress.progress(console(err), "deleted", 9000) as work:
            for _ in range(9):
                now[0] += 4.0
                work.add(1000)
        assert err.getvalue().splitlines() == [
            "3,000 of 9,000 deleted, 250/s",
            "6,000 of 9,000 deleted, 250/s",
            "9,000 of 9,000 deleted, 250/s",
        ]

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_a_terminal_sees_a_bar_where_tqdm_is_installed(self, monkeypatch, is_terminal: bool) -> None:
        calls: list[Any] = []
        bar = SimpleNamespace(update=calls.append, close=lambda: calls.append("closed"))

        def tqdm(**how: Any) -> Any:
            calls.append((how["total"], how["desc"], how["file"]))
            return bar

        monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=tqdm))
        err = StringIO()
        monkeypatch.setattr(err, "isatty", lambda: is_terminal)
        monkeypatch.setattr("sys.stderr", err)
        with progress.progress(console(err), "deleted", 9000) as work:
            work.add(1000)
        assert calls == ([(9000, "deleted", err), 1000, "closed"] if is_terminal else [])

    def test_a_second_ctrl_c_ends_it_at_once(self) -> None:
        with progress.progress(console(), "deleted"):
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)


def test_the_engine_purges_the_oldest_first(make, backend) -> None:
    made = [make(failed=True, finished_at=ago(seconds)) for seconds in (50, 70, 60)]
    assert engine_for(backend).purge("FAILED", 0, 2) == 2
    assert Task.objects.using(backend).get().pk == made[0].pk


class TestExecutors:
    def test_they_are_listed(self, backend, run) -> None:
        ExecutorFactory.create(
            backend=backend, using=backend, name="web-a", queues=["emails"], queue_limits={"emails": 2}
        )
        ExecutorFactory.create(backend=backend, using=backend, name="web-b", state="QUIET")
        ExecutorFactory.create(backend=backend, using=backend, name="web-c", state="STOPPED")
        said = run("executors")
        assert re.search(r"^web-a +alive .*emails \(max 2\)", said.out, re.MULTILINE)
        assert re.search(r"^web-b +quiet ", said.out, re.MULTILINE)
        assert "web-c" not in said.out
        assert {one["state"] for one in run("executors", "--json").json} == {"alive", "quiet"}

    @pytest.mark.parametrize("by", ["name", "id", "all"])
    def test_who_does_not_answer_is_named(self, backend, run, by, monkeypatch) -> None:
        monkeypatch.setattr("jobqueue.api.executors.transaction.on_commit", lambda call, **_: call())
        row = ExecutorFactory.create(backend=backend, using=backend, name="web-a")
        lost = ExecutorFactory.create(backend=backend, using=backend, lost=True, name="web-a")
        whom = {"name": "web-a", "id": str(row.pk), "all": "--all"}[by]
        said = run("executors", "quiet", whom, "--wait", 0)
        assert (said.code, said.out) == (1, "web-a was told to be quiet, and has not answered yet.\n")
        assert "1 executor did not answer within 0 s." in said.err
        told = dict(Executor.objects.using(backend).values_list("pk", "command"))
        assert told == {row.pk: "QUIET", lost.pk: ""}

    @pytest.mark.parametrize(
        "words",
        [("stop",), ("stop", "web-a", "--all"), ("stop", "web-a", "nobody"), ("dance", "web-a"), ("stop", "--all")],
    )
    def test_unclear_words_tell_nobody(self, backend, run, words) -> None:
        if words[1:] != ("--all",):
            ExecutorFactory.create(backend=backend, using=backend, name="web-a")
        assert run("executors", *words).code == 1
        assert not Executor.objects.using(backend).exclude(command="").exists()
