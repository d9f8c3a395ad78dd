"""The actions on many tasks: which tasks each can change, how, and every sentence that people read about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from jobqueue import api
from jobqueue.engine import Count
from jobqueue.operations import log_entries
from jobqueue.operations.formatting import Text
from jobqueue.values.changes import BulkResult
from jobqueue.values.states import FINAL, LIVE, WAITING, Status

GO_BACK = gettext_lazy("Go back")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """One action on many tasks."""

    name: str  # in requests and log lines
    permission: str  # what a user needs
    label: Text  # of one task
    label_many: Text = ""  # of the list, with its number
    forecast: Text = ""  # what it will do, on the confirmation page
    button: Text = ""  # of the confirmation page
    refusal: Text = GO_BACK  # why it does nothing, on the confirmation page
    sentences: Mapping[str, Text]  # for each number of the result, in the order in which they are shown
    statuses: tuple[Status, ...]  # the tasks it can change
    perform: Callable[[Sequence[UUID], str | None], BulkResult]  # on ids; of one backend, or of each
    has_rate: bool = False  # it makes tasks run, so that a person may want to limit how many a second
    is_destructive: bool = False  # its button is red

    def describe(self, numbers: Mapping[str, int]) -> str:
        """Describe what became of the tasks, in sentences. numbers: of a result."""
        sentences = {**self.sentences, "moved": MOVED}
        named = ((text, numbers[name]) for name, text in sentences.items() if numbers.get(name))
        described = (str(text % plural_values(Count(number))) for text, number in named)
        return " ".join(described) or _("No task matched.")


def plural_values(number: Count) -> dict[str, object]:
    """Return the placeholders of a sentence with a plural: the number, and its text with separators."""
    return {"count": number.number, "number": number}


BUSY = ngettext_lazy(
    "Skipped %(number)s task: another transaction has locked it. Try again later.",
    "Skipped %(number)s tasks: other transactions have locked them. Try again later.",
    "count",
)
MOVED = ngettext_lazy(
    "%(number)s task has changed since it was counted, and was left alone.",
    "%(number)s tasks have changed since they were counted, and were left alone.",
    "count",
)
REQUEUE = BulkAction(
    name="requeue",
    permission="requeue_task",
    label=log_entries.REQUEUE,
    label_many=gettext_lazy("Requeue selected %(verbose_name_plural)s"),
    forecast=ngettext_lazy(
        "%(number)s failed or cancelled task will be requeued with a fresh set of attempts.",
        "%(number)s failed or cancelled tasks will be requeued with a fresh set of attempts.",
        "count",
    ),
    button=ngettext_lazy("Requeue %(number)s task", "Requeue %(number)s tasks", "count"),
    has_rate=True,
    sentences={
        "requeued": ngettext_lazy("Requeued %(number)s task.", "Requeued %(number)s tasks.", "count"),
        "key_taken": ngettext_lazy(
            "Skipped %(number)s task: a live task has the same key.",
            "Skipped %(number)s tasks: live tasks have the same keys.",
            "count",
        ),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: not failed or cancelled, deleted, or a bulk action.",
            "Skipped %(number)s tasks: not failed or cancelled, deleted, or a bulk action.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=(Status.FAILED, Status.CANCELLED),
    perform=lambda ids, backend: api.requeue(ids, backend=backend),
)
CANCEL = BulkAction(
    name="cancel",
    permission="cancel_task",
    label=gettext_lazy("Cancel"),
    label_many=gettext_lazy("Cancel selected %(verbose_name_plural)s"),
    forecast=ngettext_lazy(
        "%(number)s unfinished task will be cancelled; if it is running, it is asked to stop.",
        "%(number)s unfinished tasks will be cancelled; running ones are asked to stop.",
        "count",
    ),
    button=ngettext_lazy("Cancel %(number)s task", "Cancel %(number)s tasks", "count"),
    refusal=gettext_lazy("Keep them"),
    is_destructive=True,
    sentences={
        "cancelled": ngettext_lazy("Cancelled %(number)s task.", "Cancelled %(number)s tasks.", "count"),
        "requested": ngettext_lazy(
            "Asked %(number)s running task to stop.", "Asked %(number)s running tasks to stop.", "count"
        ),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: already ended, or deleted.",
            "Skipped %(number)s tasks: already ended, or deleted.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=LIVE,
    perform=lambda ids, backend: api.cancel(ids, backend=backend),
)
CANCEL_TREE = replace(
    CANCEL,
    label=gettext_lazy("Cancel with descendants"),
    perform=lambda ids, backend: api.cancel(ids, backend=backend, tree=True),
)
RUN_NOW = BulkAction(
    name="wake",
    permission="wake_task",
    label=gettext_lazy("Run now"),
    label_many=gettext_lazy("Run selected %(verbose_name_plural)s now"),
    forecast=ngettext_lazy(
        "%(number)s scheduled or suspended task will run as soon as an executor has a free slot.",
        "%(number)s scheduled or suspended tasks will run as soon as executors have free slots.",
        "count",
    ),
    button=ngettext_lazy("Run %(number)s task now", "Run %(number)s tasks now", "count"),
    has_rate=True,
    sentences={
        "changed": ngettext_lazy(
            "%(number)s task runs as soon as an executor has a free slot.",
            "%(number)s tasks run as soon as executors have free slots.",
            "count",
        ),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: not scheduled or suspended, or deleted.",
            "Skipped %(number)s tasks: not scheduled or suspended, or deleted.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=WAITING,
    perform=lambda ids, backend: api.run_now(ids, backend=backend),
)
DISCARD = BulkAction(
    name="discard",
    permission="cancel_task",
    label=gettext_lazy("Discard"),
    label_many=gettext_lazy("Discard selected %(verbose_name_plural)s: failed ones become cancelled"),
    forecast=ngettext_lazy(
        "%(number)s failed task will be kept as cancelled. It can be requeued until it is pruned.",
        "%(number)s failed tasks will be kept as cancelled. They can be requeued until they are pruned.",
        "count",
    ),
    button=ngettext_lazy("Discard %(number)s task", "Discard %(number)s tasks", "count"),
    refusal=gettext_lazy("Keep them"),
    is_destructive=True,
    sentences={
        "changed": ngettext_lazy("Discarded %(number)s task.", "Discarded %(number)s tasks.", "count"),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: not failed, or deleted.",
            "Skipped %(number)s tasks: not failed, or deleted.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=(Status.FAILED,),
    perform=lambda ids, backend: api.discard(ids, backend=backend),
)
DELETE = BulkAction(
    name="delete",
    permission="delete_task",
    label=gettext_lazy("Delete"),
    label_many=gettext_lazy("Delete selected %(verbose_name_plural)s that have ended"),
    forecast=ngettext_lazy(
        "%(number)s ended task will be deleted with its messages. This cannot be undone.",
        "%(number)s ended tasks will be deleted with their messages. This cannot be undone.",
        "count",
    ),
    button=ngettext_lazy("Delete %(number)s task", "Delete %(number)s tasks", "count"),
    refusal=gettext_lazy("Keep them"),
    is_destructive=True,
    sentences={
        "changed": ngettext_lazy("Deleted %(number)s task.", "Deleted %(number)s tasks.", "count"),
        "skipped": ngettext_lazy(
            "Skipped %(number)s task: not ended, or deleted before.",
            "Skipped %(number)s tasks: not ended, or deleted before.",
            "count",
        ),
        "busy": BUSY,
    },
    statuses=FINAL,
    perform=lambda ids, backend: api.delete(ids, backend=backend),
)
ACTIONS: Mapping[str, BulkAction] = {action.name: action for action in (REQUEUE, CANCEL, RUN_NOW, DISCARD, DELETE)}
