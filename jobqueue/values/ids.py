"""Ids of tasks: UUIDv7, made in Python, so that a parent knows its child's id before the insert."""

from __future__ import annotations

import os
import struct
import time
from datetime import datetime
from typing import Any
from uuid import UUID, SafeUUID

from jobqueue.values.posix import at_fork

BLOCK = 512  # random numbers per call of the kernel, because each call releases the GIL

_slots: Any = UUID
_set_int, _set_is_safe = _slots.int.__set__, _slots.is_safe.__set__
_UNKNOWN = SafeUUID.unknown  # reading it from the class calls a function of Python 3.11
_random: list[int] = []
_last_ns = 0


def new_id() -> UUID:
    """
    Make a UUIDv7: ordered by time within a process, unique everywhere.

    RFC 9562, 6.2, method 3: 20 bits of fraction behind the milliseconds, which orders ids of different nanoseconds.
    """
    global _last_ns
    now = _last_ns = max(time.time_ns(), _last_ns + 1)
    milliseconds, nanoseconds = divmod(now, 1_000_000)
    fraction = (nanoseconds << 20) // 1_000_000
    head = milliseconds << 16 | 7 << 12 | fraction >> 8
    tail = 2 << 62 | (fraction & 0xFF) << 54 | _next_random() >> 10
    pk = object.__new__(UUID)  # UUID(int=...) also looks for its four other arguments, which takes three times as long
    _set_int(pk, head << 64 | tail)
    _set_is_safe(pk, _UNKNOWN)
    return pk


def first_id(at: datetime) -> UUID:
    """Return the lowest id of a time."""
    milliseconds = max(0, int(at.timestamp() * 1000))
    return UUID(int=(milliseconds << 80) & (2**128 - 1))


def _next_random() -> int:
    """Return 64 random bits of the operating system, which no other call returns."""
    try:
        return _random.pop()
    except IndexError:
        first, *others = struct.unpack(f"{BLOCK}Q", os.urandom(8 * BLOCK))
        _random.extend(others)
        return int(first)


# Two processes with the same numbers would make the same ids.
at_fork(after_in_child=_random.clear)
