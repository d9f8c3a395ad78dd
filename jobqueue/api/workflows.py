"""Change the journals of workflows, and end workflows without their compensations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from jobqueue.api.backends import group_by_backend
from jobqueue.api.notifications import CANCEL_NOTIFICATION, after_commit, notify_after_commit, wake_and_notify
from jobqueue.api.tasks import cancel
from jobqueue.engine import ChangedTasks, Engine, LockTimeout
from jobqueue.exceptions import ChangeRefused
from jobqueue.values.changes import CancelReport
from jobqueue.values.json import encode


def give(task_id: UUID | str, name: str, value: Any, *, backend: str | None = None) -> None:
    """
    Give a failed step, compensation or child of a workflow its result. The workflow goes on with it.

    name: of the entry in the journal. value: JSON, as the step would have returned it. backend: None searches the
    default backend, then the others. Raises TaskNotFound. Raises ChangeRefused, with the reason, if there is no such
    entry, if it has not failed, if the workflow runs, has ended otherwise or has gone on after the failure, or if
    another transaction has locked the workflow for more than a second. Raises InvalidArguments for a value that is not
    JSON, and PayloadTooLarge.
    """

    def act(engine: Engine, pk: UUID) -> ChangedTasks:
        text = encode(value, where="value", max_bytes=engine.options.max_payload_bytes)
        return engine.journal.give(pk, name, text)

    _change(task_id, backend, act)


def retry(task_id: UUID | str, name: str, *, backend: str | None = None) -> None:
    """Run a failed step, compensation or child of a workflow again, with all its attempts. Raises as give()."""
    _change(task_id, backend, lambda engine, pk: engine.journal.retry(pk, name))


def skip(task_id: UUID | str, name: str, *, backend: str | None = None) -> None:
    """End a sleep of a workflow, or a wait for messages or children as if it had timed out. Raises as give()."""
    _change(task_id, backend, lambda engine, pk: engine.journal.skip(pk, name))


def rewind(task_id: UUID | str, name: str, *, backend: str | None = None) -> None:
    """
    Let a workflow forget an entry of its journal and all later ones, and run on from there. Raises as give().

    The live children that these entries have spawned are cancelled. Messages that the workflow has received since are
    not received again: send them again.
    """
    _change(task_id, backend, lambda engine, pk: engine.journal.rewind(pk, name))


def terminate(task_id: UUID | str, *, tree: bool = False, backend: str | None = None) -> CancelReport:
    """
    Cancel a task now: a workflow without its compensations, and a running task, whose executor loses the claim.

    tree, backend and the report: as for cancel().
    """
    return cancel(task_id, tree=tree, at_once=True, backend=backend)


def _change(task_id: UUID | str, backend: str | None, act: Callable[[Engine, UUID], ChangedTasks]) -> None:
    for engine, (pk, *_others) in group_by_backend(task_id, backend):
        try:
            changed = act(engine, pk)
        except LockTimeout as error:
            raise ChangeRefused(_("Another transaction has locked the workflow; try again later.")) from error
        after_commit(engine.database, partial(wake_and_notify, engine, changed.ready))
        if changed.has_requested:
            notify_after_commit(engine, {CANCEL_NOTIFICATION})
