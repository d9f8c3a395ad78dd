"""
The engine: all changes of the queue's rows go through it.

`engine_for()` gives the engine of a backend. Its parts work with Django's ORM on any database.

* `admissions`: make BLOCKED tasks READY when their limits by key allow it
* `batches`: batches: the ends of their members, and what a batch does alone
* `checkpoints`: what the next attempt of a function begins with
* `claim`: claim READY tasks for an executor
* `code_waits`: AWAITING_CODE: tasks that wait for an executor with code that takes their arguments
* `commit`: perform the outcomes of attempts, a whole batch in one transaction
* `counting`: how many rows there are: counted up to a bound, or estimated
* `counters`: each transaction inserts its deltas; maintenance adds them to the counters later
* `database`: the rows of one backend: every part of the engine reads, locks and writes through this
* `ends`: tasks that end without an attempt's outcome
* `due_schedules`: a row of a schedule as a value for its ticks, and the next tick as columns of the row
* `engine`: the engine of one backend: its verbs, and the parts that perform them
* `enqueues`: enqueue tasks: insert their rows, and do what is wanted if a unique key is taken
* `entries`: rows of journals: read, write and delete the recorded calls of workflows
* `executors`: heartbeats, commands, and the rescue of tasks from lost executors
* `heartbeats`: which executors are alive, silent or gone
* `inbox`: rows of messages: insert, read, count and delete them, and wake their receivers
* `inserts`: insert the rows of new tasks
* `journal`: the journals of workflows: read them, record calls, and change them for people
* `limit_conditions`: which tasks count for a limit by key, which wait for it, and which must be admitted
* `limits`: the numbers of limits by key that people set, and how many tasks wait for each limit
* `messages`: messages to tasks, from code, other tasks and ended children; and the wake-up of tasks that wait
* `postgres/`: the parts of the engine that differ on PostgreSQL, under the same names
* `queues`: depth, latency, limits and pauses
* `reports`: what bodies report: progress and log lines
* `schedules`: changes of schedules by people and by code, each of which accounts for the ticks that were due before
* `schema`: which tables, migrations and SQL functions of ours a database lacks
* `shared_failures`: failures of workflows because of a child, both of which a requeue requeues
* `tasks`: change and delete tasks: cancel, requeue, run now, discard, delete, prune
* `ticks`: make tasks of the ticks that are due, and record those that become none
* `timeouts`: whether an error of the database is a timeout
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.core.signals import setting_changed
from django.db import connections

from jobqueue.conf.options import options_for
from jobqueue.engine.admissions import REQUESTS_READ
from jobqueue.engine.code_waits import (
    FIRST,
    HEAD_TASKS,
    MAX_GROUPS,
    BlockedHead,
    Group,
    Head,
    Place,
    ReadyHead,
    StoredCall,
    Verdict,
    WaitingCall,
)
from jobqueue.engine.commit import RELEASE_BATCH
from jobqueue.engine.counters import AGGREGATE_BATCH
from jobqueue.engine.counting import CAP, KEYS_CAP, LEVEL_CAP, Count, count, count_or_estimate
from jobqueue.engine.database import Database, LockTimeout, read_list
from jobqueue.engine.due_schedules import DueSchedule, set_next
from jobqueue.engine.ends import listen_to_ends
from jobqueue.engine.engine import Engine
from jobqueue.engine.executors import LOST_CLASS_PATH
from jobqueue.engine.heartbeats import alive, gone, is_gone, is_silent, silent, silent_seconds, with_heartbeat
from jobqueue.engine.journal import ChangedTasks
from jobqueue.engine.limit_conditions import INDEXED, IS_ACTIVE, IS_WAITING, tasks_of_limit
from jobqueue.engine.messages import MESSAGES_PER_POLL
from jobqueue.engine.postgres.connection import configure_session, notify_from_elsewhere, notify_on, statement, unpooled
from jobqueue.engine.postgres.engine import PostgresEngine
from jobqueue.engine.schema import (
    applied_migrations,
    known_migrations,
    migrate_command,
    missing_migrations,
    missing_objects,
    missing_tables,
    schema_problem,
)
from jobqueue.engine.ticks import FIRE_BATCH
from jobqueue.engine.timeouts import LOCK_WAIT, SHORT_WAIT, UNREACHABLE, is_locked, is_slow, sqlstate_of
from jobqueue.models.clock import Clock, clock_to_compare, iso_utc, rank_from, read_clock


@cache
def engine_for(alias: str = "default") -> Engine:
    """
    Return the engine of a backend, by the vendor of its database.

    Raises ImproperlyConfigured when TASKS has no such alias or its OPTIONS are wrong.
    """
    options = options_for(alias)
    if connections[options.database].vendor == "postgresql":
        return PostgresEngine(alias, options)
    return Engine(alias, options)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("TASKS", "DATABASES"):
        engine_for.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.engine")

__all__ = [
    "AGGREGATE_BATCH",
    "CAP",
    "FIRE_BATCH",
    "FIRST",
    "HEAD_TASKS",
    "INDEXED",
    "IS_ACTIVE",
    "IS_WAITING",
    "KEYS_CAP",
    "LEVEL_CAP",
    "LOCK_WAIT",
    "LOST_CLASS_PATH",
    "MAX_GROUPS",
    "MESSAGES_PER_POLL",
    "RELEASE_BATCH",
    "REQUESTS_READ",
    "SHORT_WAIT",
    "UNREACHABLE",
    "BlockedHead",
    "ChangedTasks",
    "Clock",
    "Count",
    "Database",
    "DueSchedule",
    "Engine",
    "Group",
    "Head",
    "LockTimeout",
    "Place",
    "PostgresEngine",
    "ReadyHead",
    "StoredCall",
    "Verdict",
    "WaitingCall",
    "alive",
    "applied_migrations",
    "clock_to_compare",
    "configure_session",
    "count",
    "count_or_estimate",
    "engine_for",
    "gone",
    "is_gone",
    "is_locked",
    "is_silent",
    "is_slow",
    "iso_utc",
    "known_migrations",
    "listen_to_ends",
    "migrate_command",
    "missing_migrations",
    "missing_objects",
    "missing_tables",
    "notify_from_elsewhere",
    "notify_on",
    "rank_from",
    "read_clock",
    "read_list",
    "schema_problem",
    "set_next",
    "silent",
    "silent_seconds",
    "sqlstate_of",
    "statement",
    "tasks_of_limit",
    "unpooled",
    "with_heartbeat",
]
