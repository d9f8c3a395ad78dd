"""
Limits by key as people see them: how many tasks of a key wait, how many are active, and which number applies.

A list reads only index entries, in ROUNDS of KEYS_CAP for each limit, in the order of the keys. It reads rows of
tasks only for the keys of one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count as CountOf
from django.db.models import Q
from django.utils.translation import gettext as _

from jobqueue.api.limits import KINDS, changed_numbers
from jobqueue.declarations.limits import Concurrency, Rate
from jobqueue.declarations.registry import declared_limits
from jobqueue.engine import INDEXED, IS_ACTIVE, IS_WAITING, KEYS_CAP, Count, Engine, count, read_clock, tasks_of_limit
from jobqueue.models import AdmissionRequest, Limit, RateStart, Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import Text, duration, ready_since, short_type
from jobqueue.values.limit_keys import AFTER_SEPARATOR, SEPARATOR, split_key
from jobqueue.values.states import LimitKind, Status
from jobqueue.values.text import number_text

ROUNDS = 3
KEYS_READ = 1000  # those with the most BLOCKED tasks, in each round
LAST_CHARACTER = "\U0010ffff"
ORDER = {LimitKind.CONCURRENCY: ("counts_while_waiting", "status"), LimitKind.RATE: ("status",)}  # of the indexes


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a limit and a key, as rows store them. No text after the colon: all keys, or a limit without keys."""

    kind: LimitKind
    stored: str

    @property
    def name(self) -> str:
        return split_key(self.stored)[0]

    @property
    def own(self) -> str:
        return split_key(self.stored)[1]

    @property
    def title(self) -> str:
        """The key itself, or the last part of the name if the limit has no keys."""
        return self.own or short_type(self.name)

    @property
    def label(self) -> str:
        """The key as people write it. All keys of a limit, or a limit without keys: its name alone."""
        return self.stored if self.own else self.name

    @property
    def text(self) -> str:
        """The key in an address: the kind, a colon, and the key as rows store it."""
        return f"{self.kind}{SEPARATOR}{self.stored}"

    @classmethod
    def parse(cls, text: str) -> Key | None:
        """Read the text of an address; None for another text."""
        kind, _, stored = text.partition(SEPARATOR)
        return cls(LimitKind(kind), stored) if kind in KINDS and SEPARATOR in stored else None


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key in a list."""

    key: Key  # of a limit
    blocked: int = 0  # tasks that wait for it
    active: int = 0  # the tasks that count. For a rate, without the starts in the window.


@dataclass(frozen=True, slots=True)
class Listing:
    """Keys, those with the most BLOCKED tasks first."""

    keys: Sequence[ListedKey]  # with their figures
    partial: Sequence[str] = ()  # the names of limits with more keys than were read


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """The state of a key now."""

    key: Key  # of a limit
    backend: str  # its alias in TASKS
    now: datetime  # of the database
    blocked: Count  # how many tasks wait for it
    # How many tasks count. For a rate, the starts in the window and the admitted tasks that have not started. For
    # all keys 0, because they may be too many to count.
    active: Count
    number: int | None  # the number that applies; None if neither a task nor a declaration has one
    declared: int | None  # the number of the next task, or else of the code; None if neither has one
    changed: Limit | None = None  # the row of the number that people have set; None: they have set none
    is_adjustable: bool = True  # people may set another number
    seconds: float | None = None  # the period of a rate; None for a concurrency limit
    unstarted: int = 0  # of a rate, the admitted tasks that have not started
    blocked_since: datetime | None = None  # since when the next task to admit waits; None: no task waits
    is_all: bool = False  # the key stands for all keys of the limit
    next_look_at: datetime | None = None  # when executors look at the key next; None: not planned

    @property
    def id(self) -> str:
        """The id of the key in the log and in the address of its page. Most keys have no row."""
        return f"{self.backend}{SEPARATOR}{self.key.text}"

    @property
    def title(self) -> str:
        return self.key.title

    @property
    def is_rate(self) -> bool:
        return self.key.kind is LimitKind.RATE

    @property
    def is_own(self) -> bool:
        """Whether people have set the number for this key, not for all keys of the limit."""
        return self.changed is not None and self.changed.key == self.key.stored

    @property
    def left(self) -> int | None:
        """Return how many more tasks may be admitted now; None for all keys of a limit, because each has a number."""
        return None if self.number is None or self.is_all else max(0, self.number - self.active.number)

    @property
    def number_text(self) -> str:
        """The number that applies, in words: "5", "100 a minute"."""
        if self.number is None:
            return "–"
        return rate_words(self.number, self.seconds) if self.seconds else number_text(self.number)

    @property
    def blocked_for(self) -> timedelta | None:
        return None if self.blocked_since is None else self.now - self.blocked_since


def parse_key(text: str, backends: Iterable[str]) -> tuple[str, Key] | None:
    """Return the backend and the key that an id names; None for another text."""
    for backend in backends:
        if text.startswith(f"{backend}{SEPARATOR}") and (key := Key.parse(text.removeprefix(f"{backend}{SEPARATOR}"))):
            return backend, key
    return None


def rate_words(number: int, seconds: float) -> str:
    """Return a rate in words: "100 a minute"."""
    forms = {
        1.0: _("%(number)s a second"),
        60.0: _("%(number)s a minute"),
        3600.0: _("%(number)s an hour"),
        86_400.0: _("%(number)s a day"),
    }
    form = forms.get(seconds, _("%(number)s in %(time)s"))
    return form % {"number": number_text(number), "time": duration(seconds)}


def kind_words(kind: LimitKind) -> Text:
    return dict(Limit.Kind.choices)[kind]


def counts_for(key: Key) -> Q:
    """Return the condition for the tasks that count for a key. For a rate, without the starts in the window."""
    return INDEXED[key.kind] & tasks_of_limit(key.kind, key.stored) & IS_ACTIVE[key.kind]


def list_task_keys(task: Task) -> list[Key]:
    """Return the keys of a task's limits, the concurrency limit first, as executors look at them."""
    stored = ((LimitKind.CONCURRENCY, task.concurrency_key), (LimitKind.RATE, task.rate_key))
    return [Key(kind, key) for kind, key in stored if key is not None]


