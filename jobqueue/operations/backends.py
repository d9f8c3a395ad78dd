"""Options and databases of the backends in TASKS."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from jobqueue import api
from jobqueue.conf.options import Options, options_for


def options_of(backend: str) -> Options:
    """Return a backend's options, or the defaults if TASKS no longer has it: its rows must still be visible."""
    try:
        return options_for(backend)
    except ImproperlyConfigured:
        return Options()


def databases() -> list[str]:
    """Return the databases that hold queues, each once, the first backend's first."""
    return list(dict.fromkeys(options_of(backend).database for backend in api.aliases())) or ["default"]


def backends_on(database: str) -> list[str]:
    """Return the aliases of the backends that share a database."""
    return [backend for backend in api.aliases() if options_of(backend).database == database]
