"""The checkouts of a campaign: they charge, wait for a message, ship or refund."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import django.db
from django.db import connection, transaction

import jobqueue
from jobqueue import TaskFinished, WorkflowContext, step, step_key, task, workflow
from verification.faults.bodies import MANY, SOON
from verification.faults.diary import note

LATEST_SECONDS = 3.0  # to wait for a message
ENDINGS = {"ship": 5, "refuse": 2, "cancel": 2, "ship and cancel": 1, "nothing": 1}


@dataclass
class ParcelSent:
    tracking: str


@dataclass
class OrderRefused:
    reason: str


class NotShipped(Exception):
    """The order is not shipped."""


def book(kind: str, number: int, amount: int, key: str) -> None:
    """Book once for each key, as a payment service does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO verification_booking (kind, number, amount, key) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (kind, key) DO UPDATE SET calls = verification_booking.calls + 1",
            [kind, number, amount, key],
        )


def enter(kind: str, number: int, amount: int) -> None:
    """Book a row of the site's own: nothing finds a second one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO verification_booking (kind, number, amount, key) VALUES (%s, %s, %s, gen_random_uuid())",
            [kind, number, amount],
        )


@step(max_attempts=MANY, backoff=SOON)
def charge(number: int, amount: int) -> str:
    book("charge", number, amount, step_key())
    return f"charge-{number}"


@step(max_attempts=MANY, backoff=SOON, atomic=True)
def refund(number: int, amount: int) -> None:
    enter("refund", number, amount)


@step(max_attempts=MANY, backoff=SOON, atomic=True)
def sell(number: int, amount: int) -> None:
    enter("sale", number, amount)


@task(max_attempts=MANY, backoff=SOON)
def pack(number: int, item: int) -> int:
    return item


@workflow(key="checkout-{number}", max_attempts=MANY, backoff=SOON)
def checkout(context: WorkflowContext, number: int, amount: int) -> str:
    """Charge; then ship what is sold, or refund."""
    with context.shield():  # so that no cancel comes between the charge and its compensation
        context.step(charge, number, amount)
    try:
        with context.compensate(refund, number, amount):
            match context.receive(ParcelSent, OrderRefused, timeout=timedelta(seconds=LATEST_SECONDS)):
                case OrderRefused() | None:
                    raise NotShipped
            items = context.gather(*(context.spawn(pack, number, item) for item in (1, 2)))
            assert list(items) == [1, 2]
            with context.shield():
                context.step(sell, number, amount)
    except NotShipped:
        return "refunded"
    return "shipped"


class Shopper:
    """Starts checkouts, and ends each in one of several ways."""

    def __init__(self, seed: int, checkouts: int, each_second: float) -> None:
        self._chance = random.Random(seed)
        self._left, self._gap_seconds = list(range(1, checkouts + 1)), 1 / each_second
        self._due: list[tuple[float, str, str]] = []

    def run(self) -> None:
        next_at = time.monotonic()
        while self._left or self._due:
            try:
                while self._due and self._due[0][0] <= time.monotonic():
                    self._end(*self._due[0][1:])
                    del self._due[0]
                if self._left and next_at <= time.monotonic():
                    self._begin(self._left[-1])
                    self._left.pop()
                    next_at += self._gap_seconds
            except django.db.Error:
                connection.close()
            time.sleep(0.005)

    def _begin(self, number: int) -> None:
        with transaction.atomic():
            result: Any = checkout.enqueue(number, self._chance.randint(1, 999))
        note("ordered", number=number, task=result.id)
        (ending,) = self._chance.choices(list(ENDINGS), list(ENDINGS.values()))
        self._due.append((time.monotonic() + self._chance.uniform(0.0, 1.5), result.id, ending))
        self._due.sort()

    def _end(self, pk: str, ending: str) -> None:
        try:
            if "ship" in ending:
                jobqueue.send(pk, ParcelSent("T1"))
            if ending == "refuse":
                jobqueue.send(pk, OrderRefused("changed their mind"))
        except TaskFinished:
            pass  # it has timed out
        if "cancel" in ending:
            note("cancelled", task=pk)
            jobqueue.cancel(pk)
