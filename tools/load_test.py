"""
Test the queue under load: many submissions over HTTP, tasks that fail half of the time, real processes.

Prints a table. Exits 1 if a task was lost or done twice.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import django
from django.core.management import call_command
from django.db import connection

from tools.load import site
from tools.load.caller import Answer, Callers, plan
from tools.load.verdict import ENDED, LoadRow, RunData, complaints, report
from tools.postgres import throwaway_cluster
from tools.progress import ProgressLine

STALLED_SECONDS = 60.0  # without an ended task
CHECK_SECONDS = 0.2


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--submissions", type=positive, default=1000, help="number of submissions (1000)")
    parser.add_argument("-c", "--concurrency", type=positive, default=20, help="clients at the same time (20)")
    parser.add_argument("--executors", type=positive, default=2, help="processes that run tasks (2)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order of submissions (1)")
    options = parser.parse_args(arguments)
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # PGSERVICE and the like point at a server of the machine
    with tempfile.TemporaryDirectory(prefix="jobqueue-load-") as logs, throwaway_cluster() as cluster:
        try:
            measured = run(options, cluster.url, Path(logs))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            connection.close()
    print("\n".join(["", *report(measured)]))
    if wrong := list(complaints(measured)):
        print("\nThe results are wrong:\n  " + "\n  ".join(wrong), file=sys.stderr)
        return 1
    print("\nEach submission was acknowledged with one id and has ended. Each successful task took effect once.")
    return 0


def run(options: argparse.Namespace, url: str, logs: Path) -> RunData:
    """Submit the tasks and wait for their ends. Raises RuntimeError if a process does not run."""
    token = secrets.token_urlsafe(24)
    environment = site.environment_for(url, hashlib.sha256(token.encode()).hexdigest())
    os.environ.update(environment)
    django.setup()
    call_command("migrate", verbosity=0, run_syncdb=True)
    submissions = plan(options.submissions, options.seed)
    answers: list[Answer] = []
    progress = ProgressLine(sys.stderr)

    def on_answer(answer: Answer) -> None:
        answers.append(answer)
        progress.show(len(answers), len(submissions), "submitted")

    with site.server(environment, logs) as port, site.executors(options.executors, environment, logs) as check:
        began = time.monotonic()
        Callers(port, token, secrets.token_hex(4), on_answer).submit(submissions, options.concurrency)
        submitted = time.monotonic()
        progress.finish(f"{len(answers)} requests were answered.")
        wait_for_end(ProgressLine(sys.stderr), check)
        ended = time.monotonic()
    return RunData(
        asked=options.submissions,
        answers=answers,
        rows=rows(),
        effects=effects(),
        submit_seconds=submitted - began,
        total_seconds=ended - began,
    )


def wait_for_end(progress: ProgressLine, check: Callable[[], None]) -> None:
    """Wait until all tasks have ended, or none has ended for STALLED_SECONDS. The verdict shows which."""
    from jobqueue.models import Task

    total, ended, since = Task.objects.count(), -1, time.monotonic()
    while True:
        check()
        now = Task.objects.filter(status__in=ENDED).count()
        if now != ended:
            ended, since = now, time.monotonic()
        if ended == total or time.monotonic() - since > STALLED_SECONDS:
            progress.finish(f"{ended} of {total} tasks have ended.")
            return
        progress.show(ended, total, "ended")
        time.sleep(CHECK_SECONDS)


def rows() -> list[LoadRow]:
    from jobqueue.models import Task

    return [
        LoadRow(str(task.pk), task.args[0], task.status, len(task.errors), len(task.worker_ids))
        for task in Task.objects.all()
    ]


def effects() -> Counter[str]:
    from tools.load.models import Effect

    return Counter(str(task_id) for task_id in Effect.objects.values_list("task_id", flat=True))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
