from __future__ import annotations

import os
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from demo_project.photos import history
from demo_project.photos.models import Photo
from tools.processes import HOST, Processes, admin_password, database, free_port, interruptible, only_demo


class Command(BaseCommand):
    help = "Run the demo site and its executors together, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="port of the site, or the next free one (8000)")

    def handle(self, *args: Any, port: int, **options: Any) -> None:
        with interruptible():
            try:
                self.serve(port)
            except KeyboardInterrupt:
                self.stdout.write("Stopped.")

    def serve(self, port: int) -> None:
        # A running demo that started the database will also stop it, so wait for its end.
        with only_demo(self.stdout.write):
            pass
        self.stdout.write("Starting the database, the site and the executors ...")
        with database(), Processes(f"http://{HOST}:{free_port(port)}") as processes:
            if not os.environ.get("DATABASE_URL"):  # the user's own database gets no invented rows
                history.fill()
            password = admin_password()
            processes.start_site()
            self.greet(processes, password)
            processes.start_executors("--shutdown-timeout", "5s", output=sys.stdout.buffer)
            while True:
                processes.check()
                time.sleep(0.5)

    def greet(self, processes: Processes, password: str | None) -> None:
        photos = Photo.objects.count()
        lines = {
            "site": f"{processes.site_url}/"
            + (f"   {photos} photos" if photos else "   no photos yet: `make demo` uploads some"),
            "admin": f"{processes.site_url}/admin/",
            "user": "admin",
            "password": password or "the one in your database",
            "site's log": str(processes.log("site")),
        }
        self.stdout.write("")
        for name, value in lines.items():
            self.stdout.write(f"  {name:<11} {value}")
        self.stdout.write("\nThe executors' log follows. Ctrl-C stops all processes.\n\n")
        self.stdout.flush()
