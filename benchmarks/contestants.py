"""The measured programs with their settings and tables, as an ordinary user installs and starts them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

PYTHON = sys.executable
PROCESSES = "{processes}"  # in a command: the program itself starts this number of processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """
    The tables of a peer in PostgreSQL.

    jobs: the table. fresh: columns that differ for each row, with their SQL expression (`n` counts from 1).
    finished: a query of the times `at` at which jobs ended, from %(since)s on.
    left: FROM and WHERE of the jobs that a worker may claim.
    conditions: rows that a worker cannot or need not claim, as columns with another expression.
    """

    jobs: str
    fresh: Mapping[str, str]
    finished: str
    left: str
    empty: Sequence[str]
    conditions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A program with its settings. rate: about how many jobs a process does in a second, to size a round."""

    name: str
    peer: str
    package: str
    settings: str
    command: Sequence[str]
    ready: str
    rate: int
    processes: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_redis: bool = False
    min_seconds: float = 0.0  # a shorter measurement would see one burst or none
    rows: Mapping[str, str] = field(default_factory=dict)  # columns of its jobs that differ from those of the no-op job
    note: str = "note"  # the verb of benchmarks.produce that enqueues jobs for measurements of latency

    def commands(self) -> list[list[str]]:
        if any(PROCESSES in part for part in self.command):
            return [[part.replace(PROCESSES, str(self.processes)) for part in self.command]]
        return [list(self.command)] * self.processes


