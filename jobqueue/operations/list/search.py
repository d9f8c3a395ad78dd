"""
The search box of the task list: one text, and what it selects.

`Search.parse` reads a text with a word in front, such as key:order:7, or the first characters of an id.
`interpretation` turns what people type without such a word into one of these, and errors and tags into filters.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.lookups import IContains
from django.utils.translation import gettext as _

from jobqueue.declarations import registry
from jobqueue.exceptions import InvalidArguments
from jobqueue.models import TaskQuerySet
from jobqueue.operations.backends import backends_on, options_of
from jobqueue.operations.formatting import short_type
from jobqueue.operations.list.failures import TooManyCauses, causes_in_database
from jobqueue.operations.list.names import matching_types
from jobqueue.operations.payloads import LastError
from jobqueue.values.json import encode
from jobqueue.values.redaction import is_named
from jobqueue.values.states import Status

HEX = re.compile(r"[0-9a-f]{1,32}")
KEY, TASK, ARGUMENT, ERROR, TAG = "key:", "task:", "args.", "error:", "tag:"
ARGUMENT_TEXT = re.compile(r"args\.(?P<path>[^:]+):(?P<value>.*)", re.DOTALL | re.IGNORECASE)
NOTHING = Q(pk__in=[])


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The condition that a text stands for."""

    ids: Q = field(default_factory=Q)  # a range of the primary key
    key: str | None = None  # of a task; None: the text is no key
    rest: Q = field(default_factory=Q)  # a condition that no index serves
    description: str = ""  # a description of what is searched
    problem: str = ""  # why nothing is searched; empty if something is

    @classmethod
    def parse(cls, text: str, database: str, *, with_payload: bool = True) -> Search:
        """Parse a text. with_payload: whether the reader may see arguments and errors."""
        text = clean(text)
        lower = text.lower()
        if not text:
            return cls()
        if lower.startswith(KEY):
            key = text[len(KEY) :].strip()
            text_searched = _(
                "Searched: tasks with the key “%(key)s”. Names, tags, arguments and errors were not searched."
            )
            return cls(key=key, description=text_searched % {"key": key})
        if lower.startswith(TASK):
            return cls._by_task_types(text[len(TASK) :].strip(), database)
        if lower.startswith(ARGUMENT):
            return cls._by_argument(text, database, with_payload=with_payload)
        if lower.startswith(ERROR):
            return cls._by_error(text[len(ERROR) :].strip(), database, with_payload=with_payload)
        if lower == TAG:
            return cls(ids=NOTHING, problem=_("To search a tag, write tag:TAG, such as tag:vip."))
        if ids := id_range(text):
            text_searched = _(
                "Searched: ids that begin with “%(text)s”. Names, tags, arguments and errors were not searched."
            )
            return cls(ids=ids, description=text_searched % {"text": text})
        problem = _(
            "“%(text)s” is neither the start of an id, nor a key, nor a tag, nor part of a task's name. "
            "Arguments and errors were not searched. To search them, write args.NAME:VALUE or error:TEXT."
        )
        return cls(ids=NOTHING, problem=problem % {"text": text})

    @classmethod
    def _by_task_types(cls, text: str, database: str) -> Search:
        types = matching_types(text, database)
        if not types:
            return cls(ids=NOTHING, problem=_("No task has “%(text)s” in its name.") % {"text": text})
        sentence = _(
            "Searched: tasks with “%(text)s” in their name: %(names)s. Tags, arguments and errors were not searched."
        )
        names = ", ".join(map(short_type, types))
        return cls(rest=Q(task_type__in=types), description=sentence % {"text": text, "names": names})

    @classmethod
    def _by_error(cls, text: str, database: str, *, with_payload: bool) -> Search:
        if not text:
            return cls(ids=NOTHING, problem=_("To search errors, write error:TEXT, such as error:timeout."))
        if with_payload:  # with causes that an address can have, interpret() would have replaced the text
            try:
                causes_in_database(database, text)
            except TooManyCauses as error:
                return cls(ids=NOTHING, problem=str(error))
            problem = _("No failed task has “%(text)s” in its error.")
            return cls(ids=NOTHING, problem=problem % {"text": text})
        sentence = _(
            "Searched: failed tasks with “%(text)s” in the class of their error. "
            "You lack the permission to see messages of errors, so they were not searched."
        )
        has_class = Q(IContains(LastError("errors", member="exception_class_path"), text))
        return cls(rest=Q(status=Status.FAILED) & has_class, description=sentence % {"text": text})

    @classmethod
    def _by_argument(cls, text: str, database: str, *, with_payload: bool) -> Search:
        match = ARGUMENT_TEXT.fullmatch(text)
        path = match["path"].split(".") if match else []
        if not match or not all(path) or any("__" in part for part in path):
            problem = _("To search an argument, write args.NAME:VALUE, such as args.order_id:57.")
            return cls(ids=NOTHING, problem=problem)
        if not with_payload:
            return cls(ids=NOTHING, problem=_("You lack the permission to see arguments, so they were not searched."))
        name = ".".join(path)
        patterns = {pattern for backend in backends_on(database) for pattern in options_of(backend).redact}
        if any(is_named(sorted(patterns), *path[: end + 1]) for end in range(len(path))):
            # Each answer would tell whether a guess is right.
            problem = _("The argument %(name)s is masked, so it was not searched.")
            return cls(ids=NOTHING, problem=problem % {"name": name})
        sentence = _("Searched: tasks whose argument %(name)s is “%(value)s”.")
        condition = argument_condition(path, match["value"].strip())
        return cls(rest=condition, description=sentence % {"name": name, "value": match["value"].strip()})

    @property
    def condition(self) -> Q:
        condition = self.ids & self.rest
        return condition if self.key is None else condition & Q(key=self.key)


