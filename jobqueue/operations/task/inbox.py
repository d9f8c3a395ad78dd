"""The inbox of a task, as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.api import aliases
from jobqueue.declarations import registry
from jobqueue.declarations.actor import Actor, ActorTask, PolledTask
from jobqueue.exceptions import InvalidArguments
from jobqueue.models import InboxMessage, Task
from jobqueue.operations.explain import MAX_UNREAD
from jobqueue.operations.formatting import Text
from jobqueue.operations.payloads import DisplayedValue, parse_column, raw, secrets_of_tasks, show_value
from jobqueue.values.json import encode_message
from jobqueue.values.records import is_internal
from jobqueue.values.redaction import MASK, NO_SECRETS, redact, redact_texts

CONSUMED = 50  # shown
BODY_CHARACTERS = 1000  # shown per message
READ_CHARACTERS = 50_000  # a larger body is not read, because a page has a hundred

KINDS: dict[str | None, Text] = {
    None: gettext_lazy("message"),
    Task.Status.SUCCESSFUL: gettext_lazy("child succeeded"),
    Task.Status.FAILED: gettext_lazy("child failed"),
    Task.Status.CANCELLED: gettext_lazy("child was cancelled"),
    Task.Status.READY: gettext_lazy("member runs again"),
}


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """One message in the task's inbox."""

    row: InboxMessage  # of the message
    kind: Text  # for people
    is_undelivered: bool  # the task has ended without reading it
    body: DisplayedValue | None  # None if it was deleted when it was read, or is hidden from the reader


@dataclass(frozen=True, slots=True)
class ShownInbox:
    """The shown part of an inbox."""

    entries: list[InboxEntry]  # unread messages, then consumed ones
    unread: int  # their number; one more than are shown if there are more
    has_more_consumed: bool = False  # there are more consumed messages than are shown

    @property
    def has_more(self) -> bool:
        return self.unread > MAX_UNREAD


def read_inbox(database: str, task: Task, patterns: tuple[str, ...], with_payload: bool) -> ShownInbox:
    """
    Read the oldest unread and the newest consumed messages.

    Without KEEP_MESSAGES, only those with a dedupe_key are kept when consumed, without their bodies.
    """
    rows = InboxMessage.objects.using(database).filter(task_id=task.pk).defer("body")
    rows = rows.annotate(body_text=raw("body", READ_CHARACTERS)) if with_payload else rows
    unread = list(rows.filter(consumed_at__isnull=True).order_by("pk")[: MAX_UNREAD + 1])
    consumed = list(rows.filter(consumed_at__isnull=False).order_by("-pk")[: CONSUMED + 1])
    kept = [row for row in consumed if row.body_text is not None] if with_payload else []  # type: ignore[attr-defined]
    bodies = read_bodies(database, [*unread, *kept], patterns) if with_payload else {}
    entries = [
        InboxEntry(
            row,
            kind=KINDS.get(row.child_status, row.child_status or ""),
            is_undelivered=row.consumed_at is None and task.is_finished,
            body=bodies.get(row.pk),
        )
        for row in (*unread[:MAX_UNREAD], *consumed[:CONSUMED])
    ]
    return ShownInbox(entries, len(unread), len(consumed) > CONSUMED)


def read_bodies(database: str, rows: Sequence[InboxMessage], patterns: tuple[str, ...]) -> dict[int, DisplayedValue]:
    """Read masked bodies. A child's last message may quote its arguments, so their secrets are masked, too."""
    children = {row.sender_id for row in rows if row.child_status is not None and row.sender_id is not None}
    secrets = secrets_of_tasks(database, children)
    bodies = {}
    for row in rows:
        body = parse_column(row.body_text, READ_CHARACTERS)  # type: ignore[attr-defined]
        if row.child_status is not None:
            sender_secrets = secrets.get(row.sender_id) if row.sender_id is not None else None
            if sender_secrets is None and isinstance(body, dict):  # it may quote any argument
                body |= dict.fromkeys(body.keys() & {"message", "traceback"}, MASK)
            body = redact_texts(redact(body, patterns), sender_secrets or NO_SECRETS, patterns)
        bodies[row.pk] = show_value(body, patterns, max_characters=BODY_CHARACTERS)
    return bodies


def find_actor(task: Task) -> type[Actor[Any]] | None:
    """Return the task's actor class, if this process has it."""
    task_of_row = registry.get(task.task_type)
    return task_of_row.actor if isinstance(task_of_row, ActorTask) else None


def reads_messages(task: Task) -> bool:
    """Return whether the task is an actor or a workflow that this process has."""
    return isinstance(registry.get(task.task_type), PolledTask)


def takes_messages(task: Task) -> bool:
    """Return whether the task is an unfinished actor or workflow of the site, of a backend in TASKS."""
    is_ours = reads_messages(task) and not is_internal(task.task_type)
    return is_ours and not task.is_finished and task.backend in aliases()


def check_message(task_type: str, body: Any, max_bytes: int) -> None:
    """
    Refuse a body that the actor's `Message` does not allow, because it would fail the actor's polls.

    An actor that this process does not have is not asked. Raises InvalidArguments or PayloadTooLarge.
    """
    text = encode_message(body, max_bytes=max_bytes)
    declared = registry.get(task_type)
    if isinstance(declared, ActorTask):
        try:
            declared.actor.decode_body(text)
        except ValueError as error:
            sentence = _("Not a valid %(actor)s.Message: %(error)s")
            raise InvalidArguments(sentence % {"actor": declared.actor.__name__, "error": error}) from error
