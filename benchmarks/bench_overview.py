"""
Measure the overview, its pages and the task list: python -m benchmarks.bench_overview

80 of 100 tasks are successful, 10 scheduled, 4 ready, 1 blocked by one of 1,000 keys, 3 failed for 40 causes, 1
suspended, 1 cancelled; 40 queues, 100 task types, 100 schedules, and counters of a week. Each request goes through the
middleware of a site, without a network. Prints the time of a request, and how much of it Python and the queries took.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from django.db import connection
from django.test import Client

from benchmarks import cluster
from benchmarks.bench_schedule_pages import AIM_SECONDS, in_ms, measure

BATCH = 250_000  # rows of a statement
CAUSE = "0" * 15 + "1"
STATUSES = ("READY", "BLOCKED", "SCHEDULED", "SUSPENDED", "SUCCESSFUL", "FAILED", "CANCELLED")
PAGES = {
    "overview, hour": "",
    "overview, day": "?range=day",
    "overview, week": "?range=week",
    "failures by cause": "task/failures/",
    "failures by cause, page 2": "task/failures/?p=2",
    "task type": "task/summary/?name=shop.tasks.task_7",
    "task type, week": "task/summary/?name=shop.tasks.task_7&range=week",
    "queue": "queue/summary/?name=queue-7",
    "queues": "queue/",
    "executors": "executor/",
    "executor": "executor/{executor}/change/",
    "limits": "limit/",
    "key of a limit": "limit/default_3Aconcurrency_3Ashop.customer_3A7/change/",
    "schedules": "schedule/",
    "schedule": "schedule/{schedule}/change/",
    "task that failed": "task/{failed}/change/",
    "task that is ready": "task/{ready}/change/",
    "list of a cause": f"task/?status=FAILED&cause={CAUSE}",
    "list": "task/",
    **{f"list of {status}": f"task/?status={status}" for status in STATUSES},
    "list, page 100": "task/?p=100",
    "list of a queue": "task/?queue=queue-7",
    "list of FAILED and a queue": "task/?status=FAILED&queue=queue-7",
    "list of SUCCESSFUL and a task": "task/?status=SUCCESSFUL&task=shop.tasks.task_7",
    "list, enqueued since": "task/?enqueued_since={day_ago}",
    "list of FAILED, ended since": "task/?status=FAILED&ended_since={day_ago}",
    "search by id": "task/?q=01a",
    "search by key": "task/?q=key:order:7",
    "search by argument": "task/?q=args.order_id:57",
    "search by argument in FAILED": "task/?status=FAILED&q=args.order_id:57",
    "search by name": "task/?q=task:task_7",
    "search by error": "task/?q=error:Error7",
    "search by error that no task has": "task/?q=error:nothing",
    "search by a word without a match": "task/?q=order-57",
    "list of an executor": "task/?executor={executor}",
    "list of a tag": "task/?tag=vip",
    "form to enqueue": "task/enqueue/",
}
# Confirmations of an action on all tasks of a list with their exact number.
CONFIRMATIONS = {
    "confirmation, 150,000 FAILED": ("task/?status=FAILED", "requeue_selected"),
    "confirmation, a cause": (f"task/?status=FAILED&cause={CAUSE}", "requeue_selected"),
    "confirmation, 500,000 SCHEDULED": ("task/?status=SCHEDULED", "wake_selected"),
    "confirmation, 4,100,000 ended": ("task/", "delete_ended"),
}
TASKS = """
    INSERT INTO jobqueue_task (
        id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, pool, status, wake_at,
        attempts, max_attempts, polls, errors, cause, worker_ids, tags, enqueued_at, started_at,
        last_attempted_at, finished_at, claim_number, executor_losses, concurrency_key, concurrency_limit
    )
    SELECT
        (lpad(to_hex((extract(epoch FROM enqueued) * 1000)::bigint), 12, '0') || substr(md5(n::text), 1, 20))::uuid,
        'default', 'queue-' || n %% 40, 'shop.tasks.task_' || n %% 100, 0, enqueued, '[57]', '{}', '{}', '{}',
        'threads', status, CASE WHEN status = 'SCHEDULED' THEN now() + n %% 86400 * interval '1 second' END,
        (status = 'FAILED')::int, 4, (status = 'SUCCESSFUL')::int,
        CASE WHEN status = 'FAILED' THEN jsonb_build_array(jsonb_build_object(
            'attempt', 4, 'exception_class_path', 'shop.errors.Error' || n / 100 %% 40, 'message', 'order ' || n,
            'traceback', repeat('a line of a traceback' || chr(10), 30)
        )) ELSE '[]' END,
        CASE WHEN status = 'FAILED' THEN lpad((n / 100 %% 40)::text, 16, '0') END, '["web-1"]',
        CASE WHEN n %% 1000 = 0 THEN '["vip"]'::jsonb END,
        enqueued, enqueued, enqueued, CASE WHEN status IN ('SUCCESSFUL', 'FAILED', 'CANCELLED') THEN enqueued END, 1, 0,
        CASE WHEN status = 'BLOCKED' THEN 'shop.customer:' || n / 100 %% 1000 END,
        CASE WHEN status = 'BLOCKED' THEN 2 END
    FROM generate_series(%(first)s, %(last)s) AS n, LATERAL (SELECT
        now() - (%(rows)s - n) * interval '1 week' / %(rows)s AS enqueued,
        CASE
            WHEN n %% 100 < 80 THEN 'SUCCESSFUL' WHEN n %% 100 < 90 THEN 'SCHEDULED' WHEN n %% 100 < 94 THEN 'READY'
            WHEN n %% 100 = 94 THEN 'BLOCKED' WHEN n %% 100 < 98 THEN 'FAILED'
            WHEN n %% 100 = 98 THEN 'SUSPENDED' ELSE 'CANCELLED'
        END AS status
    ) AS kind;
