"""The site of the rig: enqueues and sends, and says what was acknowledged to it."""

from __future__ import annotations

import random
import signal
import time
from types import FrameType
from typing import Any

import django.db
from django.db import connection, transaction

from jobqueue import send
from tests.actor.programs import FlakyFibonacci
from verification.faults import bodies
from verification.faults.diary import note

FIBONACCI = {5: 5, 6: 8, 7: 13}
LEDGERS = 3
BATCH = 4  # tasks of a kind in one transaction
PLAIN = (bodies.work, bodies.work_later, bodies.look, bodies.look_later)


class Sender:
    """
    One process. most_waiting: it sends nothing while so many tasks are READY.

    pause_seconds: about so long between two transactions.
    """

    def __init__(self, seed: int, most_waiting: int, pause_seconds: float) -> None:
        self._chance = random.Random(seed)
        self._seed, self._most_waiting, self._pause_seconds = seed, most_waiting, pause_seconds
        self._number = seed * 10_000_000
        self._is_over = False

    def run(self) -> None:
        def stop(number: int, frame: FrameType | None) -> None:
            self._is_over = True

        signal.signal(signal.SIGTERM, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # which the nursery had blocked
        is_begun = False
        while not (self._is_over and is_begun):
            try:
                if not is_begun:
                    self._open_ledgers()
                    is_begun = True
                elif self._waiting() > self._most_waiting:
                    time.sleep(0.05)
                else:
                    self._enqueue()
                    self._send()
                    time.sleep(self._pause_seconds * self._chance.uniform(0.5, 1.5))
            except django.db.Error as error:  # what was under way is not acknowledged
                note("refused", error=type(error).__name__, text=str(error))
                connection.close()
                time.sleep(0.05)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _waiting(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM jobqueue_task WHERE status = 'READY'")
            return int(cursor.fetchone()[0])

    def _open_ledgers(self) -> None:
        for number in range(LEDGERS):
            result = bodies.Ledger.using(key=ledger(number)).enqueue()
            note("enqueued", task=result.id)

    def _enqueue(self) -> None:
        """In one transaction, as a view does."""
        chance, number, seconds = self._chance, self._next(), self._chance.choice((0.02, 0.3, 0.9))
        with transaction.atomic():
            made: list[tuple[Any, Any]] = [(bodies.stumble.enqueue(number), number)]
            made += [(result, "paid") for result in bodies.pay.enqueue_many([((seconds,), {})] * BATCH)]
            for body in PLAIN:
                made += [(result, number) for result in body.enqueue_many([((number, seconds), {})] * (BATCH // 2))]
            if chance.random() < 0.05:
                n = chance.choice(list(FIBONACCI))
                made.append((FlakyFibonacci.enqueue(n, seed=number), FIBONACCI[n]))
        for result, expected in made:
            note("enqueued", task=result.id, expected=expected)

    def _send(self) -> None:
        number = self._next()
        send(ledger(self._chance.randrange(LEDGERS)), number)
        note("sent", number=number)


def hold(seconds: float) -> None:
    """A sender that takes its time before it commits: it holds the rows of its receivers, as far as senders do."""
    numbers = [-number for number in range(1, LEDGERS + 1)]
    with transaction.atomic():
        for number in numbers:
            send(ledger(-number - 1), number)
        made = bodies.pay.enqueue(0.0)
        time.sleep(seconds)
    for number in numbers:
        note("sent", number=number)
    note("enqueued", task=made.id, expected="paid")


def poison(losses: int) -> None:
    """Enqueue a task that kills whoever runs it. losses: it is to end after."""
    note("poisoned", task=bodies.poison.enqueue().id, losses=losses)


def ledger(number: int) -> str:
    return f"ledger-{number}"


def close_ledgers() -> None:
    """Tell them that nothing more comes."""
    for number in range(LEDGERS):
        send(ledger(number), bodies.END)
