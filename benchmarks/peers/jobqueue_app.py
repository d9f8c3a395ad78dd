"""Ours: Django's connection, tasks of benchmarks/tasks.py; executors are `manage.py run_executors`."""

from __future__ import annotations

import os
import time

import django
from django.core.management import call_command

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
django.setup()

from benchmarks.tasks import limited_note, noop, note  # noqa: E402


class Producer:
    def setup(self) -> None:
        call_command("migrate", verbosity=0)

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            noop.enqueue(number)

    def in_bulk(self, count: int) -> None:
        noop.enqueue_many(((number,), {}) for number in range(count))

    def note(self) -> None:
        note.enqueue(time.time())

    def limited_note(self) -> None:
        limited_note.enqueue(time.time())
