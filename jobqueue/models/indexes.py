"""Indexes and constraints of the tables, and the order of keys in them."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q


class LimitKeyField(models.CharField):  # type: ignore[type-arg]
    """A key of a limit. PostgreSQL sorts it by bytes, so that a range of an index has exactly the keys of one limit."""

    def db_parameters(self, connection: Any) -> Any:
        parameters = super().db_parameters(connection)
        return {**parameters, "collation": "C"} if connection.vendor == "postgresql" else parameters


def index(name: str, *fields: str, **condition: Any) -> models.Index:
    """Return an index on the rows that meet a condition."""
    return models.Index(fields=fields, name=f"jobqueue_{name}", condition=Q(**condition) if condition else None)


def unique(name: str, *fields: str, **condition: Any) -> models.UniqueConstraint:
    """Return a constraint: among the rows that meet a condition, the fields are unique."""
    where = Q(**condition) if condition else None
    return models.UniqueConstraint(fields=fields, name=f"jobqueue_{name}", condition=where)
