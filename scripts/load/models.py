"""What the tasks of the load test leave behind."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Effect(models.Model):
    """One good end of one task, committed with it."""

    task_id = models.UUIDField()
    objects: ClassVar[models.Manager[Effect]] = models.Manager()

    class Meta:
        app_label = "load"

    def __str__(self) -> str:
        return str(self.task_id)
