"""The diary: one file to which all processes of a run append lines of JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VARIABLE = "VERIFICATION_DIARY"
MAX_TRACEBACK = 3000  # characters, so that one write is enough for a line
NAME = re.compile(r"\b(?:executor|sender)-\d+\b")
TASK = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")
_descriptors: dict[str, int] = {}


def note(kind: str, *, path: str = "", **fields: Any) -> None:
    """Append one line with one call, so that lines of several processes do not mix."""
    path = path or os.environ[VARIABLE]
    if path not in _descriptors:
        _descriptors[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    line = {"kind": kind, "who": os.environ.get("PGAPPNAME", "environment"), "at": time.time(), **fields}
    os.write(_descriptors[path], json.dumps(line, default=str).encode() + b"\n")


class Logbook(logging.Handler):
    """Write log records to a file per process, because a killed process may leave half a line."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"level": record.levelname, "logger": record.name, "pid": record.process}
        if record.exc_info and (kind := record.exc_info[0]) is not None:
            lines = traceback.format_exception(*record.exc_info)
            fields |= {"error": f"{kind.__module__}.{kind.__qualname__}", "traceback": "".join(lines)[-MAX_TRACEBACK:]}
        path = Path(os.environ[VARIABLE]).with_name(f"{os.environ.get('PGAPPNAME', 'rig')}.jsonl")
        note("log", path=str(path), message=record.getMessage(), **fields)


def read(path: str | Path) -> list[dict[str, Any]]:
    with open(path, "rb") as lines:
        return [json.loads(line) for line in lines if line.endswith(b"\n")]


def read_logs(path: str) -> list[dict[str, Any]]:
    """Return the log records of all processes of this diary, oldest first."""
    lines = [line for file in Path(path).parent.glob("*.jsonl") if file != Path(path) for line in read(file)]
    return sorted(lines, key=lambda line: float(line["at"]))


def last_lines(logs: Sequence[Mapping[str, Any]], about: str, of_each: int = 5, limit: int = 40) -> str:
    """Return the last log lines of each process and each task that a text names."""
    names, tasks = set(NAME.findall(about)), set(TASK.findall(about))
    of = {name: [line for line in logs if line["who"] == name][-of_each:] for name in sorted(names)}
    on = [line for line in logs if tasks & set(TASK.findall(line["message"]))]
    kept = {id(line): line for line in [*on, *(line for lines in of.values() for line in lines)]}
    ordered = sorted(kept.values(), key=lambda line: float(line["at"]))[-limit:]
    return "\n".join(f"{line['at']:.3f} {line['who']} {line['level']} {line['message']}" for line in ordered)