def clean(text: str) -> str:
    return text.replace("\x00", "").strip()  # PostgreSQL does not allow NUL in text


def id_range(text: str) -> Q | None:
    """Return the condition for ids that begin with a text; None if no id does."""
    digits = text.lower().replace("-", "")
    if not HEX.fullmatch(digits):
        return None
    return Q(pk__range=(UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))))


def ids_with_key(tasks: TaskQuerySet, key: str, limit: int) -> list[UUID]:
    """
    Return the tasks that have or had a key.

    One index has the live tasks that hold keys, another one those that have ended. A live task whose key another one
    has taken over is in none of them. Of these, the RUNNING ones are read from the index of running tasks.
    """
    of_key = tasks.filter(key=key)
    holders = of_key.filter(finished_at__isnull=True, taken_over_by_id__isnull=True).values_list("pk", flat=True)
    running = of_key.running().filter(taken_over_by_id__isnull=False).values_list("pk", flat=True)
    ended = of_key.filter(finished_at__isnull=False).values_list("pk", flat=True)[:limit]
    return [*holders.union(running, all=True), *ended]


def argument_condition(path: Sequence[str], text: str) -> Q:
    """
    Return the condition for tasks with an argument: by name, or at the place that a known function gives it.

    A text without quotes may be a number, too: 57 finds 57 and "57".
    """
    first, *rest = path
    values = _values(text)
    condition = _is_any("kwargs", [first, *rest], values)
    by_place: dict[int, list[str]] = {}
    for name, task in registry.all().items():
        positional = registry.parameters(name).positional  # type: ignore[union-attr]
        if first in positional:
            by_place.setdefault(positional.index(first), []).extend((task.task_type, *task.aliases))
    of_places = (
        Q(task_type__in=types) & _is_any("args", [str(index), *rest], values) for index, types in by_place.items()
    )
    return reduce(or_, of_places, condition)


def _values(text: str) -> list[Any]:
    """
    Return the values that a text may mean. Only single values: a comparison with an object would test its masked parts,
    too.
    """
    try:
        value = json.loads(text)
        encode(value, where="", max_bytes=sys.maxsize)  # refuses what rows cannot store, such as NaN
    except (ValueError, RecursionError, InvalidArguments):
        return [text]
    if isinstance(value, str):
        return [value]
    return [text] if isinstance(value, list | dict) else [value, text]


def _is_any(column: str, path: Collection[str], values: Collection[Any]) -> Q:
    # The lookup at the end makes each part of the path a key, also one that is called as a lookup.
    name = "__".join((column, *path, "exact"))
    return reduce(or_, (Q(**{name: value}) for value in values))
