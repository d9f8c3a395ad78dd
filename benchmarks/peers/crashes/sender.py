"""`python -m benchmarks.peers.crashes.sender FUNCTION SEED`: enqueue tasks, and print the acknowledged numbers."""

from __future__ import annotations

import random
import signal
import sys
import time
from types import FrameType

import django
from django.db import connection
from django.utils.module_loading import import_string

from verification.faults.diary import note

MAX_WAITING = 20
PAUSE_SECONDS = 0.05


def main(function: str, seed: str) -> None:
    django.setup()
    enqueue, chance = import_string(function), random.Random(int(seed))
    is_stopped = False

    def stop(signal_number: int, frame: FrameType | None) -> None:
        nonlocal is_stopped
        is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    number = 0
    while not is_stopped:
        try:
            if waiting() < MAX_WAITING:
                number += 1
                enqueue(number, chance.uniform(0.1, 0.5))
                note("enqueued", number=number)
                continue
        except Exception:  # noqa: BLE001 - the server was taken away, and each library wraps that in its own
            connection.close()
        time.sleep(PAUSE_SECONDS)


def waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM crash_task WHERE state = 'waiting'")
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
