"""The engine on PostgreSQL: parts that run set-based statements in place of the portable ones."""

from __future__ import annotations

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.admissions import PostgresAdmissions
from jobqueue.engine.postgres.claim import PostgresClaims
from jobqueue.engine.postgres.code_waits import PostgresCodeWaits
from jobqueue.engine.postgres.commit import PostgresCommits
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.postgres.counters import PostgresCounters
from jobqueue.engine.postgres.entries import PostgresEntries
from jobqueue.engine.postgres.executors import PostgresExecutors
from jobqueue.engine.postgres.inbox import PostgresInbox
from jobqueue.engine.postgres.inserts import PostgresEnqueues, PostgresInserts
from jobqueue.engine.postgres.queues import PostgresQueues
from jobqueue.engine.postgres.tasks import PostgresTasks
from jobqueue.engine.postgres.ticks import PostgresTicks


class PostgresEngine(Engine):
    """The engine on PostgreSQL 14 and later."""

    database_class = PostgresDatabase
    counters_class = PostgresCounters
    queues_class = PostgresQueues
    admissions_class = PostgresAdmissions
    inbox_class = PostgresInbox
    inserts_class = PostgresInserts
    enqueues_class = PostgresEnqueues
    entries_class = PostgresEntries
    tasks_class = PostgresTasks
    claims_class = PostgresClaims
    code_waits_class = PostgresCodeWaits
    commits_class = PostgresCommits
    executors_class = PostgresExecutors
    ticks_class = PostgresTicks

    db: PostgresDatabase
