"""Call the SQL functions on the connection of the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction

REFUSED, NOT_FOUND, FINISHED, TAKEN, BEGIN_AGAIN = "22023", "P0002", "55000", "23505", "40001"


def sql(text: str, *parameters: Any) -> Any:
    """Run SQL on Django's connection. Return the first value of the first row, if any."""
    with connection.cursor() as cursor:
        cursor.execute(text, parameters or None)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def create(more: str = "", *parameters: Any, task_type: str = "tests.tasks.add", task_id: UUID | None = None) -> UUID:
    pk = sql(f"SELECT jobqueue_create_task(%s, %s{more})", task_id, task_type, *parameters)
    assert isinstance(pk, UUID)
    return pk


def send(receiver: UUID | None, message: str | None = "1", *, sender: UUID | None = None, notify: bool = False) -> None:
    sql("SELECT jobqueue_send_to_task(%s, %s, %s, %s)", receiver, sender, message, notify)


@contextmanager
def refused(sqlstate: str, message: str = "") -> Iterator[None]:
    """Expect an error with this SQLSTATE. The transaction continues."""
    with pytest.raises(Exception) as caught, transaction.atomic():  # noqa: PT011 - the SQLSTATE is checked below
        yield
    error = caught.value.__cause__
    assert isinstance(error, psycopg.Error), caught.value
    assert error.sqlstate == sqlstate, error
    assert message in str(error)
