"""HTTP_TOKENS: the programs that may submit tasks or read metrics. The settings contain hashes, not the secrets."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

HASH = re.compile("[0-9a-fA-F]{64}")
KEYS = {"sha256", "tasks", "queues"}
OPTIONAL = {"metrics"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """
    A program that may submit tasks, or read metrics.

    sha256: hexadecimal hash of its secret. A long random secret needs no slow hash.
    tasks, queues: names, in which `*` matches any text. metrics: whether it may read the metrics of all queues.
    """

    name: str
    sha256: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...]
    metrics: bool = False

    def has_secret(self, secret: str) -> bool:
        digest = hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
        return hmac.compare_digest(digest, self.sha256)

    def may(self, permission: str) -> bool:
        return self.metrics or permission != "view_metrics"

    def allows_task(self, task_type: str) -> bool:
        return any(fnmatchcase(task_type, pattern) for pattern in self.tasks)

    def allows_queue(self, queue_name: str) -> bool:
        return any(fnmatchcase(queue_name, pattern) for pattern in self.queues)


def parse(raw: Mapping[str, Any]) -> tuple[Token, ...]:
    """Read HTTP_TOKENS for which problems() is empty."""
    return tuple(
        Token(
            name=name,
            sha256=given["sha256"].lower(),
            tasks=tuple(given["tasks"]),
            queues=tuple(given["queues"]),
            metrics=given.get("metrics", False),
        )
        for name, given in raw.items()
    )


def problems(raw: Any) -> Iterator[str]:
    """Yield the problems of HTTP_TOKENS, without its values, because one may be a secret."""
    if not isinstance(raw, Mapping):
        yield "HTTP_TOKENS must be a dict of names and dicts"
        return
    seen: dict[str, str] = {}
    for name, given in raw.items():
        here = f"HTTP_TOKENS[{name!r}]"
        if not isinstance(name, str) or not name:
            yield "HTTP_TOKENS must have names for keys"
        elif not isinstance(given, Mapping) or set(given) - OPTIONAL != KEYS:
            wanted = "sha256, tasks and queues, and metrics if it may read those"
            yield f"{here} must be a dict of {wanted}{_misspelt(given)}"
        elif not isinstance(given["sha256"], str) or not HASH.fullmatch(given["sha256"]):
            yield f"{here}['sha256'] must be the 64 hexadecimal digits of the SHA-256 of the token"
        elif (other := seen.setdefault(given["sha256"].lower(), name)) != name:
            yield f"{here} has the same token as HTTP_TOKENS[{other!r}]"
        else:
            if not isinstance(given.get("metrics", False), bool):
                yield f"{here}['metrics'] must be True or False"
            for key in ("tasks", "queues"):
                names = given[key]
                if not isinstance(names, list | tuple) or not all(isinstance(part, str) for part in names):
                    yield f"{here}[{key!r}] must be a list of names, in which * matches any text"


def _misspelt(given: Any) -> str:
    """Return a hint for a misspelt key. Other keys are not shown: one may be a secret in the wrong place."""
    for key in given if isinstance(given, Mapping) else ():
        for near in get_close_matches(str(key), KEYS | OPTIONAL, n=1, cutoff=0.6):
            if near not in given:
                return f" (did you mean {near!r} instead of {key!r}?)"
    return ""
