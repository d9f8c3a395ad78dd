"""System checks. Their ids are public."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.urls import get_resolver

from jobqueue.conf.compat import PACKAGE, load_backends
from jobqueue.conf.connection_pool import CONNECTIONS_OF_AN_EXECUTOR, pool_size
from jobqueue.conf.options import KEYS, option_problems
from jobqueue.declarations import function, middleware, registry
from jobqueue.declarations import schedules as declared_schedules
from jobqueue.declarations.actor import ActorTask, reading_error
from jobqueue.declarations.limits import Concurrency, Rate, has_fields
from jobqueue.declarations.routes import route_problems, routes_of, unused_patterns
from jobqueue.declarations.schedules import find_location
from jobqueue.values.states import LimitKind
from jobqueue.values.text import did_you_mean

KEYS_OF_A_BACKEND = ("BACKEND", "QUEUES", "OPTIONS")


def register_checks() -> None:
    """Register the checks that are not part of a backend's check()."""
    for check in (
        check_imports,
        check_any_backend,
        check_backends,
        check_declarations,
        check_task_names,
        check_actors,
        check_limits,
        check_routes,
        check_late_tasks,
        check_schedules,
        check_time_zones,
    ):
        checks.register(check)
    checks.register(check_encodings, checks.Tags.database)


def check_any_backend(**_: Any) -> list[checks.CheckMessage]:
    """Report a TASKS without our backend: Django's default one runs tasks inside the web request."""
    if our_backends():
        return []
    problem = "'jobqueue' is installed, but no backend in TASKS is a JobQueueBackend, so no task enters the queue."
    hint = 'TASKS = {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}}'
    return [checks.Error(problem, hint=hint, id="jobqueue.E012")]


def check_backends(**_: Any) -> list[Any]:
    """Run our backends' check(), unless the framework does. The backport does if it is an installed app."""
    return [] if PACKAGE == "django.tasks" or apps.is_installed(PACKAGE) else messages_of_backends()


def check_imports(**_: Any) -> list[checks.CheckMessage]:
    """Report backends of TASKS that cannot be made. The others work."""
    _, errors = load_backends()
    return [
        checks.Error(f"TASKS[{alias!r}] cannot be used: {error}", id="jobqueue.E015") for alias, error in errors.items()
    ]


def run_checks() -> list[checks.CheckMessage]:
    """Run all checks of the declarations and settings. They read no database."""
    return [
        *check_imports(),
        *messages_of_backends(),
        *check_declarations(),
        *check_task_names(),
        *check_actors(),
        *check_limits(),
        *check_routes(),
        *check_late_tasks(),
        *check_schedules(),
        *check_time_zones(),
    ]


def messages_of_backends() -> list[Any]:
    """Run check() of each jobqueue backend."""
    return [message for backend in our_backends() for message in backend.check()]


def our_backends() -> list[Any]:
    backends, _ = load_backends()
    return [backend for backend in backends.values() if issubclass(backend.task_class, function.FunctionTask)]


def sound_backends() -> list[Any]:
    """Return the jobqueue backends with valid OPTIONS and a database."""
    sound = [backend for backend in our_backends() if not list(option_problems(backend.options))]
    return [backend for backend in sound if backend.settings.database in settings.DATABASES]


def check_late_tasks(**_: Any) -> list[checks.CheckMessage]:
    """Warn of tasks in modules that Django imports only with the URLs, or that are not imported at all by its setup."""
    if function.is_test():
        return []
    with suppress(Exception):  # Django's own check of the URLs reports it
        get_resolver().url_patterns  # noqa: B018 - imports them
    return [
        checks.Warning(
            f"The task {task.task_type!r:.300} is declared in {find_location(task)}, which Django does not import in "
            "its setup, so executors may not know it.",
            hint=f"Move it to {registry.DISCOVERED_FILES} of an installed app, or import its module there.",
            id="jobqueue.W008",
        )
        for name, task in registry.all().items()
        if name in function.late
    ]


def check_limits(**_: Any) -> list[checks.CheckMessage]:
    """Warn of templates that make the same key of all arguments, and of tasks that disagree about a shared limit."""
    constant = [
        checks.Warning(
            f"The task {task.task_type!r:.300}: the template {limit.key!r:.200} of its {kind} limit names no argument, "
            "so all tasks have one key.",
            hint="Name an argument, such as key='account-{account_id}', or leave out key.",
            id="jobqueue.W006",
        )
        for task in registry.all().values()
        for kind, limit in (("concurrency", task.concurrency), ("rate", task.rate))
        if limit is not None and limit.shared is None and isinstance(limit.key, str) and not has_fields(limit.key)
    ]
    return [
        *constant,
        *(_disagreement(kind, name) for (kind, name), limits in registry.declared_limits().items() if _differ(limits)),
    ]


