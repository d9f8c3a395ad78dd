"""
The tables of the queue. Any code may read them; only `jobqueue.engine` writes them.

Columns are described in migrations/sql/comments.sql.

* `counters`: the tables of counters
* `indexes`: indexes and constraints of the tables, and the order of keys in them
* `limits`: the tables of limits by key and of unique keys
* `reports`: the tables of what bodies report while they run
* `schedules`: the tables of schedules
* `tasks`: the tables of tasks, messages, executors and queues
"""

from jobqueue.models.counters import Counter, CounterDelta, CounterPeriod
from jobqueue.models.indexes import LimitKeyField
from jobqueue.models.limits import AdmissionRequest, KeyReservation, Limit, RateStart
from jobqueue.models.reports import TaskLog, TaskProgress
from jobqueue.models.schedules import (
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
    FallbackHeartbeat,
    InboxMessage,
    Queue,
    Task,
    TaskQuerySet,
)

__all__ = [
    "FINAL",
    "ISOLATION_LOSSES",
    "LIVE",
    "STOPPED_BY",
    "AdmissionRequest",
    "Counter",
    "CounterDelta",
    "CounterPeriod",
    "Executor",
    "FallbackHeartbeat",
    "InboxMessage",
    "KeyReservation",
    "Limit",
    "LimitKeyField",
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
]
