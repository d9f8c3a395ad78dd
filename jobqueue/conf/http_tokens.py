"""HTTP_TOKENS: the programs that may submit tasks or read metrics. The settings contain hashes, not the secrets."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec

HASH = "^[0-9a-fA-F]{64}$"
SHAPE = "{'sha256': 64 hexadecimal digits, 'tasks': a list of names, 'queues': a list of names, 'metrics': a bool}"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A program that may submit tasks, or read metrics."""

    name: str = ""  # for log lines and as the owner of idempotency keys
    # Hexadecimal hash of its secret. A long random secret needs no slow hash.
    sha256: Annotated[str, msgspec.Meta(pattern=HASH)]
    tasks: tuple[str, ...]  # names of those it may submit, in which `*` matches any text
    queues: tuple[str, ...]  # names of those it may submit to, in which `*` matches any text
    metrics: bool = False  # whether it may read the metrics of all queues

    def has_secret(self, secret: str) -> bool:
        digest = hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
        return hmac.compare_digest(digest, self.sha256.lower())

    def may(self, permission: str) -> bool:
        return self.metrics or permission != "view_metrics"

    def allows_task(self, task_type: str) -> bool:
        return any(fnmatchcase(task_type, pattern) for pattern in self.tasks)

    def allows_queue(self, queue_name: str) -> bool:
        return any(fnmatchcase(queue_name, pattern) for pattern in self.queues)


KEYS = {*Token.__struct_fields__} - {"name"}


def parse(raw: Mapping[str, Any]) -> tuple[Token, ...]:
    """Read HTTP_TOKENS for which problems() is empty."""
    return tuple(msgspec.convert({**value, "name": name}, Token) for name, value in raw.items())


def token_problems(raw: Any) -> Iterator[str]:
    """Yield the problems of HTTP_TOKENS, without its values, because one may be a secret."""
    if not isinstance(raw, Mapping):
        yield "HTTP_TOKENS must be a dict of names and dicts"
        return
    seen: dict[str, str] = {}
    for name, value in raw.items():
        here = f"HTTP_TOKENS[{name!r}]"
        if not isinstance(name, str) or not name:
            yield "HTTP_TOKENS must have names for keys"
        elif not isinstance(value, Mapping) or set(value) - KEYS:
            yield f"{here} must be {SHAPE}{_misspelt(value)}"
        else:
            try:
                digest = msgspec.convert(value, Token).sha256.lower()
            except msgspec.ValidationError as error:  # names the member, not its value
                yield f"{here} must be {SHAPE}: {error}"
            else:
                if (other := seen.setdefault(digest, name)) != name:
                    yield f"{here} has the same token as HTTP_TOKENS[{other!r}]"


def _misspelt(value: Any) -> str:
    """Return a hint for a misspelt key. Other keys are not shown: one may be a secret in the wrong place."""
    for key in value if isinstance(value, Mapping) else ():
        for similar in get_close_matches(str(key), KEYS, n=1, cutoff=0.6):
            if similar not in value:
                return f" (did you mean {similar!r} instead of {key!r}?)"
    return ""
