"""Identifiers of tasks: UUIDv7 made in Python, so that a parent knows its child before the insert."""

from __future__ import annotations

import sys
from uuid import UUID

if sys.version_info >= (3, 14):
    from uuid import uuid7 as _uuid7
else:
    from uuid6 import uuid7 as _uuid7


def new_id() -> UUID:
    """Make a UUIDv7: ordered by time within a process, unique everywhere."""
    return UUID(int=_uuid7().int)
