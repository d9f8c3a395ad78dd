"""The jobqueue backends in TASKS, their queues, and the home of the tasks of this package."""

from __future__ import annotations

from typing import TypedDict

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from jobqueue.conf.compat import DEFAULT_TASK_QUEUE_NAME, InvalidTaskBackend, load_backends
from jobqueue.conf.options import options_for
from jobqueue.declarations.function import FunctionTask


def aliases() -> list[str]:
    """Return the aliases of the jobqueue backends in TASKS, with subclasses, that can be used."""
    return [alias for alias in declared_aliases() if is_usable(alias)]


def declared_aliases() -> list[str]:
    """Return the aliases of all jobqueue backends in TASKS, also those with invalid OPTIONS."""
    backends, _ = load_backends()
    return [alias for alias, backend in backends.items() if issubclass(backend.task_class, FunctionTask)]


def is_usable(alias: str) -> bool:
    """Return whether the OPTIONS of a backend are valid. A system check reports those that are not."""
    try:
        return options_for(alias).database in settings.DATABASES
    except ImproperlyConfigured:
        return False


def declared_queues(backend: str) -> set[str]:
    """Return the QUEUES of a backend, empty if every name is allowed."""
    return set(settings.TASKS[backend].get("QUEUES", ["default"]))


def queues_of(backend: str) -> list[str]:
    """Return the queues of a backend, the usual one first."""
    return sorted(
        declared_queues(backend) or {DEFAULT_TASK_QUEUE_NAME},
        key=lambda name: (name != DEFAULT_TASK_QUEUE_NAME, name),
    )


class Home(TypedDict, total=False):
    """The options with which this package declares its own tasks."""

    backend: str
    queue_name: str


def _home() -> Home:
    try:
        backend = aliases()[0]
        return {"backend": backend, "queue_name": queues_of(backend)[0]}
    except (IndexError, ImproperlyConfigured, InvalidTaskBackend):
        return {}


# The first jobqueue backend, and its usual queue. Empty without a backend, or if TASKS is invalid.
HOME = _home()