def check_routes(**_: Any) -> list[checks.CheckMessage]:
    """Warn of patterns of ROUTES that match no task."""
    return [
        checks.Warning(
            f"TASKS[{backend.alias!r}]['OPTIONS']: ROUTES[{pattern!r:.300}] matches no task of this backend.",
            hint="Patterns match the name in rows: the dotted path of the function, or name=. The first match counts.",
            id="jobqueue.W010",
        )
        for backend in our_backends()
        for pattern in unused_patterns(
            routes_of(backend.alias),
            [registry.all_names_of(name) for name, task in registry.all().items() if task.backend == backend.alias],
        )
    ]


def _differ(limits: Collection[Concurrency | Rate]) -> bool:
    # The next task in the order of admission decides which number holds.
    return len({(limit.limit, limit.adjustable, getattr(limit, "seconds", None)) for limit in limits}) > 1


def _disagreement(kind: LimitKind, name: str) -> checks.CheckMessage:
    return checks.Warning(
        f"Tasks declare the shared {kind} limit {name!r:.300} differently: its number, its time or adjustable. "
        "The task that is admitted next decides.",
        hint="Write the limit once, as a constant, and use it in all of these tasks.",
        id="jobqueue.W007",
    )


def check_schedules(**_: Any) -> list[checks.CheckMessage]:
    """Check the schedules that code declares, except those of invalid tasks."""
    declared = [
        declaration for declaration in declared_schedules.declarations() if not getattr(declaration.task, "problem", "")
    ]  # E014
    problems = [(declaration, [*declaration.problems()]) for declaration in declared if not declaration.is_ignored]
    errors = [
        f"The schedule {declaration.name!r:.300} cannot be used: {problem}. It is declared in {declaration.location}."
        for declaration, text in problems
        for problem in text
    ]
    errors += [
        f"The schedule {first.name!r:.300} is declared twice: in {first.location} and in {second.location}."
        for first, second in declared_schedules.duplicates()
    ]
    silent = [
        f"The schedule {declaration.name!r:.300} never fires: its expression has no tick in 50 years, or none from "
        f"starts_at to ends_at. It is declared in {declaration.location}."
        for declaration, text in problems
        if not text and not declaration.has_ticks
    ]
    silent += [
        f"The schedule {declaration.name!r:.300} never fires: the backend {declaration.backend!r} is not a "
        f"JobQueueBackend. It is declared in {declaration.location}."
        for declaration in declared
        if declaration.is_ignored
    ]
    return [
        *(checks.Error(error, id="jobqueue.E011") for error in errors),
        *(checks.Warning(warning, id="jobqueue.W005") for warning in silent),
    ]


def check_time_zones(**_: Any) -> list[checks.CheckMessage]:
    """Warn of datetimes without a time zone."""
    if settings.USE_TZ:
        return []
    problem = (
        f"USE_TZ is False: run_after and expires are in TIME_ZONE ({settings.TIME_ZONE}). When clocks are put back, an "
        "hour exists twice, and schedules run only once in it. A process with another TIME_ZONE reads different times."
    )
    hint = "Set USE_TZ = True, or pass timedeltas, which count from the database's clock."
    return [checks.Warning(problem, hint=hint, id="jobqueue.W004")]