"""
COUNTERS = """
    INSERT INTO jobqueue_counterperiod (
        backend, scope, name, length, start, submitted, attempts, completed, failed, retries, dead, lost, wait_seconds,
        run_seconds, waits, runs
    )
    SELECT 'default', scope, name, length, date_trunc(length, now()) - n * ('1 ' || length)::interval,
        60, 60, 50, 10, 5, 5, 0, 6, 30,
        '[0,1,2,3,4,5,6,7,8,9,5,4,3,2,1,0,0,0]', '[0,1,2,3,4,5,6,7,8,9,5,4,3,2,1,0,0,0]'
    FROM (VALUES ('minute', 1440), ('hour', 168)) AS lengths (length, number),
        generate_series(0, number - 1) AS n,
        (
            SELECT 'backend' AS scope, '' AS name UNION ALL
            SELECT 'queue', 'queue-' || q FROM generate_series(0, 39) AS q UNION ALL
            SELECT 'task', 'shop.tasks.task_' || t FROM generate_series(0, 99) AS t
        ) AS names;
    INSERT INTO jobqueue_executor (
        id, backend, name, host, pid, versions, queues, queue_limits, task_types, slots, started_at, command
    )
    SELECT gen_random_uuid(), 'default', 'web-' || n, 'host', n, '{}', '[]', '{}', '[]', 8, now(), ''
    FROM generate_series(1, 20) AS n;
    INSERT INTO jobqueue_heartbeat (executor_id, at, state, waiting_for_connections)
    SELECT id, now() + interval '1 hour', 'RUNNING', 0 FROM jobqueue_executor;
    INSERT INTO jobqueue_limit (backend, kind, key, number, changed_by, reason, changed_at)
    SELECT 'default', 'concurrency', 'shop.customer:' || n, 5, 'anna', '', now() FROM generate_series(1, 100) AS n;
    INSERT INTO jobqueue_schedule (
        backend, name, task_type, new_task, expression, timezone, jitter_seconds, overlap, catch_up, max_catch_up,
        declared_at, paused_by, pause_reason, next_at, due_at, created_at, updated_at
    )
    SELECT 'default', 'schedule-' || n, 'shop.tasks.task_' || n, '{}', n % 60 || ' 3 * * *', 'Europe/Berlin', 0,
        'skip', 'latest', 100, '', '', '', now() + interval '1 hour', now() + interval '1 hour', now(), now()
    FROM generate_series(0, 99) AS n;
"""


def fill(rows: int) -> None:
    began = time.monotonic()
    with connection.cursor() as cursor:
        for first in range(1, rows + 1, BATCH):
            cursor.execute(TASKS, {"first": first, "last": min(rows, first + BATCH - 1), "rows": rows})
            print(f"\r{min(rows, first + BATCH - 1):,} rows after {time.monotonic() - began:.0f} s", end="", flush=True)
        cursor.execute(COUNTERS)
        cursor.execute("VACUUM ANALYZE")
    print()


def report(name: str, client: Client, address: str, requests: int, form: Mapping[str, str] | None = None) -> None:
    measured = list(measure(client, f"/admin/jobqueue/{address}", requests, form))
    print(
        f"{name}: {in_ms(request.seconds for request in measured)};"
        f" Python {in_ms(request.cpu_seconds for request in measured)};"
        f" {measured[0].queries.count} queries {in_ms(request.queries.seconds for request in measured)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--requests", type=int, default=20, help="of each page")
    options = parser.parse_args()
    with cluster.prepared_cluster("benchmarks.admin_settings"):
        from django.contrib.auth.models import User

        fill(options.rows)
        client = Client()
        client.force_login(User.objects.create_superuser("admin"))
        list(measure(client, "/admin/jobqueue/", 3))  # imports, and caches of templates
        print(f"PostgreSQL {cluster.version()}, {options.rows:,} tasks, {options.requests} requests each\n")
        from jobqueue.models import Executor, Schedule, Task

        values = {
            "day_ago": quote((datetime.now(UTC) - timedelta(days=1)).isoformat()),
            "executor": Executor.objects.values_list("pk", flat=True)[0],
            "failed": Task.objects.failed().values_list("pk", flat=True)[0],
            "schedule": Schedule.objects.values_list("pk", flat=True)[0],
            "ready": Task.objects.ready().values_list("pk", flat=True)[0],
        }
        for name, address in PAGES.items():
            report(name, client, address.format(**values), options.requests)
        for name, (address, action) in CONFIRMATIONS.items():
            form = {"action": action, "select_across": "1", "_selected_action": "all", "index": "0"}
            report(name, client, address, options.requests, form)
    print(f"\nAim: {AIM_SECONDS * 1000:.0f} ms")


if __name__ == "__main__":
    main()
