"""
The tables of the queue. Any code may read them; only `jobqueue.engine` writes them.

Columns are described in migrations/sql/comments.sql.

* tasks.py: tasks, their messages, executors and queues
* schedules.py: schedules, their ticks, and the versions of declared schedules
* limits.py: limits by key, their admission requests, counted starts, and unique keys
* counters.py: numbers of events, per period
* reports.py: progress and log lines of bodies
* indexes.py: how indexes and constraints are declared
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