def key_that_matters(task: Task) -> Key | None:
    """Return the key for which a BLOCKED task waits, or for which a SCHEDULED task still counts."""
    waits = task.status == Status.BLOCKED
    keys = list_task_keys(task) if waits or (task.counts_while_waiting and task.status == Status.SCHEDULED) else []
    return keys[-1] if waits and task.counts_while_waiting and keys else keys[0] if keys else None


# --- many keys


def list_keys(engine: Engine, kind: LimitKind | None = None, text: str = "") -> Listing:
    """
    Return the keys that tasks have, those with a number that people have set, and the limits that code declares.

    text: a part of a limit's name, or the beginning of a key, with or without the name and its colon. Locks: none.
    """
    kinds = KINDS if kind is None else (kind,)
    by_key: dict[Key, ListedKey] = {}
    partial: list[str] = []
    for each_kind in kinds:
        for name in engine.limits.names(each_kind):
            keys, is_partial = _read_keys(engine, each_kind, *_range(name, text))
            by_key |= {listed.key: listed for listed in keys}
            partial += [name] * is_partial
    others = [Key(LimitKind(of), stored) for of, stored in changed_numbers(engine).values_list("kind", "key")]
    others += [Key(of, f"{name}{SEPARATOR}") for of, name in declared_limits()]
    for key in others:
        first, before = _range(key.name, text)
        if key.kind in kinds and first <= key.stored < before:
            by_key.setdefault(key, ListedKey(key))
    keys = sorted(
        by_key.values(),
        key=lambda listed_key: (-listed_key.blocked, -listed_key.active, listed_key.key.stored, listed_key.key.kind),
    )
    return Listing(keys, partial)


def _range(name: str, text: str) -> tuple[str, str]:
    """Return the range of a limit's keys that match a search: the first one, and what all of them sort before."""
    if text.casefold() in name.casefold():
        return f"{name}{SEPARATOR}", f"{name}{AFTER_SEPARATOR}"
    first = text if text.startswith(f"{name}{SEPARATOR}") else f"{name}{SEPARATOR}{text}"
    return first, f"{first}{LAST_CHARACTER}"


