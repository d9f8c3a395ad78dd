"""Run programs on tasks in memory, much faster than on a database. This checks the replay, not the engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

from jobqueue.conf.options import parse_options
from jobqueue.exceptions import TaskFinished
from jobqueue.testing.workflow_stub import MemoryEngine, MemoryTask
from jobqueue.values.journal import OPEN, EntryKind
from jobqueue.values.message_types import with_type
from jobqueue.values.records import NewMessage
from jobqueue.values.states import FINAL, Status
from verification.workflows import bodies
from verification.workflows.driver import WAITS, Faults, Observed
from verification.workflows.programs import CANCEL, Case

OPTIONS = parse_options({})


class MemoryCrash(BaseException):
    """The process has ended."""


class FaultyEngine(MemoryEngine):
    """Tasks in memory whose executor ends at some writes, or loses its claim before them."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(OPTIONS)
        self.faults, self.happened, self.writes = faults, 0, 0
        self.effects: list[int] = []
        self._is_dead = False
        self._depth = 0  # of transactions
        self._is_off = False  # another executor runs

    def work(self) -> None:
        """Run until idle, by as many processes as it takes."""
        while True:
            try:
                self.run_until_idle()
                return
            except MemoryCrash:
                self.happened += 1
                self._is_dead, self._depth = False, 0
                self.rescue()

    def rescue(self) -> None:
        for task in self.tasks.values():
            if task.status is Status.RUNNING:
                task.status = Status.READY

    def check(self, error: BaseException) -> None:
        if self._is_dead:
            raise MemoryCrash

    def add_effect(self, number: int) -> None:
        self._write_point(lambda: self.effects.append(number))

    def record(self, *arguments: Any) -> bool:
        self._write_point(lambda: MemoryEngine.record(self, *arguments))
        return self.tasks[arguments[0].id].is_cancel_requested

    def commit(self, outcome: Any) -> None:
        if self._is_dead:
            raise MemoryCrash
        self._write_point(lambda: MemoryEngine.commit(self, outcome))

    def _write_point(self, write: Callable[[], object], *, holds_claim: bool = False) -> None:
        """Write, unless the process ends before, or after it. holds_claim: its transaction has locked the task."""
        if self._is_dead:
            raise MemoryCrash
        if self._is_off:
            write()
            return
        self.writes += 1
        if self.writes in self.faults.thefts and not self._depth and not holds_claim:
            self.happened += 1
            self._is_off = True
            try:
                self.rescue()
                self.run_until_idle()
            finally:
                self._is_off = False
        self._die_if((self.writes, False))
        write()
        if not self._depth:
            self._die_if((self.writes, True))

    def _die_if(self, point: tuple[int, bool]) -> None:
        if point in self.faults.crashes:
            self._is_dead = True
            raise MemoryCrash

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undo what is written if the block raises, or if the process ends at the commit."""
        effects = len(self.effects)
        kept = {
            task: dict(vars(task), entries=dict(task.entries), inbox=list(task.inbox)) for task in self.tasks.values()
        }
        self._depth += not self._is_off
        try:
            yield
            self._depth -= not self._is_off
            self._write_point(lambda: None, holds_claim=True)
        except BaseException as error:
            self._depth = 0 if self._is_dead or not self._depth else self._depth - 1
            is_committed = isinstance(error, MemoryCrash) and (self.writes, True) in self.faults.crashes
            if not is_committed:
                del self.effects[effects:]
                self.tasks = {task.id: task for task in kept}
                for task, columns in kept.items():
                    vars(task).update(columns)
            raise


def run(case: Case, faults: Faults = Faults()) -> Observed:  # noqa: B008 - it is frozen
    """Run a program from its enqueue until it waits for nothing that comes."""
    world = FaultyEngine(faults)
    bodies.keys.clear()
    with (
        patch.object(bodies, "add_effect", lambda task_id, number: world.add_effect(number)),
        patch.object(bodies, "tries_of", lambda task_id, name: tries_of(world, task_id, name)),
    ):
        root = world.enqueue(bodies.run_program, [case.program], {})
        start = world.now
        script = list(case.script)
        while True:
            world.work()
            due = min((task.wake_at for task in world.tasks.values() if task.wake_at is not None), default=None)
            event_at = start + timedelta(hours=script[0].hours) if script else None
            if event_at is not None and (due is None or event_at <= due):
                world.advance(event_at - world.now)
                event = script.pop(0)
                if event.kind == CANCEL:
                    world.cancel(root)
                else:
                    send(world, root, bodies.MESSAGES[event.kind](event.number))
            elif due is not None:
                world.advance(due - world.now)
            else:
                break
    return observe(world, root)


def send(world: MemoryEngine, task: MemoryTask, body: Any) -> None:
    with suppress(TaskFinished):
        world.send(NewMessage(task_id=task.id, body=json.dumps(with_type(body))))


def tries_of(world: MemoryEngine, task_id: str, name: str) -> int:
    entry = world.tasks[UUID(task_id)].entries.get(name)
    return 0 if entry is None or entry.status not in OPEN or entry.due_at is None else entry.attempts


def observe(world: FaultyEngine, root: MemoryTask) -> Observed:
    ended = [task for task in world.tasks.values() if task.status in (Status.SUCCESSFUL, Status.CANCELLED)]
    left_open = sum(
        entry.kind is EntryKind.COMPENSATION and entry.status in OPEN
        for task in ended
        for entry in task.entries.values()
    )
    return Observed(
        status=str(root.status) if root.status in FINAL else None,
        result=json.loads(root.return_value or "null"),
        effects=Counter(world.effects),
        statuses=Counter("WAITS" if task.status in WAITS else str(task.status) for task in world.tasks.values()),
        keys={number: len(keys) for number, keys in bodies.keys.items()},
        open_compensations=left_open,
        error=str(json.loads(root.error or "{}").get("message", ""))[:500],
        faults=world.happened,
        writes=world.writes,
        journal=[(entry.name, entry.kind, entry.status, entry.value) for entry in root.entries.values()],
    )
