"""AWAITING_CODE tasks: which this executor has code for, and which READY ones no claim should read again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from jobqueue import registry
from jobqueue.engine.clock import iso_utc
from jobqueue.engine.engine import Engine
from jobqueue.engine.portable.code_waits import Group, Place, WaitingCall
from jobqueue.exceptions import UnknownTask
from jobqueue.executor.running.attempt import ExecutorIdentity
from jobqueue.executor.running.task_runner import unknown_task
from jobqueue.executor.telemetry.errors import path_of
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.printable import printable
from jobqueue.records import ClaimedTask, PoolName
from jobqueue.serialization.arguments import parameters_of
from jobqueue.serialization.json import decode

logger = get_logger(__name__)

PAGE = 500  # calls that one look compares with the code
GROUPS_PER_LOOK = 20
WALK_SECONDS = 10.0  # between two walks through all calls of a group
LOG_SECONDS = 60.0  # between two lines about tasks of the same name


@dataclass(slots=True)
class Walk:
    """
    How far this process has compared the calls of a group with its code.

    newest: calls that began to wait later are new. oldest: the walk goes on before it; None: from the newest call.
    ended_at: monotonic, when the last walk has reached the first call.
    """

    newest: Place | None = None
    oldest: Place | None = None
    ended_at: float = float("-inf")


class AwaitingCode:
    """
    What an executor does for tasks that wait for code. Only the loop's thread calls it.

    A call that does not fit is read again only after all others: it may wait for days beside calls that fit.
    """

    def __init__(self, engine: Engine, identity: ExecutorIdentity, serves: Callable[[str], bool]) -> None:
        self._engine, self._identity, self._serves = engine, identity, serves
        self._walks: dict[tuple[str, str], Walk] = {}
        self._found: dict[UUID, str] = {}  # calls that fit, and their queues
        self._turn = 0
        self.has_looked = False  # at every call, at least once
        self._unknown: dict[tuple[str, PoolName], set[str]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._log_at: dict[tuple[str, str], float] = {}

    # --- into the state

    def claimed_unknown(self, claims: Iterable[ClaimedTask]) -> None:
        """Note claimed tasks without code here. Other READY tasks of their names are in the way of the next claims."""
        for claimed in claims:
            place = claimed.queue_name, PoolName(claimed.pool)
            self._unknown.setdefault(place, set()).add(claimed.task_type)

    @property
    def is_parking(self) -> bool:
        return bool(self._unknown)

    def park(self) -> None:
        """Move a batch of READY tasks without code here out of the way. Raises django.db.Error."""
        places, self._unknown = self._unknown, {}
        names = set().union(*places.values())
        at = iso_utc(self._engine.now())
        entries = {name: self._entry(name, at) for name in names}
        counts = self._engine.code_waits.park(places.keys(), entries)
        for name, count in counts.items():
            self._counts[name, UnknownTask.__name__] += count
        if counts:
            self._unknown = {place: names & set(counts) for place, names in places.items() if names & set(counts)}

    def _entry(self, name: str, at: str) -> dict[str, object]:
        error = unknown_task(name, self._identity.name)
        return {
            "attempt": 1,
            "at": at,
            "executor": self._identity.name,
            "exception_class_path": path_of(error),
            "message": str(error),
            "traceback": "",
            "run_seconds": None,
            "awaited": "name",
        }

    def parked(self, claimed: ClaimedTask, error: BaseException | None) -> None:
        """Note a task that waits for code since its commit, for the log."""
        self._counts[claimed.task_type, type(error).__name__] += 1

    def log(self) -> None:
        """Log the tasks that began to wait: one line for each name and minute."""
        if not self._counts:
            return
        now = time.monotonic()
        for (name, reason), count in list(self._counts.items()):
            if now < self._log_at.get((name, reason), 0.0):
                continue
            self._log_at[name, reason] = now + LOG_SECONDS
            del self._counts[name, reason]
            logger.warning(
                "task.deferred task=%s count=%d reason=%s",
                printable(name),
                count,
                reason,
                extra={"task": printable(name), "executor": self._identity.name},
            )

    # --- out of it

    @property
    def found(self) -> Mapping[UUID, str]:
        """The calls that fit, and are to become READY, with their queues."""
        return self._found

    def returned(self, count: int, wanted: int) -> None:
        """Note how many of the calls became READY. The others are locked, or other executors have them."""
        if count < wanted:
            self._found.clear()

    def look(self) -> bool:
        """Compare calls that wait with the code. Return whether some fit. Raises django.db.Error."""
        groups = [
            group
            for group in self._engine.code_waits.groups()
            if registry.get(group.task_type) is not None and self._serves(group.queue_name)
        ]
        paused = self._engine.paused_queues() if groups else set()
        groups = [group for group in groups if group.queue_name not in paused]
        keys = {(group.queue_name, group.task_type) for group in groups}
        self._walks = {key: walk for key, walk in self._walks.items() if key in keys}
        start = self._turn % len(groups) if groups else 0
        self._turn = start + GROUPS_PER_LOOK
        for group in [*groups[start:], *groups[:start]][:GROUPS_PER_LOOK]:
            if len(self._found) < PAGE:
                self._walk(group)
        self.has_looked = all(key in self._walks and self._walks[key].ended_at > 0.0 for key in keys)
        return bool(self._found)

    def _walk(self, group: Group) -> None:
        key = group.queue_name, group.task_type
        walk = self._walks.setdefault(key, Walk())
        if walk.newest is not None:
            new = self._engine.code_waits.calls(group, PAGE, after=walk.newest)
            self._compare(group, new)
            walk.newest = new[-1].place if new else walk.newest
        if time.monotonic() < walk.ended_at + WALK_SECONDS:
            return
        calls = self._engine.code_waits.calls(group, PAGE, before=walk.oldest)
        self._compare(group, calls)
        if calls and walk.newest is None:
            walk.newest = calls[0].place
        walk.oldest = calls[-1].place if len(calls) == PAGE else None
        if walk.oldest is None:
            walk.ended_at = time.monotonic()

    def _compare(self, group: Group, calls: list[WaitingCall]) -> None:
        """Find the calls that fit, and those of which no executor has said yet that they do not."""
        others = []
        for call in calls:
            if is_bound(group.task_type, call):
                self._found[call.id] = group.queue_name
            elif not call.has_limit:
                others.append(call.id)
        errors = self._engine.code_waits.errors_of(others) if others else {}
        for pk, entries in errors.items():
            last = entries[-1] if isinstance(entries, list) and entries else None
            if not isinstance(last, dict) or last.get("awaited", "name") == "name":
                self._found[pk] = group.queue_name


def is_bound(task_type: str, call: WaitingCall) -> bool:
    """Whether this process has code that takes a call. A call that cannot be read fails when it is claimed."""
    task = registry.get(task_type)
    if task is None:
        return False
    try:
        args, kwargs = decode(call.args), decode(call.kwargs)
        return parameters_of(task.func, task.takes_context).problem(args, kwargs) is None
    except Exception:  # noqa: BLE001 - the row may hold anything
        return True