STORES = {
    "jobqueue": Store(
        jobs="jobqueue_task",
        fresh={"id": "uuidv7()", "rank": "clock_timestamp()", "enqueued_at": "clock_timestamp()"},
        finished="SELECT finished_at AS at FROM jobqueue_task WHERE finished_at >= %(since)s",
        left="FROM jobqueue_task WHERE status IN ('READY', 'BLOCKED') AND task_type LIKE 'benchmarks.%'"
        " AND queue_name NOT IN ('other', 'paused') AND coalesce(concurrency_key, '') NOT LIKE 'held:%'",
        empty=[
            *("jobqueue_task", "jobqueue_executor", "jobqueue_heartbeat"),
            *("jobqueue_admissionrequest", "jobqueue_ratestart"),
        ],
        conditions={
            "waiting": {},
            "finished": {"status": "'SUCCESSFUL'", "finished_at": "now() - interval '1 hour'"},
            "tomorrow": {
                "status": "'SCHEDULED'",
                "wake_at": "now() + interval '1 day'",
                "rank": "now() + interval '1 day'",
            },
            "another queue": {"queue_name": "'other'"},
            "paused queue": {"queue_name": "'paused'"},
            "unknown type": {"task_type": "'nobody.knows.this'"},
            "100 queues": {"queue_name": "'queue-' || n % 100"},
            # The first of each ten is READY in a paused queue. It counts, so the other nine cannot run.
            "blocked": {
                "concurrency_key": "'held:' || (n - 1) / 10",
                "concurrency_limit": "1",
                "status": "CASE WHEN n % 10 = 1 THEN 'READY' ELSE 'BLOCKED' END",
                "queue_name": "CASE WHEN n % 10 = 1 THEN 'paused' ELSE 'default' END",
            },
        },
    ),
    "pgqueuer": Store(
        jobs="pgqueuer",
        fresh={"id": "nextval('pgqueuer_id_seq')"},
        finished="SELECT created AS at FROM pgqueuer_log WHERE created >= %(since)s AND status = 'successful'",
        left="FROM pgqueuer WHERE status = 'queued' AND entrypoint <> 'other' AND execute_after <= now()",
        empty=["pgqueuer", "pgqueuer_log", "pgqueuer_statistics"],
        conditions={
            "waiting": {},
            "tomorrow": {"execute_after": "now() + interval '1 day'"},
            "unknown type": {"entrypoint": "'other'"},
        },
    ),
    "procrastinate": Store(
        jobs="procrastinate_jobs",
        fresh={"id": "nextval('procrastinate_jobs_id_seq')"},
        finished="SELECT at FROM procrastinate_events WHERE at >= %(since)s AND type = 'succeeded'",
        left="FROM procrastinate_jobs WHERE status = 'todo' AND queue_name = 'default' AND scheduled_at IS NULL",
        empty=["procrastinate_jobs", "procrastinate_events"],
        conditions={
            "waiting": {},
            "finished": {"status": "'succeeded'"},
            "tomorrow": {"scheduled_at": "now() + interval '1 day'"},
            "another queue": {"queue_name": "'other'"},
        },
    ),
    "tasks_db": Store(
        jobs="django_tasks_database_dbtaskresult",
        fresh={"id": "gen_random_uuid()", "enqueued_at": "clock_timestamp()"},
        finished="SELECT finished_at AS at FROM django_tasks_database_dbtaskresult WHERE finished_at >= %(since)s",
        left="FROM django_tasks_database_dbtaskresult WHERE status = 'READY' AND queue_name = 'default'"
        " AND run_after > '9000-01-01'",
        empty=["django_tasks_database_dbtaskresult"],
        conditions={
            "waiting": {},
            "finished": {"status": "'SUCCESSFUL'", "finished_at": "now() - interval '1 hour'"},
            "tomorrow": {"run_after": "now() + interval '1 day'"},
            "another queue": {"queue_name": "'other'"},
        },
    ),
    "ox": Store(
        jobs="django_ox_oxtask",
        fresh={"id": "gen_random_uuid()", "enqueued_at": "clock_timestamp()"},
        finished="SELECT finished_at AS at FROM django_ox_oxtask WHERE finished_at >= %(since)s",
        left="FROM django_ox_oxtask WHERE status = 'READY' AND queue_name = 'default'"
        " AND coalesce(run_after, now()) <= now()",
        empty=["django_ox_oxtask"],
        conditions={
            "waiting": {},
            "finished": {"status": "'SUCCESSFUL'", "finished_at": "now() - interval '1 hour'"},
            "tomorrow": {"run_after": "now() + interval '1 day'"},
            "another queue": {"queue_name": "'other'"},
        },
    ),
    "chancy": Store(
        jobs="chancy_jobs",
        fresh={"id": "uuidv7()"},
        finished="SELECT completed_at AS at FROM chancy_jobs WHERE completed_at >= %(since)s AND state = 'succeeded'",
        left="FROM chancy_jobs WHERE state = 'pending' AND queue = 'default'"
        " AND coalesce(scheduled_at, now()) <= now()",
        empty=["chancy_jobs"],
        conditions={
            "waiting": {},
            "finished": {"state": "'succeeded'", "completed_at": "now() - interval '1 hour'"},
            "tomorrow": {"scheduled_at": "now() + interval '1 day'"},
            "another queue": {"queue": "'other'"},
        },
    ),
}


def ours(
    name: str, settings: str, *flags: str, rate: int, processes: int = 2, rows: Mapping[str, str] | None = None
) -> Contestant:
    return Contestant(
        name=f"jobqueue, {name}",
        peer="jobqueue",
        package="django-jobqueue",
        settings=f"`{' '.join(['run_executors', *flags])}`{settings}",
        command=[PYTHON, "manage.py", "run_executors", *flags],
        ready=r"^ready",
        rate=rate,
        processes=processes,
        rows=rows or {},
    )


def limited(*, keys: int, limit: int) -> dict[str, str]:
    """Return rows of tasks with a limit, as they are after the first of each key have been admitted."""
    return {
        "concurrency_key": f"'key:' || n % {keys}",
        "concurrency_limit": str(limit),
        "status": f"CASE WHEN n <= {keys * limit} THEN 'READY' ELSE 'BLOCKED' END",
    }


