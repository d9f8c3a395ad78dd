"""Set and reset the numbers of limits by key while the site runs, for one key or for all keys of a limit."""

from __future__ import annotations

import difflib
import re
import string
from typing import Any

from jobqueue.api.notifications import ADMIT_NOTIFICATION, notify_after_commit
from jobqueue.declarations.limits import MAX_LIMIT, Concurrency, Rate
from jobqueue.declarations.registry import declared_limits
from jobqueue.engine import Engine, engine_for, tasks_of_limit
from jobqueue.exceptions import LimitNotFound
from jobqueue.models import Limit
from jobqueue.values import kinds
from jobqueue.values.limit_keys import SEPARATOR, split_key
from jobqueue.values.states import LimitKind
from jobqueue.values.text import is_text

KINDS = (LimitKind.CONCURRENCY, LimitKind.RATE)


def set_limit(
    kind: LimitKind | str, key: str, number: int, *, by: str = "", reason: str = "", backend: str = "default"
) -> None:
    """
    Set the number of a limit by key. It replaces the declared number. Running tasks continue.

    kind: "concurrency" or "rate". key: "NAME:KEY" with the name of the limit, as the list of limits shows it. "NAME"
    alone sets the number of all keys for which people have set none. Raises LimitNotFound for an unknown key. Raises
    ValueError for a number below 1, for a limit that code declares with adjustable=False, or if a text is too long.
    Raises OperationalError if another transaction has locked the limit for more than a second.
    """
    engine = engine_for(backend)
    kind, key = parse_kind(kind), stored_key(key)
    kinds.check("The number of a limit", number, kinds.whole(1, MAX_LIMIT), "To run no tasks, pause their queue.")
    kinds.check("by", by, kinds.text(150, at_least=0))
    kinds.check("reason", reason, kinds.text(255, at_least=0))
    check_adjustable(kind, key)
    check_known(engine, kind, key)
    engine.limits.set(kind, key, number, by=by, reason=reason)
    notify_after_commit(engine, {ADMIT_NOTIFICATION})


def reset_limit(kind: LimitKind | str, key: str, *, backend: str = "default") -> bool:
    """Remove the number that people have set for a key, or for all keys of a limit. Return whether there was one."""
    engine = engine_for(backend)
    kind, key = parse_kind(kind), stored_key(key)
    if not changed_numbers(engine).filter(kind=kind, key=key).exists():
        return False
    engine.limits.set(kind, key, None)
    notify_after_commit(engine, {ADMIT_NOTIFICATION})
    return True


def reset_non_adjustable_limits(engine: Engine) -> int:
    """Remove the numbers of limits that this code declares with adjustable=False. Return how many."""
    fixed = {named for named, limits in declared_limits().items() if not all(limit.adjustable for limit in limits)}
    if not fixed:
        return 0
    changed = [(LimitKind(kind), key) for kind, key in changed_numbers(engine).values_list("kind", "key")]
    removed = [(kind, key) for kind, key in changed if (kind, split_key(key)[0]) in fixed]
    for kind, key in removed:
        engine.limits.set(kind, key, None)
    return len(removed)


def changed_numbers(engine: Engine) -> Any:
    """Return the numbers that people have set, as a query."""
    return Limit.objects.using(engine.database).filter(backend=engine.alias)


def parse_kind(text: LimitKind | str) -> LimitKind:
    kinds.check("The kind of a limit", text, kinds.one_of(*KINDS))
    return LimitKind(text)


def stored_key(text: str) -> str:
    """Return a key as rows store it, with a colon. A name alone stands for all keys of the limit."""
    if not is_text(text, Limit._meta.get_field("key").max_length or 0):
        raise LimitNotFound(f"{text!r:.200} is not the key of a limit. See: manage.py jobqueue limits")
    return text if SEPARATOR in text else f"{text}{SEPARATOR}"


def check_adjustable(kind: LimitKind, key: str) -> None:
    """Raise ValueError if code does not let people change the limit."""
    name, _ = split_key(key)
    if not all(limit.adjustable for limit in declared_limits().get((kind, name), ())):
        raise ValueError(f"Code declares the {kind} limit {name!r} with adjustable=False. Change its number there.")


def kinds_with(engine: Engine, key: str) -> list[LimitKind]:
    """Return the kinds of limits that have a key. Raises LimitNotFound if there is none."""
    kinds, errors = [], []
    for kind in KINDS:
        try:
            check_known(engine, kind, key)
            kinds.append(kind)
        except LimitNotFound as error:
            errors.append(error)
    if kinds:
        return kinds
    # If the name is that of a declared rate, the error about the rate has the better advice.
    is_rate = (LimitKind.RATE, split_key(key)[0]) in declared_limits()
    raise errors[1 if is_rate else 0]


def check_known(engine: Engine, kind: LimitKind, key: str) -> None:
    """Raise LimitNotFound for a key that no task has and that no declared limit can make."""
    name, own_key = split_key(key)
    limits = declared_limits().get((kind, name), [])
    if any(not own_key or _can_make(limit, own_key) for limit in limits):
        return
    if changed_numbers(engine).filter(kind=kind, key=key).exists() or _has_tasks(engine, kind, key):
        return
    if limits or (own_key and _has_tasks(engine, kind, f"{name}{SEPARATOR}")):
        templates = sorted({limit.key for limit in limits if isinstance(limit.key, str)})
        advice = f"Its keys are like {' or '.join(map(repr, templates))}." if templates else ""
        advice = advice or f"To change all of its keys, write {name!r}."
        raise LimitNotFound(f"The {kind} limit {name!r} has no key {own_key!r}. {advice}")
    names = sorted(
        {declared_name for declared_kind, declared_name in declared_limits() if declared_kind is kind}
        | set(engine.limits.names(kind))
    )
    similar = difflib.get_close_matches(name, names, n=3)
    advice = f"Did you mean {' or '.join(similar)}?" if similar else "See: manage.py jobqueue limits"
    raise LimitNotFound(f"No {kind} limit of the backend {engine.alias!r} is named {name!r:.200}. {advice}")


def _has_tasks(engine: Engine, kind: LimitKind, key: str) -> bool:
    # Also tasks that have ended: a rate counts their starts.
    column = "concurrency_key" if kind is LimitKind.CONCURRENCY else "rate_key"
    live = engine.db.tasks.live() if kind is LimitKind.CONCURRENCY else engine.db.tasks
    return (
        live.filter(tasks_of_limit(kind, key), **{f"{column}__isnull": False}).order_by("backend", column)[:1].exists()
    )


def _can_make(limit: Concurrency | Rate, own_key: str) -> bool:
    """Return whether a limit can make a key from some arguments. A function may make any key."""
    if limit.key is None or callable(limit.key):
        return limit.key is not None
    parts = string.Formatter().parse(limit.key)
    pattern = "".join(f"{re.escape(text)}{'' if field is None else '.*'}" for text, field, _, _ in parts)
    return re.fullmatch(pattern, own_key, re.DOTALL) is not None
