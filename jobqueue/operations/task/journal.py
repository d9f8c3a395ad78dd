"""
The journal of a workflow, as its page and `jobqueue show --journal` show it.

A page of it reads the key, kind and status of each entry, and the columns of PAGE entries only. The entries of a task
are read by the index that finds them by name, so wrong statistics cannot lead the planner elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.db import DEFAULT_DB_ALIAS
from django.utils.formats import date_format
from django.utils.translation import get_language, gettext_lazy, ngettext
from django.utils.translation import gettext as _

from jobqueue.models import LIVE, Task
from jobqueue.operations.formatting import Text, either, headline, local, moment_in_words, shortened
from jobqueue.operations.payloads import (
    LINE_CHARACTERS,
    UNREADABLE,
    DisplayedValue,
    parse_column,
    raw,
    show_value,
    shown_errors,
)
from jobqueue.operations.queries import entries_of
from jobqueue.operations.task.tree import Node, read_nodes
from jobqueue.values.journal import OPEN, EntryKind, EntryStatus, Waiting, WorkflowState
from jobqueue.values.redaction import MASK, Secrets, redact, redact_texts
from jobqueue.values.states import Status

PAGE = 200  # entries
MAX_ENTRIES = 40_000  # whose keys are read; a journal has fewer
READ_CHARACTERS = 20_000  # a larger value is not read, because a page has hundreds
VALUE_CHARACTERS = 2000  # shown of each
NAMES_SHOWN = 3  # of the children that a workflow waits for
WEEK = timedelta(days=6)  # within it, the name of a weekday means one day

KINDS: Mapping[str, Text] = {
    EntryKind.STEP: gettext_lazy("step"),
    EntryKind.SLEEP: gettext_lazy("sleep"),
    EntryKind.RECEIVE: gettext_lazy("wait for a message"),
    EntryKind.SPAWN: gettext_lazy("child"),
    EntryKind.WAIT: gettext_lazy("wait for children"),
    EntryKind.SEND: gettext_lazy("message sent"),
    EntryKind.VALUE: gettext_lazy("value"),
    EntryKind.PATCH: gettext_lazy("version of the code"),
    EntryKind.COMPENSATION: gettext_lazy("compensation"),
    EntryKind.SHIELD: gettext_lazy("shield"),
    EntryKind.CANCEL: gettext_lazy("cancellation"),
    EntryKind.MEMBER: gettext_lazy("member"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAction:
    """A change of one entry that people can make."""

    name: str  # in addresses, and on the command line
    permission: str  # what a user needs
    label: Text  # of its button
    done: Text  # for the reply, and for the log
    kinds: Sequence[str]  # of the entries
    statuses: Sequence[str]  # of the entries
    has_form: bool = False  # it needs a value
    is_destructive: bool = False  # it is confirmed

    def applies_to(self, status: str, row: Any) -> bool:
        """Return whether people may want it for an entry of a task with a status. The engine refuses other cases."""
        if row.kind not in self.kinds or row.status not in self.statuses:
            return False
        if status in (Status.RUNNING, Status.SUCCESSFUL):
            return False
        return self.is_destructive or status == Status.FAILED or (status in LIVE and row.status in OPEN)


CHANGE_JOURNAL = "change_journal"  # the permission to change what workflows have recorded
CAN_FAIL = (EntryKind.STEP, EntryKind.COMPENSATION, EntryKind.SPAWN)
NOT_SUCCESSFUL = (EntryStatus.RETRYING, EntryStatus.FAILED, EntryStatus.CANCELLED, EntryStatus.TIMED_OUT)
ACTIONS: Mapping[str, EntryAction] = {
    action.name: action
    for action in (
        EntryAction(
            name="retry",
            permission="requeue_task",
            label=gettext_lazy("Retry"),
            done=gettext_lazy("Retried %(name)s."),
            kinds=CAN_FAIL,
            statuses=NOT_SUCCESSFUL,
        ),
        EntryAction(
            name="give",
            permission=CHANGE_JOURNAL,
            label=gettext_lazy("Give its result"),
            done=gettext_lazy("Gave the result of %(name)s."),
            kinds=CAN_FAIL,
            statuses=NOT_SUCCESSFUL,
            has_form=True,
        ),
        EntryAction(
            name="skip",
            permission=CHANGE_JOURNAL,
            label=gettext_lazy("End the wait"),
            done=gettext_lazy("Ended the wait %(name)s."),
            kinds=(EntryKind.SLEEP, EntryKind.RECEIVE, EntryKind.WAIT),
            statuses=(EntryStatus.WAITING,),
        ),
        EntryAction(
            name="rewind",
            permission=CHANGE_JOURNAL,
            label=gettext_lazy("Rewind to here"),
            done=gettext_lazy("Rewound to %(name)s."),
            kinds=tuple(EntryKind),
            statuses=tuple(EntryStatus),
            is_destructive=True,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEntry:
    """One entry of a journal."""

    id: int  # the order of recording
    name: str  # unique in the journal
    kind: str  # of EntryKind
    status: str  # of EntryStatus
    attempts: int  # of a step, that have ended
    started_at: datetime | None  # None: not started
    finished_at: datetime | None  # None: it is open
    due_at: datetime | None  # the end of a wait, or the next attempt; None: no such time
    note: str  # when it goes on; empty if it has ended
    arguments: list[DisplayedValue] = field(default_factory=list)  # none if they are hidden
    value: DisplayedValue | None = None  # None: none, or hidden
    headline: str = ""  # of its error; empty without one
    traceback: str = ""  # of its error; empty if it is hidden
    child: Node | None = None  # the task that it started; None: no task, or its row was pruned
    actions: Sequence[EntryAction] = ()  # what people can do with it

    @property
    def title(self) -> Text:
        return KINDS.get(self.kind, self.kind)

    @property
    def is_compensation(self) -> bool:
        return self.kind == EntryKind.COMPENSATION

    @property
    def is_open(self) -> bool:
        """Whether people may want to act on it, so its details are shown at once."""
        is_later = self.is_compensation and self.status == EntryStatus.WAITING
        return self.status in (EntryStatus.FAILED, *OPEN) and not is_later

    @property
    def seconds(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())

    @property
    def line(self) -> str:
        """The arguments and the result in one line."""
        arguments = ", ".join(filter(None, (_in_line(value) for value in self.arguments)))
        result = f" → {_in_line(self.value)}" if self.value else ""
        return shortened(f"{arguments}{result}".strip(), LINE_CHARACTERS)

    @property
    def has_more(self) -> bool:
        """Whether it has more than its line shows."""
        return bool(self.arguments or self.value or self.headline)

    def as_json(self) -> dict[str, Any]:
        names = ("id", "name", "kind", "status", "attempts", "started_at", "finished_at", "due_at", "seconds")
        values = {name: getattr(self, name) for name in names}
        texts = {"arguments": {value.name: value.text for value in self.arguments}, "error": self.headline or None}
        value = self.value and (self.value.text or self.value.note)
        return {**values, **texts, "value": value, "child": self.child and self.child.task.pk}


def _in_line(value: DisplayedValue) -> str:
    text = " ".join(value.text.split()) or value.note
    return f"{value.name}={text}" if value.name else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJournal:
    """A page of a journal."""

    entries: Sequence[ShownEntry]  # in the order of recording
    counts: Counter[str]  # of all entries by status
    code: str  # the version of the code that ran last; empty: unknown
    wait: str  # what the workflow waits for, in words; empty: nothing
    types: Sequence[str]  # of the messages that end the wait; none: any, or no message
    compensations: int  # that have not run
    older: int | None  # the id before which the older page ends; None: this is the oldest
    newer: int | None  # the id before which the newer page ends; None: this is the newest

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def states(self) -> list[tuple[str, int]]:
        return [(status, self.counts[status]) for status in EntryStatus if status in self.counts]

    def as_json(self) -> dict[str, Any]:
        names = ("code", "wait", "compensations", "older", "newer", "counts")
        return {**{name: getattr(self, name) for name in names}, "entries": [entry.as_json() for entry in self.entries]}


def parse_state(state: Any) -> WorkflowState:
    """Return the state of a workflow. One that this code cannot read is empty."""
    try:
        return msgspec.convert(state if isinstance(state, dict) else {}, WorkflowState)
    except msgspec.ValidationError:
        return WorkflowState()


def moment_ahead(at: datetime, now: datetime) -> str:
    """Return a moment as people say it: 08:00 for today, Friday 08:00 within a week, else the date, too."""
    there, here = local(at), local(now)
    if get_language() is None or not timedelta(0) <= there - here < WEEK:
        return moment_in_words(at)
    return date_format(there, "H:i" if there.date() == here.date() else "l H:i")


def describe_wait(waiting: Waiting, now: datetime) -> str:
    """Describe what a workflow waits for."""
    until = moment_ahead(waiting.until, now) if waiting.until is not None else ""
    names = either(waiting.types)
    match waiting.kind:
        case "sleep":
            text = _("Sleeps until %(until)s.")
        case "retry":
            text = _("Tries %(name)s again at %(until)s.")
        case "receive" if not names:
            text = _("Waits for a message until %(until)s.") if until else _("Waits for a message, without a timeout.")
        case "receive":
            text = _("Waits for %(names)s until %(until)s.") if until else _("Waits for %(names)s, without a timeout.")
        case "children":
            names, text = _list_names(waiting.children), _children(waiting, until)
        case _:
            text = _("Waits for %(name)s.")
    values = {"until": until, "name": waiting.name, "names": names, "count": waiting.count}
    return text % {**values, "number": len(waiting.children)}


def _children(waiting: Waiting, until: str) -> str:
    if waiting.count < len(waiting.children):
        text = _("Waits for %(count)d of %(number)d children: %(names)s.")
    else:
        text = ngettext(
            "Waits for its child %(names)s.", "Waits for %(number)d children: %(names)s.", len(waiting.children)
        )
    return f"{text} {_('Until %(until)s.')}" if until else text


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + ("…" if len(names) > NAMES_SHOWN else "")


def read_journal(
    database: str,
    task: Task,
    state: Any,
    patterns: Sequence[str],
    secrets: Secrets,
    *,
    with_payload: bool,
    before: int | None = None,
) -> ShownJournal | None:
    """
    Return a page of a task's journal: the newest entries, or those before an id. None if it has no entry.

    state: of its row. secrets: of its arguments, which its values may repeat. It takes four queries at most.
    """
    rows = entries_of(database, task.pk)
    keys = sorted(rows.order_by("task_id", "name").values_list("pk", "kind", "status")[:MAX_ENTRIES])
    now, waiting = task.now, parse_state(state).waiting  # type: ignore[attr-defined]
    if not keys and waiting is None:
        return None
    ids = [pk for pk, _kind, _status in keys]
    end = len(ids) if before is None else sum(pk < before for pk in ids)
    page, newer = ids[max(0, end - PAGE) : end], ids[end : end + PAGE]
    texts = {f"{name}_text": raw(name, READ_CHARACTERS) for name in ("arguments", "value", "error")}
    entries: list[Any] = list(rows.filter(pk__in=page).defer("arguments", "value", "error").annotate(**texts))
    started = [entry for entry in entries if entry.kind in (EntryKind.SPAWN, EntryKind.MEMBER)]
    _start, _end, nodes = read_nodes(database, {entry.child_id for entry in started} - {None})
    reader = _Reader(patterns, secrets, nodes, now, task.status, with_payload=with_payload)
    return ShownJournal(
        entries=reader.show(sorted(entries, key=lambda entry: entry.pk)),
        counts=Counter(status for _pk, _kind, status in keys),
        code=parse_state(state).code,
        wait=describe_wait(waiting, now) if waiting is not None and task.status in LIVE else "",
        types=waiting.types if waiting is not None and waiting.kind == "receive" else (),
        compensations=[row[1:] for row in keys].count((EntryKind.COMPENSATION, EntryStatus.WAITING)),
        older=page[0] if end > PAGE else None,
        newer=newer[-1] + 1 if newer else None,
    )


def forecast_compensations(task: Task) -> list[str]:
    """Describe the compensations that a cancel runs; nothing without any."""
    entries = entries_of(task._state.db or DEFAULT_DB_ALIAS, task.pk)
    names = list(
        entries.filter(kind=EntryKind.COMPENSATION, status=EntryStatus.WAITING)
        .order_by("task_id", "name")
        .values_list("name", flat=True)[:MAX_ENTRIES]
    )
    if not names:
        return []
    text = ngettext(
        "Before it ends, %(number)d compensation runs: %(names)s.",
        "Before it ends, %(number)d compensations run: %(names)s.",
        len(names),
    )
    return [text % {"number": len(names), "names": _list_names(names)}]


def list_deleted(task: Task, name: str) -> list[tuple[str, bool]]:
    """Return the entries that a rewind to a name deletes, the first one first, and whether each is of a child."""
    rows = entries_of(task._state.db or DEFAULT_DB_ALIAS, task.pk).order_by("task_id", "name")
    entries = sorted(rows.values_list("pk", "name", "kind")[:MAX_ENTRIES])
    first = next((pk for pk, entry_name, _kind in entries if entry_name == name), None)
    if first is None:
        return []
    return [(entry_name, kind == EntryKind.SPAWN) for pk, entry_name, kind in entries if pk >= first]


@dataclass(slots=True)
class _Reader:
    """Turns rows into what a reader may see."""

    patterns: Sequence[str]  # of the values to mask
    secrets: Secrets  # of the task's arguments
    nodes: Mapping[UUID, Node]  # the children by id
    now: datetime  # of the database
    status: str  # of the task
    with_payload: bool  # the reader may see payloads
    masked: list[Any] = field(default_factory=list)  # of the arguments of all shown steps, which others may repeat

    def show(self, rows: Sequence[Any]) -> list[ShownEntry]:
        arguments = [self._arguments(row) if self.with_payload else [] for row in rows]
        own = Secrets(self.masked)
        return [self._entry(row, values, own) for row, values in zip(rows, arguments, strict=True)]

    def _arguments(self, row: Any) -> list[DisplayedValue]:
        """Return the arguments of a step, and collect the masked ones. Those without a name are masked, if any is."""
        match parse_column(row.arguments_text, READ_CHARACTERS):
            case None:
                return []
            case dict() as by_name:
                redact(by_name, self.patterns, masked=self.masked)
                return [
                    show_value(value, self.patterns, name, secrets=self.secrets, max_characters=VALUE_CHARACTERS)
                    for name, value in by_name.items()
                ]
            case list() as values if self.patterns:
                self.masked += values
                return [DisplayedValue(name=str(index), text=f'"{MASK}"') for index, _ in enumerate(values)]
            case value:
                return [show_value(value, self.patterns, max_characters=VALUE_CHARACTERS)]

    def _entry(self, row: Any, arguments: list[DisplayedValue], own: Secrets) -> ShownEntry:
        error = self._error(parse_column(row.error_text, READ_CHARACTERS), own)
        return ShownEntry(
            id=row.pk,
            name=row.name,
            kind=row.kind,
            status=row.status,
            attempts=row.attempts,
            started_at=row.started_at,
            finished_at=row.finished_at,
            due_at=row.due_at,
            note=self._note(row) if self.status in LIVE else "",
            arguments=arguments,
            value=self._value(row, own) if self.with_payload and row.value_text is not None else None,
            headline=headline(error.get("exception_class_path"), error.get("message")) if error else "",
            traceback=str(error.get("traceback") or ""),
            child=self.nodes.get(row.child_id),
            actions=[action for action in ACTIONS.values() if action.applies_to(self.status, row)],
        )

    def _value(self, row: Any, own: Secrets) -> DisplayedValue:
        value = parse_column(row.value_text, READ_CHARACTERS)
        if value is not UNREADABLE:
            value = redact_texts(redact(value, self.patterns), own)
        return show_value(value, self.patterns, secrets=self.secrets, max_characters=VALUE_CHARACTERS)

    def _error(self, error: Any, own: Secrets) -> Mapping[str, Any]:
        errors: Sequence[Mapping[str, Any]] = [error]
        for secrets in (self.secrets, own):
            errors = shown_errors(errors, self.patterns, secrets, with_payload=self.with_payload)
        return errors[-1] if errors else {}

    def _note(self, row: Any) -> str:
        """Describe when an entry goes on."""
        if (row.kind, row.status) == (EntryKind.COMPENSATION, EntryStatus.WAITING):
            return _("runs after an error or a cancel")
        if row.due_at is None or row.status not in OPEN:
            return ""
        text = _("next attempt: %(moment)s") if row.status == EntryStatus.RETRYING else _("until %(moment)s")
        return text % {"moment": moment_ahead(row.due_at, self.now)}
