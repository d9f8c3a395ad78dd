"""
Named points where a test makes this process die, freeze, wait or fail. Disabled, they cost one call.

JOBQUEUE_FAILPOINTS in the environment enables them when this module is imported. It names points, actions and,
after an @, which pass triggers the action (the first by default): "commit.before=kill, heartbeat.after=delay:3@5".
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from django.db import OperationalError

VARIABLE: Final = "JOBQUEUE_FAILPOINTS"
# "before": written, but COMMIT is not sent. A claim that is a single statement never passes claim.before, and an
# outcome that is one never passes commit.before. heartbeat.before and release.before: nothing is sent yet.
POINTS: Final = (
    "claim.before",
    "claim.after",  # this process has not used the database's answer
    "begin",  # messages are read, and no body has started
    "record.before",  # the call of a workflow has been made, and nothing is sent
    "record.after",
    "commit.before",
    "commit.after",
    "atomic.before",  # an atomic body and its outcome, or the function that a poll returned
    "atomic.after",
    "wake.before",
    "wake.after",
    "due.before",
    "due.after",
    "heartbeat.before",
    "heartbeat.after",
    "admit.before",
    "admit.after",
    "rescue.before",
    "rescue.after",  # parents are not woken yet
    "schedule.before",
    "schedule.after",
    "release.before",
    "release.after",
    "prune.before",
    "prune.after",
)
ACTION: Final = re.compile(
    r"(?P<point>[a-z.]+)=(?P<action>kill|freeze|term|raise|delay)(?::(?P<seconds>[\d.]+))?(?:@(?P<passes>\d+))?"
)


@dataclass(slots=True)
class _Plan:
    action: str
    seconds: float
    passes_left: int


_plans: dict[str, _Plan] = {}
_lock = threading.Lock()


def arm(text: str) -> None:
    """Replace all planned actions. Raise ValueError for an unknown point or action."""
    plans = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = ACTION.fullmatch(part)
        if match is None or match["point"] not in POINTS:
            raise ValueError(f"{VARIABLE}: {part!r} is not point=kill|freeze|term|raise|delay[:seconds][@pass]")
        plans[match["point"]] = _Plan(match["action"], float(match["seconds"] or 1), int(match["passes"] or 1))
    with _lock:
        _plans.clear()
        _plans.update(plans)


def _failpoint(point: str) -> None:
    if (plan := _plans.get(point)) is None:
        return
    with _lock:
        plan.passes_left -= 1
        if plan.passes_left != 0:
            return
    os.write(2, f"failpoint {point}: {plan.action}\n".encode())  # unbuffered, because the process may die next
    match plan.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":  # sent to this thread, because otherwise it may run on until another thread takes the signal
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)
        case "raise":
            raise OperationalError(f"The failpoint {point} raises.")
        case "delay":
            time.sleep(plan.seconds)


failpoint: Callable[[str], None] = lambda point: None  # noqa: E731 - a def cannot be replaced below
if VARIABLE in os.environ:
    arm(os.environ[VARIABLE])
    failpoint = _failpoint
