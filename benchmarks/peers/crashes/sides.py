"""The compared queues: package, command, and the query for the state of their tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

TIMEOUT_SECONDS = 3.0  # without a heartbeat, until a worker counts as dead
BEAT_SECONDS = 1.0
POLL_SECONDS = 1.0
ATTEMPTS = 10  # for a task that raises
RETRY_SECONDS = 1

HERE = __package__
AGAIN = f"{ATTEMPTS} attempts, {RETRY_SECONDS} s apart"
OURS = """
SELECT (args ->> 0)::int AS number,
    CASE status WHEN 'SUCCESSFUL' THEN 'succeeded' WHEN 'FAILED' THEN 'failed' WHEN 'CANCELLED' THEN 'failed'
        WHEN 'RUNNING' THEN 'running' ELSE 'waiting' END AS state
FROM jobqueue_task
"""
PROCRASTINATE = """
SELECT (args ->> 'number')::int AS number,
    CASE status WHEN 'todo' THEN 'waiting' WHEN 'doing' THEN 'running' WHEN 'succeeded' THEN 'succeeded'
        ELSE 'failed' END AS state
FROM procrastinate_jobs
WHERE args ->> 'number' IS NOT NULL
"""
TASKS_DB = """
SELECT (args_kwargs -> 'args' ->> 0)::int AS number,
    CASE status WHEN 'SUCCESSFUL' THEN 'succeeded' WHEN 'FAILED' THEN 'failed' WHEN 'RUNNING' THEN 'running'
        ELSE 'waiting' END AS state
FROM django_tasks_database_dbtaskresult
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """
    One queue at its settings.

    site: package with its settings and tasks. enqueue: function of its tasks. command: of `django-admin`.
    tasks: query of number and state. settings, promise: for the page.
    """

    name: str
    package: str
    site: str
    enqueue: str = "enqueue"
    command: Sequence[str]
    tasks: str
    settings: str
    promise: str

    @property
    def settings_module(self) -> str:
        return f"{HERE}.{self.site}.settings"

    @property
    def function(self) -> str:
        return f"{HERE}.{self.site}.tasks.{self.enqueue}"

    @property
    def version(self) -> str:
        return version(self.package)

    def admin(self, *command: str) -> list[str]:
        return [sys.executable, "-m", "django", *command]


SIDES = {
    "jobqueue": Side(
        name="jobqueue, `atomic=True`",
        package="django-jobqueue",
        site="our_site",
        command=["run_executors", "--threads", "1"],
        tasks=OURS,
        settings=f"`run_executors --threads 1`, `HEARTBEAT_TIMEOUT` {TIMEOUT_SECONDS:g} s, {AGAIN}",
        promise="a dead executor's tasks start again; outcome and effect commit together, once",
    ),
    "jobqueue-own": Side(
        name="jobqueue, body's own transaction",
        package="django-jobqueue",
        site="our_site",
        enqueue="enqueue_in_own_transaction",
        command=["run_executors", "--threads", "1"],
        tasks=OURS,
        settings="the same, without `atomic=True`",
        promise="a dead executor's tasks start again; such effects happen at least once",
    ),
    "procrastinate": Side(
        name="procrastinate",
        package="procrastinate",
        site="procrastinate_site",
        command=["procrastinate", "worker", "--concurrency", "1"],
        tasks=PROCRASTINATE,
        settings=f"its Django app; `procrastinate worker --concurrency 1`, beats every {BEAT_SECONDS:g} s, stalled"
        f" after {TIMEOUT_SECONDS:g} s, polls every {POLL_SECONDS:g} s; `RetryStrategy`: {AGAIN}; its manual's"
        " [`retry_stalled_jobs`](https://procrastinate.readthedocs.io/en/stable/howto/production/retry_stalled_jobs.html),"
        " every second and with priority (there every ten minutes)",
        promise="jobs of a dead worker stay `doing` unless that periodic task retries them; then effects happen at"
        " least once",
    ),
    "tasks-db": Side(
        name="django-tasks-db",
        package="django-tasks-db",
        site="tasks_db_site",
        command=["db_worker", "--interval", f"{POLL_SECONDS:g}", "--no-startup-delay"],
        tasks=TASKS_DB,
        settings=f"`db_worker --interval {POLL_SECONDS:g}`; it has no further attempts and documents no recovery",
        promise="none: that a task of a dead worker stays RUNNING is a"
        " [known issue](https://github.com/RealOrangeOne/django-tasks/issues/46)",
    ),
}
