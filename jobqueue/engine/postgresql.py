"""The hot verbs as single set-based statements of PostgreSQL; everything else is the portable engine's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from psycopg import IsolationLevel

from jobqueue.engine.base import ENQUEUE_BATCH, Engine, is_refusal, merge
from jobqueue.exceptions import KeyTaken, TaskFinished, TaskNotFound
from jobqueue.outcome import (
    Claimed,
    Committed,
    Demand,
    Enqueued,
    Held,
    NewMessage,
    NewTask,
    Outcome,
    Sign,
    Status,
    Woken,
)

CHANNEL = "jobqueue"
WAKE_LOCK_TIMEOUT = "1s"


@cache
def statement(name: str) -> str:
    """Read a statement from its file, without its comments (a percent sign there would count as a parameter)."""
    text = (files("jobqueue.engine") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


class PostgresEngine(Engine):
    """The engine on PostgreSQL 14 and later."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """
        Open the verb's own transaction READ COMMITTED, or join the caller's.

        Under REPEATABLE READ there is one snapshot, and looking after locking would see the past.
        """
        connection = connections[self.database]
        if connection.in_atomic_block:
            with transaction.atomic(using=self.database, savepoint=False):
                yield
            return
        connection.ensure_connection()
        raw = connection.connection
        site_default, raw.isolation_level = raw.isolation_level, IsolationLevel.READ_COMMITTED
        try:
            with transaction.atomic(using=self.database):
                yield
        finally:
            if not raw.closed:
                raw.isolation_level = site_default

    def rows(self, name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run the statement of a file and fetch all its rows."""
        with connections[self.database].cursor() as cursor:
            cursor.execute(statement(name), parameters)
            return cursor.fetchall() if cursor.description else []

    def count(self, name: str, /, **parameters: Any) -> int:
        """Run the statement of a file and count the rows it changed."""
        with connections[self.database].cursor() as cursor:
            cursor.execute(statement(name), parameters)
            return int(cursor.rowcount)

    # --- enqueue

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        answers: list[Enqueued] = []
        with self.transaction() if len(rows) > ENQUEUE_BATCH else nullcontext():
            for start in range(0, len(rows), ENQUEUE_BATCH):
                answers += self._enqueue_batch(rows[start : start + ENQUEUE_BATCH])
        return answers

    def _enqueue_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        found: dict[UUID, Enqueued] = {}
        missing = list(rows)
        for _ in range(3):  # a key's holder may end between the insert and the look
            for pk, enqueued_at, status in self._insert_rows(missing):
                found[pk] = Enqueued(pk, enqueued_at, Status(status), True)
            missing = [row for row in missing if row.id not in found]
            if missing:
                holders = self.tasks.live().filter(key__in={row.key for row in missing})
                seen = {key: (pk, at, Status(status)) for key, pk, at, status in holders.values_list("key", "pk", "enqueued_at", "status")}
                found |= {row.id: Enqueued(*seen[row.key], False) for row in missing if row.key in seen}
                missing = [row for row in missing if row.id not in found]
            if not missing:
                return [found[row.id] for row in rows]
        raise KeyTaken(f"The key {missing[0].key!r} is held by a task that this transaction cannot see.")

    def _insert_rows(self, rows: Sequence[NewTask]) -> list[tuple[Any, ...]]:
        return self.rows(
            "enqueue",
            backend=self.alias,
            aging=float(self.options.aging),
            ids=[row.id for row in rows],
            queue_names=[row.queue_name for row in rows],
            task_types=[row.task_type for row in rows],
            priorities=[int(row.priority) for row in rows],
            args=[row.args for row in rows],
            kwargs=[row.kwargs for row in rows],
            options=[row.options for row in rows],
            metadata=[row.metadata for row in rows],
            keys=[row.key for row in rows],
            parent_ids=[row.parent_id for row in rows],
            wake_ats=[row.wake_at for row in rows],
            wake_after_seconds=[row.wake_after_seconds for row in rows],
            expires_ats=[row.expires_at for row in rows],
            expires_after_seconds=[row.expires_after_seconds for row in rows],
            max_attempts=[row.max_attempts for row in rows],
        )

    # --- claim

    def claim(self, demand: Demand) -> list[Claimed]:
        if demand.limit <= 0 or not demand.queues:
            return []
        with self.transaction():
            return self._claim(demand)

    def _claim(self, demand: Demand) -> list[Claimed]:
        with connections[self.database].cursor() as cursor:
            cursor.execute(
                statement("claim"),
                {
                    "backend": self.alias,
                    "aging": float(self.options.aging),
                    "queues": list(demand.queues),
                    "claim_limit": demand.limit,
                    "executor_id": demand.executor_id,
                    "only": None if demand.only is None else list(demand.only),
                    "but": None if demand.but is None else list(demand.but),
                    "suspects": demand.suspects,
                },
            )
            names = [column.name for column in cursor.description]
            claimed = [Claimed(**dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
        # RETURNING has no order.
        return sorted(claimed, key=lambda task: (task.rank, task.id))

    def queues_in_use(self) -> list[str]:
        return [name for (name,) in self.rows("queues_in_use", backend=self.alias)]

    # --- wake

    def wake_due(self, limit: int = 1000) -> Woken:
        with self.transaction():
            count = self.count("wake_due", backend=self.alias, wake_limit=limit, aging=float(self.options.aging))
            following = self.rows("next_alarm", backend=self.alias)
        return Woken(count=count, next_seconds=following[0][0] if following else None)

    def wake(self, ids: Iterable[UUID]) -> int:
        """As the portable verb; gives up with an OperationalError after a second and leaves it to the sweep."""
        with self.transaction():
            self.rows("lock_timeout", wait=WAKE_LOCK_TIMEOUT)
            return super().wake(ids)

    # --- heartbeat

    def heartbeat(self, sign: Sign) -> list[Held]:
        if not self.count("heartbeat", executor_id=sign.executor_id, state=str(sign.state)):
            self._write_executor(sign)
        return [
            Held(id=pk, claim_number=number, is_cancel_requested=requested)
            for pk, number, requested in self.rows("held", executor_id=sign.executor_id)
        ]

    # --- commit

    def commit(self, outcomes: Sequence[Outcome], *, wait: bool = False) -> Committed:
        plain = [outcome for outcome in outcomes if outcome.is_plain and not wait]
        others = [outcome for outcome in outcomes if not outcome.is_plain or wait]
        return merge([self.each_alone_if_refused(self._commit_all, plain), super().commit(others, wait=wait)])

    def _commit_all(self, outcomes: Sequence[Outcome]) -> Committed:
        with self.transaction():
            return self._commit_plain(outcomes)

    def _commit_plain(self, outcomes: Sequence[Outcome]) -> Committed:
        rows = self.rows(
            "commit",
            aging=float(self.options.aging),
            ids=[outcome.task_id for outcome in outcomes],
            claim_numbers=[outcome.claim_number for outcome in outcomes],
            statuses=[str(outcome.status) for outcome in outcomes],
            attempts=[outcome.attempts for outcome in outcomes],
            wake_after_seconds=[outcome.wake_after_seconds for outcome in outcomes],
            good_polls=[int(outcome.is_good_poll) for outcome in outcomes],
            keep_ranks=[outcome.keeps_rank for outcome in outcomes],
            worker_ids=[outcome.worker_id for outcome in outcomes],
            return_values=[outcome.return_value for outcome in outcomes],
            errors=[outcome.error for outcome in outcomes],
            inner_states=[outcome.inner_state for outcome in outcomes],
            metadata=[outcome.metadata for outcome in outcomes],
        )
        seen = dict(rows)
        missing = {outcome.task_id for outcome in outcomes} - seen.keys()
        gone = self._gone(missing)
        return Committed(
            done={pk: Status(status) for pk, status in seen.items() if status is not None},
            lost=frozenset({pk for pk, status in seen.items() if status is None} | gone),
            unknown=frozenset(missing - gone),
        )

    # --- send

    def send(self, messages: Sequence[NewMessage]) -> list[int]:
        sent = []
        with self.transaction():
            for message in messages:
                rows = self.rows(
                    "send",
                    task_id=message.task_id,
                    sender_id=message.sender_id,
                    body=message.body,
                    eof=message.eof,
                    dedupe_key=message.dedupe_key,
                )
                if rows:
                    sent.append(rows[0][0])
                else:
                    self._explain_refusal(message)
        return sent

    def _explain_refusal(self, message: NewMessage) -> None:
        finished = self.tasks.filter(pk=message.task_id).values_list("finished_at", flat=True)
        match list(finished):
            case []:
                raise TaskNotFound(f"There is no task {message.task_id} to send to.")
            case [at] if at is not None:
                raise TaskFinished(f"Task {message.task_id} has ended and takes no messages.")

    # --- pulse

    def pulse(self, outcomes: Sequence[Outcome], demand: Demand) -> tuple[Committed, list[Claimed]]:
        plain = all(outcome.is_plain for outcome in outcomes)
        claims = demand.limit > 0 and bool(demand.queues)
        if not (outcomes and plain and claims):
            return super().pulse(outcomes, demand)
        try:
            # One transaction, so one flush of the log for both.
            with self.transaction():
                return self._commit_plain(outcomes), self._claim(demand)
        except DatabaseError as error:
            if not is_refusal(error):
                raise
            return super().pulse(outcomes, demand)

    def notify(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.rows("notify", channel=CHANNEL, payload=f"{self.alias} {queue}")
