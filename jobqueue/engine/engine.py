"""The engine of one backend: its verbs, and the parts that perform them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import DatabaseError

from jobqueue.conf.options import Options
from jobqueue.engine.admissions import Admissions
from jobqueue.engine.batches import Batches
from jobqueue.engine.checkpoints import Checkpoints
from jobqueue.engine.claim import Claims
from jobqueue.engine.code_waits import CodeWaits
from jobqueue.engine.commit import REFUSALS, Commits, is_refusal
from jobqueue.engine.counters import Counters
from jobqueue.engine.database import Database
from jobqueue.engine.enqueues import Enqueues
from jobqueue.engine.entries import EntryStatements
from jobqueue.engine.executors import Executors
from jobqueue.engine.inbox import InboxStatements
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.journal import Journals
from jobqueue.engine.limits import Limits
from jobqueue.engine.messages import Messages
from jobqueue.engine.queues import Queues
from jobqueue.engine.reports import Reports
from jobqueue.engine.schedules import Schedules
from jobqueue.engine.shared_failures import SharedFailures
from jobqueue.engine.tasks import Tasks
from jobqueue.engine.ticks import Ticks
from jobqueue.engine.timeouts import is_locked
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import ClaimedBatch, ClaimRequest, CommitResult, Outcome


class Engine:
    """
    The queue of one backend on one database.

    Each verb is a method of a part: `engine.claims.claim(...)`. `engine.db` has the rows. Every verb uses the
    database's clock. A verb that locks several rows locks them in id order, so that no two verbs deadlock. It reads
    afterwards.

    It has more than 15 attributes because each part of the engine is one.
    """

    database_class: type[Database] = Database
    counters_class: type[Counters] = Counters
    queues_class: type[Queues] = Queues
    admissions_class: type[Admissions] = Admissions
    limits_class: type[Limits] = Limits
    inbox_class: type[InboxStatements] = InboxStatements
    messages_class: type[Messages] = Messages
    inserts_class: type[Inserts] = Inserts
    enqueues_class: type[Enqueues] = Enqueues
    entries_class: type[EntryStatements] = EntryStatements
    tasks_class: type[Tasks] = Tasks
    claims_class: type[Claims] = Claims
    code_waits_class: type[CodeWaits] = CodeWaits
    commits_class: type[Commits] = Commits
    executors_class: type[Executors] = Executors
    ticks_class: type[Ticks] = Ticks
    schedules_class: type[Schedules] = Schedules

    def __init__(self, alias: str, options: Options) -> None:
        self.alias = alias
        self.options = options
        self.database = options.database
        self.db = db = self.database_class(alias, options)
        self.counters = self.counters_class(db)
        self.queues = self.queues_class(db)
        self.admissions = self.admissions_class(db)
        self.limits = self.limits_class(db, self.admissions)
        self.inbox = self.inbox_class(db, self.admissions)
        self.messages = self.messages_class(db, self.inbox)
        self.reports = Reports(db)
        self.checkpoints = Checkpoints(db)
        self.entries = self.entries_class(db)
        self.inserts = self.inserts_class(db, self.counters, self.admissions)
        self.enqueues = self.enqueues_class(db, self.inserts, self.admissions, self.entries)
        self.failures = SharedFailures(db, self.entries)
        self.tasks = self.tasks_class(
            db,
            self.inserts,
            self.messages,
            self.counters,
            self.admissions,
            self.reports,
            self.entries,
            self.failures,
        )
        self.batches = Batches(db, self.inbox, self.tasks)
        self.ticks = self.ticks_class(db, self.inserts, self.tasks)
        self.schedules = self.schedules_class(db, self.ticks)
        self.claims = self.claims_class(db, self.queues)
        self.code_waits = self.code_waits_class(db, self.admissions, self.claims)
        self.commits = self.commits_class(
            db, self.inserts, self.tasks, self.messages, self.counters, self.admissions, self.code_waits, self.entries
        )
        self.journal = Journals(db, self.entries, self.commits, self.messages, self.tasks)
        self.executors = self.executors_class(db, self.messages, self.counters, self.admissions, self.entries)

    def commit_and_claim(
        self,
        outcomes: Sequence[Outcome],
        request: ClaimRequest,
        *,
        should_admit: bool = False,
        returning: Collection[UUID] = (),
    ) -> tuple[CommitResult, ClaimedBatch]:
        """
        Commit outcomes and claim tasks in one transaction: the database writes its log to disk once for both.

        should_admit: between commit and claim, admit tasks whose limits allow it now. An empty request admits none.
        returning: AWAITING_CODE tasks for which the caller has code. As many as it may claim become READY before the
        claim, in its transaction, so that no executor without the code takes them first.
        """
        if (outcomes or should_admit or returning) and not request.is_empty:
            try:
                with self.db.transaction():
                    committed = (
                        self.commits.perform(outcomes, holder=request.executor_id) if outcomes else CommitResult()
                    )
                    returned = self.code_waits.end(returning, request.limit) if returning else 0
                    admitted = self.admissions.admit_in_transaction() if should_admit or returned else None
                    claimed = self.claims.take(request)
                    failpoint("commit.before")
                    claimed.admitted, claimed.returned = admitted, returned
                    if claimed:
                        failpoint("claim.before")
                    return committed, claimed
            except (DatabaseError, *REFUSALS) as error:
                if not is_refusal(error) and not is_locked(error):
                    raise
        return self.commits.commit(outcomes, holder=request.executor_id), self.claims.claim(request)