def check_encodings(databases: Collection[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Check that databases store every character. Runs only where checks may connect, such as in `migrate`."""
    if not databases:
        return []
    ours = {backend.settings.database for backend in sound_backends()}
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


def check_declarations(**_: Any) -> list[checks.CheckMessage]:
    """Report invalid options of tasks and actors."""
    return [
        checks.Error(f"The task in {location} cannot be used: {problem}.", id="jobqueue.E014")
        for location, problem in sorted(function.invalid_declarations.problems.items())
    ]


def check_task_names(**_: Any) -> list[checks.CheckMessage]:
    """Check that no two functions have one task name."""
    texts = {
        f"The task {name!r} is declared twice: {first.module_path} in {find_location(first)} and "
        f"{second.module_path} in {find_location(second)}."
        for name, first, second in function.duplicates
    }
    hint = "Rows contain this name, so it must belong to one function. Change one name= or aliases=."
    return [checks.Error(text, hint=hint, id="jobqueue.E002") for text in sorted(texts)]


def check_actors(**_: Any) -> list[checks.CheckMessage]:
    """Check that State and Message of each actor can be read from JSON. Otherwise every poll would fail."""
    actors = [task.actor for task in registry.all().values() if isinstance(task, ActorTask)]
    return [
        checks.Error(
            f"The actor {actor.task.task_type!r} cannot be polled: {name} cannot be read from JSON: {error}.",
            hint="Annotations must be names of the module: not of a class, a function, or under TYPE_CHECKING.",
            id="jobqueue.E009",
        )
        for actor in actors
        for name in ("State", "Message")
        if (error := reading_error(actor, name))
    ]


def backend_problems(
    alias: str, options: Any, keys: Iterable[Any] = (), queues: Collection[str] = ()
) -> Iterator[checks.CheckMessage]:
    """
    Yield the problems of one backend.

    options: its OPTIONS, which may have any type. keys: beside OPTIONS, too. queues: its QUEUES; none: all names.
    """
    here = f"TASKS[{alias!r}]"
    for key in keys:
        if key not in KEYS_OF_A_BACKEND:
            is_option = str(key).upper() in KEYS
            meant = " (it belongs in OPTIONS)" if is_option else did_you_mean(str(key), KEYS_OF_A_BACKEND)
            yield checks.Error(
                f"{here}: unknown key {key!r}{meant}; keys are {', '.join(KEYS_OF_A_BACKEND)}.", id="jobqueue.E013"
            )
    if not apps.is_installed("jobqueue"):
        yield checks.Error(
            f"{here} uses jobqueue, which is not an installed app.",
            hint="Add 'jobqueue' to INSTALLED_APPS and migrate.",
            id="jobqueue.E003",
        )
    for problem in option_problems(options):
        yield checks.Error(f"{here}['OPTIONS']: {problem}.", id="jobqueue.E004")
    for problem in middleware_problems(options):
        yield checks.Error(f"{here}['OPTIONS']: {problem}.", id="jobqueue.E004")
    if not isinstance(options, Mapping):
        return
    for problem in route_problems(options.get("ROUTES"), queues):
        yield checks.Error(f"{here}['OPTIONS']: {problem}.", id="jobqueue.E004")
    database = options.get("DATABASE", "default")
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


def middleware_problems(options: Any) -> Iterator[str]:
    """Yield why classes of MIDDLEWARE cannot be used."""
    paths = options.get("MIDDLEWARE", ()) if isinstance(options, Mapping) else ()
    for path in paths if isinstance(paths, list | tuple) else ():
        try:
            middleware.load(path)
        except Exception as error:  # noqa: BLE001 - it is code of the site
            yield f"MIDDLEWARE: {path!r:.300} cannot be used: {error}"


def _database_problems(here: str, alias: str) -> Iterator[checks.CheckMessage]:
    try:
        connection: Any = connections[alias]
    except ImproperlyConfigured as error:
        yield checks.Error(
            f"{here}: database {alias!r} cannot be used: {error}",
            hint="pip install 'psycopg[binary]'",
            id="jobqueue.E006",
        )
        return
    if connection.vendor == "postgresql":
        if find_spec("psycopg2") is not None:
            yield checks.Warning(
                f"{here}: psycopg2 is installed, but Django prefers psycopg 3, which jobqueue needs. Your SQL "
                "now runs with another driver: it binds some parameters in another way, such as a tuple after IN.",
                hint="Read 'Differences from psycopg2' in the documentation of psycopg, and run the tests of your site "
                "before you deploy. Then uninstall psycopg2.",
                id="jobqueue.W011",
            )
        size = pool_size(connection.settings_dict["OPTIONS"].get("pool"))
        if size is not None and size < CONNECTIONS_OF_AN_EXECUTOR:
            yield checks.Warning(
                f"{here}: the pool of database {alias!r} has at most {size} connections. An executor of 8 threads "
                f"needs {CONNECTIONS_OF_AN_EXECUTOR}: its threads and its heartbeat would wait for each other.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['pool'] = {{'max_size': threads + 4}}, or no pool.",
                id="jobqueue.W003",
            )
    elif connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            # Only a warning, because tests often use such a database.
            yield checks.Warning(
                f"{here}: database {alias!r} is SQLite in memory. Other processes cannot read it.",
                hint="Use PostgreSQL, or a database file.",
                id="jobqueue.W001",
            )
        elif connection.settings_dict["OPTIONS"].get("transaction_mode", "").upper() != "IMMEDIATE":
            yield checks.Warning(
                f"{here}: transactions of the SQLite database {alias!r} begin without the write lock. "
                "Enqueueing beside an executor can fail with 'database is locked'.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'.",
                id="jobqueue.W002",
            )
    else:
        yield checks.Error(
            f"{here}: database {alias!r} is {connection.display_name}; jobqueue needs PostgreSQL or SQLite.",
            hint="Point OPTIONS['DATABASE'] at a PostgreSQL database.",
            id="jobqueue.E008",
        )
