from __future__ import annotations

from django.contrib.staticfiles.management.commands import runserver
from django.core.servers.basehttp import WSGIServer


class PatientServer(WSGIServer):
    """A server with a longer backlog. Django's has ten places, and tell_followers opens more connections at once."""

    request_queue_size = 128


class Command(runserver.Command):
    help = "Serve the demo site alone, as runserver does."
    server_cls = PatientServer
