"""System checks. Their ids are public."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobqueue import conf

if TYPE_CHECKING:
    from jobqueue.backend import JobQueueBackend


def register() -> None:
    """Register the checks that are not part of a backend's check()."""
    checks.register(check_task_framework)
    checks.register(check_backends)
    checks.register(check_task_names)
    checks.register(check_actors)
    checks.register(check_time_zones)
    checks.register(check_encodings, checks.Tags.database)


def check_task_framework(**_: Any) -> list[checks.CheckMessage]:
    """Check that Django 5.2 has the backport of the task framework."""
    try:
        from jobqueue import compat  # noqa: F401
    except ImproperlyConfigured as error:
        hint = "pip install django-jobqueue[django52]"
        return [checks.Error(str(error), hint=hint, id="jobqueue.E001")]
    return []


def check_backends(**_: Any) -> list[Any]:
    """Run our backends' check(), unless the framework does. The backport does if it is an installed app."""
    if check_task_framework():
        return []
    from jobqueue.compat import are_backends_checked

    return [] if are_backends_checked() else messages_of_backends()


def messages_of_backends() -> list[Any]:
    """Run check() of each jobqueue backend."""
    return [message for backend in our_backends() for message in backend.check()]


def our_backends() -> list[JobQueueBackend]:
    from jobqueue.backend import JobQueueBackend
    from jobqueue.compat import task_backends

    return [backend for backend in task_backends.all() if isinstance(backend, JobQueueBackend)]


def check_time_zones(**_: Any) -> list[checks.CheckMessage]:
    """Warn of datetimes without a time zone."""
    if settings.USE_TZ:
        return []
    problem = (
        f"USE_TZ is False: run_after and expires are in TIME_ZONE ({settings.TIME_ZONE}). When clocks are put back, an "
        "hour exists twice, and a process with another TIME_ZONE reads other times."
    )
    hint = "Set USE_TZ = True, or pass timedeltas, which count from the database's clock."
    return [checks.Warning(problem, hint=hint, id="jobqueue.W004")]


def check_encodings(databases: Collection[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Check that databases store every character. Runs only where checks may connect, such as in `migrate`."""
    if not databases or check_task_framework():
        return []
    sound = [backend for backend in our_backends() if not list(conf.problems(backend.options))]
    ours = {backend.settings.database for backend in sound}
    return [message for database in sorted(ours & {*databases}) for message in encoding_problems(database)]


def encoding_problems(database: str) -> Iterator[checks.CheckMessage]:
    """Yield an error if a database is not encoded in UTF-8. The server reports the encoding at login."""
    connection: Any = connections[database]
    if connection.vendor != "postgresql":
        return
    connection.ensure_connection()
    encoding = connection.connection.info.parameter_status("server_encoding")
    if encoding not in (None, "UTF8"):
        yield checks.Error(
            f"The database {database!r} is encoded in {encoding}, which cannot store every character of a task.",
            hint="Restore a dump into a new database: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.",
            id="jobqueue.E010",
        )


def check_task_names(**_: Any) -> list[checks.CheckMessage]:
    """Check that no two functions have one task name."""
    if check_task_framework():
        return []
    from jobqueue import function

    return [
        checks.Error(
            f"The task {duplicate.task_type!r} is declared twice: {duplicate.first} and {duplicate.second}.",
            hint="Rows contain this name, so it must belong to one function. Change one name=.",
            id="jobqueue.E002",
        )
        for duplicate in sorted(function.duplicates)
    ]


def check_actors(**_: Any) -> list[checks.CheckMessage]:
    """Check that State and Message of each actor can be read from JSON. Otherwise every poll would fail."""
    if check_task_framework():
        return []
    from jobqueue import registry
    from jobqueue.actor import ActorTask, unreadable

    actors = [task.actor for task in registry.all().values() if isinstance(task, ActorTask)]
    return [
        checks.Error(
            f"The actor {actor.task.task_type!r} cannot be polled: {name} cannot be read from JSON: {error}.",
            hint="Annotations must be names of the module: not of a class, a function, or under TYPE_CHECKING.",
            id="jobqueue.E009",
        )
        for actor in actors
        for name in ("State", "Message")
        if (error := unreadable(actor, name))
    ]
