"""Helpers for tests of the engine: short calls of its verbs, and a clock that tests move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value

from jobqueue.engine.engine import Engine
from jobqueue.models import (
    Executor,
    Heartbeat,
    InboxMessage,
    JournalEntry,
    Queue,
    RateStart,
    Schedule,
    ScheduleTick,
    Task,
)
from jobqueue.values.ids import new_id
from jobqueue.values.records import (
    ClaimedBatch,
    ClaimedTask,
    ClaimRequest,
    CommitResult,
    Effects,
    ExecutorInfo,
    NewMessage,
    NewTask,
    Outcome,
    Start,
)
from jobqueue.values.states import Status

ERROR = json.dumps({"attempt": 1, "exception_class_path": "builtins.ValueError", "traceback": "..."})


def new(**changes: Any) -> NewTask:
    values: dict[str, Any] = {"id": new_id(), "task_type": "tests.noop"}
    return NewTask(**values | changes)


def outcome(claimed: ClaimedTask, status: Status = Status.SUCCESSFUL, **changes: Any) -> Outcome:
    """Build the outcome of a claimed task as an executor does."""
    values: dict[str, Any] = {
        "task_id": claimed.id,
        "claim_number": claimed.claim_number,
        "status": status,
        "attempts": claimed.attempts,
        "parent_id": claimed.parent_id,
        "may_unblock_others": claimed.may_unblock_others,
        "begun_seconds": None if claimed.rate_key is None else 0.0,
    }
    return Outcome(**values | changes)


def success(claimed: ClaimedTask, **changes: Any) -> Outcome:
    """Build the outcome of a function that has returned None, as an executor does."""
    values: dict[str, Any] = {"has_succeeded": True, "worker_id": "w", "run_seconds": 0.02, "return_value": "null"}
    return outcome(claimed, **values | changes)


class Bench:
    """
    Call the verbs of one engine as one executor, and read the rows that they write.

    It has more than 20 methods because each verb that many tests call is one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.executor_id = uuid4()

    def with_options(self, **changes: Any) -> Bench:
        """Return a Bench of the same queue with other OPTIONS."""
        return Bench(type(self.engine)(self.engine.alias, replace(self.engine.options, **changes)))

    # --- enqueue and claim

    def add(self, **changes: Any) -> UUID:
        """Enqueue a task. Return its id, or the id of the live task with the same key."""
        return self.engine.enqueues.enqueue([new(**changes)])[0].id

    def claim_request(self, limit: int = 100, **changes: Any) -> ClaimRequest:
        values: dict[str, Any] = {"executor_id": self.executor_id, "queues": ["default"], "limit": limit}
        return ClaimRequest(**values | changes)

    def claim(self, limit: int = 100, **changes: Any) -> ClaimedBatch:
        return self.engine.claims.claim(self.claim_request(limit, **changes))

    def claim_ids(self, limit: int = 100, **changes: Any) -> list[UUID]:
        return [claimed.id for claimed in self.claim(limit, **changes)]

    def begin(self, *claims: ClaimedTask, seconds_ago: float = 0.0) -> set[UUID]:
        """Count the starts of bodies that still run. Return their tasks."""
        return self.engine.admissions.count_starts(
            [Start(claim.id, claim.claim_number, seconds_ago) for claim in claims]
        )

    def claim_isolated(self, **changes: Any) -> list[UUID]:
        return [claimed.id for claimed in self.engine.claims.claim_isolated(self.claim_request(1, **changes))]

    def running(self, **changes: Any) -> ClaimedTask:
        """Enqueue a task in its own queue and claim it."""
        self.beat()
        pk = self.add(**changes | {"queue_name": f"only-{new_id()}"})
        (claimed,) = self.claim(queues=[self.row(pk).queue_name])
        return claimed

    def suspended(self, **changes: Any) -> UUID:
        """Return a task that waits for a message, or for its `wake_at`."""
        claimed = self.running()
        self.commit(outcome(claimed, Status.SUSPENDED, has_succeeded=True, **changes))
        return claimed.id

    def ended(self, status: Status = Status.SUCCESSFUL, **changes: Any) -> UUID:
        claimed = self.running(**changes)
        self.commit(outcome(claimed, status, return_value="1"))
        return claimed.id

    # --- commit, send and manage

    def commit(self, *outcomes: Outcome) -> CommitResult:
        return self.engine.commits.commit(outcomes)

    def perform(self, claimed: ClaimedTask, **effects: Any) -> CommitResult:
        """Commit a poll that suspends its task and has these effects."""
        return self.commit(outcome(claimed, Status.SUSPENDED, has_succeeded=True, effects=Effects(**effects)))

    def send(self, task_id: UUID, body: Any = None, **changes: Any) -> list[int]:
        return self.engine.messages.send([NewMessage(task_id=task_id, body=json.dumps(body), **changes)])

    def beat(self, **changes: Any) -> list[UUID]:
        values: dict[str, Any] = {
            "executor_id": self.executor_id,
            "name": "bench",
            "host": "localhost",
            "pid": 1,
            "versions": {},
            "queues": [],
            "slots": 1,
        }
        return [task.id for task in self.engine.executors.heartbeat(ExecutorInfo(**values | changes)) or ()]

    def pause(self, name: str, **changes: Any) -> None:
        Queue.objects.using(self.engine.database).create(
            backend=self.engine.alias, name=name, **{"paused_at": self.engine.db.now()} | changes
        )

    def limit(self, name: str, max_running: int | None) -> None:
        Queue.objects.using(self.engine.database).update_or_create(
            backend=self.engine.alias, name=name, defaults={"max_running": max_running}
        )

    # --- read

    def row(self, pk: UUID) -> Task:
        return Task.objects.using(self.engine.database).get(pk=pk)

    def status(self, pk: UUID) -> str:
        return self.row(pk).status

    def moment(self, pk: UUID, column: str) -> datetime:
        """Return a time of the row that must not be null."""
        at = getattr(self.row(pk), column)
        assert isinstance(at, datetime)
        return at

    def inbox(self, pk: UUID) -> list[InboxMessage]:
        return list(self.engine.db.messages.filter(task_id=pk).order_by("id"))

    def bodies(self, pk: UUID) -> list[Any]:
        return [message.body for message in self.inbox(pk)]

    # --- time

    def set(self, pk: UUID, **columns: Any) -> None:
        assert Task.objects.using(self.engine.database).filter(pk=pk).update(**columns) == 1

    def time_passes(self, seconds: float, *, but: Sequence[type] = ()) -> None:
        """Make all stored times older by these seconds."""
        for model in (Task, Executor, Heartbeat, InboxMessage, JournalEntry, Queue, RateStart, Schedule, ScheduleTick):
            if model not in but:
                model._default_manager.using(self.engine.database).update(
                    **{
                        field.name: ExpressionWrapper(
                            F(field.name) - Value(timedelta(seconds=seconds), DurationField()), DateTimeField()
                        )
                        for field in model._meta.fields
                        if isinstance(field, DateTimeField)
                    }
                )
