"""django-ox: `django-admin ox_worker` on a site of its own. It needs Python 3.12."""

from __future__ import annotations

import os
import time

import django
from django.core.management import call_command

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.ox_settings"
django.setup()

from django_ox.bulk import enqueue_many  # noqa: E402

from benchmarks.peers.framework_tasks import noop, note  # noqa: E402


class Producer:
    def setup(self) -> None:
        call_command("migrate", verbosity=0)

    def one_by_one(self, count: int) -> None:
        for number in range(count):
            noop.enqueue(number)

    def in_bulk(self, count: int) -> None:
        enqueue_many(noop, (((number,), {}) for number in range(count)))

    def note(self) -> None:
        note.enqueue(time.time())
