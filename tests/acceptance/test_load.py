"""The load test with few submissions, and the errors that its verdict detects."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.acceptance.harness import CHECKOUT, is_running, stats
from tests.waiting import DEADLINE_SECONDS, wait_until
from tools.load.caller import Answer
from tools.load.verdict import LoadRow, RunData, complaints

pytestmark = pytest.mark.slow

pytest.importorskip("gunicorn")


def launch(*flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.load_test", *flags],
        cwd=CHECKOUT,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_small_load_loses_no_task() -> None:
    process = launch("-n", "60", "-c", "6", "--executors", "1")
    out, err = process.communicate(timeout=3 * DEADLINE_SECONDS)

    assert process.returncode == 0, out + err
    value = dict(re.findall(r"^(\S.*\S) {2,}(\S.*)$", out, re.MULTILINE))
    assert (value["created (201)"], value["repeated, same id (200)"], value["tasks ended"]) == ("60", "6", "60")
    assert int(value["successful"]) == int(value["effects"]) == 60 - int(value["failed after all attempts"])
    assert int(value["retries"]) == int(value["attempts"]) - 60
    assert int(value["retries"]) > 0
    assert "60 of 60 tasks have ended." in err


def test_interrupted_load_leaves_no_process() -> None:
    process = launch("-n", "100000", "-c", "2", "--executors", "1")
    assert process.stderr is not None
    for line in process.stderr:
        if "submitted" in line:
            break
    children = [pid for pid, fields in stats() if int(fields[1]) == process.pid]
    assert len(children) == 3  # the process that guards the database, the server, the executors
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    wait_until(lambda: not any(is_running(pid) for pid in children), f"the end of {children}")


GOOD = RunData(
    asked=2,
    answers=[Answer(0, 201, "a", 0.1, 1), Answer(1, 201, "b", 0.2, 1), Answer(1, 200, "b", 0.1, 1)],
    rows=[LoadRow("a", 0, "SUCCESSFUL", 1, 2), LoadRow("b", 1, "FAILED", 4, 4)],
    effects=Counter({"a": 1}),
)


def test_verdict_of_correct_run_has_no_complaint() -> None:
    assert list(complaints(GOOD)) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda: replace(GOOD, rows=GOOD.rows[:1]), "lost"),
        (lambda: replace(GOOD, rows=[*GOOD.rows, LoadRow("c", 2, "SUCCESSFUL", 0, 1)]), "was not acknowledged"),
        (lambda: replace(GOOD, rows=[*GOOD.rows, LoadRow("c", 1, "FAILED", 4, 4)]), "more than once"),
        (lambda: replace(GOOD, answers=[*GOOD.answers, Answer(1, 201, "b", 0.1, 1)]), "created twice"),
        (lambda: replace(GOOD, answers=[*GOOD.answers, Answer(1, 200, "c", 0.1, 1)]), "several ids"),
        (lambda: replace(GOOD, answers=[*GOOD.answers, Answer(2, 503, "", 0.1, 6)]), "was not accepted: 2 (503)"),
        (lambda: replace(GOOD, asked=3), "3 were submitted, 2 acknowledged"),
        (
            lambda: replace(GOOD, rows=[GOOD.rows[0], LoadRow("b", 1, "RUNNING", 0, 1)]),
            "has not ended: b (RUNNING)",
        ),
        (lambda: replace(GOOD, effects=Counter({"a": 2})), "took effect 2 times"),
        (lambda: replace(GOOD, effects=Counter()), "took effect 0 times"),
        (lambda: replace(GOOD, effects=Counter({"a": 1, "b": 1})), "b is FAILED and took effect 1 times"),
        (lambda: replace(GOOD, effects=Counter({"a": 1, "x": 1})), "without a task: x"),
    ],
)
def test_verdict_reports_each_error(spoil: Callable[[], RunData], words: str) -> None:
    assert any(words in complaint for complaint in complaints(spoil()))
