"""Admission as statements of PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from jobqueue.engine.admissions import (
    AGAIN_SECONDS,
    GROUPS_PER_PERIOD,
    KEYS_LOOKED_AT,
    KEYS_PER_SECOND,
    LATE_PART,
    LATE_SECONDS,
    REPEATS_DELETED,
    Admissions,
    Taken,
    at_once,
    is_known,
)
from jobqueue.engine.postgres.connection import PostgresDatabase, as_array, as_text_array
from jobqueue.values.limit_keys import AFTER_SEPARATOR, split_key
from jobqueue.values.records import Admitted
from jobqueue.values.states import LimitKind


class PostgresAdmissions(Admissions):
    db: PostgresDatabase

    def request(self, ids: Collection[UUID], *, are_freed: bool = False) -> None:
        if ids:
            self.db.execute_prepared("request_admission", ids=as_array(ids), freed=as_array(ids if are_freed else ()))

    def settle(self, ended: Mapping[UUID, float | None]) -> None:
        if ended:
            begun = {pk: seconds for pk, seconds in ended.items() if seconds is not None}
            freed = as_array(ended.keys() - begun.keys())
            self.db.execute_prepared("settle_limits", ids=as_array(ended), freed=freed, **_starts(begun))

    def _store_starts(self, begun: Mapping[UUID, float]) -> None:
        if begun:
            self.db.execute_prepared("store_starts", **_starts(begun))

    def _take_requests(self, limit: int) -> Taken:
        rows = self.db.query_prepared(
            "take_admission_requests",
            kinds=as_array(LimitKind),
            request_limit=limit,
            key_limit=min(limit, KEYS_LOOKED_AT),
            repeats_limit=REPEATS_DELETED,
            again_seconds=AGAIN_SECONDS,
        )
        keys = {(LimitKind(kind), key): is_urgent for kind, key, is_locked, is_urgent, _ in rows if is_locked}
        left = [key for kind, key, is_locked, *_ in rows if not is_locked and is_known(kind)]
        is_full = any(is_full for *_, is_full in rows)
        return Taken(keys, bool(left) or is_full or len(rows) >= KEYS_LOOKED_AT)

    def _admit_by_concurrency(self, keys: Sequence[str]) -> Admitted:
        rows = self.db.query_prepared(
            "admit_by_concurrency",
            keys=as_text_array(tuple(keys)),
            at_once=at_once(keys),
            again_seconds=AGAIN_SECONDS,
        )
        return _admitted(rows)

    def _admit_by_rate(self, keys: Mapping[str, bool]) -> Admitted:
        answer = self.db.query_prepared(
            "rates_to_count", keys=as_text_array(tuple(keys)), is_urgent=as_array(keys.values())
        )
        if not answer:
            return Admitted()
        names, numbers, seconds = zip(*answer, strict=True)
        rows = self.db.query_prepared(
            "admit_by_rate",
            keys=as_text_array(names),
            numbers=as_array(numbers),
            seconds=as_array(seconds),
            groups=GROUPS_PER_PERIOD,
            at_once=at_once(names),
            again=AGAIN_SECONDS,
        )
        return _admitted(rows)

    def request_all(self, kind: LimitKind, key: str) -> None:
        name, _ = split_key(key)
        self.db.execute(
            "request_admission_of_limit",
            kind=kind,
            first_key=key,
            before_key=f"{name}{AFTER_SEPARATOR}",
            keys_per_second=KEYS_PER_SECOND,
        )


def _starts(begun: Mapping[UUID, float]) -> dict[str, str | float]:
    seconds = json.dumps({str(pk): seconds for pk, seconds in begun.items()})
    return {"begun": seconds, "late_seconds": LATE_SECONDS, "late_part": LATE_PART}


def _admitted(rows: Sequence[tuple[str | None, int]]) -> Admitted:
    """Sum up rows: a queue with its number of admitted tasks; a row without a queue: requests were inserted."""
    queues = {queue: number for queue, number in rows if queue is not None}
    return Admitted(queues=queues, has_more=len(queues) < len(rows))
