"""Rows that bodies write, so that tests can count them."""

from django.db import models
from django.db.models.functions import Now


class Effect(models.Model):
    """One effect of a body: in the transaction of its outcome if the body is atomic, else at once."""

    task_id = models.UUIDField()
    kind = models.CharField(max_length=20)
    pid = models.IntegerField()
    at = models.DateTimeField(db_default=Now())  # the database's clock, as in the queue

    class Meta:
        db_table = "tests_effect"

    def __str__(self) -> str:
        return f"{self.kind} {self.task_id}"
