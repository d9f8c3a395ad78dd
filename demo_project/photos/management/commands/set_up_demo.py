from __future__ import annotations

import os
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand

from demo_project.photos import history


class Command(BaseCommand):
    help = "Migrate the database. If it has none, add a superuser `admin` with DJANGO_SUPERUSER_PASSWORD, and a past."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=options["verbosity"])
        users = get_user_model()
        if not users.objects.filter(username="admin").exists():
            users.objects.create_superuser("admin", password=os.environ["DJANGO_SUPERUSER_PASSWORD"])
        history.fill()
