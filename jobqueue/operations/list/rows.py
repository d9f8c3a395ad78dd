"""One page of a list of tasks: what a row shows, with masked arguments and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from jobqueue.models import Executor, Task
from jobqueue.operations.backends import options_of
from jobqueue.operations.formatting import headline
from jobqueue.operations.payloads import (
    UNREADABLE,
    arguments_in_line,
    find_secrets,
    named_arguments,
    parse_column,
    row_annotations,
    shown_message,
    tags_of,
)
from jobqueue.values.redaction import MASK

COLUMNS = (
    "backend", "queue_name", "task_type", "priority", "rank", "key", "tags", "status", "wake_at", "claimed_at",
    "executor_id", "attempts", "max_attempts", "polls", "enqueued_at", "last_attempted_at", "finished_at",
)  # fmt: skip


def read_rows(rows: QuerySet[Task], keys: Sequence[UUID], *, with_payload: bool) -> list[Task]:
    """
    Read a page of tasks in the order of the keys, each with the name of the executor that runs it.

    with_payload: whether the reader may see arguments and errors.
    """
    tasks = rows.filter(pk__in=keys).only(*COLUMNS).annotate(now=Now(), **row_annotations())
    by_key = {row.pk: row for row in tasks}
    page: list[Task] = [by_key[key] for key in keys if key in by_key]
    for row in page:
        if row.status == Task.Status.SUCCESSFUL:  # its errors are of earlier attempts
            row.error_class = row.error_message = None  # type: ignore[attr-defined]
    executor_ids = {row.executor_id for row in page if row.status == Task.Status.RUNNING and row.executor_id}
    names = (
        dict(Executor.objects.using(rows.db).filter(pk__in=executor_ids).values_list("pk", "name"))
        if executor_ids
        else {}
    )
    for row in page:
        row.tags = tags_of(row)
        row.executor_name = names.get(row.executor_id) if row.executor_id else None  # type: ignore[attr-defined]
        mask(row, with_payload=with_payload)
    return page


def mask(row: Any, *, with_payload: bool) -> None:
    """
    Mask or hide the error message. Set `headline`, the error in one line, `call`, the first arguments in one line, and
    `named_arguments`.

    If the arguments are too large to read here, the whole message is masked.
    """
    patterns = options_of(row.backend).redact
    args, kwargs = (UNREADABLE if text is None else parse_column(text) for text in (row.args_text, row.kwargs_text))
    row.call = arguments_in_line(row.task_type, args, kwargs, patterns) if with_payload else ""
    row.named_arguments = named_arguments(row.task_type, args, kwargs, patterns) if with_payload else {}
    if row.error_message and with_payload and UNREADABLE in (args, kwargs):
        row.error_message = MASK
    elif row.error_class or row.error_message:
        secrets = find_secrets(row.task_type, args, kwargs, patterns)
        row.error_message = shown_message(row.error_message, patterns, secrets, with_payload=with_payload)
    row.headline = headline(row.error_class, row.error_message)
