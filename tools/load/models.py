"""The rows that the tasks of the load test write."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Effect(models.Model):
    """The effect of a task. It is committed together with the task's success."""

    task_id = models.UUIDField()
    objects: ClassVar[models.Manager[Effect]] = models.Manager()

    class Meta:
        app_label = "load"

    def __str__(self) -> str:
        return str(self.task_id)