def _read_keys(engine: Engine, kind: LimitKind, first: str, before: str) -> tuple[list[ListedKey], bool]:
    """
    Return the keys of a range, and whether there are more.

    It reads up to KEYS_CAP index entries. If there are more, it counts the key of the last entry alone, and
    continues with the key after it. So a key with many tasks hides no other key.
    """
    column = f"{kind}_key"
    keys: list[ListedKey] = []
    is_partial = False
    rows = engine.db.tasks.filter(INDEXED[kind], **{f"{column}__lt": before}).order_by("backend", column)
    rest = rows.filter(**{f"{column}__gte": first})
    for _round in range(ROUNDS):
        edge = rest.values_list(column, flat=True)[KEYS_CAP : KEYS_CAP + 1].first()
        whole = rest if edge is None else rest.filter(**{f"{column}__lt": edge})
        groups = (
            whole.order_by()
            .values_list(column)
            .annotate(blocked=CountOf("pk", filter=IS_WAITING[kind]), active=CountOf("pk", filter=IS_ACTIVE[kind]))
        )
        groups = groups.filter(Q(blocked__gt=0) | Q(active__gt=0))
        best = list(groups.order_by("-blocked", "-active")[: KEYS_READ + 1])
        keys += [ListedKey(Key(kind, key), blocked, active) for key, blocked, active in best[:KEYS_READ]]
        is_partial = is_partial or len(best) > KEYS_READ
        if edge is None:
            return keys, is_partial
        # The order leads the planner to the index of the key, also without statistics.
        of_edge = rows.filter(**{column: edge}).order_by("backend", column, *ORDER[kind], "rank", "pk")
        blocked, active = (of_edge.filter(which[kind])[:KEYS_CAP].count() for which in (IS_WAITING, IS_ACTIVE))
        keys.append(ListedKey(Key(kind, edge), blocked, active))
        rest = rows.filter(**{f"{column}__gt": edge})
    return keys, is_partial or rest[:1].exists()


# --- the state of some keys


def read_key_states(database: str, backend: str, keys: Sequence[Key]) -> list[KeyState]:
    """Return the state of each key, with a few queries for each. Locks: none."""
    stored = {name for key in keys for name in (key.stored, f"{key.name}{SEPARATOR}")}
    rows = Limit.objects.using(database).filter(backend=backend, key__in=stored)
    changed = {Key(LimitKind(row.kind), row.key): row for row in rows}
    declared, now = declared_limits(), read_clock(database)
    return [_read_key(database, backend, key, changed, declared.get((key.kind, key.name), ()), now) for key in keys]


def _read_key(
    database: str,
    backend: str,
    key: Key,
    changed: Mapping[Key, Limit],
    limits: Sequence[Concurrency | Rate],
    now: datetime,
) -> KeyState:
    tasks = Task.objects.using(database).filter(backend=backend)
    column, is_rate = f"{key.kind}_key", key.kind is LimitKind.RATE
    of_key = tasks.filter(INDEXED[key.kind] & tasks_of_limit(key.kind, key.stored))
    waiting = of_key.filter(IS_WAITING[key.kind])
    columns = ("concurrency_limit", "rate_limit", "rate_seconds", "rank", "priority", "enqueued_at")
    # The order leads the planner to the index of the key, also where its statistics are old.
    waiting = waiting.order_by("backend", column, *ORDER[key.kind], "rank", "pk")
    following = waiting.only(*columns).first()
    example = following or of_key.order_by("backend", column).only(*columns).first()
    number = next((limit.limit for limit in limits), None)
    seconds = next((limit.seconds for limit in limits if isinstance(limit, Rate)), None)
    if example is not None:
        number = example.rate_limit if is_rate else example.concurrency_limit
        seconds = example.rate_seconds if is_rate else None
    row = changed.get(key) or changed.get(Key(key.kind, f"{key.name}{SEPARATOR}"))
    has_keys = any(limit.key is not None for limit in limits)
    is_all = not key.own and (has_keys or of_key.filter(**{f"{column}__gt": key.stored})[:1].exists())
    active = Count() if is_all else count(of_key.filter(IS_ACTIVE[key.kind]))
    unstarted = active.number if is_rate else 0
    if seconds is not None and not is_all:
        active += _starts(database, backend, key, now - timedelta(seconds=seconds))
    return KeyState(
        key=key,
        backend=backend,
        now=now,
        blocked=count(waiting),
        active=active,
        number=number if row is None else row.number,
        declared=number,
        changed=row,
        is_adjustable=all(limit.adjustable for limit in limits),
        is_all=is_all,
        seconds=seconds,
        unstarted=unstarted,
        blocked_since=None if following is None else ready_since(following, options_of(backend).aging),
        next_look_at=_next_look_at(database, backend, key) if following is not None else None,
    )


def _starts(database: str, backend: str, key: Key, since: datetime) -> Count:
    """Count the starts in the window of a rate, without the tasks that have not started."""
    return count(RateStart.objects.using(database).filter(backend=backend, key=key.stored, started_at__gt=since))


def _next_look_at(database: str, backend: str, key: Key) -> datetime | None:
    """Return when executors look at a key next; None if no request is stored."""
    requests = AdmissionRequest.objects.using(database).filter(backend=backend, kind=key.kind, key=key.stored)
    due_at: datetime | None = requests.order_by("due_at").values_list("due_at", flat=True).first()
    return due_at
