from __future__ import annotations

from django.contrib.staticfiles.management.commands import runserver
from django.core.servers.basehttp import WSGIServer


class PatientServer(WSGIServer):
    """Django's own takes ten callers in waiting; a task that tells all followers at once has more."""

    request_queue_size = 128


class Command(runserver.Command):
    help = "Serve the demo site alone, as runserver does."
    server_cls = PatientServer
