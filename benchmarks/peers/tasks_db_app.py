"""django-tasks-db: `django-admin db_worker` on a site of its own."""

from __future__ import annotations

import os
import time

import django
from django.core.management import call_command

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.tasks_db_settings"
django.setup()

from benchmarks.peers.framework_tasks import noop, note  # noqa: E402


class Producer:
    def setup(self) -> None:
        call_command("migrate", verbosity=0)

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            noop.enqueue(number)

    def in_bulk(self, count: int) -> None:
        """It has no call for many; one transaction around them is what its users do."""
        from django.db import transaction

        with transaction.atomic():
            self.one_by_one(count)

    def note(self) -> None:
        note.enqueue(time.time())
