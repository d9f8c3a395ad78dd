"""AWAITING_CODE tasks: which this executor has code for, and which READY ones no claim should read again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from jobqueue.declarations import registry
from jobqueue.engine import (
    FIRST,
    HEAD_TASKS,
    MAX_GROUPS,
    BlockedHead,
    Engine,
    Group,
    Head,
    Place,
    ReadyHead,
    StoredCall,
    Verdict,
    WaitingCall,
    iso_utc,
)
from jobqueue.exceptions import UnboundCall, UnknownTask
from jobqueue.executor.running.attempt import ExecutorIdentity
from jobqueue.executor.running.task_runner import UNKNOWN, problem_of_state, unbound_call, unknown_task
from jobqueue.executor.telemetry.errors import path_of
from jobqueue.executor.telemetry.logger import get_logger
from jobqueue.values.arguments import read_parameters
from jobqueue.values.json import decode
from jobqueue.values.records import ClaimedTask
from jobqueue.values.states import LimitKind, PoolName
from jobqueue.values.text import printable

logger = get_logger(__name__)

PAGE = 500  # calls that one look compares with the code
NEW_PAGES = 10  # of calls that are new since the last look: they may be behind others that do not fit
GROUPS_PER_LOOK = 20
WALK_SECONDS = 10.0  # between two walks through all calls of a group
HEADS_PER_TURN = 100  # of the loop
MAX_QUEUES = 1000
WIDEN_SECONDS = 10.0  # until it expects such tasks in all queues again
MAX_PROBLEMS = 20  # of calls that are parked at once; each is a statement
OTHER_PROBLEM = "compare them with its parameters"
LOG_SECONDS = 60.0  # in which each name has one line
MAX_LOGGED = 20  # names
NAMES_COUNTED = 1000  # names, for the line about all others
ALL_OTHERS = ("", "")


@dataclass(slots=True)
class Walk:
    """The place up to which this process has compared the calls of a group with its code."""

    newest: Place | None = None  # calls that began to wait later are new; None: all are
    oldest: Place | None = None  # the walk goes on before it; None: from the newest call
    ended_at: float = float("-inf")  # monotonic, when the last walk has reached the first call


class AwaitingCode:
    """
    An executor's care for tasks that wait for code. Only the loop's thread calls it.

    A call that does not fit is read again only after all others: it may wait for days beside calls that fit.

    It has more than 15 attributes because tasks of many queues begin and end such a wait at different times.
    """

    def __init__(
        self,
        engine: Engine,
        identity: ExecutorIdentity,
        serves: Callable[[str], bool],
        queues: Callable[[], Sequence[str]],
    ) -> None:
        self._engine, self._identity, self._serves, self._queues = engine, identity, serves, queues
        self._walks: dict[tuple[str, str], Walk] = {}
        self._fitting: dict[UUID, str] = {}  # calls that fit, and their queues
        self._after = FIRST  # the group with which the next look begins
        self._seen: set[tuple[str, str]] = set()  # groups with code here since the first one
        self.has_looked = False  # at every call, at least once
        self._heads: dict[Head, None] = {}  # which may have more tasks without code
        self._unbound: set[str] = set()  # names of calls near them that did not fit
        self._widens_at = 0.0
        self._counts: Counter[tuple[str, str]] = Counter()  # to be logged
        self._logged: set[tuple[str, str]] = set()  # in this minute
        self._logs_until = 0.0
        self._logs_others = True

    # --- into the state

    def parked(self, claimed: ClaimedTask, error: BaseException | None) -> None:
        """Note a task that waits for code now. Others like it are in the way of the next claims, or of its limits."""
        self._count(claimed.task_type, type(error).__name__, 1)
        keys = {LimitKind.CONCURRENCY: claimed.concurrency_key, LimitKind.RATE: claimed.rate_key}
        heads: list[Head] = [ReadyHead(claimed.queue_name, PoolName.pool_of_row(claimed.pool))]
        heads += [BlockedHead(kind, key) for kind, key in keys.items() if key is not None]
        self._heads.update(dict.fromkeys(heads))
        if registry.get(claimed.task_type) is not None:
            self._unbound.add(claimed.task_type)

    @property
    def is_parking(self) -> bool:
        return bool(self._heads)

    def park(self, limit: int = HEAD_TASKS) -> None:
        """
        Move tasks that this executor has no code for out of the way. Raises django.db.Error.

        Tasks without code may all have different names, so those of every unknown name move.
        """
        self._widen()
        judge = partial(self._judge, iso_utc(self._engine.db.now()), set())
        parked = self._engine.code_waits.park([*self._heads][:HEADS_PER_TURN], self._may_wait, judge, limit)
        for head, counts in parked.items():
            del self._heads[head]
            for name, count in counts.items():
                error = UnknownTask if registry.get(name) is None else UnboundCall
                self._count(name, error.__name__, count)
            if counts:
                self._heads[head] = None
        if not self._heads:
            self._unbound.clear()

    def _widen(self) -> None:
        """Expect tasks without code in all queues after two queues had some: claims would find them one by one."""
        now = time.monotonic()
        queues = {head.queue_name for head in self._heads if isinstance(head, ReadyHead)}
        if now < self._widens_at or len(queues) < 2:
            return
        self._widens_at = now + WIDEN_SECONDS
        for queue_name in self._queues()[:MAX_QUEUES]:
            for pool in PoolName:
                self._heads.setdefault(ReadyHead(queue_name, pool))

    def _may_wait(self, queue_name: str, name: str) -> bool:
        """Return whether a task is ours and may have no code here."""
        if not self._serves(queue_name):
            return False
        return len(self._unbound) > 1 or name in self._unbound or registry.get(name) is None

    def _judge(self, at: str, problems: set[str], name: str, call: StoredCall) -> Verdict | None:
        """Return why a task waits for code; None if it may run here. problems: those of earlier ones."""
        longest = self._identity.options.unbound_call_timeout
        problem = why_unbound(name, call)
        error: Exception
        if problem is None or (problem != UNKNOWN and longest == 0.0):  # it fails when it is claimed
            return None
        if problem == UNKNOWN:
            error, longest = unknown_task("task of this name", self._identity.name), None
        else:
            if len(problems) >= MAX_PROBLEMS and problem not in problems:
                problem = OTHER_PROBLEM
            problems.add(problem)
            error = unbound_call("this task", self._identity, problem)
        entry = {
            "attempt": 1,
            "at": at,
            "executor": self._identity.name,
            "exception_class_path": path_of(error),
            "message": str(error),
            "traceback": "",
            "run_seconds": None,
            "awaited": problem,
        }
        return Verdict(json.dumps(entry), longest)

    def _count(self, name: str, reason: str, count: int) -> None:
        key = name, reason
        self._counts[key if key in self._counts or len(self._counts) < NAMES_COUNTED else ALL_OTHERS] += count

    def log(self) -> None:
        """Log the tasks that began to wait: in each minute, a line for each of some names, and one for all others."""
        if not self._counts:
            return
        if (now := time.monotonic()) >= self._logs_until:
            self._logs_until, self._logged, self._logs_others = now + LOG_SECONDS, set(), True
        if not self._logs_others:
            return
        for key in [key for key in self._counts if key not in self._logged][: MAX_LOGGED - len(self._logged)]:
            self._logged.add(key)
            name, reason = key
            logger.warning(
                "task.deferred task=%s count=%d reason=%s",
                printable(name),
                self._counts.pop(key),
                reason,
                extra={"task": printable(name), "executor": self._identity.name},
            )
        if others := [count for key, count in self._counts.items() if key not in self._logged]:
            self._logs_others = False
            self._counts.clear()
            logger.warning("tasks.deferred names=%d count=%d", len(others), sum(others))

    # --- out of it

    @property
    def fitting(self) -> Mapping[UUID, str]:
        """The calls that fit, and are to become READY, with their queues."""
        return self._fitting

    def returned(self, count: int, wanted: int) -> None:
        """Note how many of the calls became READY. The others are locked, or other executors have them."""
        if count < wanted:
            self._fitting.clear()

    def look(self) -> bool:
        """Compare calls that wait with the code. Return whether some fit. Raises django.db.Error."""
        for group in self._next_groups():
            if len(self._fitting) < PAGE:
                self._walk(group)
        if self._after == FIRST:
            self._walks = {key: walk for key, walk in self._walks.items() if key in self._seen}
            self.has_looked = all(key in self._walks and self._walks[key].ended_at > 0.0 for key in self._seen)
            self._seen = set()
        return bool(self._fitting)

    def _next_groups(self) -> list[Group]:
        """Return the next groups that this executor has code for, after the last one from the first one again."""
        page = self._engine.code_waits.groups(self._after)
        groups = [
            group for group in page if registry.get(group.task_type) is not None and self._serves(group.queue_name)
        ]
        paused = self._engine.queues.paused() if groups else set()
        groups = [group for group in groups if group.queue_name not in paused]
        if len(groups) > GROUPS_PER_LOOK:
            groups = groups[:GROUPS_PER_LOOK]
            self._after = groups[-1][:2]
        else:
            self._after = page[-1][:2] if len(page) == MAX_GROUPS else FIRST
        self._seen |= {group[:2] for group in groups}
        return groups

    def _walk(self, group: Group) -> None:
        key = group.queue_name, group.task_type
        walk = self._walks.setdefault(key, Walk())
        pages = 0 if walk.newest is None else NEW_PAGES
        while pages and (new := self._engine.code_waits.calls(group, PAGE, after=walk.newest)):
            self._compare(group, new)
            walk.newest = new[-1].position
            pages = pages - 1 if len(new) == PAGE else 0
        if time.monotonic() < walk.ended_at + WALK_SECONDS:
            return
        calls = self._engine.code_waits.calls(group, PAGE, before=walk.oldest)
        self._compare(group, calls)
        if calls and walk.newest is None:
            walk.newest = calls[0].position
        walk.oldest = calls[-1].position if len(calls) == PAGE else None
        if walk.oldest is None:
            walk.ended_at = time.monotonic()

    def _compare(self, group: Group, calls: list[WaitingCall]) -> None:
        """Find the calls that fit, and those that no executor has reported yet as unfit."""
        others = []
        for call in calls:
            if is_bound(group.task_type, call.call):
                self._fitting[call.id] = group.queue_name
            elif not call.has_limit:
                others.append(call.id)
        errors = self._engine.code_waits.last_errors(others) if others else {}
        for pk, last in errors.items():
            if not isinstance(last, dict) or last.get("awaited", UNKNOWN) == UNKNOWN:
                self._fitting[pk] = group.queue_name


def is_bound(task_type: str, call: StoredCall) -> bool:
    """Return whether this process has code that takes a call."""
    return why_unbound(task_type, call) is None


def why_unbound(task_type: str, call: StoredCall) -> str | None:
    """Return why this process has no code that takes a call. None: it has, or the call cannot be read and so fails."""
    task = registry.get(task_type)
    if task is None:
        return UNKNOWN
    try:
        problem = read_parameters(task.func, task.takes_context).problem(decode(call.args), decode(call.kwargs))
    except Exception:  # noqa: BLE001 - the row may hold anything
        return None
    return problem or problem_of_state(task, call.state)
