"""The senders of an environment: they enqueue tasks, send messages, and record what was committed."""

from __future__ import annotations

import random
import signal
import time
from datetime import datetime
from types import FrameType
from typing import Any

import django.db
from django.db import connection, transaction

from jobqueue import Concurrency, Every, Rate, send
from jobqueue.api.schedules import create
from jobqueue.declarations.schedules import Declaration
from tests.actor.programs import FlakyFibonacci
from verification.faults import bodies
from verification.faults.diary import note

FIBONACCI = {5: 5, 6: 8, 7: 13}
COLLECTORS = 3
BATCH = 4  # tasks of a kind in one transaction
TURNS = 10  # keys of tasks that run one after the other
OVERLAPS = {0: "skip", 1: "queue_one"}  # of each 20 schedules; a cancelled task would count as failed
PLAIN = (bodies.work, bodies.work_later, bodies.look, bodies.look_later)
LIMITED = (bodies.work, bodies.work_later, bodies.look_later, bodies.stumble)
RATE = Rate(5, per=2.0, shared="rate")


class Sender:
    """
    One sending process. max_ready: it pauses while more tasks are READY.

    pause_seconds: average pause between two transactions.
    """

    def __init__(self, seed: int, max_ready: int, pause_seconds: float) -> None:
        self._chance = random.Random(seed)
        self._seed, self._max_ready, self._pause_seconds = seed, max_ready, pause_seconds
        self._number = seed * 10_000_000
        self._is_stopped = False

    def run(self) -> None:
        def stop(number: int, frame: FrameType | None) -> None:
            self._is_stopped = True

        signal.signal(signal.SIGTERM, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by the fork server
        is_started = False
        while not (self._is_stopped and is_started):
            try:
                if not is_started:
                    self._start_collectors()
                    is_started = True
                elif self._waiting() > self._max_ready:
                    time.sleep(0.05)
                else:
                    self._enqueue()
                    self._send()
                    time.sleep(self._pause_seconds * self._chance.uniform(0.5, 1.5))
            except django.db.Error as error:  # uncommitted work is not recorded
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

    def _start_collectors(self) -> None:
        for number in range(COLLECTORS):
            result = bodies.NumberCollector.using(key=collector_key(number)).enqueue()
            note("enqueued", task=result.id)

    def _enqueue(self) -> None:
        """Enqueue tasks of each kind in one transaction, as a view does."""
        chance, number, seconds = self._chance, self._next(), self._chance.choice((0.02, 0.3, 0.9))
        with transaction.atomic():
            results: list[tuple[Any, Any]] = [(bodies.stumble.enqueue(number), number)]
            results += [(result, "paid") for result in bodies.pay.enqueue_many([((seconds,), {})] * BATCH)]
            turns = bodies.take_turns.enqueue_many([((number % TURNS, number), {})] * BATCH)
            for body in PLAIN:
                results += [(result, number) for result in body.enqueue_many([((number, seconds), {})] * (BATCH // 2))]
            if chance.random() < 0.05:
                n = chance.choice(list(FIBONACCI))
                results.append((FlakyFibonacci.enqueue(n, seed=number), FIBONACCI[n]))
        for result, expected in results:
            note("enqueued", task=result.id, expected=expected)
        for result in turns:
            note("enqueued", task=result.id, expected=number, limit={"key": f"turn-{number % TURNS}", "number": 1})

    def _send(self) -> None:
        number = self._next()
        send(collector_key(self._chance.randrange(COLLECTORS)), number)
        note("sent", number=number)


class LimitSender(Sender):
    """Enqueues tasks of many keys, each with a limit of 1 to 3, and tasks with one rate."""

    def __init__(self, seed: int, max_ready: int, pause_seconds: float, keys: int) -> None:
        super().__init__(seed, max_ready, pause_seconds)
        self._keys = keys

    def _waiting(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM jobqueue_task WHERE status IN ('READY', 'BLOCKED')")
            return int(cursor.fetchone()[0])

    def _start_collectors(self) -> None:
        pass

    def _send(self) -> None:
        pass

    def _enqueue(self) -> None:
        chance, number = self._chance, self._next()
        made: list[tuple[Any, int, dict[str, Any]]] = []
        with transaction.atomic():
            for key in chance.sample(range(self._keys), 20):
                limit = 1 + key % 3
                body = chance.choice(LIMITED).using(
                    concurrency=Concurrency(limit, shared=f"key-{key}", count_while_retrying=key % 2 == 0),
                    priority=chance.randrange(3),
                )
                made.append((body.enqueue(number), number, {"limit": {"key": f"key-{key}", "number": limit}}))
            rate = {"key": "rate", "number": RATE.limit, "seconds": RATE.seconds}
            starter = chance.choice([bodies.begin, bodies.begin_later])
            seconds = chance.choice([0.0, 0.05, 0.3])  # the start of a long body is counted while it runs
            made.append((starter.using(rate=RATE).enqueue(number, seconds), number, {"rate": rate}))
        for result, expected, limits in made:
            note("enqueued", task=result.id, expected=expected, **limits)


def hold(seconds: float) -> None:
    """Send in a transaction that stays open for a while. It holds the row locks that senders take."""
    numbers = [-number for number in range(1, COLLECTORS + 1)]
    with transaction.atomic():
        for number in numbers:
            send(collector_key(-number - 1), number)
        results = bodies.pay.enqueue(0.0)
        time.sleep(seconds)
    for number in numbers:
        note("sent", number=number)
    note("enqueued", task=results.id, expected="paid")


def poison(losses: int) -> None:
    """Enqueue a task that kills each process that runs it. losses: number of losses after which it fails."""
    note("poisoned", task=bodies.poison.enqueue().id, losses=losses)


def schedule_each_second(count: int, starts_at: str, ends_at: str) -> None:
    """Create schedules with a tick each second. Most ticks may overlap; the tasks of the others take a second."""
    bounds: dict[str, Any] = {
        "starts_at": datetime.fromisoformat(starts_at),
        "ends_at": datetime.fromisoformat(ends_at),
    }
    for number in range(count):
        overlap = OVERLAPS.get(number % 20, "allow")
        body, seconds = (bodies.work, 0.0) if overlap == "allow" else (bodies.work_later, 1.0)
        create(
            Declaration(
                f"each-second-{number}",
                body,
                Every(seconds=1),
                "",
                args=(number, seconds),
                overlap=overlap,
                catch_up="all" if overlap == "allow" else "latest",
                **bounds,
            )
        )


def collector_key(number: int) -> str:
    return f"collector-{number}"


def close_collectors() -> None:
    """Send the end to all collectors."""
    for number in range(COLLECTORS):
        send(collector_key(number), bodies.END)
