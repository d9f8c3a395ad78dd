"""The history of one run: the diary of its processes and the records of the database's triggers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row
from psycopg.sql import SQL, Identifier

from verification.faults import diary

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    One change of a task's row. `before` is None for an INSERT, `after` for a DELETE.

    It has more than 15 attributes because each column that a rule compares is one, before and after.
    """

    id: int
    task_id: str
    before: str | None
    after: str | None
    claim_before: int | None = None
    claim_after: int | None = None
    attempts_before: int | None = None
    attempts_after: int | None = None
    max_attempts: int = 1000
    polls_before: int | None = None
    polls_after: int | None = None
    losses_before: int | None = None
    losses_after: int | None = None
    workers_before: int | None = None
    workers_after: int | None = None
    last_worker: str | None = None
    holder: str | None = None
    taker: str | None = None
    result: str | None = None
    actor: str = ""
    xact: str = ""
    at: datetime

    @property
    def is_claim(self) -> bool:
        return self.after == "RUNNING" != self.before

    @property
    def is_rescue(self) -> bool:
        return self.before == "RUNNING" and (self.losses_after or 0) > (self.losses_before or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecord:
    id: int
    executor_id: str
    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent:
    id: int
    message_id: int
    task_id: str
    event: str
    actor: str = ""
    xact: str = ""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRecord:
    id: int
    kind: str
    key: str
    task_id: str
    actor: str = ""
    xact: str = ""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """An entry of a journal that was written. holder: the executor that held the claim of its task."""

    id: int
    task_id: str
    name: str
    status: str
    holder: str | None = None
    actor: str = ""
    xact: str = ""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """
    All of a run, oldest first.

    timeout_seconds: the HEARTBEAT_TIMEOUT it was run with. notes: what was done, acknowledged and sent. logs: what
    `jobqueue` has logged in each process.
    """

    timeout_seconds: float
    notes: Sequence[Mapping[str, Any]] = ()
    logs: Sequence[Mapping[str, Any]] = ()
    changes: Sequence[Change] = ()
    beats: Sequence[HeartbeatRecord] = ()
    messages: Sequence[MessageEvent] = ()
    effects: Sequence[EffectRecord] = ()
    entries: Sequence[EntryRecord] = ()

    def noted(self, kind: str) -> list[Mapping[str, Any]]:
        return [note for note in self.notes if note["kind"] == kind]

    def hurt_at(self) -> dict[str, float]:
        """Return the time of the first fault of each process."""
        return {note["whom"]: note["at"] for note in reversed(self.noted("hurt"))}

    def stories(self) -> dict[str, list[Change]]:
        """Return the changes of each task."""
        changes: dict[str, list[Change]] = defaultdict(list)
        for change in self.changes:
            changes[change.task_id].append(change)
        return changes

    def names(self) -> dict[str, str]:
        """Return the name of each executor id."""
        return {beat.executor_id: beat.name for beat in self.beats}

    def beats_of(self) -> dict[str, list[datetime]]:
        times: dict[str, list[datetime]] = defaultdict(list)
        for beat in self.beats:
            times[beat.executor_id].append(beat.at)
        return times


def read(url: str, diary_path: str, timeout_seconds: float) -> History:
    with psycopg.connect(url, autocommit=True) as connection:
        return History(
            timeout_seconds=timeout_seconds,
            notes=diary.read(diary_path),
            logs=diary.read_logs(diary_path),
            changes=rows(connection, Change, "verification_change"),
            beats=rows(connection, HeartbeatRecord, "verification_beat"),
            messages=rows(connection, MessageEvent, "verification_message"),
            effects=rows(connection, EffectRecord, "verification_effect"),
            entries=rows(connection, EntryRecord, "verification_entry"),
        )


def rows(connection: psycopg.Connection[Any], kind: type[R], table: str) -> list[R]:
    texts = {"task_id", "holder", "taker", "executor_id", "xact"}
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    columns = [SQL("{0}::text AS {0}" if name in texts else "{0}").format(Identifier(name)) for name in names]
    query = SQL("SELECT {} FROM {} ORDER BY id").format(SQL(", ").join(columns), Identifier(table))
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(query).fetchall()
