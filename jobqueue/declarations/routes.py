"""OPTIONS["ROUTES"]: options of tasks by patterns of their names, in place of what the code declares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from django.conf import settings

from jobqueue.declarations.limits import CONCURRENCY, RATE, Concurrency, Rate
from jobqueue.declarations.options import KINDS
from jobqueue.values import kinds
from jobqueue.values.backoff import Backoff
from jobqueue.values.records import is_internal
from jobqueue.values.text import did_you_mean, short_repr

ROUTED: Mapping[str, Any] = {
    **{option: KINDS[option] for option in ("queue_name", "priority", "max_attempts", "timeout", "backoff")},
    "concurrency": CONCURRENCY,
    "rate": RATE,
}
CLASSES: Mapping[str, Any] = {"backoff": Backoff, "concurrency": Concurrency, "rate": Rate}  # also given as dicts


def routes_of(alias: Any) -> Any:
    """Return the ROUTES of a backend, which may be of any type; None: it has none."""
    backend = (getattr(settings, "TASKS", None) or {}).get(alias)
    options = backend.get("OPTIONS") if isinstance(backend, Mapping) else None
    return options.get("ROUTES") if isinstance(options, Mapping) else None


def options_by_route(routes: Any, names: Collection[Any]) -> Mapping[str, Any]:
    """Return the options of the first pattern that matches one of the names of a task. Raises as their classes do."""
    if not isinstance(routes, Mapping) or any(is_internal(str(name)) for name in names):
        return {}
    for pattern, options in routes.items():
        if isinstance(options, Mapping) and _matches(pattern, names):
            return {option: read_option(option, value) for option, value in options.items() if option in ROUTED}
    return {}


def unused_patterns(routes: Any, tasks: Collection[Collection[str]]) -> list[str]:
    """Return the patterns of ROUTES that are the first to match no task. tasks: the names of each."""
    if not isinstance(routes, Mapping):
        return []
    used = {next((pattern for pattern in routes if _matches(pattern, names)), None) for names in tasks}
    return [pattern for pattern in routes if isinstance(pattern, str) and pattern not in used]


def _matches(pattern: Any, names: Collection[Any]) -> bool:
    return any(fnmatchcase(str(name), str(pattern)) for name in names)


def read_option(option: str, value: Any) -> Any:
    """Return an option that settings may give as a dict, such as one of JSON. Raises what its class raises."""
    return CLASSES[option](**value) if option in CLASSES and isinstance(value, Mapping) else value


def route_problems(routes: Any, queues: Collection[str]) -> Iterator[str]:
    """Yield the problems of ROUTES. queues: those of the backend; none: all."""
    if routes is None:
        return
    if not isinstance(routes, Mapping):
        yield f"ROUTES must be a dict of patterns of task names and dicts of options, not {short_repr(routes)}"
        return
    for pattern, options in routes.items():
        here = f"ROUTES[{short_repr(pattern)}]"
        if not isinstance(pattern, str) or not pattern:
            yield f"{here}: the pattern must be a text such as 'shop.tasks.*'"
        elif not isinstance(options, Mapping):
            yield f"{here} must be a dict of options, not {short_repr(options)}"
        else:
            yield from (f"{here}: {problem}" for problem in _problems(options, queues))


def _problems(options: Mapping[Any, Any], queues: Collection[str]) -> Iterator[str]:
    for option, setting in options.items():
        if option not in ROUTED:
            yield f"unknown option {option!r}{did_you_mean(str(option), ROUTED)}; options are {', '.join(ROUTED)}"
            continue
        try:
            value = read_option(option, setting)
        except Exception as error:  # noqa: BLE001 - of the class of the option
            yield f"{option} cannot be read: {short_repr(error)}"
            continue
        yield from kinds.problems(option, value, ROUTED[option])
        if option == "queue_name" and queues and value not in queues:
            yield f"queue_name {short_repr(value)} is not one of QUEUES: {', '.join(sorted(queues))}"
