"""The task of each queue: insert one row into the table of effects, and wait."""

from __future__ import annotations

import time

from django.db import connection, transaction

from verification.faults.diary import note


def work(number: int, seconds: float) -> None:
    """Write the effect in the open transaction, and keep the transaction open for a while."""
    note("started", number=number)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO crash_effect (number) VALUES (%s)", [number])
    time.sleep(seconds)


def work_in_own_transaction(number: int, seconds: float) -> None:
    with transaction.atomic():
        work(number, seconds)
