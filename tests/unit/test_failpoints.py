"""Failpoints do nothing when disabled, and the planned action once when enabled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import OperationalError

from jobqueue.values import failpoints

PACKAGE = Path(failpoints.__file__).parents[1]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_failpoints_are_disabled_by_default() -> None:
    failpoints.arm("commit.before=raise")
    failpoints.failpoint("commit.before")


def test_failpoint_acts_once_at_nth_pass() -> None:
    failpoints.arm("commit.before=raise@2, begin=delay:0")
    failpoints._failpoint("commit.before")
    with pytest.raises(OperationalError):
        failpoints._failpoint("commit.before")
    failpoints._failpoint("commit.before")
    failpoints._failpoint("begin")


@pytest.mark.parametrize("text", ["commit.before", "commit.before=explode", "nowhere=kill", "begin=kill@x"])
def test_unknown_point_or_action_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="JOBQUEUE_FAILPOINTS"):
        failpoints.arm(text)


def test_environment_enables_failpoints() -> None:
    code = "from jobqueue.values.failpoints import failpoint; failpoint('begin')"
    environment = os.environ | {failpoints.VARIABLE: "begin=kill"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -signal.SIGKILL


def test_every_failpoint_is_in_the_code() -> None:
    calls = {
        name for path in PACKAGE.rglob("*.py") for name in re.findall(r'failpoint\("([a-z.]+)"\)', path.read_text())
    }
    assert calls == set(failpoints.POINTS)
