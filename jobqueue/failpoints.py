"""
Named points where a test lets this process die, freeze, wait or fail. Off, as everywhere else, they cost one call.

JOBQUEUE_FAILPOINTS in the environment switches them on when this module is imported. It names points and what is to
happen there, the n-th time (the first, if not said): "commit.before=kill, heartbeat.after=delay:3@5".
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
POINTS: Final = (
    "claim.before",  # tasks are claimed, and COMMIT is not sent; never, where the claim is one statement, a transaction
    "claim.after",  # they are committed as ours, and nothing of it is known beyond the database
    "begin",  # their mail is read, and no body has started
    "commit.before",  # outcomes are written, and COMMIT is not sent; as above
    "commit.after",
    "atomic.before",  # an atomic body and its outcome, or the function that a poll returned
    "atomic.after",
    "wake.before",  # receivers of mail are READY, and COMMIT is not sent
    "wake.after",
    "due.before",  # what was due is READY, and COMMIT is not sent
    "due.after",
    "heartbeat.before",  # nothing is sent yet
    "heartbeat.after",
    "rescue.before",  # tasks of the dead are taken back, and COMMIT is not sent
    "rescue.after",  # and their parents are not woken
    "release.before",  # what we hand back is still ours
    "release.after",
    "prune.before",  # old tasks are deleted, and COMMIT is not sent
    "prune.after",
)
ACTION: Final = re.compile(
    r"(?P<point>[a-z.]+)=(?P<deed>kill|freeze|term|raise|delay)(?::(?P<seconds>[\d.]+))?(?:@(?P<turn>\d+))?"
)


@dataclass(slots=True)
class _Plan:
    deed: str
    seconds: float
    turns_left: int


_plans: dict[str, _Plan] = {}
_lock = threading.Lock()


def arm(text: str) -> None:
    """Set what is to happen where, in place of what was set before. Raises ValueError for what it does not know."""
    plans = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = ACTION.fullmatch(part)
        if match is None or match["point"] not in POINTS:
            raise ValueError(f"{VARIABLE}: {part!r} is not point=kill|freeze|term|raise|delay[:seconds][@turn]")
        plans[match["point"]] = _Plan(match["deed"], float(match["seconds"] or 1), int(match["turn"] or 1))
    with _lock:
        _plans.clear()
        _plans.update(plans)


def _reach(point: str) -> None:
    plan = _plans.get(point)
    if plan is None:
        return
    with _lock:
        plan.turns_left -= 1
        if plan.turns_left != 0:
            return
    os.write(2, f"failpoint {point}: {plan.deed}\n".encode())  # past every buffer: the process may not live to flush it
    match plan.deed:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":  # to this thread: sent to the process, another may take it, and this one go on for a while
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)
        case "raise":
            raise OperationalError(f"The failpoint {point} fails, as asked.")
        case "delay":
            time.sleep(plan.seconds)


def _pass(point: str) -> None:
    """Nothing is to happen anywhere."""


reach: Callable[[str], None] = _pass
if VARIABLE in os.environ:
    arm(os.environ[VARIABLE])
    reach = _reach
