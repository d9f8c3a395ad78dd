"""The hot verbs as single set-based statements of PostgreSQL; everything else is the portable engine's."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from itertools import starmap
from operator import attrgetter, is_
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec
from django.db import connections
from psycopg import Connection, Pipeline

from jobqueue.engine.commit import LockedRow, locked_rows
from jobqueue.engine.enqueue import ENQUEUE_BATCH, KEY_TRIES, Hear, key_taken
from jobqueue.engine.gauges import COUNTED_MOST, RUNNING_READ
from jobqueue.engine.health import QUEUES_READ, TASKS_READ
from jobqueue.engine.mail import letter
from jobqueue.engine.statements import CHANNEL, Statements, as_array, as_json, sent, statement
from jobqueue.engine.tallies import Summed
from jobqueue.exceptions import TaskFinished
from jobqueue.failpoints import reach
from jobqueue.models import TaskQuerySet
from jobqueue.outcome import (
    NO_EFFECTS,
    Claimed,
    Claims,
    Committed,
    Demand,
    Draining,
    Due,
    Enqueued,
    Held,
    Letter,
    NewMessage,
    NewTask,
    Outcome,
    Sign,
    Status,
    Woken,
)
from jobqueue.tally import EDGES

WAKE_LOCK_TIMEOUT = "1s"
STATUSES = {status.value: status for status in Status}  # to call Status takes a microsecond
YOUNG = 3  # enqueues of a connection: a site's request has one of its own unless CONN_MAX_AGE says otherwise
SURPLUS, SURPLUS_LEAST = 2, 20  # what a claim looks for in many queues, in tasks it wants: others may hold some
FEW_LOCKS = 200  # a claim that would take no more than these for nothing does not look first
DEEPER = 4
BUCKETS = f"{{{','.join(map(str, EDGES))}}}"  # as an array

Place = tuple[str, UUID]  # in the order of claiming: rank, id
NO_END: Place = ("infinity", UUID(int=2**128 - 1))

_asked: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()


def as_written(outcome: Outcome, entering: Status) -> Outcome:
    """Leave of an outcome what goes into its own row."""
    if outcome.status is entering and outcome.effects is NO_EFFECTS:
        return outcome
    return msgspec.structs.replace(outcome, decided=entering, effects=NO_EFFECTS)


def wants_a_look(demand: Demand) -> bool:
    """Whether a claim that does not look first locks too many: of each queue as many as it wants of all."""
    return (len(demand.queues) - SURPLUS) * demand.limit > FEW_LOCKS  # with 100 queues it was four times as slow


def _answers(rows: Sequence[NewTask], cursor: Any) -> list[Enqueued]:
    """Fetch what was inserted, in the order of the rows."""
    with cursor:
        inserted = _inserted(cursor.fetchall())
    if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule
        return inserted
    by_id = {answer.id: answer for answer in inserted}
    return [by_id[row.id] for row in rows]


def _inserted(answers: Iterable[tuple[UUID, datetime, str]]) -> list[Enqueued]:
    return [Enqueued(pk, at, STATUSES[status], True) for pk, at, status in answers]


class PostgresEngine(Statements):
    """The engine on PostgreSQL 14 and later."""

    # --- enqueue

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        if len(rows) > ENQUEUE_BATCH:
            with self.transaction():
                return self._enqueue(rows)
        with self.waiting() if any(row.key is not None for row in rows) else nullcontext():
            return self._enqueue(rows)

    def enqueue_batches(self, batches: Sequence[Sequence[NewTask]], hear: Hear) -> list[Enqueued]:
        if not Pipeline.is_supported() or any(row.key is not None for rows in batches for row in rows):
            return super().enqueue_batches(batches, hear)
        connection = connections[self.database]
        connection.ensure_connection()
        raw = connection.connection
        answers: list[Enqueued] = []
        asked: list[tuple[Sequence[NewTask], Any]] = []

        def listen() -> None:
            answers.extend(some := _answers(*asked.pop()))
            hear(some)

        with self.transaction(), connection.wrap_database_errors, raw.pipeline():
            for rows in batches:
                cursor = self._hot_cursor()
                cursor.execute(statement("enqueue"), self._rows_to_insert(rows))
                raw.pgconn.send_flush_request()  # or its answer would come with that to the next
                raw.wait(sent(raw.pgconn))
                if asked:
                    listen()
                asked.append((rows, cursor))
            if asked:
                listen()
        return answers

    def _enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        in_order = sorted(rows, key=lambda row: row.key or "")
        answers: list[Enqueued] = []
        for start in range(0, len(rows), ENQUEUE_BATCH):
            answers += self._enqueue_batch(in_order[start : start + ENQUEUE_BATCH])
        if all(map(is_, in_order, rows)):
            return answers
        by_row = dict(zip(map(id, in_order), answers, strict=True))
        return [by_row[id(row)] for row in rows]

    def _enqueue_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        answers: dict[UUID, Enqueued] = {}
        missing = rows
        for _ in range(KEY_TRIES):
            inserted = self._insert_rows(missing)
            if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule: UUIDs are slow as keys
                return inserted
            answers |= {answer.id: answer for answer in inserted}
            missing = [row for row in missing if row.id not in answers]
            if missing:
                holders = self._holders_of({row.key for row in missing})
                answers |= {row.id: holders[row.key] for row in missing if row.key in holders}
                missing = [row for row in missing if row.id not in answers]
            if not missing:
                return [answers[row.id] for row in rows]
        raise key_taken(missing[0].key)

    def _holders_of(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        holders = self.tasks.live().filter(key__in=keys)
        return {
            key: Enqueued(pk, at, Status(status), False)
            for key, pk, at, status in holders.values_list("key", "pk", "enqueued_at", "status")
        }

    def _insert_rows(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        """Give an answer for each row that was inserted."""
        if len(rows) == 1 and rows[0].key is None and self._is_young():
            columns = msgspec.structs.asdict(rows[0])
            del columns["key"]
            aging = float(self.options.aging)
            return _inserted(self.hot_rows("enqueue_one", backend=self.alias, aging=aging, **columns))
        return _inserted(self.hot_rows("enqueue", **self._rows_to_insert(rows)))

    def _rows_to_insert(self, rows: Sequence[NewTask]) -> dict[str, Any]:
        return {"backend": self.alias, "aging": float(self.options.aging), "rows": as_json(rows)}

    def _is_young(self) -> bool:
        """Whether this connection may be closed before it pays to have the server plan the function of enqueue.sql."""
        connection = connections[self.database]
        connection.ensure_connection()
        asked = _asked[connection.connection] = _asked.get(connection.connection, 0) + 1
        return asked <= YOUNG

    # --- claim

    def claim(self, demand: Demand) -> Claims:
        # BEGIN and COMMIT took two fifths of the worker's time for it.
        is_one_statement = demand.limit > 0 and demand.queues and not demand.limited and not wants_a_look(demand)
        if is_one_statement and self.are_statements_transactions():
            return self._take_up_to(NO_END, demand)
        return super().claim(demand)

    def _take_best(self, demand: Demand) -> Claims:
        if not wants_a_look(demand):
            return self._take_up_to(NO_END, demand)
        wanted, held = SURPLUS * demand.limit + SURPLUS_LEAST, 0
        while True:
            near, last, names = self._look(demand, wanted, held + demand.limit)
            asked = replace(demand, queues=names)
            # All that a claim looks at it locks, also what it leaves: to others it is as good as gone meanwhile.
            claims = self._take_up_to(near, asked) if names and not demand.most else Claims()
            if names and len(claims) < demand.limit and (last != near or demand.most):
                claims += self._take_up_to(last, replace(asked, limit=demand.limit - len(claims)))
            claims.is_cut = last != NO_END and len(claims) < demand.limit
            if claims or last == NO_END:
                return claims
            held, wanted = wanted, DEEPER * wanted  # others hold all that was seen

    def _look(self, demand: Demand, wanted: int, near: int) -> tuple[Place, Place, list[str]]:
        """Find how far down in rank `near` of the best reach, and all that are seen, and in which queues they are."""
        ((near_rank, near_id, rank, pk, names),) = self._asker(demand)(
            "look", wanted=wanted, near=near, glance=wanted // len(demand.queues) + 2, **self._claimable(demand)
        )
        return NO_END if near_id is None else (near_rank, near_id), NO_END if pk is None else (rank, pk), names

    def _take_up_to(self, last: Place, demand: Demand) -> Claims:
        last_rank, last_id = last
        rows = self._asker(demand)(
            "claim",
            aging=float(self.options.aging),
            claim_limit=demand.limit,
            executor_id=demand.executor_id,
            last_rank=last_rank,
            last_id=last_id,
            **self._claimable(demand),
        )
        # RETURNING has no order.
        return Claims(sorted(starmap(Claimed, rows), key=attrgetter("rank", "id")))

    def _asker(self, demand: Demand) -> Callable[..., list[tuple[Any, ...]]]:
        """Suspects are few, and have an index: planned for them, not for any, a statement uses it."""
        return self.rows if demand.suspects else self.hot_rows

    def _claimable(self, demand: Demand) -> dict[str, Any]:
        """Say which tasks a demand is about."""
        return {
            "backend": self.alias,
            "queues": list(demand.queues),
            "most": [demand.most.get(name) for name in demand.queues] if demand.most else [],
            "locked": list(demand.limited),
            "only": None if demand.only is None else list(demand.only),
            "but": None if demand.but is None else list(demand.but),
            "suspects": demand.suspects,
        }

    def _lock_queues(self, names: Collection[str]) -> dict[str, int | None]:
        return dict(self.hot_rows("lock_queues", backend=self.alias, queues=list(names)))

    def _count_running(self, most: Mapping[str, int]) -> dict[str, int]:
        return dict(self.hot_rows("count_running", backend=self.alias, queues=list(most), most=list(most.values())))

    def queues_in_use(self) -> list[str]:
        return sorted(name for (name,) in self.hot_rows("queues_in_use", backend=self.alias))

    def limited_queues(self) -> list[str]:
        return sorted(name for (name,) in self.hot_rows("limited_queues", backend=self.alias))

    def has_suspects(self, queues: Sequence[str]) -> bool:
        open_queues = sorted({*queues} - self._full()) if queues else []
        return bool(open_queues and self.rows("has_suspects", backend=self.alias, queues=open_queues))

    def is_drained(self, queues: Sequence[str] | None, within_seconds: float) -> bool:
        ((is_drained,),) = self.rows(
            "is_drained",
            backend=self.alias,
            queues=self.queues_in_use() if queues is None else list(queues),
            only_these=queues is not None,
            within_seconds=float(within_seconds),
        )
        return bool(is_drained)

    def _draining(self) -> list[Draining]:
        rows = self.rows(
            "draining",
            backend=self.alias,
            aging=float(self.options.aging),
            timeout=float(self.options.heartbeat_timeout),
            queues=self.queues_in_use()[:QUEUES_READ],
            task_limit=TASKS_READ,
        )
        return [
            Draining(queue_name=name, oldest_seconds=seconds, is_paused=is_paused, is_served=is_served)
            for name, seconds, is_paused, is_served in rows
        ]

    # --- wake

    def what_is_due(self, executor_id: UUID) -> Due:
        ((alarm, running, mail, command, suspects),) = self.hot_rows(
            "what_is_due", backend=self.alias, executor_id=executor_id
        )
        return Due(alarm_seconds=alarm, has_running=running, has_mail=mail, has_command=command, has_suspects=suspects)

    def wake_due(self, limit: int = 1000) -> Woken:
        following = self._seconds_to_alarm()
        if following is None or following > 0.0:  # as a rule: one statement in place of a transaction of two
            return Woken(count=0, next_seconds=following)
        with self.transaction():
            count = self.count("wake_due", backend=self.alias, wake_limit=limit, aging=float(self.options.aging))
            following = self._seconds_to_alarm()
            if count:
                reach("due.before")
        return Woken(count=count, next_seconds=following)

    def _seconds_to_alarm(self) -> float | None:
        rows = self.hot_rows("next_alarm", backend=self.alias)
        return rows[0][0] if rows else None

    def wake(self, ids: Iterable[UUID]) -> int:
        """As the portable verb; gives up with an OperationalError after a second and leaves it to the sweep."""
        with self.transaction():
            ((before,),) = self.rows("lock_timeout", wait=WAKE_LOCK_TIMEOUT)
            woken = super().wake(ids)
            self.rows("lock_timeout", wait=before)  # the rest of a caller's transaction waits as before
        return woken

    def _wake_locked(self, ids: Collection[UUID]) -> int:
        return len(self.hot_rows("wake", ids=as_array(ids), aging=float(self.options.aging))) if ids else 0

    def _asleep_with_mail(self, limit: int) -> list[UUID]:
        return [pk for (pk,) in self.hot_rows("sweep", backend=self.alias, sweep_limit=limit)]

    # --- heartbeat, rescue

    def heartbeat(self, sign: Sign) -> list[Held]:
        if not self.count("heartbeat", executor_id=sign.executor_id, state=str(sign.state)):
            self._write_executor(sign)
        return [
            Held(id=pk, claim_number=number, is_cancel_requested=requested)
            for pk, number, requested in self.rows("held", executor_id=sign.executor_id)
        ]

    def _holders(self) -> dict[UUID, float | None]:
        return dict(self.hot_rows("holders", backend=self.alias))

    # --- commit

    def _commit_together(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool) -> Committed:
        is_one_statement = not wait and all(outcome.is_plain for outcome in outcomes)
        if is_one_statement and self.are_statements_transactions():
            return self._commit(outcomes, holder=holder)
        return super()._commit_together(outcomes, holder=holder, wait=wait)

    def _commit(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> Committed:
        if wait or not all(outcome.is_plain for outcome in outcomes):
            return super()._commit(outcomes, holder=holder, wait=wait)
        seen = self._write_rows([(outcome, outcome.status) for outcome in outcomes], holder)
        missing = {outcome.task_id for outcome in outcomes} - seen.keys()
        gone = self.gone(missing)
        return Committed(
            done={pk: status for pk, status in seen.items() if status is not None},
            lost=frozenset({pk for pk, status in seen.items() if status is None} | gone),
            unknown=frozenset(missing - gone),
        )

    def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
        if wait:
            return super()._lock_for_commit(ids, wait=True)
        return locked_rows(self.hot_rows("lock", backend=self.alias, ids=as_array(ids)))

    def _take_away(self, readers: Mapping[int, UUID]) -> int:
        ((count,),) = self.hot_rows("consume", ids=as_array(readers), task_ids=as_array(readers.values()))
        return int(count)

    def _write(self, changes: Sequence[tuple[Outcome, Status]]) -> None:
        if changes:
            self._write_rows(changes)

    def _write_rows(
        self, changes: Sequence[tuple[Outcome, Status]], holder: UUID | None = None
    ) -> dict[UUID, Status | None]:
        """Give the state each row entered, None where another claim holds it; rows locked elsewhere are left out."""
        rows = self.hot_rows(
            "commit",
            holder=holder,
            aging=float(self.options.aging),
            edges=BUCKETS,
            outcomes=as_json([as_written(outcome, entering) for outcome, entering in changes]),
        )
        return {pk: None if status is None else Status(status) for pk, status in rows}

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        above = list(ids)
        return {pk for (pk,) in self.rows("descendants", backend=self.alias, ids=above)} if above else set()

    # --- mail

    def send(self, messages: Sequence[NewMessage]) -> list[int]:
        # One statement, all or nothing.
        with self.waiting() if any(message.dedupe_key is not None for message in messages) else nullcontext():
            return self._send(messages)

    def _send(self, messages: Sequence[NewMessage]) -> list[int]:
        sent = self._insert(messages, all_or_none=True)
        if not sent and (new := self._without_repeats(messages)):
            self._refuse_receivers(new)
            raise TaskFinished  # it had ended, and was requeued since
        return [pk for pk, _ in sent]

    def _insert(self, messages: Sequence[NewMessage], *, all_or_none: bool = False) -> list[tuple[int, UUID]]:
        rows = self.hot_rows(
            "send",
            backend=self.alias,
            all_or_none=all_or_none,
            messages=as_json(messages),
        )
        return sorted((pk, receiver) for pk, receiver in rows)

    def _unread(self, ids: Collection[UUID], limit: int) -> list[Letter]:
        return [letter(*row) for row in self.hot_rows("inbox", ids=as_array(ids), mail_limit=limit)] if ids else []

    def count_unread(self, ids: Collection[UUID]) -> dict[UUID, int]:
        return dict(self.hot_rows("count_unread", ids=as_array(ids)))

    def task_types(self, ids: Collection[UUID]) -> dict[UUID, str]:
        return dict(self.rows("task_types", backend=self.alias, ids=list(ids)))

    def _busy(self, ids: Collection[UUID]) -> set[UUID]:
        """Share-lock receivers; busy are those that somebody locked FOR UPDATE, which an insert would wait for."""
        if not ids:
            return set()
        unreached = set(ids) - {pk for (pk,) in self.rows("reach", ids=list(ids))}
        return unreached - self.gone(unreached)

    def _delete_mail(self, ids: Sequence[UUID]) -> None:
        self.count("delete_mail", ids=list(ids))

    # --- prune

    def _may_prune(self) -> bool:
        ((is_ours,),) = self.rows("prune_guard", backend=self.alias)
        return bool(is_ours)

    # --- tallies

    def _take_deltas(self, limit: int) -> list[Summed]:
        return list(starmap(Summed, self.rows("take_deltas", delta_limit=limit)))

    # --- gauges

    def _oldest_snapshot_seconds(self) -> float:
        return max((float(seconds) for *_, seconds in self.rows("oldest_snapshot")), default=0.0)

    def _running(self) -> Iterable[tuple[str, UUID | None, int]]:
        rows = self.rows("running", backend=self.alias, running_limit=RUNNING_READ)
        return [(queue_name, executor_id, number) for queue_name, executor_id, number in rows]

    def _depths(self) -> Iterable[tuple[str, Status, int]]:
        rows = self.rows(
            "depths",
            backend=self.alias,
            queues=self.queues_in_use()[:QUEUES_READ],
            depth_limit=COUNTED_MOST + 1,
            queue_limit=QUEUES_READ,
        )
        return [(name, Status(status), number) for name, status, number in rows]

    def _estimate(self, rows: TaskQuerySet) -> int:
        (plan,) = json.loads(rows.order_by().explain(format="json"))
        return int(plan["Plan"]["Plan Rows"])

    # --- notices

    def notify(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.rows("notify", channel=CHANNEL, payload=f"{self.alias} {queue}")
