"""Executors: heartbeats, commands, and the rescue of tasks from lost executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, TextField
from django.db.models.functions import Cast

from jobqueue.engine.clock import Clock, bound, written
from jobqueue.engine.portable.claim import RAW
from jobqueue.engine.portable.counters import Counters
from jobqueue.engine.portable.database import ERRORS_KEPT, WORKERS_KEPT, Database, Part, read_list
from jobqueue.engine.portable.messages import Ending, Messages
from jobqueue.engine.portable.wake import Waker
from jobqueue.exceptions import ExecutorLost
from jobqueue.failpoints import reach
from jobqueue.models import CounterDelta, Executor, SpareHeartbeat, Task, TaskQuerySet
from jobqueue.records import FINAL, Command, ExecutorInfo, OwnedTask, PendingWork, Rescued, Status

# A process that was frozen may claim before its first beat: so long its claim stands for one.
CLAIM_COUNTS_SECONDS = 1.0
# What lies further ahead was written before the clock was set back.
AHEAD_SECONDS = 1.0


class Executors(Part):
    def __init__(self, db: Database, messages: Messages, waker: Waker, counters: Counters) -> None:
        super().__init__(db)
        self.messages = messages
        self.waker = waker
        self.counters = counters

    def heartbeat(self, sign: ExecutorInfo) -> list[OwnedTask]:
        """
        Write the executor's sign of life and see what it holds.

        Locks: the executor's own row, until the statement ends. If another session keeps that row locked, the engine of
        PostgreSQL inserts a spare heartbeat. Task rows are only read, so that a sender's long transaction cannot stop
        the heartbeat of a healthy executor.
        """
        beat = self.db.executors.filter(pk=sign.executor_id).update(heartbeat=Clock(), state=sign.state)
        if not beat:
            self._write_executor(sign)
        rows = self.db.tasks.running().filter(executor_id=sign.executor_id)
        return [
            OwnedTask(id=pk, claim_number=number, is_cancel_requested=requested is not None)
            for pk, number, requested in rows.values_list("pk", "claim_number", "cancel_requested_at")
        ]

    def command(self, executor_ids: Collection[UUID], command: Command) -> int:
        """
        Ask something of executors that have not stopped; returns how many. Each hears it within a second or so.

        Locks: their rows, on which they beat; not for a transaction that stays open.
        """
        rows = self.db.executors.filter(pk__in=executor_ids).exclude(state=Executor.State.STOPPED)
        return rows.update(command=command)

    def take_command(self, executor_id: UUID) -> Command | None:
        """Return the command for an executor, once. Locks: its row, if it has a command; a locked row is skipped."""
        row = self.db.executors.filter(pk=executor_id)
        with self.db.transaction():
            asked = self.db.lock_for_update(row.exclude(command="")).values_list("command", flat=True).first() or ""
            if asked:
                row.update(command="")
        return Command(asked) if asked in {*Command} else None

    def _write_executor(self, sign: ExecutorInfo) -> None:
        """Insert the executor's row with a heartbeat of now, unless it exists."""
        now = self.db.now()
        row = Executor(
            id=sign.executor_id,
            backend=self.db.backend,
            name=sign.name,
            host=sign.host,
            pid=sign.pid,
            versions=dict(sign.versions),
            queues=list(sign.queues),
            queue_limits=dict(sign.queue_limits),
            slots=sign.slots,
            started_at=now,
            heartbeat=now,
            state=sign.state,
        )
        self.db.executors.bulk_create([row], ignore_conflicts=True)

    def pending_maintenance(self, executor_id: UUID) -> PendingWork:
        """Return what maintenance may find to do, so that it need not look everywhere. Locks: none."""
        return PendingWork()

    def rescue(self, limit: int = 100, may: Callable[[], bool] = lambda: True) -> list[Rescued]:
        """
        Take RUNNING tasks from executors that stopped beating.

        may: called once if an executor seems to be silent. If it returns False, nothing is taken.

        The executor's heartbeat must be older than the timeout, and the task not have been claimed just now: not
        a timeout ago, since that would be up to a third of it later than promised.
        They become READY at their old place with one loss more, FAILED at the limit of losses, or
        CANCELLED where that was asked for. An executor without a row gets one, and a timeout to beat.
        Locks: the rows, skipping locked ones.
        """
        silent = self._silent_executors()
        if not silent or not may():
            return []
        candidates = self._overdue().filter(executor_id__in=silent).order_by("executor_id")
        ids = list(candidates.values_list("pk", flat=True)[:limit])
        if not ids:
            return []
        with self.db.transaction():
            rows = self._lock_overdue(ids)
            busy = self.messages.unreachable({row.parent_id for row in rows if row.parent_id is not None})
            now = self.db.now()
            taken = [self._take_back(row, silent, now) for row in rows if row.parent_id not in busy]
            notified = self.messages.report_ends([ending for _, ending in taken if ending is not None])
            self.counters.add([lost(rescued) for rescued, _ in taken])
            reach("rescue.before")
        reach("rescue.after")
        if notified:
            self.waker.wake_or_defer(notified)
        return [rescued for rescued, _ in taken]

    def _silent_executors(self) -> dict[UUID, float]:
        """Give the executors that hold tasks and missed their timeout, with the seconds of their silence."""
        holders = self._holders()
        for executor_id in (pk for pk, seconds in holders.items() if seconds is None):
            unknown = ExecutorInfo(
                executor_id=executor_id, name="unknown", host="", pid=0, versions={}, queues=[], slots=0
            )
            self._write_executor(unknown)
        ahead = [pk for pk, seconds in holders.items() if seconds is not None and seconds < -AHEAD_SECONDS]
        if ahead:  # else it would have beaten until the clock is there again
            self.db.executors.filter(pk__in=ahead, heartbeat__gt=bound(AHEAD_SECONDS)).update(heartbeat=Clock())
        timeout = self.db.options.heartbeat_timeout
        return {pk: seconds for pk, seconds in holders.items() if seconds is not None and seconds > timeout}

    def _holders(self) -> dict[UUID, float | None]:
        """Give the executors that hold tasks, with the seconds since their last beat; None if they have no row."""
        holders = self.db.tasks.running().order_by().values_list("executor_id", flat=True).distinct()
        ids = {executor_id for executor_id in holders if executor_id is not None}
        if not ids:
            return {}
        beats, now = dict(self.db.executors.filter(pk__in=ids).values_list("pk", "heartbeat")), self.db.now()
        return {pk: (now - beats[pk]).total_seconds() if pk in beats else None for pk in ids}

    @property
    def _claim_counts_seconds(self) -> float:
        return min(CLAIM_COUNTS_SECONDS, self.db.options.heartbeat_timeout)

    def _overdue(self) -> TaskQuerySet:
        """Tasks that were not claimed just now; applied to the locked row too, which may have been claimed again."""
        return self.db.tasks.running().filter(self._not_just_claimed)

    @property
    def _not_just_claimed(self) -> Q:
        return Q(claimed_at__lt=bound(-self._claim_counts_seconds)) | Q(claimed_at__gt=bound(AHEAD_SECONDS))

    def _lock_overdue(self, ids: Sequence[UUID]) -> list[Task]:
        timeout = self.db.options.heartbeat_timeout
        spare = SpareHeartbeat.objects.using(self.db.using).filter(
            executor_id=OuterRef("pk"), at__gt=bound(-timeout), at__lt=bound(AHEAD_SECONDS)
        )
        silent = self.db.executors.filter(~Exists(spare), heartbeat__lt=bound(-timeout))
        rows = self.db.lock(ids).filter(
            self._not_just_claimed,
            status=Status.RUNNING,
            executor_id__in=silent.values("pk"),
        )
        texts = {"errors_text": Cast("errors", TextField()), "workers_text": Cast("worker_ids", TextField())}
        return list(rows.annotate(**texts).defer(*RAW))

    def _take_back(self, row: Any, silent: Mapping[UUID, float], now: datetime) -> tuple[Rescued, Ending | None]:
        executor_losses = row.executor_losses + 1
        status = Status.READY
        if row.cancel_requested_at is not None:
            status = Status.CANCELLED
        elif executor_losses >= self.db.options.max_executor_losses:
            status = Status.FAILED
        error = lost_error(row, executor_losses, now)
        self.db.tasks.running().filter(pk=row.pk, claim_number=row.claim_number).update(
            status=status,
            executor_losses=executor_losses,
            executor_id=None,
            claimed_at=None,
            finished_at=Clock() if status in FINAL else None,
            errors=[*read_list(row.errors_text), error][-ERRORS_KEPT:],
            worker_ids=[*read_list(row.workers_text), str(row.executor_id)][-WORKERS_KEPT:],
        )
        rescued = Rescued(
            id=row.pk,
            queue_name=row.queue_name,
            task_type=row.task_type,
            status=status,
            executor_losses=executor_losses,
            executor_id=row.executor_id,
            silent_seconds=silent[row.executor_id],
        )
        if status not in FINAL or row.parent_id is None or row.parent_notified_at is not None:
            return rescued, None
        return rescued, Ending(row.pk, row.parent_id, status, json.dumps(error))


def lost(rescued: Rescued) -> CounterDelta:
    is_dead = rescued.status is Status.FAILED
    return CounterDelta(queue_name=rescued.queue_name, task_type=rescued.task_type, lost=1, dead=int(is_dead))


def lost_error(row: Task, executor_losses: int, now: datetime) -> dict[str, Any]:
    """Make the entry of `errors` for a lost executor."""
    return {
        "attempt": row.attempts + 1,
        "at": written(now),
        "executor": str(row.executor_id),
        "exception_class_path": f"{ExecutorLost.__module__}.{ExecutorLost.__qualname__}",
        "message": f"The executor stopped beating while it ran this task (loss {executor_losses}).",
        "traceback": "",
    }