def pgqueuer(batch: int, *, rate: int, processes: int = 2) -> Contestant:
    return Contestant(
        name=f"pgqueuer, batch {batch}",
        peer="pgqueuer",
        package="pgqueuer",
        settings=f"`PgQueuer.run(batch_size={batch})`, asyncpg, uvloop, async job",
        command=[PYTHON, "-m", "benchmarks.peers.pgqueuer_app", str(batch)],
        ready=r"^ready",
        rate=rate,
        processes=processes,
    )


def procrastinate(concurrency: int, *flags: str, rate: int = 500, processes: int = 2) -> Contestant:
    flags_text = " ".join(["--concurrency", str(concurrency), *flags])
    return Contestant(
        name=f"procrastinate, concurrency {concurrency}",
        peer="procrastinate",
        package="procrastinate",
        settings=f"`procrastinate worker {flags_text}`, async job",
        command=[
            PYTHON, "-m", "procrastinate", "--verbose", "--app", "benchmarks.peers.procrastinate_app.app",
            "worker", "--concurrency", str(concurrency), "--queues", "default", *flags,
        ],
        ready=r"Starting worker",
        rate=rate,
        processes=processes,
    )  # fmt: skip


def tasks_db(interval: str, *, processes: int = 2) -> Contestant:
    return Contestant(
        name=f"django-tasks-db, interval {interval}",
        peer="tasks_db",
        package="django-tasks-db",
        settings=f"`db_worker --interval {interval}`",
        command=[PYTHON, "-m", "django", "db_worker", "--interval", interval, "--no-startup-delay"],
        ready=r"Starting worker",
        rate=400,
        processes=processes,
        environment={"DJANGO_SETTINGS_MODULE": "benchmarks.peers.tasks_db_settings"},
    )


def ox(name: str, *flags: str, max_age: int = 0, processes: int = 2) -> Contestant:
    return Contestant(
        name=f"django-ox, {name}",
        peer="ox",
        package="django-ox",
        settings=f"`{' '.join(['ox_worker', *flags])}`, `CONN_MAX_AGE={max_age}`",
        command=[PYTHON, "-m", "django", "ox_worker", *flags],
        ready=r"Worker \S+ starting",
        rate=400,
        processes=processes,
        environment={"DJANGO_SETTINGS_MODULE": "benchmarks.peers.ox_settings", "CONN_MAX_AGE": str(max_age)},
    )


def chancy(
    name: str,
    *,
    rate: int,
    processes: int = 2,
    log: str = "INFO",
    rows: Mapping[str, str] | None = None,
    **queue: object,
) -> Contestant:
    options = ", ".join(f"{key}={value}" for key, value in queue.items()) or "the defaults"
    return Contestant(
        name=f"chancy, {name}",
        peer="chancy",
        package="chancy",
        settings=f"`Queue({options})`, log level {log}",
        command=[PYTHON, "-m", "benchmarks.peers.chancy_app"],
        ready=r"^ready",
        rate=rate,
        processes=processes,
        rows=rows or {},
        min_seconds=6.0,
        environment={"CHANCY_QUEUE": json.dumps({"name": "default"} | queue), "CHANCY_LOG": log},
    )


def celery(name: str, *flags: str, prefetch: int = 4, rate: int = 1_000, processes: int = 2) -> Contestant:
    return Contestant(
        name=f"Celery + Redis, {name}",
        peer="celery",
        package="celery",
        settings=" ".join(["`celery worker", f"-c {processes}", *flags]) + f"`, prefetch {prefetch}, results ignored",
        command=[
            PYTHON, "-m", "celery", "--app", "benchmarks.peers.celery_app", "worker", "--concurrency", PROCESSES,
            "--loglevel", "INFO", *flags,
        ],
        ready=r" ready\.",
        rate=rate,
        processes=processes,
        environment={"CELERY_PREFETCH": str(prefetch)},
        needs_redis=True,
    )  # fmt: skip


