"""
Run tasks in a test of your own: in its thread, in its transaction, on any database.

`__all__` is public.

* `queue`: run tasks in a test of your own: in its thread, in its transaction, on any database
* `schedule_time`: the time of schedules in a test: it stands still until the test moves it
"""

from jobqueue.testing.queue import Polled, advance, context, message, poll_once, run_until_idle, set_time

__all__ = ["Polled", "advance", "context", "message", "poll_once", "run_until_idle", "set_time"]
