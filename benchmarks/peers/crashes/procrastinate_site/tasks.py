"""The task, and the periodic task from procrastinate's manual that retries jobs of dead workers."""

from __future__ import annotations

from typing import Any

from procrastinate import RetryStrategy
from procrastinate.contrib.django import app

from benchmarks.peers.crashes.effects import work_in_own_transaction
from benchmarks.peers.crashes.sides import ATTEMPTS, RETRY_SECONDS, TIMEOUT_SECONDS


@app.task(retry=RetryStrategy(max_attempts=ATTEMPTS, wait=RETRY_SECONDS))
def pay(number: int, seconds: float) -> None:
    work_in_own_transaction(number, seconds)


# Each second, and before all that waits; the manual's example runs every tenth minute, in its turn.
@app.periodic(cron="* * * * * *")
@app.task(queueing_lock="retry_stalled_jobs", priority=100, pass_context=True)
async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=TIMEOUT_SECONDS):
        await app.job_manager.retry_job(job)


def enqueue(number: int, seconds: float) -> None:
    pay.defer(number=number, seconds=seconds)
