"""The hot verbs as single set-based statements of PostgreSQL; everything else is the portable engine's."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import starmap
from uuid import UUID

import msgspec
from django.db import OperationalError

from jobqueue.engine.claim_statements import ClaimStatements
from jobqueue.engine.commit import LockedRow, locked_rows
from jobqueue.engine.enqueue_statements import EnqueueStatements
from jobqueue.engine.gauges import COUNTED_MOST, RUNNING_READ
from jobqueue.engine.health import QUEUES_READ
from jobqueue.engine.mail import letter
from jobqueue.engine.statements import CHANNEL, as_array, as_json
from jobqueue.engine.tallies import Summed
from jobqueue.exceptions import TaskFinished
from jobqueue.failpoints import reach
from jobqueue.models import TaskQuerySet
from jobqueue.records import (
    NO_EFFECTS,
    CommitResult,
    ExecutorInfo,
    NewMessage,
    Outcome,
    OwnedTask,
    PendingWork,
    Status,
    StoredMessage,
    WakeResult,
)
from jobqueue.tally import EDGES

logger = logging.getLogger(__name__)

WAKE_LOCK_TIMEOUT = "1s"
NO_ROOM_FOR_NOTICES = "54000"  # program_limit_exceeded
NO_ROOM_SAID_SECONDS = 300.0  # then again
BUCKETS = f"{{{','.join(map(str, EDGES))}}}"  # as an array


def as_written(outcome: Outcome, entering: Status) -> Outcome:
    """Leave of an outcome what goes into its own row."""
    if outcome.status is entering and outcome.effects is NO_EFFECTS:
        return outcome
    return msgspec.structs.replace(outcome, decided=entering, effects=NO_EFFECTS)


class PostgresEngine(EnqueueStatements, ClaimStatements):
    """The engine on PostgreSQL 14 and later."""

    # --- wake

    def pending_maintenance(self, executor_id: UUID) -> PendingWork:
        ((alarm, running, mail, command, suspects),) = self.hot_rows(
            "pending_maintenance", backend=self.alias, executor_id=executor_id
        )
        return PendingWork(
            alarm_seconds=alarm, has_running=running, has_mail=mail, has_command=command, has_suspects=suspects
        )

    def wake_due(self, limit: int = 1000) -> WakeResult:
        following = self._seconds_to_alarm()
        if following is None or following > 0.0:  # as a rule: one statement in place of a transaction of two
            return WakeResult(count=0, next_seconds=following)
        with self.transaction():
            count = self.count("wake_due", backend=self.alias, wake_limit=limit, aging=float(self.options.aging))
            following = self._seconds_to_alarm()
            if count:
                reach("due.before")
        return WakeResult(count=count, next_seconds=following)

    def _seconds_to_alarm(self) -> float | None:
        rows = self.hot_rows("next_wake_at", backend=self.alias)
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
        return [pk for (pk,) in self.hot_rows("suspended_with_messages", backend=self.alias, sweep_limit=limit)]

    # --- heartbeat, rescue

    def heartbeat(self, sign: ExecutorInfo) -> list[OwnedTask]:
        if not self.rows("heartbeat", executor_id=sign.executor_id, state=str(sign.state)):
            self._write_executor(sign)
        return [
            OwnedTask(id=pk, claim_number=number, is_cancel_requested=requested)
            for pk, number, requested in self.rows("tasks_of_executor", executor_id=sign.executor_id)
        ]

    def _holders(self) -> dict[UUID, float | None]:
        return dict(self.hot_rows("executors_with_running_tasks", backend=self.alias))

    # --- commit

    def _commit_together(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool) -> CommitResult:
        is_one_statement = not wait and all(outcome.is_plain for outcome in outcomes)
        if is_one_statement and self.are_statements_transactions():
            return self._commit(outcomes, holder=holder)
        return super()._commit_together(outcomes, holder=holder, wait=wait)

    def _commit(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
        if wait or not all(outcome.is_plain for outcome in outcomes):
            return super()._commit(outcomes, holder=holder, wait=wait)
        seen = self._write_rows([(outcome, outcome.status) for outcome in outcomes], holder)
        missing = {outcome.task_id for outcome in outcomes} - seen.keys()
        gone = self.gone(missing)
        return CommitResult(
            done={pk: status for pk, status in seen.items() if status is not None},
            lost=frozenset({pk for pk, status in seen.items() if status is None} | gone),
            unknown=frozenset(missing - gone),
        )

    def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
        if wait:
            return super()._lock_for_commit(ids, wait=True)
        return locked_rows(self.hot_rows("lock_tasks", backend=self.alias, ids=as_array(ids)))

    def _take_away(self, readers: Mapping[int, UUID]) -> int:
        ((count,),) = self.hot_rows("consume_messages", ids=as_array(readers), task_ids=as_array(readers.values()))
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

    def _unread(self, ids: Collection[UUID], limit: int) -> list[StoredMessage]:
        return (
            [letter(*row) for row in self.hot_rows("read_messages", ids=as_array(ids), mail_limit=limit)] if ids else []
        )

    def count_unread(self, ids: Collection[UUID]) -> dict[UUID, int]:
        return dict(self.hot_rows("count_unread", ids=as_array(ids)))

    def task_types(self, ids: Collection[UUID]) -> dict[UUID, str]:
        return dict(self.rows("task_types", backend=self.alias, ids=list(ids)))

    def _busy(self, ids: Collection[UUID]) -> set[UUID]:
        """Share-lock receivers; busy are those that somebody locked FOR UPDATE, which an insert would wait for."""
        if not ids:
            return set()
        unreached = set(ids) - {pk for (pk,) in self.rows("lock_receivers_for_share", ids=list(ids))}
        return unreached - self.gone(unreached)

    def _delete_mail(self, ids: Sequence[UUID]) -> None:
        self.count("delete_messages", ids=list(ids))

    # --- prune

    def _may_prune(self) -> bool:
        ((is_ours,),) = self.rows("try_prune_lock", backend=self.alias)
        return bool(is_ours)

    # --- tallies

    def _take_deltas(self, limit: int) -> list[Summed]:
        return list(starmap(Summed, self.rows("take_counter_deltas", delta_limit=limit)))

    # --- gauges

    def _oldest_snapshot_seconds(self) -> float:
        return max((float(seconds) for *_, seconds in self.rows("oldest_snapshot")), default=0.0)

    def _running(self) -> Iterable[tuple[str, UUID | None, int]]:
        rows = self.rows("count_running_by_executor", backend=self.alias, running_limit=RUNNING_READ)
        return [(queue_name, executor_id, number) for queue_name, executor_id, number in rows]

    def _depths(self) -> Iterable[tuple[str, Status, int]]:
        rows = self.rows(
            "queue_depths",
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

    no_room_said_at = float("-inf")

    def notify(self, queues: Iterable[str]) -> None:
        try:
            for queue in queues:
                self.rows("notify", channel=CHANNEL, payload=f"{self.alias} {queue}")
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != NO_ROOM_FOR_NOTICES:
                raise
            self._make_room_for_notices()

    def _make_room_for_notices(self) -> None:
        """Do without, which costs others up to POLL_INTERVAL; say so now and then."""
        ((taken,),) = self.rows("notification_queue_usage")
        if time.monotonic() - self.no_room_said_at < NO_ROOM_SAID_SECONDS:
            return
        self.no_room_said_at = time.monotonic()
        logger.warning(
            "notify.queue_full backend=%s used_percent=%.0f poll_interval_s=%.1f "
            "hint=A session that executed LISTEN stays in a transaction. Find it in pg_stat_activity.",
            self.alias,
            100 * taken,
            self.options.poll_interval,
        )
