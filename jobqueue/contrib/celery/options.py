"""Options of Celery's tasks and calls as options of jobqueue's tasks."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

import jobqueue
from jobqueue.contrib.celery.conf import Conf
from jobqueue.contrib.celery.exceptions import refuse
from jobqueue.contrib.celery.payload import to_json
from jobqueue.contrib.celery.request import METADATA
from jobqueue.schedules.from_celery import priority_from_celery

# How Celery sends a message, stores a result or writes its log: here the call is a row.
NOT_NEEDED = {
    "acks_late", "acks_on_failure_or_timeout", "add_to_parent", "app", "argsrepr", "compression", "connection",
    "delivery_mode", "group_index", "immediate", "kwargsrepr", "lazy", "mandatory", "now", "origin", "producer",
    "publisher", "reject_on_worker_lost", "resultrepr_maxsize", "result_extended", "retry", "retry_policy",
    "send_events", "shadow", "shadow_name", "shared", "store_eager_result", "store_errors_even_if_ignored", "throws",
    "trail", "typing",
}  # fmt: skip
REFUSED = {
    "backend": "Results are in the table of tasks.",
    "chain": "Pass the calls to chain().",
    "chord": "Pass the calls to chord().",
    "exchange": "Name a queue: queue='...'.",
    "pydantic": "Validate the arguments in the body.",
    "reply_to": "Read the result with AsyncResult.",
    "router": "Name a queue: queue='...'.",
    "routing_key": "Name a queue: queue='...'.",
    "stamped_headers": "Pass headers.",
    "Strategy": "Executors claim rows.",
}
IN_METADATA = ("headers", "ignore_result", "in_canvas", "link", "link_error", "group_id", "parent_id", "root_id")
# What a task's own attributes add to each call.
OWN_OPTIONS = ("queue", "priority", "expires", "time_limit", "soft_time_limit", *REFUSED)
RETRY_OPTIONS = {"countdown", "eta", "exc", "max_retries"}
SECONDS = {"s": 1, "m": 60, "h": 3600}
EVERY_ATTEMPT = 1_000_000  # attempts of a task whose max_retries is None


def check_names(what: str, options: Mapping[str, Any]) -> None:
    """Raise NotSupported for an option without counterpart. what: the call, for the error."""
    for name, value in options.items():
        if value is None:
            continue
        if name in REFUSED:
            raise refuse(f"{what}: the option {name}={value!r:.50}", REFUSED[name])
        if name == "serializer" and value != "json":
            raise refuse(f"{what}: the serializer {value!r:.50}", "Pass arguments that are JSON, such as ids.")


def declared_options(task: Any, conf: Conf) -> dict[str, Any]:
    """Return the options of `jobqueue.task` for the attributes of a task."""
    if unknown := set(task.retry_kwargs or {}) - RETRY_OPTIONS:
        raise refuse(f"{task.name}: retry_kwargs with {', '.join(sorted(unknown))}", "The same row runs again.")
    retries = task.max_retries
    for more in (task.retry_kwargs or {}).get("max_retries", retries), getattr(task, "override_max_retries", retries):
        retries = None if retries is None or more is None else max(retries, more)
    rate = task.rate_limit or conf.task_default_rate_limit
    return {
        "max_attempts": EVERY_ATTEMPT if retries is None else retries + 1,
        "retry_on": (),  # only what asks for a retry
        "timeout": time_limit(task.soft_time_limit, task.time_limit, conf),
        "rate": read_rate(rate) if rate else None,
    }


def time_limit(soft: float | None, hard: float | None, conf: Conf | None) -> float | None:
    """Return the smallest limit of a task, else of the settings."""
    limits = [soft, hard] if soft or hard or conf is None else [conf.task_soft_time_limit, conf.task_time_limit]
    return min(filter(None, limits), default=None)


def read_rate(rate: str | float) -> jobqueue.Rate | None:
    """Return Celery's rate, such as "10/m" or 0.5, as starts in a period. Zero is none."""
    number, _, unit = str(rate).partition("/")
    starts, seconds = float(number), SECONDS[unit or "s"]
    if not starts:
        return None
    if starts < 1:  # "0.5/s"
        return jobqueue.Rate(1, timedelta(seconds=seconds / starts))
    return jobqueue.Rate(int(starts), timedelta(seconds=seconds))


def call_options(what: str, options: Mapping[str, Any], conf: Conf) -> dict[str, Any]:
    """Return the options of using() for those of a call. Raises NotSupported for what has no counterpart."""
    check_names(what, options)
    named = {name: value for name, value in options.items() if value is not None and name not in NOT_NEEDED}
    named.pop("serializer", None)
    metadata = {name: to_json(value) for name in IN_METADATA if (value := named.pop(name, None))}
    if "task_id" in named:
        metadata["id"] = named.pop("task_id")
    if (ignored := options.get("ignore_result")) is not None:
        metadata["ignore_result"] = ignored
    converted: dict[str, Any] = {"metadata": {METADATA: metadata}} if metadata else {}
    queue = named.pop("queue", None) or conf.task_default_queue
    if queue:
        converted["queue_name"] = str(getattr(queue, "name", queue))
    if (priority := named.pop("priority", None)) is not None:
        converted["priority"] = priority_from_celery(priority, conf.broker_url)
    countdown, eta = named.pop("countdown", None), named.pop("eta", None)
    if countdown:
        converted["run_after"] = timedelta(seconds=float(countdown))
    elif eta:
        converted["run_after"] = aware_moment(eta)
    if "expires" in named:
        converted["expires"] = read_expiry(named.pop("expires"))
    if limit := time_limit(named.pop("soft_time_limit", None), named.pop("time_limit", None), None):
        converted["timeout"] = limit
    for name in named:
        raise refuse(f"{what}: the option {name}={named[name]!r:.50}")
    return converted


def aware_moment(value: datetime | str) -> datetime:
    """Return an aware datetime. One without a time zone is in UTC, as in Celery."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if timezone.is_aware(moment) else moment.replace(tzinfo=UTC)


def read_expiry(value: Any) -> datetime | timedelta:
    """Return when a task expires. One that has expired already never starts."""
    if isinstance(value, datetime | str):
        return aware_moment(value)
    wait = value if isinstance(value, timedelta) else timedelta(seconds=float(value))
    return wait if wait > timedelta(0) else timezone.now()


def route(name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any, conf: Conf) -> dict[str, Any]:
    """Return the options of a call with those of the first route for it. What the call names wins."""
    routes = conf.task_routes or ()
    for entry in routes if isinstance(routes, list | tuple) else (routes,):
        router = import_string(entry) if isinstance(entry, str) else entry
        if isinstance(router, Mapping | list | tuple):
            matching = _look_up(dict(router), name)
        elif callable(router):
            matching = router(name, args, kwargs, options, task=task)
        else:
            matching = router.route_for_task(name, args, kwargs)
        if matching is not None:
            named = {key: value for key, value in options.items() if value is not None}
            return {**({"queue": matching} if isinstance(matching, str) else matching), **named}
    return options


def _look_up(routes: Mapping[Any, Any], name: str) -> Any:
    if name in routes:
        return routes[name]
    for pattern, matching in routes.items():
        is_match = pattern.match(name) if isinstance(pattern, re.Pattern) else fnmatch.fnmatchcase(name, pattern)
        if is_match:
            return matching
    return None
