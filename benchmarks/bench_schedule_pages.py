"""
Measure the admin's list of schedules: python -m benchmarks.bench_schedule_pages

10,000 schedules have 20 ticks each: tasks that ended, and skipped ticks. Each request goes through the middleware of a
site, without a network. Prints the time of a request, and how much of it Python and the queries took. With --profile,
it prints the slowest functions.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.test import Client

from benchmarks import cluster

LIST = "/admin/jobqueue/schedule/"
TICKS = 20
AIM_SECONDS = 0.15
# Pages of the list: their names, and what follows the address.
PAGES = {
    "first page": "",
    "last page": "?p=200",
    "sorted by the next tick": "?o=3",
    "search": "?q=schedule-77",
    "paused": "?state=paused",
}
FILL = """
    INSERT INTO jobqueue_schedule (
        backend, name, task_type, new_task, expression, timezone, jitter_seconds, overlap, catch_up, max_catch_up,
        declared_at, paused_by, pause_reason, paused_at, next_at, due_at, created_at, updated_at
    )
    SELECT 'default', 'schedule-' || n, 'shop.reports.tasks.send_report_' || n %% 50,
        jsonb_build_object('task_type', 'shop.reports', 'metadata', repeat('x', 500)),
        n %% 60 || ' ' || n %% 24 || ' * * *', 'Europe/Berlin', 0, 'skip', 'latest', 100,
        CASE WHEN n %% 3 > 0 THEN 'shop/tasks.py:' || n ELSE '' END, '', '',
        CASE WHEN n %% 20 = 0 THEN now() END, moment, moment, now(), now()
    FROM generate_series(1, %(count)s) AS n, LATERAL (SELECT now() + n * interval '1 second') AS due (moment);

    INSERT INTO jobqueue_scheduletick (schedule_id, trigger, tick_at, last_at, count, task_id, reason, recorded_at)
    SELECT schedule.id, 'schedule', moment, moment, 1, CASE WHEN t %% 5 > 0 THEN gen_random_uuid() END,
        CASE WHEN t %% 5 > 0 THEN '' ELSE 'overlap' END, moment
    FROM jobqueue_schedule AS schedule, generate_series(1, %(ticks)s) AS t,
        LATERAL (SELECT now() - t * interval '1 day') AS past (moment);

    SELECT jobqueue_enqueue('default', 60, (
        SELECT json_agg(json_build_object('id', task_id, 'task_type', 'shop.reports.tasks.send_report'))
        FROM jobqueue_scheduletick WHERE task_id IS NOT NULL
    ));

    UPDATE jobqueue_task
    SET status = 'SUCCESSFUL', finished_at = now(), started_at = now() - random() * interval '1 minute';
"""


class Queries:
    """The number of queries of a request, and the seconds that they took."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def __call__(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(*arguments)
        finally:
            self.count, self.seconds = self.count + 1, self.seconds + time.perf_counter() - began


def fill(schedules: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"count": schedules, "ticks": TICKS})
        cursor.execute("VACUUM ANALYZE")


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """The seconds of a request, of its own process on a processor, and of its queries."""

    seconds: float
    cpu_seconds: float
    queries: Queries


def measure(
    client: Client, address: str, requests: int, form: Mapping[str, str] | None = None
) -> Iterator[MeasuredRequest]:
    """Measure GET of an address, or POST of a form. Redirects count, too."""
    for _ in range(requests):
        queries = Queries()
        with connection.execute_wrapper(queries):
            began, cpu_began = time.perf_counter(), time.process_time()
            answer = client.get(address, follow=True) if form is None else client.post(address, form, follow=True)
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        assert answer.status_code == 200, address
        yield MeasuredRequest(seconds, cpu_seconds, queries)


def in_ms(values: Iterable[float]) -> str:
    milliseconds = sorted(1000 * value for value in values)
    return f"{statistics.median(milliseconds):.0f} ms ({milliseconds[0]:.0f} to {milliseconds[-1]:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=20, help="of each page")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with cluster.prepared_cluster("benchmarks.admin_settings"):
        from django.contrib.auth.models import User

        fill(options.schedules)
        client = Client()
        client.force_login(User.objects.create_superuser("admin"))
        list(measure(client, LIST, 3))  # imports, and caches of templates
        print(f"\nPostgreSQL {cluster.version()}, {options.schedules:,} schedules, {options.requests} requests each\n")
        for name, suffix in PAGES.items():
            with cProfile.Profile() if options.profile else nullcontext() as profile:
                measured = list(measure(client, LIST + suffix, options.requests))
            print(
                f"{name}: {in_ms(request.seconds for request in measured)};"
                f" Python {in_ms(request.cpu_seconds for request in measured)};"
                f" {measured[0].queries.count} queries {in_ms(request.queries.seconds for request in measured)}",
                flush=True,
            )
            if profile:
                pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
    print(f"\nAim: {AIM_SECONDS * 1000:.0f} ms")


if __name__ == "__main__":
    main()
