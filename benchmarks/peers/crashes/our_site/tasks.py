"""The task twice: in the transaction of its outcome, and in one of its own as the others have it."""

from __future__ import annotations

from benchmarks.peers.crashes.effects import work, work_in_own_transaction
from benchmarks.peers.crashes.sides import ATTEMPTS, RETRY_SECONDS
from jobqueue import Backoff, task

AGAIN = Backoff(base=RETRY_SECONDS, factor=1.0)


@task(atomic=True, max_attempts=ATTEMPTS, backoff=AGAIN)
def pay(number: int, seconds: float) -> None:
    work(number, seconds)


@task(max_attempts=ATTEMPTS, backoff=AGAIN)
def pay_in_own_transaction(number: int, seconds: float) -> None:
    work_in_own_transaction(number, seconds)


def enqueue(number: int, seconds: float) -> None:
    pay.enqueue(number, seconds)


def enqueue_in_own_transaction(number: int, seconds: float) -> None:
    pay_in_own_transaction.enqueue(number, seconds)
