"""Enqueue, claim and commit on PostgreSQL: one statement each, as a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import starmap
from operator import attrgetter, is_
from typing import Any
from uuid import UUID

import msgspec

from jobqueue.engine.claim import Claims
from jobqueue.engine.commit import Commits, locked_rows
from jobqueue.engine.enqueues import Enqueues, acts_on_taken_key
from jobqueue.engine.inserts import INSERT_BATCH, KEY_TRIES, Inserts, key_taken
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_json, as_text_array
from jobqueue.engine.tasks import LockedRow, Tasks
from jobqueue.values.counters import EDGES
from jobqueue.values.records import (
    NO_EFFECTS,
    ClaimedBatch,
    ClaimedTask,
    ClaimRequest,
    CommitResult,
    Enqueued,
    NewTask,
    Outcome,
)
from jobqueue.values.states import PoolName, Status

STATUSES = {status.value: status for status in Status}  # calling Status takes a microsecond
BUCKETS = as_array(EDGES)
# The function of jobqueue/migrations/sql/enqueue.sql. rows: a JSON list of NewTask in the order of their keys.
ENQUEUE = """
SELECT id, enqueued_at, status FROM jobqueue_enqueue(%(backend)s::text, %(aging)s::float8, %(rows)s::json)
"""
SURPLUS, MIN_SURPLUS = 2, 20  # a search reads limit * SURPLUS + MIN_SURPLUS tasks: others may have locked some
FEW_LOCKS = 200  # a claim that would lock no more unneeded rows than these does not search first
DEEPER = 4
IS_PLAIN = attrgetter("is_plain")

Place = tuple[str, UUID]  # in the order of claiming: rank, id
END: Place = ("infinity", UUID(int=2**128 - 1))


def needs_horizon(request: ClaimRequest) -> bool:
    """Return whether a claim without a search locks too many rows: up to its limit in each queue."""
    return (len(request.queues) - SURPLUS) * request.limit > FEW_LOCKS  # with 100 queues it was four times as slow


class PostgresEnqueues(Enqueues):
    db: PostgresDatabase

    def enqueue(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        keyed = [row for row in rows if row.key is not None]
        if len(rows) > INSERT_BATCH or any(acts_on_taken_key(row) for row in keyed):
            return super().enqueue(rows)
        with self.db.read_committed() if keyed else nullcontext():
            return self.inserts.insert(rows)

    def _take_key(self, row: NewTask) -> bool:
        values = {"key": row.key, "task_id": row.id, "seconds": row.unique_for_seconds}
        return bool(self.db.query_prepared("reserve_key", **values))


class PostgresInserts(Inserts):
    db: PostgresDatabase

    def _insert(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        in_order = sorted(rows, key=lambda row: row.key or "")
        answers: list[Enqueued] = []
        for start in range(0, len(rows), INSERT_BATCH):
            answers += self._insert_batch(in_order[start : start + INSERT_BATCH])
        if all(map(is_, in_order, rows)):
            return answers
        by_id = {row.id: answer for row, answer in zip(in_order, answers, strict=True)}
        return [by_id[row.id] for row in rows]

    def _insert_batch(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        missing, answers = rows, dict[UUID, Enqueued]()
        for _ in range(KEY_TRIES):  # once, unless a key's holder is deleted between two statements
            rows_with_free_key = self.db.fetch_prepared(ENQUEUE, rows=as_json(missing))
            inserted = [Enqueued(pk, at, STATUSES[status], True) for pk, at, status in rows_with_free_key]
            if [answer.id for answer in inserted] == [row.id for row in rows]:  # as a rule
                return inserted
            answers |= {answer.id: answer for answer in inserted}
            for find_holders in (self.find_holders, self._find_last_holders):
                if missing := [row for row in rows if row.id not in answers]:
                    holders = find_holders({row.key for row in missing})
                    answers |= {row.id: holders[row.key] for row in missing if row.key in holders}
            if len(answers) == len(rows):
                return [answers[row.id] for row in rows]
        raise key_taken(missing[0].key)

    def _find_last_holders(self, keys: Collection[str | None]) -> dict[str | None, Enqueued]:
        """Return the last holder of each key, live or ended. See key_holders.sql."""
        rows = self.db.query_prepared("key_holders", keys=list(keys))
        return {key: Enqueued(pk, at, STATUSES[status], False) for key, pk, at, status in rows}


class PostgresTasks(Tasks):
    db: PostgresDatabase

    def descendants(self, ids: Iterable[UUID]) -> set[UUID]:
        above = list(ids)
        return {pk for (pk,) in self.db.query("descendants", ids=above)} if above else set()

    def _may_prune(self) -> bool:
        ((is_ours,),) = self.db.query("try_prune_lock")
        return bool(is_ours)


class PostgresClaims(Claims):
    db: PostgresDatabase

    def claim(self, request: ClaimRequest) -> ClaimedBatch:
        # BEGIN and COMMIT took two fifths of the time of a claim.
        is_one_statement = not (request.is_empty or request.limited or needs_horizon(request))
        if is_one_statement and self.db.is_autocommit_safe():
            return self._claim_up_to(END, request)
        return super().claim(request)

    def _take_best(self, request: ClaimRequest) -> ClaimedBatch:
        if not needs_horizon(request):
            return self._claim_up_to(END, request)
        claims = ClaimedBatch()
        for pool, limit in request.limits.items():
            taken = Counter(claimed.queue_name for claimed in claims)
            left = {name: count - taken[name] for name, count in request.max_per_queue.items()}
            limit = min(limit, request.limit - len(claims))
            if limit > 0:
                pool_limits = {**dict.fromkeys(PoolName, 0), pool: limit}
                batch = self._claim_from_many(
                    replace(request, limit=limit, pool_limits=pool_limits, max_per_queue=left), pool
                )
                claims.is_truncated |= batch.is_truncated
                claims += batch
        return claims

    def _claim_from_many(self, request: ClaimRequest, pool: PoolName) -> ClaimedBatch:
        """Claim for one pool from many queues: first find the rank down to which to look."""
        passed, wanted = 0, SURPLUS * request.limit + MIN_SURPLUS
        while True:
            first, middle, last = self._horizon(request, pool, (1, passed + request.limit, wanted))
            if first == END:
                return ClaimedBatch()
            # The claim locks all rows that it reads, and other claims skip them: read as few as possible.
            claims = ClaimedBatch() if request.max_per_queue or request.limited else self._claim_up_to(middle, request)
            if len(claims) < request.limit and (last != middle or not claims):
                claims += self._claim_up_to(last, replace(request, limit=request.limit - len(claims)))
            claims.is_truncated = last != END and len(claims) < request.limit
            if claims or last == END:
                return claims
            passed, wanted = wanted, DEEPER * wanted  # others have locked all these tasks

    def _horizon(self, request: ClaimRequest, pool: PoolName, places: Sequence[int]) -> list[Place]:
        """Return the tasks at these places in the order of rank."""
        rows = self.db.query_prepared(
            "claim_horizon",
            pool=pool,
            places=list(places),
            wanted=places[-1],
            sample_size=places[-1] // len(request.queues) + 2,
            free_slots=request.free_slots.get(pool),
            **self._queue_parameters(request),
        )
        return [END if pk is None else (rank, pk) for rank, pk in rows]

    def _claim_up_to(self, last: Place, request: ClaimRequest) -> ClaimedBatch:
        limits = request.limits
        rows = self.db.query_prepared(
            "claim",
            claim_limit=request.limit,
            executor_id=request.executor_id,
            pools=as_array(limits),
            pool_limits=as_array(limits.values()),
            free_slots=as_array(request.free_slots.get(pool, limit) for pool, limit in limits.items()),
            last_rank=last[0],
            last_id=last[1],
            **self._queue_parameters(request),
        )
        # RETURNING has no order.
        return ClaimedBatch(sorted(starmap(ClaimedTask, rows), key=attrgetter("rank", "id.int")))

    def _queue_parameters(self, request: ClaimRequest) -> dict[str, Any]:
        limits = request.max_per_queue
        return {
            "queues": as_text_array(tuple(request.queues)),
            "max_tasks": [limits.get(name) for name in request.queues] if limits else "{}",
            "limited": as_text_array(tuple(request.limited)),
        }

    def _isolated(self, queues: Collection[str]) -> list[UUID]:
        # Not prepared: planned for these parameters, the statement uses the small index of isolated tasks.
        return [pk for (pk,) in self.db.query("isolated_tasks", queues=list(queues))]


class PostgresCommits(Commits):
    db: PostgresDatabase

    def _commit_together(
        self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool, lock_wait: str | None
    ) -> CommitResult:
        is_one_statement = not wait and all(outcome.is_plain and not outcome.may_unblock_others for outcome in outcomes)
        if is_one_statement and lock_wait is None and self.db.is_autocommit_safe():
            return self.perform(outcomes, holder=holder)
        return super()._commit_together(outcomes, holder=holder, wait=wait, lock_wait=lock_wait)

    def perform(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
        if wait or not all(map(IS_PLAIN, outcomes)):
            return super().perform(outcomes, holder=holder, wait=wait)
        done, lost = self._write_rows(outcomes, holder)
        if limited := [outcome for outcome in outcomes if outcome.may_unblock_others]:
            self.admissions.settle({o.task_id: o.begun_seconds for o in limited if o.task_id in done})
        if len(done) == len(outcomes):  # as a rule
            return CommitResult(done=done)
        missing = {outcome.task_id for outcome in outcomes} - done.keys() - lost
        gone = self.db.missing(missing)
        return CommitResult(done=done, lost=frozenset(lost | gone), unknown=frozenset(missing - gone))

    def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
        if wait:
            return super()._lock_for_commit(ids, wait=True)
        return locked_rows(self.db.query_prepared("lock_tasks", ids=as_array(ids)))

    def _delete_read(self, readers: Mapping[int, UUID]) -> int:
        ((count,),) = self.db.query_prepared(
            "consume_messages",
            ids=as_array(readers),
            task_ids=as_array(readers.values()),
            keep=self.db.options.keep_messages,
        )
        return int(count)

    def _write(self, changes: Sequence[tuple[Outcome, Status]]) -> None:
        if changes:
            self._write_rows(list(starmap(as_written, changes)))

    def _write_rows(
        self, outcomes: Sequence[Outcome], holder: UUID | None = None
    ) -> tuple[dict[UUID, Status], set[UUID]]:
        """Return the status that each row entered, and the rows that another claim holds. Skip locked rows."""
        rows = self.db.query_prepared("commit", holder=holder, edges=BUCKETS, outcomes=as_json(outcomes))
        done = {pk: STATUSES[status] for pk, status in rows if status is not None}
        return done, {pk for pk, status in rows if status is None}


def as_written(outcome: Outcome, entering: Status) -> Outcome:
    """Return the part of an outcome that changes its own row."""
    if outcome.status is entering and outcome.effects is NO_EFFECTS:
        return outcome
    return msgspec.structs.replace(outcome, decided=entering, effects=NO_EFFECTS)
