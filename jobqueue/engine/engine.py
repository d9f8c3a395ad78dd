"""The engine of one backend: its verbs, and the parts that perform them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import DatabaseError
from django.db.models import QuerySet

from jobqueue.conf.options import Options
from jobqueue.engine.admissions import Admissions
from jobqueue.engine.body_log import LogTable
from jobqueue.engine.claim import Claims
from jobqueue.engine.code_waits import CodeWaits
from jobqueue.engine.commit import REFUSALS, Commits, is_refusal
from jobqueue.engine.counters import Counters
from jobqueue.engine.database import Database
from jobqueue.engine.enqueues import Enqueues
from jobqueue.engine.executors import Executors
from jobqueue.engine.failpoints import failpoint
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.messages import Messages
from jobqueue.engine.progress import ProgressTable
from jobqueue.engine.queues import Queues
from jobqueue.engine.schedules import Schedules
from jobqueue.engine.tasks import Tasks
from jobqueue.engine.timeouts import is_locked
from jobqueue.models import Executor, InboxMessage, Queue, TaskQuerySet
from jobqueue.values.records import ClaimedBatch, ClaimRequest, CommitResult, Outcome


class Engine:
    """
    The queue of one backend on one database.

    Each verb is a method of a part, and an attribute of the engine, so that a call has no overhead. Every verb uses
    the database's clock. A verb that locks several rows locks them in id order, so that no two verbs deadlock. It
    reads afterwards.
    """

    database_class: type[Database] = Database
    counters_class: type[Counters] = Counters
    queues_class: type[Queues] = Queues
    admissions_class: type[Admissions] = Admissions
    messages_class: type[Messages] = Messages
    progress_class: type[ProgressTable] = ProgressTable
    logs_class: type[LogTable] = LogTable
    inserts_class: type[Inserts] = Inserts
    enqueues_class: type[Enqueues] = Enqueues
    tasks_class: type[Tasks] = Tasks
    claims_class: type[Claims] = Claims
    code_waits_class: type[CodeWaits] = CodeWaits
    commits_class: type[Commits] = Commits
    executors_class: type[Executors] = Executors
    schedules_class: type[Schedules] = Schedules

    def __init__(self, alias: str, options: Options) -> None:
        self.alias = alias
        self.options = options
        self.database = options.database
        self.db = db = self.database_class(alias, options)
        self.now, self.transaction, self.by_ids = db.now, db.transaction, db.by_ids

        counters = self.counters_class(db)
        self.aggregate_counters, self.counter_totals = counters.aggregate_counters, counters.counter_totals

        queues = self.queues_class(db)
        self.gauges, self.depths, self.queue_latency = queues.gauges, queues.depths, queues.queue_latency
        self.queues_in_use = queues.queues_in_use
        self.limited_queues, self.is_drained, self.notify = queues.limited_queues, queues.is_drained, queues.notify
        self.paused_executors, self.paused_queues = queues.paused_executors, queues.paused

        self.admissions = admissions = self.admissions_class(db)
        self.admit, self.count_starts = admissions.admit, admissions.count_starts

        messages = self.messages_class(db, admissions)
        self.send, self.read_messages, self.count_unread = messages.send, messages.read_messages, messages.count_unread
        self.find_keys, self.find_seen, self.task_types = messages.find_keys, messages.find_seen, messages.task_types
        self.wake, self.wake_or_defer = messages.wake, messages.wake_or_defer
        self.wake_due, self.sweep = messages.wake_due, messages.sweep

        progress = self.progress_class(db)
        self.write_progress = progress.write_progress
        logs = self.logs_class(db)
        self.write_logs = logs.write_logs

        inserts = self.inserts_class(db, counters, admissions)
        enqueues = self.enqueues_class(db, inserts, admissions)
        self.enqueue, self.enqueue_once = enqueues.enqueue, enqueues.enqueue_once

        tasks = self.tasks_class(db, inserts, messages, counters, admissions, progress, logs)
        self.cancel, self.descendants, self.requeue = tasks.cancel, tasks.descendants, tasks.requeue
        self.run_now, self.discard, self.delete = tasks.run_now, tasks.discard, tasks.delete
        self.prune, self.prune_status, self.prune_messages = tasks.prune, tasks.prune_status, tasks.prune_messages

        self.schedules = self.schedules_class(db, inserts, tasks)

        self.claims = claims = self.claims_class(db, queues)
        self.claim, self.claim_one, self.lock_claim = claims.claim, claims.claim_one, claims.lock_claim
        self.claim_isolated, self.has_isolated = claims.claim_isolated, claims.has_isolated
        self.move_to_pool = claims.move_to_pool

        self.code_waits = code_waits = self.code_waits_class(db, admissions, claims)

        self.commits = commits = self.commits_class(db, inserts, tasks, messages, counters, admissions, code_waits)
        self.commit, self.cancel_children = commits.commit, commits.cancel_children
        self.release, self.release_unknown_claims = commits.release, commits.release_unknown_claims

        executors = self.executors_class(db, messages, counters, admissions)
        self.heartbeat, self.rescue, self.command = executors.heartbeat, executors.rescue, executors.command
        self.isolate_tasks_of = executors.isolate_tasks_of
        self.take_command, self.pending_maintenance = executors.take_command, executors.pending_maintenance

    @property
    def tasks(self) -> TaskQuerySet:
        return self.db.tasks

    @property
    def messages(self) -> QuerySet[InboxMessage]:
        return self.db.messages

    @property
    def executors(self) -> QuerySet[Executor]:
        return self.db.executors

    @property
    def queues(self) -> QuerySet[Queue]:
        return self.db.queues

    def commit_and_claim(
        self,
        outcomes: Sequence[Outcome],
        request: ClaimRequest,
        *,
        admits: bool = False,
        returning: Collection[UUID] = (),
    ) -> tuple[CommitResult, ClaimedBatch]:
        """
        Commit outcomes and claim tasks in one transaction: the database writes its log to disk once for both.

        admits: between the two, admit tasks whose limits allow it now. If it is to claim nothing, it does not admit.
        returning: AWAITING_CODE tasks for which the caller has code. As many as it may claim become READY before the
        claim, in its transaction, so that no executor without the code takes them first.
        """
        if (outcomes or admits or returning) and not request.is_empty:
            try:
                with self.transaction():
                    committed = self.commits.apply(outcomes, holder=request.executor_id) if outcomes else CommitResult()
                    returned = self.code_waits.end(returning, request.limit) if returning else 0
                    admitted = self.admissions.admit_here() if admits or returned else None
                    claimed = self.claims.take(request)
                    failpoint("commit.before")
                    claimed.admitted, claimed.returned = admitted, returned
                    if claimed:
                        failpoint("claim.before")
                    return committed, claimed
            except (DatabaseError, *REFUSALS) as error:
                if not is_refusal(error) and not is_locked(error):
                    raise
        return self.commit(outcomes, holder=request.executor_id), self.claim(request)
