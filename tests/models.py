"""What bodies leave behind, so that tests can count it."""

from django.db import models
from django.db.models.functions import Now


class Effect(models.Model):
    """One thing a body did: in the transaction of its outcome where it is atomic, at once where it is not."""

    task_id = models.UUIDField()
    kind = models.CharField(max_length=20)
    pid = models.IntegerField()
    at = models.DateTimeField(db_default=Now())  # the database's clock, as everything about the queue

    class Meta:
        db_table = "tests_effect"

    def __str__(self) -> str:
        return f"{self.kind} {self.task_id}"
