"""`limits`: list the keys of limits by key, and set or reset their numbers while the site runs."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobqueue.api import limits as api
from jobqueue.engine import Engine
from jobqueue.management.cli import arguments
from jobqueue.management.cli.backends import engines, find_engine
from jobqueue.management.cli.console import Console, TableColumn, log, shell_user
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.formatting import duration
from jobqueue.operations.limits import Key, KeyState, list_keys, read_key_states
from jobqueue.operations.queries import many
from jobqueue.values.states import LimitKind

COLUMNS = (
    TableColumn("KEY", is_flexible=True),
    TableColumn("KIND"),
    TableColumn("LIMIT"),
    TableColumn("BLOCKED", is_right=True),
    TableColumn("ACTIVE", is_right=True),
    TableColumn("LEFT", is_right=True),
    TableColumn("BLOCKED FOR", is_right=True),
)


def add_arguments(parser: CommandParser) -> None:
    name = "a part of a limit's name, or the start of a key, with or without NAME: before it"
    parser.add_argument("--name", default="", help=name)
    _add_kind(parser, "only limits of this kind")
    parser.add_argument("--blocked", action="store_true", help="only keys with BLOCKED tasks")
    lines = "number of keys of each backend (25)"
    parser.add_argument("-n", "--lines", type=arguments.within(1, 1000), default=25, help=lines)


def add_set_arguments(parser: CommandParser) -> None:
    _add_key(parser)
    number = "how many tasks at once, or how many starts"
    parser.add_argument("number", type=arguments.limit_number, metavar="NUMBER", help=number)
    _add_kind_of_key(parser)
    parser.add_argument("--reason", default="", help="why; the list and the admin show it")
    parser.add_argument("--by", help="who sets it (default: your login name)")


def add_reset_arguments(parser: CommandParser) -> None:
    _add_key(parser)
    _add_kind_of_key(parser)


def _add_key(parser: CommandParser) -> None:
    text = "NAME of a limit for all of its keys, or NAME:KEY for one"
    parser.add_argument("key", metavar="KEY", help=text)


def _add_kind_of_key(parser: CommandParser) -> None:
    _add_kind(parser, "needed if a concurrency limit and a rate have the key", default=SUPPRESS)


def _add_kind(parser: CommandParser, text: str, **default: Any) -> None:
    kinds = [str(kind) for kind in api.KINDS]
    parser.add_argument("--kind", choices=kinds, metavar="|".join(kinds), help=text, **default)


def list_limits(console: Console, flags: Any) -> None:
    """List the keys of every backend, those with the most BLOCKED tasks first."""
    states: list[KeyState] = []
    notes: list[str] = []
    for engine in engines(flags.backend):
        listing = list_keys(engine, None if flags.kind is None else LimitKind(flags.kind), flags.name)
        keys = [listed.key for listed in listing.keys if listed.blocked or not flags.blocked]
        states += read_key_states(engine.database, engine.alias, keys[: flags.lines])
        if len(keys) > flags.lines:
            more = many(len(keys) - flags.lines, "more key")
            notes.append(f"Backend {engine.alias}: {more}. Pass --lines or --name to see others.")
        notes += [
            f"{name} has more keys than the list reads. Pass --name with the start of a key."
            for name in listing.partial
        ]
    if console.is_json:
        console.write_json([_as_json(state) for state in states])
        return
    backends = list(dict.fromkeys(state.backend for state in states))
    for index, backend in enumerate(backends):
        if index:
            console.write()
        if len(backends) > 1:
            console.write(f"Backend {backend}")
        of_backend = [state for state in states if state.backend == backend]
        console.table(COLUMNS, [_line(state) for state in of_backend])
        for state in of_backend:
            if state.is_own:
                console.write(_sentence(state))
    if not states:
        console.say("No limit matches. Declare one with @task(concurrency=...) or @task(rate=...).")
    for note in notes:
        console.say(note)


def set_limit(console: Console, flags: Any) -> None:
    """Set the number of a key, or of all keys of a limit."""
    engine = find_engine(flags.backend)
    key = _find(engine, flags)
    by = shell_user() if flags.by is None else flags.by
    with _value_errors():
        api.set_limit(key.kind, key.stored, flags.number, by=by, reason=flags.reason, backend=engine.alias)
    values = {"key": key.stored, "kind": str(key.kind), "number": flags.number, "reason": flags.reason}
    log("set_limit", flags.by, **values, backend=engine.alias)
    _report(console, engine, key)


def reset_limit(console: Console, flags: Any) -> None:
    """Remove the number that people have set for a key, or for all keys of a limit."""
    engine = find_engine(flags.backend)
    key = _find(engine, flags)
    if not api.reset_limit(key.kind, key.stored, backend=engine.alias):
        console.say(f"No number was set for {key.label}.")
    log("reset_limit", key=key.stored, kind=str(key.kind), backend=engine.alias)
    _report(console, engine, key)


@contextmanager
def _value_errors() -> Iterator[None]:
    """Report a refused value in one line."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from error


