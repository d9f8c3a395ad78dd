"""Rows that a page of the admin shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rows:
    """
    The rows of a model, as its list or another page of it shows them with a query, or one row by its key.

    action: of the list, which the overview offers for all of the rows.
    """

    model: str
    query: Mapping[str, object] = field(default_factory=dict)
    pk: object = None
    page: str = ""
    action: str = ""
