"""
The tables of the queue. Any code may read them; only `jobqueue.engine` writes them.

Columns are described in migrations/sql/comments.sql.

* `clock`: the database's clock, as an expression
* `counters`: the tables of counters
* `indexes`: indexes and constraints of the tables, and the order of keys in them
* `journal`: the table of recorded calls of workflows
* `limits`: the tables of limits by key and of unique keys
* `pauses`: pauses of queues and schedules: their columns, and when such a row is paused
* `reports`: the tables of what bodies report while they run
* `schedules`: the tables of schedules
* `tasks`: the tables of tasks, messages, executors and queues
"""

from jobqueue.models.counters import Counter, CounterDelta, CounterPeriod
from jobqueue.models.indexes import LimitKeyField
from jobqueue.models.journal import JournalEntry
from jobqueue.models.limits import AdmissionRequest, KeyReservation, Limit, RateStart
from jobqueue.models.pauses import NO_PAUSE, Pausable, is_paused
from jobqueue.models.reports import TaskLog, TaskProgress
from jobqueue.models.schedules import (
    IS_STOPPED,
    STOPPED_BY,
    Schedule,
    ScheduleDeployment,
    ScheduleQuerySet,
    ScheduleTick,
)
from jobqueue.models.tasks import (
    FINAL,
    ISOLATION_LOSSES,
    LIVE,
    Executor,
    Heartbeat,
    InboxMessage,
    Queue,
    Task,
    TaskQuerySet,
)

__all__ = [
    "FINAL",
    "ISOLATION_LOSSES",
    "IS_STOPPED",
    "LIVE",
    "NO_PAUSE",
    "STOPPED_BY",
    "AdmissionRequest",
    "Counter",
    "CounterDelta",
    "CounterPeriod",
    "Executor",
    "Heartbeat",
    "InboxMessage",
    "JournalEntry",
    "KeyReservation",
    "Limit",
    "LimitKeyField",
    "Pausable",
    "Queue",
    "RateStart",
    "Schedule",
    "ScheduleDeployment",
    "ScheduleQuerySet",
    "ScheduleTick",
    "Task",
    "TaskLog",
    "TaskProgress",
    "TaskQuerySet",
    "is_paused",
]
