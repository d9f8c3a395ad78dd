"""Manual actions, as entries of the log of Django's admin."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.engine import Clock, Count
from jobqueue.models import Task
from jobqueue.operations.bulk.actions import BulkAction, plural_values
from jobqueue.operations.bulk.target import MAX_SINGLE, BulkRun


def write(request: HttpRequest, rows: Iterable[Model], message: str, *, is_new: bool = False) -> None:
    """Log one change of each row by the current user, or that the user created it."""
    _write(request, ((type(row), row.pk, str(row), message) for row in rows), is_new=is_new)


def _write(
    request: HttpRequest, entries: Iterable[tuple[type[Model], object | None, str, str]], *, is_new: bool = False
) -> None:
    """Log changes: model, primary key or None for many rows, title, message. The database's clock dates them."""
    from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    # LogEntry.objects.log_actions() has other arguments in each version of Django, and needs the rows.
    LogEntry.objects.bulk_create(
        LogEntry(
            action_time=Clock(),
            user_id=str(request.user.pk),
            content_type=ContentType.objects.get_for_model(model),
            object_id=None if pk is None else str(pk),
            object_repr=title[:200],
            action_flag=ADDITION if is_new else CHANGE,
            change_message=message,
        )
        for model, pk, title, message in entries
    )


def write_run(request: HttpRequest, run: BulkRun, database: str, chosen_by: str | None) -> None:
    """
    Log a bulk action: once for each changed task, or once for all of them if they had no batches of their own.

    An entry each would double the size of a table that is never pruned, and a statement for a thousand tasks does not
    return which of them it changed. chosen_by: the filter; None if the tasks were selected by hand.
    """
    total = run.total
    values = {"action": run.action.label, "result": run, "filter": chosen_by, "limit": MAX_SINGLE, "count": total}
    if run.affected > len(run.changed_ids):
        title = ngettext("%(number)s task", "%(number)s tasks", total) % plural_values(Count(total))
        if chosen_by is None:
            message = _("%(action)s: %(result)s Selected by hand. One entry for all: they were more than %(limit)d.")
        else:
            message = _("%(action)s: %(result)s Filter: %(filter)s. One entry for all: they were more than %(limit)d.")
        _write(request, [(Task, None, title, message % values)])
        return
    message = _("%(action)s (one of %(count)d selected tasks)") if total > 1 else "%(action)s"
    rows = Task.objects.using(database).only("task_type").in_bulk(run.changed_ids)  # some may be pruned by now
    _write(request, ((Task, pk, str(rows.get(pk, pk)), message % values) for pk in run.changed_ids))


def write_start(request: HttpRequest, action: BulkAction, number: int, task_id: str, chosen_by: str) -> None:
    """
    Log that a task of the queue performs a bulk action: an entry of that task, which keeps the numbers itself.

    The filter is in an entry without a task: readers of the task's page may lack the permission to see what it quotes.
    """
    values = {**plural_values(Count(number)), "action": action.label, "filter": chosen_by}
    title = ngettext("%(number)s task", "%(number)s tasks", number) % values
    _write(request, [(Task, task_id, str(task_id), _("%(action)s %(number)s tasks.") % values)], is_new=True)
    _write(request, [(Task, None, title, _("%(action)s %(number)s tasks. Filter: %(filter)s") % values)])


def write_entry(request: HttpRequest, model: type[Model], pk: str, title: str, message: str) -> None:
    """Log a change of something that may have no row. pk: what names it in the address of its page."""
    _write(request, [(model, pk, title, message)])
