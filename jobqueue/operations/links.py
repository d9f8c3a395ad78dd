"""Rows that a page of the admin shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AdminTarget:
    """The rows of a model, as its list or another page of it shows them with a query, or one row by its key."""

    model: str  # its name
    query: Mapping[str, object] = field(default_factory=dict)  # of the address
    pk: object = None  # the key of one row; None for a list
    page: str = ""  # another page than the list; empty for the list
    action: str = ""  # of the list, which the overview offers for all of the rows; empty: none