def huey(kind: str, *, processes: int = 2) -> Contestant:
    return Contestant(
        name=f"huey + Redis, {kind}",
        peer="huey",
        package="huey",
        settings=f"`huey_consumer -w {processes} -k {kind}`",
        command=[
            PYTHON, "-m", "huey.bin.huey_consumer", "benchmarks.peers.huey_app.huey", "-w", PROCESSES, "-k", kind,
        ],
        ready=r"consumer started|commands are available",
        rate=3_000,
        processes=processes,
        needs_redis=True,
    )  # fmt: skip


OURS_BEST = ours("best", "", "--threads=1", rate=12_000)
OURS_QUIET = ours("best, task logger off", "", "--threads=1", "--verbosity=0", rate=16_000)
OURS_THREADS = ours("8 threads", " (8 threads)", rate=7_000)
OURS_ASYNC = ours(
    "async",
    ", `async def`",
    rate=4_000,
    rows={"task_type": "'benchmarks.tasks.noop_async'", "pool": "'async'"},
)
OURS_DEFAULT = ours("defaults", " (8 threads)", rate=7_000, processes=1)
OURS_LIMITED_NOTES = replace(OURS_DEFAULT, name="jobqueue, each with a key of its own, limit 1", note="limited_note")
OURS_KEYS = ours("10,000 keys, limit 1", "", "--threads=1", rate=6_000, rows=limited(keys=10_000, limit=1))
OURS_KEY_OF_TEN = ours("one key, limit 10", "", "--threads=1", rate=2_000, rows=limited(keys=1, limit=10))
OURS_KEY_OF_ONE = ours("one key, limit 1", "", "--threads=1", rate=500, rows=limited(keys=1, limit=1))
PGQUEUER_DEFAULT = pgqueuer(10, rate=5_000, processes=1)
PGQUEUER_BEST = pgqueuer(500, rate=16_000)
PGQUEUER_OF_TEN = replace(
    PGQUEUER_BEST, name="pgqueuer, one entrypoint, limit 10", rows={"entrypoint": "'ten_at_a_time'"}
)
PGQUEUER_OF_ONE = replace(
    PGQUEUER_BEST, name="pgqueuer, one entrypoint, limit 1", rows={"entrypoint": "'one_at_a_time'"}
)
PROCRASTINATE_DEFAULT = procrastinate(1, processes=1)
PROCRASTINATE_BEST = procrastinate(20, "--delete-jobs", "never")
PROCRASTINATE_KEYS = replace(
    PROCRASTINATE_BEST, name="procrastinate, 10,000 locks", rows={"lock": "'lock-' || n % 10000"}
)
PROCRASTINATE_KEY = replace(PROCRASTINATE_BEST, name="procrastinate, one lock", rows={"lock": "'lock'"})
TASKS_DB_DEFAULT = tasks_db("1", processes=1)
TASKS_DB_BEST = tasks_db("0.05")
OX_DEFAULT = ox("defaults", processes=1)
# CONN_MAX_AGE: its worker recommends 600 when it starts; with Django's default it connects for each task.
# One thread for each process, as its documentation recommends for tasks that do not wait; 4 and 8 need more CPU time.
# --interval: as for django-tasks-db. Both poll.
OX_BEST = ox("best", "--interval", "0.05", max_age=600)
CHANCY_DEFAULT = chancy("defaults", rate=2_000, processes=1)
CHANCY_BEST = chancy(
    "async, eager",
    rate=4_000,
    log="WARNING",
    rows={"func": "'benchmarks.peers.chancy_app.noop_async'"},
    executor="chancy.executors.asyncex.AsyncExecutor",
    concurrency=1_000,
    eager_polling=True,
)
CHANCY_THREADS = chancy(
    "threads, eager",
    rate=2_000,
    processes=1,
    executor="chancy.executors.thread.ThreadedExecutor",
    concurrency=8,
    eager_polling=True,
)
CELERY_DEFAULT = celery("defaults")
CELERY_BEST = celery("best", "--without-gossip", "--without-mingle", "--without-heartbeat", prefetch=64)
HUEY_DEFAULT = huey("thread", processes=1)
HUEY_BEST = huey("process")
