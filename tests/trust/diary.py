"""What the processes themselves say: one line of JSON each, into one file that all of them append to."""

from __future__ import annotations

import json
import os
import time
from typing import Any

VARIABLE = "TRUST_DIARY"
_descriptors: dict[str, int] = {}


def note(kind: str, *, path: str = "", **fields: Any) -> None:
    """Write one line, in one call: what is appended so is never torn by others."""
    path = path or os.environ[VARIABLE]
    if path not in _descriptors:
        _descriptors[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    line = {"kind": kind, "who": os.environ.get("PGAPPNAME", "rig"), "at": time.time(), **fields}
    os.write(_descriptors[path], json.dumps(line, default=str).encode() + b"\n")


def read(path: str) -> list[dict[str, Any]]:
    with open(path, "rb") as lines:
        return [json.loads(line) for line in lines]
