"""The engine on PostgreSQL: parts that run set-based statements in place of the portable ones."""

from __future__ import annotations

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.cancel import PostgresCanceller
from jobqueue.engine.postgres.claim import PostgresClaimer
from jobqueue.engine.postgres.commit import PostgresCommitter
from jobqueue.engine.postgres.connection import PostgresDatabase
from jobqueue.engine.postgres.counters import PostgresCounters
from jobqueue.engine.postgres.enqueue import PostgresEnqueuer
from jobqueue.engine.postgres.executors import PostgresExecutors
from jobqueue.engine.postgres.limits import PostgresLimits
from jobqueue.engine.postgres.messages import PostgresMessages
from jobqueue.engine.postgres.prune import PostgresPruner
from jobqueue.engine.postgres.queues import PostgresQueues
from jobqueue.engine.postgres.wake import PostgresWaker


class PostgresEngine(Engine):
    """The engine on PostgreSQL 14 and later."""

    database_class = PostgresDatabase
    limits_class = PostgresLimits
    counters_class = PostgresCounters
    messages_class = PostgresMessages
    waker_class = PostgresWaker
    claimer_class = PostgresClaimer
    enqueuer_class = PostgresEnqueuer
    canceller_class = PostgresCanceller
    committer_class = PostgresCommitter
    pruner_class = PostgresPruner
    executors_class = PostgresExecutors
    queues_class = PostgresQueues

    db: PostgresDatabase
