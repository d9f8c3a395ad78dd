"""Executors: heartbeats, commands, and the rescue of tasks from lost executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, Min, Q

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.counters import Counters
from jobqueue.engine.database import ERRORS_KEPT, WORKERS_KEPT, Part, read_list, with_texts
from jobqueue.engine.ends import ended
from jobqueue.engine.entries import EntryStatements
from jobqueue.engine.heartbeats import is_silent, silent
from jobqueue.engine.messages import Messages, make_ending
from jobqueue.exceptions import ExecutorLost
from jobqueue.models import ISOLATION_LOSSES, CounterDelta, Executor, Heartbeat, Task, TaskQuerySet
from jobqueue.models.clock import AHEAD_SECONDS, Clock, clock_to_compare, iso_utc, rank_from
from jobqueue.values.causes import fingerprint
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import ExecutorInfo, NewMessage, OwnedTask, PendingWork, Rescued
from jobqueue.values.states import FINAL, WAITING, Command, Status

# A process that was frozen may claim before its next heartbeat. For so long, the claim counts as one.
CLAIM_COUNTS_SECONDS = 1.0
WRITTEN_EACH_TIME = ("state", "waiting_for_connections", "problem")  # by a heartbeat, the others at the start
LOST_CLASS_PATH = f"{ExecutorLost.__module__}.{ExecutorLost.__qualname__}"  # in the error of a rescue


@dataclass(eq=False)
class Executors(Part):
    messages: Messages
    counters: Counters
    admissions: Admissions
    entries: EntryStatements  # of journals

    def heartbeat(self, executor: ExecutorInfo) -> list[OwnedTask] | None:
        """
        Write the executor's heartbeat, and return the tasks that it holds.

        Return None if another session has locked the table of tasks. Then no executor can take the tasks, either.

        Task rows are only read, so that a sender's long transaction cannot stop the heartbeat of a healthy executor.
        Locks: the row of its heartbeat, until the statement ends. The executor's own row is written once, and again if
        the row was deleted.
        """
        written = {name: getattr(executor, name) for name in WRITTEN_EACH_TIME}
        self.db.heartbeats.bulk_create(
            [Heartbeat(executor_id=executor.executor_id, at=Clock(), **written)],
            update_conflicts=True,
            unique_fields=["executor"],
            update_fields=["at", *written],
        )
        if not self.db.executors.filter(pk=executor.executor_id).exists():
            self._write_executor(executor)
        rows = self.db.tasks.running().filter(executor_id=executor.executor_id)
        return [
            OwnedTask(id=pk, claim_number=number, is_cancel_requested=requested is not None)
            for pk, number, requested in rows.values_list("pk", "claim_number", "cancel_requested_at")
        ]

    def command(self, executor_ids: Collection[UUID], command: Command) -> int:
        """
        Send a command to executors that have not stopped. Return how many. Each reads it within about a second.

        Locks: their rows. Do not call this in a transaction that stays open: they skip a command in a locked row.
        """
        rows = self.db.executors.filter(pk__in=executor_ids).exclude(heartbeat__state=Executor.State.STOPPED)
        return rows.update(command=command)

    def take_command(self, executor_id: UUID) -> Command | None:
        """Return the command for an executor, once. Locks: its row, if it has a command; a locked row is skipped."""
        row = self.db.executors.filter(pk=executor_id)
        with self.db.transaction():
            pending = self.db.with_lock(row.exclude(command=""), no_key=False)
            command = pending.values_list("command", flat=True).first() or ""
            if command:
                row.update(command="")
        return Command(command) if command in {*Command} else None

    def _write_executor(self, executor: ExecutorInfo) -> None:
        """Insert the executor's row, unless it exists."""
        columns = {name: value for name, value in asdict(executor).items() if name not in WRITTEN_EACH_TIME}
        pk = columns.pop("executor_id")
        row = Executor(id=pk, backend=self.db.backend, started_at=self.db.now(), **columns)
        self.db.executors.bulk_create([row], ignore_conflicts=True)

    def pending_maintenance(self, executor_id: UUID) -> PendingWork:
        """Return the work that maintenance may find. Locks: none."""
        wake_at = self.db.tasks.filter(status__in=WAITING).aggregate(at=Min("wake_at"))["at"]
        due_at = self.db.schedules.aggregate(at=Min("due_at"))["at"]
        moments = (wake_at, due_at, self.admissions.next_due())
        now = self.db.now()
        wake, tick, admission = (None if at is None else (at - now).total_seconds() for at in moments)
        return PendingWork(wake, tick, admission)

    def rescue(self, limit: int = 100, may: Callable[[], bool] = lambda: True) -> list[Rescued]:
        """
        Take RUNNING tasks from lost executors: those without a heartbeat within the timeout.

        The tasks become READY at their old rank with one more loss, FAILED at the limit of losses, or CANCELLED if that
        was requested and no journal defers it. A task that was claimed within CLAIM_COUNTS_SECONDS stays. An executor
        without a heartbeat gets one, and a full timeout for the next. may: called once if an executor is silent. If it
        returns False, no task is taken. Locks: the rows, skipping locked ones.
        """
        silent = self._silent_executors()
        if not silent or not may():
            return []
        candidates = self._not_just_claimed(self.db.tasks).filter(executor_id__in=silent).order_by("executor_id")
        ids = list(candidates.values_list("pk", flat=True)[:limit])
        if not ids:
            return []
        with self.db.transaction():
            rows = self._lock_lost(ids)
            busy = self.messages.inbox.unreachable({row.parent_id for row in rows if row.parent_id is not None})
            now = self.db.now()
            asked = {row.pk for row in rows if row.cancel_requested_at is not None}
            deferring = self.entries.that_finish_themselves(asked)
            for row in rows:
                if row.pk in deferring:
                    row.cancel_requested_at = None  # here only: the row keeps the request
            taken = [self._release_lost(row, silent, now) for row in rows if row.parent_id not in busy]
            self.admissions.request([rescued.id for rescued, _ in taken])
            self.admissions.count_lost([rescued.id for rescued, _ in taken])
            notified = self.messages.report_ends([ending for _, ending in taken if ending is not None])
            self.counters.add([count_of_loss(rescued) for rescued, _ in taken])
            for status in (Status.FAILED, Status.CANCELLED):
                ended(self.db, [rescued.id for rescued, _ in taken if rescued.status is status], status)
            failpoint("rescue.before")
        failpoint("rescue.after")
        if notified:
            self.messages.wake_or_defer(notified)
        return [rescued for rescued, _ in taken]

    def isolate_tasks_of(self, executor_id: UUID) -> int:
        """
        Let the tasks of an executor that one of them has frozen run alone after their rescue. Return how many.

        Otherwise the task would freeze a second executor, with other tasks in it. Locks: its tasks; skips locked ones.
        """
        losses = min(ISOLATION_LOSSES, self.db.options.max_executor_losses - 1) - 1  # the rescue adds one
        rows = self.db.tasks.running().filter(executor_id=executor_id, executor_losses__lt=losses)
        with self.db.transaction():
            ids = list(self.db.lock(list(rows.values_list("pk", flat=True))).values_list("pk", flat=True))
            return rows.filter(pk__in=ids).update(executor_losses=losses)

    def _silent_executors(self) -> dict[UUID, float]:
        """Return the executors with tasks that missed their timeout, and the seconds of their silence."""
        holders = self._holders()
        if unknown := [pk for pk, seconds in holders.items() if seconds is None]:
            now = self.db.now()
            rows = [Heartbeat(executor_id=pk, at=now) for pk in unknown]
            self.db.heartbeats.bulk_create(rows, ignore_conflicts=True)
        ahead = [pk for pk, seconds in holders.items() if seconds is not None and seconds < -AHEAD_SECONDS]
        if ahead:  # otherwise it would seem to be alive until the clock reaches that time again
            self.db.heartbeats.filter(pk__in=ahead, at__gt=clock_to_compare(after=AHEAD_SECONDS)).update(at=Clock())
        timeout = self.db.options.heartbeat_timeout
        return {pk: seconds for pk, seconds in holders.items() if seconds is not None and is_silent(seconds, timeout)}

    def _holders(self) -> dict[UUID, float | None]:
        """Return the executors with tasks, and the seconds since their last heartbeat; None: none."""
        holders = self.db.tasks.running().order_by().values_list("executor_id", flat=True).distinct()
        ids = {executor_id for executor_id in holders if executor_id is not None}
        if not ids:
            return {}
        heartbeats = dict(self.db.heartbeats.filter(pk__in=ids).values_list("pk", "at"))
        now = self.db.now()
        return {pk: (now - heartbeats[pk]).total_seconds() if pk in heartbeats else None for pk in ids}

    def _not_just_claimed(self, tasks: TaskQuerySet) -> TaskQuerySet:
        """Select RUNNING tasks, without those that were claimed a moment ago."""
        counts_seconds = min(CLAIM_COUNTS_SECONDS, self.db.options.heartbeat_timeout)
        return tasks.filter(
            Q(claimed_at__lt=clock_to_compare(after=-counts_seconds))
            | Q(claimed_at__gt=clock_to_compare(after=AHEAD_SECONDS)),
            status=Status.RUNNING,
        )

    def _lock_lost(self, ids: Sequence[UUID]) -> list[Task]:
        """Lock the tasks whose executor is still silent. Another executor may have claimed some of them since."""
        lost = self.db.heartbeats.filter(silent(self.db.options.heartbeat_timeout, at="at"))
        rows = self._not_just_claimed(self.db.lock(ids)).filter(executor_id__in=lost.values("pk"))
        return with_texts(rows)

    def _release_lost(self, row: Any, silent: Mapping[UUID, float], now: datetime) -> tuple[Rescued, NewMessage | None]:
        executor_losses = row.executor_losses + 1
        status = Status.READY if row.rate_key is None else Status.BLOCKED  # each start counts for a rate
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
            counts_while_waiting=status is Status.BLOCKED and row.concurrency_key is not None,
            # Not by its admission: before the tasks that were BLOCKED behind it.
            rank=rank_from(F("enqueued_at"), self.db.options.aging) if status is Status.BLOCKED else F("rank"),
            finished_at=Clock() if status in FINAL else None,
            errors=[*read_list(row.errors_text), error][-ERRORS_KEPT:],
            cause=fingerprint(row.task_type, error["exception_class_path"], error["message"]),
            worker_ids=[*read_list(row.worker_ids_text), str(row.executor_id)][-WORKERS_KEPT:],
        )
        silent_seconds = silent[row.executor_id]
        rescued = Rescued(
            row.pk, row.queue_name, row.task_type, status, executor_losses, row.executor_id, silent_seconds
        )
        return rescued, make_ending(row, status, json.dumps(error))


def count_of_loss(rescued: Rescued) -> CounterDelta:
    is_dead = rescued.status is Status.FAILED
    return CounterDelta(queue_name=rescued.queue_name, task_type=rescued.task_type, lost=1, dead=int(is_dead))


def lost_error(row: Task, executor_losses: int, now: datetime) -> dict[str, Any]:
    """Make the entry of `errors` for a lost executor."""
    return {
        "attempt": row.attempts + 1,
        "claim_number": row.claim_number,
        "at": iso_utc(now),
        "executor": str(row.executor_id),
        "exception_class_path": LOST_CLASS_PATH,
        "message": f"The executor was lost while it ran this task (loss {executor_losses}).",
        "traceback": "",
    }
