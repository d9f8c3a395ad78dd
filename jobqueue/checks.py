"""System checks, with ids that stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from jobqueue import conf, registry

if TYPE_CHECKING:
    from jobqueue.backend import JobQueueBackend

CONNECTIONS_BESIDE_SLOTS = 4  # of an executor: pulse, heartbeat, listener, and one to look at notices
CONNECTIONS_FOR_ASYNC_TASKS = 32  # that call the ORM; as executor/spare.py gives them
CONNECTIONS_OF_AN_EXECUTOR = 8 + CONNECTIONS_BESIDE_SLOTS  # with the threads that it has by default


def register() -> None:
    """Register the checks that no backend's check() makes."""
    checks.register(check_task_framework)
    checks.register(check_backends)
    checks.register(check_task_names)
    checks.register(check_actors)
    checks.register(check_time_zones)
    checks.register(check_encodings, checks.Tags.database)


def check_task_framework(**_: Any) -> list[checks.CheckMessage]:
    """Django 5.2 without the backport."""
    try:
        from jobqueue import compat  # noqa: F401
    except ImproperlyConfigured as error:
        hint = "pip install django-jobqueue[django52]"
        return [checks.Error(str(error), hint=hint, id="jobqueue.E001")]
    return []


def check_backends(**_: Any) -> list[Any]:
    """Run our backends' check() where the task framework does not: the backport does when it is an app."""
    if check_task_framework():
        return []
    from jobqueue.compat import are_backends_checked

    return [] if are_backends_checked() else messages_of_backends()


def messages_of_backends() -> list[Any]:
    """Run check() of each backend of ours."""
    return [message for backend in our_backends() for message in backend.check()]


def our_backends() -> list[JobQueueBackend]:
    from jobqueue.backend import JobQueueBackend
    from jobqueue.compat import task_backends

    return [backend for backend in task_backends.all() if isinstance(backend, JobQueueBackend)]


def check_time_zones(**_: Any) -> list[checks.CheckMessage]:
    """Moments without a zone."""
    if settings.USE_TZ:
        return []
    said = (
        f"USE_TZ is False: run_after and expires are moments in TIME_ZONE ({settings.TIME_ZONE}). Where clocks are put "
        "back, an hour is there twice, and a process with another TIME_ZONE reads them as other moments."
    )
    hint = "Set USE_TZ = True, or give timedeltas, which the database's clock counts."
    return [checks.Warning(said, hint=hint, id="jobqueue.W004")]


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
    """Two functions under one name."""
    return [
        checks.Error(
            f"The task {duplicate.task_type!r} is declared twice: {duplicate.first} and {duplicate.second}.",
            hint="Rows hold this name, so it must lead to one function. Change one name=.",
            id="jobqueue.E002",
        )
        for duplicate in registry.duplicates()
    ]


def check_actors(**_: Any) -> list[checks.CheckMessage]:
    """Annotations that name nothing, which only their last user would find: every poll."""
    if check_task_framework():
        return []
    from jobqueue.actor import ActorTask, unreadable

    actors = [task.actor for task in registry.all().values() if isinstance(task, ActorTask)]
    return [
        checks.Error(
            f"The actor {actor.task.task_type!r} cannot be polled: {name} is no type JSON can be read into: {error}.",
            hint="Annotations are looked up in their module: not in a class, a function, or under TYPE_CHECKING.",
            id="jobqueue.E009",
        )
        for actor in actors
        for name in ("State", "Message")
        if (error := unreadable(actor, name))
    ]


def backend_problems(backend: JobQueueBackend) -> Iterator[checks.CheckMessage]:
    """Say what is wrong with the settings of one backend, without a look into the database."""
    here = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed("jobqueue"):
        yield checks.Error(
            f"{here} uses jobqueue, which is not an installed app.",
            hint="Add 'jobqueue' to INSTALLED_APPS and migrate.",
            id="jobqueue.E003",
        )
    options: Any = backend.options  # whatever the settings hold
    for problem in conf.problems(options):
        yield checks.Error(f"{here}['OPTIONS']: {problem}.", id="jobqueue.E004")
    database = options.get("DATABASE", "default") if isinstance(options, Mapping) else None
    if not isinstance(database, str):
        return
    if database not in settings.DATABASES:
        yield checks.Error(
            f"{here}['OPTIONS']: DATABASE is {database!r}, which is not an alias in DATABASES.",
            hint=f"Aliases are {', '.join(map(repr, settings.DATABASES))}.",
            id="jobqueue.E005",
        )
        return
    yield from _database_problems(here, database)


def pool_size(pool: Any) -> int | None:
    """Give the most connections of Django's OPTIONS["pool"]; None without a pool. psycopg's own default is 4."""
    match pool:
        case None | False:
            return None
        case {"max_size": int(most)} | {"min_size": int(most)}:
            return most
        case _:
            return 4


def _database_problems(here: str, alias: str) -> Iterator[checks.CheckMessage]:
    try:
        connection: Any = connections[alias]
    except ImproperlyConfigured as error:
        yield checks.Error(
            f"{here}: database {alias!r} cannot be used: {error}",
            hint="pip install psycopg[binary]",
            id="jobqueue.E006",
        )
        return
    if connection.vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            yield checks.Error(
                f"{here}: database {alias!r} is reached through psycopg2, and jobqueue needs psycopg 3.",
                hint="pip install psycopg[binary]; Django takes it where both are installed.",
                id="jobqueue.E007",
            )
        most = pool_size(connection.settings_dict["OPTIONS"].get("pool"))
        if most is not None and most < CONNECTIONS_OF_AN_EXECUTOR:
            yield checks.Warning(
                f"{here}: the pool of database {alias!r} gives {most} connections at most, an executor of 8 threads "
                f"needs {CONNECTIONS_OF_AN_EXECUTOR}: its threads would wait for each other, its heartbeat for them.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['pool'] = {{'max_size': threads + 4}}, or no pool.",
                id="jobqueue.W003",
            )
    elif connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            # A warning, since a site's own tests often run on such a database.
            yield checks.Warning(
                f"{here}: database {alias!r} is SQLite in memory, which no executor can see.",
                hint="Use PostgreSQL, or a database file.",
                id="jobqueue.W001",
            )
        elif connection.settings_dict["OPTIONS"].get("transaction_mode", "").upper() != "IMMEDIATE":
            yield checks.Warning(
                f"{here}: transactions of the SQLite database {alias!r} begin without the write lock, "
                "so that enqueueing beside an executor can fail with 'database is locked'.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'.",
                id="jobqueue.W002",
            )
    else:
        yield checks.Error(
            f"{here}: database {alias!r} is {connection.display_name}; jobqueue needs PostgreSQL or SQLite.",
            hint="Point OPTIONS['DATABASE'] at a PostgreSQL database.",
            id="jobqueue.E008",
        )
