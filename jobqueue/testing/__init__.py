"""
Run tasks in a test of your own: in its thread, in its transaction, on any database.

`__all__` is public.

* `crashes`: repeat a scenario with a crash at each write, and compare the results
* `queue`: run tasks in a test of your own: in its thread, in its transaction, on any database
* `schedule_time`: the time of schedules in a test: it stands still until the test moves it
* `workflow_stub`: run a workflow without a database, with values in place of its steps and children
"""

from jobqueue.testing.crashes import Moment, assert_crash_safe, at
from jobqueue.testing.queue import Polled, advance, context, message, poll_once, run_until_idle, set_time
from jobqueue.testing.workflow_stub import WorkflowStub

__all__ = [
    "Moment",
    "Polled",
    "WorkflowStub",
    "advance",
    "assert_crash_safe",
    "at",
    "context",
    "message",
    "poll_once",
    "run_until_idle",
    "set_time",
]
