"""The engine of one backend: its verbs, and the parts that perform them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import DatabaseError
from django.db.models import QuerySet

from jobqueue.conf import Options
from jobqueue.engine.portable.cancel import Canceller
from jobqueue.engine.portable.claim import Claimer
from jobqueue.engine.portable.commit import Committer
from jobqueue.engine.portable.counters import Counters
from jobqueue.engine.portable.database import Database
from jobqueue.engine.portable.enqueue import Enqueuer
from jobqueue.engine.portable.executors import Executors
from jobqueue.engine.portable.limits import Limits
from jobqueue.engine.portable.messages import Messages
from jobqueue.engine.portable.prune import Pruner
from jobqueue.engine.portable.queues import Queues
from jobqueue.engine.portable.refusals import REFUSALS, is_refusal
from jobqueue.engine.portable.release import Releaser
from jobqueue.engine.portable.requeue import Requeuer
from jobqueue.engine.portable.wake import Waker
from jobqueue.failpoints import failpoint
from jobqueue.models import Executor, InboxMessage, Queue, TaskQuerySet
from jobqueue.records import ClaimedBatch, ClaimRequest, CommitResult, Outcome


class Engine:
    """
    The queue of one backend on one database.

    Each verb belongs to a part, in the file of the same name. The engine binds the parts' methods as its own
    attributes, so that a call has no overhead. Every verb uses the database's clock. A verb that locks several rows
    locks them in id order, so that no two verbs deadlock. It reads afterwards.
    """

    database_class: type[Database] = Database
    limits_class: type[Limits] = Limits
    counters_class: type[Counters] = Counters
    messages_class: type[Messages] = Messages
    waker_class: type[Waker] = Waker
    claimer_class: type[Claimer] = Claimer
    enqueuer_class: type[Enqueuer] = Enqueuer
    canceller_class: type[Canceller] = Canceller
    committer_class: type[Committer] = Committer
    requeuer_class: type[Requeuer] = Requeuer
    pruner_class: type[Pruner] = Pruner
    executors_class: type[Executors] = Executors
    queues_class: type[Queues] = Queues

    def __init__(self, alias: str, options: Options) -> None:
        self.alias = alias
        self.options = options
        self.database = options.database
        self.db = db = self.database_class(alias, options)
        self.now, self.transaction, self.by_ids = db.now, db.transaction, db.by_ids

        limits = self.limits_class(db)
        self.limited_queues = limits.limited_queues

        counters = self.counters_class(db)
        self.aggregate_counters, self.counter_totals = counters.aggregate_counters, counters.counter_totals

        messages = self.messages_class(db)
        self.send, self.read_messages, self.count_unread = messages.send, messages.read_messages, messages.count_unread
        self.find_keys, self.find_seen, self.task_types = messages.find_keys, messages.find_seen, messages.task_types

        waker = self.waker_class(db)
        self.wake_due, self.wake, self.wake_or_defer, self.sweep = (
            waker.wake_due, waker.wake, waker.wake_or_defer, waker.sweep
        )  # fmt: skip

        claimer = self.claimer = self.claimer_class(db, limits)
        self.claim, self.claim_one, self.lock_claim = claimer.claim, claimer.claim_one, claimer.lock_claim
        self.claim_isolated, self.move_to_pool = claimer.claim_isolated, claimer.move_to_pool
        self.queues_in_use, self.has_isolated = claimer.queues_in_use, claimer.has_isolated
        self.is_drained = claimer.is_drained

        enqueuer = self.enqueuer = self.enqueuer_class(db, counters)
        self.enqueue, self.enqueue_once = enqueuer.enqueue, enqueuer.enqueue_once

        canceller = self.canceller_class(db, messages)
        self.cancel, self.descendants = canceller.cancel, canceller.descendants

        committer = self.committer = self.committer_class(db, enqueuer, messages, canceller, waker, counters)
        self.commit = committer.commit

        releaser = Releaser(db, committer)
        self.release, self.release_unknown_claims = releaser.release, releaser.release_unknown_claims

        self.requeue = self.requeuer_class(db).requeue

        pruner = self.pruner_class(db, messages, counters)
        self.prune, self.prune_status = pruner.prune, pruner.prune_status

        executors = self.executors_class(db, messages, waker, counters)
        self.heartbeat, self.command, self.take_command = (
            executors.heartbeat, executors.command, executors.take_command
        )  # fmt: skip
        self.rescue, self.pending_maintenance = executors.rescue, executors.pending_maintenance

        queues = self.queues_class(db, claimer, limits)
        self.gauges, self.queue_latency, self.paused_executors, self.notify = (
            queues.gauges, queues.queue_latency, queues.paused_executors, queues.notify
        )  # fmt: skip

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

    def commit_and_claim(self, outcomes: Sequence[Outcome], request: ClaimRequest) -> tuple[CommitResult, ClaimedBatch]:
        """Commit outcomes and claim tasks in one transaction: the database writes its log to disk once for both."""
        if outcomes and not request.is_empty:
            try:
                with self.transaction():
                    committed = self.committer.apply(outcomes, holder=request.executor_id)
                    claimed = self.claimer.take(request)
                    failpoint("commit.before")
                    if claimed:
                        failpoint("claim.before")
                    return committed, claimed
            except (DatabaseError, *REFUSALS) as error:
                if not is_refusal(error):
                    raise
        return self.commit(outcomes, holder=request.executor_id), self.claim(request)
