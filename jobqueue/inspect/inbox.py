"""The inbox of a task, as it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import registry
from jobqueue.actor import Actor, ActorTask
from jobqueue.api import aliases
from jobqueue.inspect.annotations import Small
from jobqueue.inspect.explain import MAX_UNREAD
from jobqueue.inspect.payload_display import DisplayedValue, raw, read, secrets_of, show
from jobqueue.models import InboxMessage, Task
from jobqueue.serialization.redaction import MASK, NO_SECRETS, Secrets, redact, redact_texts

CONSUMED = 20
BODY_CHARACTERS = 1000  # shown of each
READ_CHARACTERS = 50_000  # a larger body is not read: a hundred of them are on one page

KINDS: dict[str | None, str | Promise] = {
    None: gettext_lazy("message"),
    Task.Status.SUCCESSFUL: gettext_lazy("child succeeded"),
    Task.Status.FAILED: gettext_lazy("child failed"),
    Task.Status.CANCELLED: gettext_lazy("child was cancelled"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    """One message in the task's inbox."""

    id: int
    kind: str | Promise
    sender_id: Any
    sent_at: datetime
    consumed_at: datetime | None
    dedupe_key: str | None
    is_undelivered: bool
    body: DisplayedValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """What is shown of an inbox. consumed: only those that stay for their dedupe_key."""

    unread: list[InboxEntry]
    consumed: list[InboxEntry]
    has_more: bool

    @property
    def unread_seen(self) -> int:
        """How many are unread; one more than are shown where there are more."""
        return len(self.unread) + self.has_more

    def __iter__(self) -> Any:
        return iter([*self.unread, *self.consumed])

    def __bool__(self) -> bool:
        return bool(self.unread or self.consumed)


def read_inbox(database: str, task: Task, patterns: tuple[str, ...], with_payload: bool) -> Inbox:
    """Read the oldest unread messages, and the newest that were consumed."""
    rows = InboxMessage.objects.using(database).filter(task_id=task.pk).defer("body")
    rows = rows.annotate(body_text=raw("body", READ_CHARACTERS)) if with_payload else rows
    unread = list(rows.filter(consumed_at__isnull=True).order_by("pk")[: MAX_UNREAD + 1])
    consumed = rows.filter(consumed_at__isnull=False).order_by("-pk")[:CONSUMED]
    bodies = read_bodies(database, unread, patterns) if with_payload else {}
    shown = list(_shown(unread, task, bodies))
    return Inbox(
        unread=shown[:MAX_UNREAD],
        consumed=list(_shown(consumed, task, {})),
        has_more=len(shown) > MAX_UNREAD,
    )


def read_bodies(database: str, rows: Sequence[InboxMessage], patterns: tuple[str, ...]) -> dict[int, DisplayedValue]:
    """Read bodies, masked; in the end of a child, which may quote its arguments, also what is masked among those."""
    children = {row.sender_id for row in rows if row.child_status is not None and row.sender_id is not None}
    secrets = secrets_of_tasks(database, children, patterns) if children else {}
    shown = {}
    for row in rows:
        body = read(row.body_text, READ_CHARACTERS)  # type: ignore[attr-defined]
        if row.child_status is not None:
            known = secrets.get(row.sender_id) if row.sender_id is not None else None
            if known is None and isinstance(body, dict):  # nobody can tell what it quotes
                body |= dict.fromkeys(body.keys() & {"message", "traceback"}, MASK)
            body = redact_texts(redact(body, patterns), known or NO_SECRETS, patterns)
        shown[row.pk] = show(body, patterns, most=BODY_CHARACTERS)
    return shown


def secrets_of_tasks(database: str, ids: Iterable[UUID], patterns: tuple[str, ...]) -> Mapping[UUID, Secrets]:
    """Give what is masked among the arguments of tasks, but for those that are gone, or have large ones."""

    def found() -> Iterator[tuple[UUID, Secrets]]:
        texts = {"args_text": Small(F("args")), "kwargs_text": Small(F("kwargs"))}
        rows = Task.objects.using(database).filter(pk__in=list(ids)).annotate(**texts)
        for pk, task_type, args, kwargs in rows.values_list("pk", "task_type", *texts):
            if args is not None and kwargs is not None:
                yield pk, secrets_of(task_type, read(args), read(kwargs), patterns)

    return dict(found())


def _shown(rows: Iterable[InboxMessage], task: Task, bodies: Mapping[int, DisplayedValue]) -> Iterator[InboxEntry]:
    for row in rows:
        yield InboxEntry(
            id=row.pk,
            kind=KINDS.get(row.child_status) or _("child ended with status %(status)s") % {"status": row.child_status},
            sender_id=row.sender_id,
            sent_at=row.sent_at,
            consumed_at=row.consumed_at,
            dedupe_key=row.dedupe_key,
            is_undelivered=row.consumed_at is None and task.is_finished,
            body=bodies.get(row.pk),
        )


def actor_of(task: Task) -> type[Actor[Any]] | None:
    """Give the actor that a task is, where this process knows it."""
    known = registry.get(task.task_type)
    return known.actor if isinstance(known, ActorTask) else None


def takes_messages(task: Task) -> bool:
    """Whether somebody may want to write to it: a living actor, of a backend in TASKS."""
    return not task.is_finished and actor_of(task) is not None and task.backend in aliases()
