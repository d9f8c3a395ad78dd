"""The table of recorded calls of workflows."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.models.indexes import unique
from jobqueue.models.tasks import Task


class JournalEntry(models.Model):
    """A recorded call of a workflow: a step, a wait, a child. The ids are the order of recording."""

    id = models.BigAutoField(primary_key=True)
    # No foreign key in the database: the deletion of a plain task would look for entries. The constraint is its index.
    task = models.ForeignKey(
        Task, models.DO_NOTHING, related_name="journal", db_constraint=False, db_index=False, verbose_name=_("task")
    )
    name = models.CharField(_("name"), max_length=255)
    kind = models.CharField(_("kind"), max_length=16)  # of values.journal.EntryKind
    status = models.CharField(_("status"), max_length=16)  # of values.journal.EntryStatus
    arguments = models.JSONField(_("arguments"), null=True)
    digest = models.CharField(_("digest of the arguments"), max_length=16, null=True)
    value = models.JSONField(_("result"), null=True)
    error = models.JSONField(_("error"), null=True)
    attempts = models.IntegerField(_("attempts"), default=0)
    child_id = models.UUIDField(_("child"), null=True)
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    due_at = models.DateTimeField(_("due at"), null=True)

    class Meta:
        app_label = "jobqueue"
        db_table = "jobqueue_journalentry"
        verbose_name = _("journal entry")
        verbose_name_plural = _("journal entries")
        default_permissions = ()
        constraints = [unique("journal_name", "task", "name")]

    def __str__(self) -> str:
        return f"{self.name} of {self.task_id}"
