"""Journals that do not fit, versions of code, and what a body must not do outside of its steps."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone

import jobqueue
from jobqueue import WorkflowContext, testing
from jobqueue.declarations import replay
from jobqueue.values.states import Status
from tests.workflow.stage import Counting, WorkflowStage, bodies
from tests.workflow.workflows import CancelOrder, Shipped

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

SECOND = timedelta(seconds=1)


def deploy(old: str, new: str) -> None:
    """Let the workflow with one body run another one from now on."""
    bodies[old] = bodies[new]


class TestJournal:
    def test_other_arguments_fail_once_and_go_on_after_a_fix(self, stage: WorkflowStage) -> None:
        work, argument = Counting("work"), ["old"]

        def body(context: WorkflowContext) -> str:
            result = str(context.step(work, argument[0]))
            context.sleep(SECOND)
            return result

        pk = stage.play(body)
        argument[0] = "new"
        stage.pass_time(2)
        assert stage.status(pk) is Status.FAILED
        assert """'work' was recorded with ["old"], and is called with ["new"] now""" in stage.error(pk)
        assert stage.row(pk).attempts == 1

        argument[0] = "old"
        jobqueue.requeue(pk)
        stage.run()
        assert stage.result(pk) == "old"

    def test_parameter_may_get_another_name(self, stage: WorkflowStage) -> None:
        def charge(order_id: int, *, api_key: str) -> int:
            return order_id

        def renamed(pk: int, *, api_key: str) -> int:
            return pk

        steps = [charge, renamed]

        def body(context: WorkflowContext) -> int:
            result = context.step(jobqueue.step(name="charge")(steps.pop(0)), 7, api_key="k")
            context.sleep(SECOND)
            return int(result)

        pk = stage.play(body)
        assert stage.entry(pk, "charge").arguments == {"order_id": 7, "api_key": "k"}
        stage.pass_time(2)
        assert stage.result(pk) == 7

    def test_other_call_of_the_same_name_fails(self, stage: WorkflowStage) -> None:
        kinds = [Counting("sleep"), None]

        def body(context: WorkflowContext) -> None:
            if (step := kinds.pop(0)) is not None:
                context.step(step)
                context.receive()
            context.sleep(SECOND)

        pk = stage.play(body)
        stage.send_and_run(pk, 1)
        assert "'sleep' was recorded as STEP, and is SLEEP now" in stage.error(pk)

    def test_error_of_the_journal_passes_the_body_by(self, stage: WorkflowStage) -> None:
        undo, arguments = Counting("undo"), [1, 2]

        def body(context: WorkflowContext) -> None:
            with context.compensate(undo):
                try:
                    context.step(Counting("work"), arguments.pop(0))
                except Exception:  # noqa: BLE001 - what the test is about
                    return
                context.sleep(SECOND)

        pk = stage.play(body)
        stage.pass_time(2)
        assert stage.error(pk).startswith("NonDeterminism")
        assert undo.calls == 0

    def test_steps_may_change_their_order(self, stage: WorkflowStage) -> None:
        first, second, order = Counting("first", 1), Counting("second", 2), [False, True]

        def body(context: WorkflowContext) -> list[int]:
            steps = [second, first] if order.pop(0) else [first, second]
            results = [context.step(step) for step in steps]
            context.sleep(SECOND)
            return results

        pk = stage.play(body)
        stage.pass_time(2)
        assert stage.result(pk) == [2, 1]
        assert (first.calls, second.calls) == (1, 1)

    def test_journal_that_is_too_long_says_what_to_do(
        self, stage: WorkflowStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replay, "MAX_ENTRIES", 3)

        def body(context: WorkflowContext) -> None:
            for _ in range(4):
                context.random()

        pk = stage.play(body)
        assert stage.status(pk) is Status.FAILED
        assert "context.continue_as_new()" in stage.error(pk)

    def test_continue_as_new_begins_an_empty_journal(self, stage: WorkflowStage) -> None:
        keys = []

        def count(number: int) -> int:
            keys.append(jobqueue.step_key())
            return number

        def body(context: WorkflowContext) -> str:
            context.step(count, 1)
            context.receive(Shipped)
            context.continue_as_new(last)

        def end(context: WorkflowContext) -> str:
            context.step(count, 2)
            return context.receive(CancelOrder).reason

        last = stage.name(end)
        pk = stage.play(body)
        jobqueue.send(pk, CancelOrder("unread"))
        stage.send_and_run(pk, Shipped("T1"))
        assert stage.result(pk) == "unread"
        assert stage.row(pk).args == [last]
        assert list(stage.journal(pk)) == ["count", "receive"]
        assert keys == [f"{pk}:0:count", f"{pk}:1:count"]


class TestVersions:
    def test_patched_is_false_for_workflows_beyond_the_place(self, stage: WorkflowStage) -> None:
        answers = []

        def old(context: WorkflowContext) -> None:
            context.sleep(SECOND)

        def new(context: WorkflowContext) -> None:
            answers.append(context.patched("pricing"))
            context.sleep(SECOND)
            answers.append(context.patched("pricing"))

        name = stage.name(old)
        pk = stage.play(old)
        deploy(stage.row(pk).args[0], stage.name(new))
        stage.pass_time(2)
        assert answers == [False, False]

        answers.clear()
        stage.play(bodies[stage.name(new)])
        stage.pass_time(2)
        assert answers == [True, True, True]
        assert name in bodies

    def test_log_is_silent_in_repeated_calls(self, stage: WorkflowStage, caplog: pytest.LogCaptureFixture) -> None:
        def body(context: WorkflowContext) -> None:
            context.log.warning("begin")
            context.sleep(SECOND)
            context.log.warning("end")

        stage.play(body)
        stage.pass_time(2)
        lines = [record.message for record in caplog.records if record.name == "jobqueue.workflow"]
        assert lines == ["begin", "end"]


class TestGuards:
    def test_query_outside_of_a_step_is_an_error_in_tests(self, stage: WorkflowStage) -> None:
        def body(context: WorkflowContext) -> int:
            return Group.objects.count()

        stage.start(body)
        error = testing.run_until_idle()[0].error
        assert "test_determinism.py" in str(error)
        assert "queries the database. Do it in a step" in str(error)

    def test_query_within_a_step_is_allowed(self, stage: WorkflowStage) -> None:
        def count_groups() -> int:
            return Group.objects.filter(name="none").count()

        pk = stage.play(lambda context: context.step(count_groups))
        assert stage.result(pk) == 0

    def test_call_within_a_transaction_is_refused(self, stage: WorkflowStage) -> None:
        def body(context: WorkflowContext) -> None:
            with transaction.atomic(using=stage.database):
                context.step(Counting("work"))

        pk = stage.play(body)
        assert "outside of transaction.atomic()" in stage.error(pk)

    def test_call_within_a_step_is_refused(self, stage: WorkflowStage) -> None:
        def body(context: WorkflowContext) -> None:
            def inner() -> None:
                context.sleep(SECOND)

            context.step(inner)

        pk = stage.play(body)
        assert "not in a step" in str(stage.entry(pk, "inner").error)

    @pytest.mark.parametrize("read", [lambda: timezone.now(), lambda: datetime.now()])
    def test_clock_in_the_body_is_found_in_its_code(self, read: object) -> None:
        from jobqueue.executor.running.determinism import calls_of_clocks

        ((location, name),) = calls_of_clocks(read)
        assert location.startswith("tests/workflow/test_determinism.py:")
        assert name.endswith(".now")


PROGRAM = """
from jobqueue.declarations.workflow import digest_of_code
def body(context, kind):
    return [len(word) for word in (kind,) if word in {"a", "b", "c", "d"}]
print(digest_of_code(body))
"""


def test_version_of_code_is_the_same_in_each_process_and_ignores_comments() -> None:
    moved = "\n\n" + PROGRAM.replace("):\n", "):  # a comment\n")
    programs = [(PROGRAM, "1"), (PROGRAM, "2"), (moved, "3"), (PROGRAM.replace('"d"', '"e"'), "1")]
    digests = [digest_in_process(program, seed) for program, seed in programs]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert len(digests[0].strip()) == 8


def digest_in_process(program: str, seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
