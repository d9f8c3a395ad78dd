"""Indexes and constraints of the tables."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q


def index(name: str, *fields: str, **condition: Any) -> models.Index:
    """Return an index on the rows that meet a condition."""
    return models.Index(fields=fields, name=f"jobqueue_{name}", condition=Q(**condition) if condition else None)


def unique(name: str, *fields: str, **condition: Any) -> models.UniqueConstraint:
    """Return a constraint: among the rows that meet a condition, the fields are unique."""
    where = Q(**condition) if condition else None
    return models.UniqueConstraint(fields=fields, name=f"jobqueue_{name}", condition=where)