def _find(engine: Engine, flags: Any) -> Key:
    """Return the key that the flags name. Raises CommandError if two kinds of limits have it."""
    stored = api.stored_key(flags.key)
    if flags.kind is not None:
        kind = LimitKind(flags.kind)
        api.check_known(engine, kind, stored)
        return Key(kind, stored)
    kinds = api.kinds_with(engine, stored)
    if len(kinds) > 1:
        raise CommandError(f"A concurrency limit and a rate have the key {flags.key!r}. Pass --kind.")
    return Key(kinds[0], stored)


def _report(console: Console, engine: Engine, key: Key) -> None:
    (state,) = read_key_states(engine.database, engine.alias, [key])
    if console.is_json:
        console.write_json(_as_json(state))
    else:
        console.write(_sentence(state))


def _sentence(state: KeyState) -> str:
    """Return which number applies to a key, and by whose change."""
    row, subject = state.changed, f"{state.key.label} ({state.key.kind})"
    subject = f"{subject} has the limit {state.number_text}{' for each key' if state.is_all else ''}"
    if row is None:
        return f"{subject}, as declared."
    by = f" by {row.changed_by}" if row.changed_by else ""
    declared = "" if state.declared is None else f" instead of {state.declared:,}"
    of = "" if state.is_own else " for all keys"
    reason = f" Reason: {row.reason.removesuffix('.')}." if row.reason else ""
    return f"{subject}{declared}, set{of}{by} {duration(state.now - row.changed_at)} ago.{reason}"


def _line(state: KeyState) -> tuple[object, ...]:
    left = "–" if state.left is None else f"{state.left:,}"
    waited = "–" if state.blocked_for is None else duration(state.blocked_for)
    active = "–" if state.is_all else state.active
    suffix = " each" if state.is_all else ""
    return state.key.label, state.key.kind, f"{state.number_text}{suffix}", state.blocked, active, left, waited


def _as_json(state: KeyState) -> dict[str, Any]:
    row = state.changed
    counts = {"blocked": state.blocked, "active": state.active}
    return {
        "backend": state.backend,
        "kind": state.key.kind,
        "key": state.key.stored,
        "name": state.key.name,
        "is_all_keys": state.is_all,
        "number": state.number,
        "declared": state.declared,
        "per_seconds": state.seconds,
        **{name: count.number for name, count in counts.items()},
        "at_least": [name for name, count in counts.items() if count.is_more],
        "left": state.left,
        "blocked_seconds": None if state.blocked_for is None else state.blocked_for.total_seconds(),
        "is_adjustable": state.is_adjustable,
        "is_own_number": state.is_own,
        **{name: None if row is None else getattr(row, name) for name in ("changed_by", "reason", "changed_at")},
    }


VERB = Verb(
    "limits",
    "List the keys of limits by key, most BLOCKED tasks first. With an action: set or reset a number.",
    list_limits,
    add_arguments,
    actions=(
        Verb(
            "set",
            "Set the number of a limit. It replaces the declared one at once. Running tasks continue.",
            set_limit,
            add_set_arguments,
        ),
        Verb("reset", "Remove the number that people have set.", reset_limit, add_reset_arguments),
    ),
)
