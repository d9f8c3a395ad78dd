"""The search box of the task list. It offers no search that would scan the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

HEX = re.compile(r"[0-9a-f]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """ids: a range of the primary key. key: a task's key, or None."""

    ids: Q
    key: str | None = None
    is_understood: bool = True

    @classmethod
    def parse(cls, text: str) -> Search:
        """Parse a task id, its first characters, or key:<key>."""
        text = text.strip()
        if not text:
            return cls(ids=Q())
        if text.lower().startswith("key:"):
            return cls(ids=Q(), key=text[4:].strip())
        digits = text.lower().replace("-", "")
        if not HEX.fullmatch(digits):
            return cls(ids=Q(pk__in=[]), is_understood=False)
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        return cls(ids=Q(pk=first) if first == last else Q(pk__gte=first, pk__lte=last))

    @property
    def condition(self) -> Q:
        return self.ids if self.key is None else self.ids & Q(key=self.key)
