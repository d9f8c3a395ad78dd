"""The journal of a workflow on every engine: read it, and record calls while the claim is held."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from jobqueue.exceptions import ClaimLost
from jobqueue.models import JournalEntry
from jobqueue.values.journal import Entry, EntryKind, EntryStatus
from jobqueue.values.states import Status
from tests.engine.bench import ERROR, Bench, outcome

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])


def entry(name: str = "charge", **changes: Any) -> Entry:
    values: dict[str, Any] = {"name": name, "kind": EntryKind.STEP, "status": EntryStatus.SUCCESSFUL}
    return Entry(**values | changes)


def names(bench: Bench, pk: Any) -> list[str]:
    return [entry.name for entry in bench.engine.journal.read(pk).entries]


def seconds(start: datetime | None, end: datetime | None) -> float:
    assert start is not None
    assert end is not None
    return (end - start).total_seconds()


def test_recorded_entry_is_read_with_all_its_columns(bench: Bench) -> None:
    claimed, child = bench.running(), uuid4()
    written = entry(
        arguments="[1]", digest="0123456789abcdef", value='{"a":[1,null]}', error=ERROR, attempts=2, child_id=child
    )
    bench.engine.journal.record(claimed, bench.executor_id, [written])

    journal = bench.engine.journal.read(claimed.id)
    (read,) = journal.entries

    assert not journal.is_cancel_requested
    assert (read.name, read.kind, read.status) == ("charge", EntryKind.STEP, EntryStatus.SUCCESSFUL)
    assert (read.digest, read.attempts, read.child_id) == ("0123456789abcdef", 2, child)
    row = JournalEntry.objects.using(bench.engine.database).get(task_id=claimed.id)
    assert (row.arguments, row.value, row.error) == ([1], {"a": [1, None]}, json.loads(ERROR))


def test_times_of_an_entry_come_from_the_database(bench: Bench) -> None:
    claimed = bench.running()
    before = bench.engine.db.now()
    bench.engine.journal.record(claimed, bench.executor_id, [entry(run_seconds=60.0)])
    bench.engine.journal.record(
        claimed, bench.executor_id, [entry("sleep", status=EntryStatus.WAITING, due_seconds=60.0)]
    )

    step, sleep = bench.engine.journal.read(claimed.id).entries

    assert step.finished_at is not None
    assert step.finished_at >= before
    assert seconds(step.started_at, step.finished_at) == pytest.approx(60)
    assert sleep.finished_at is None
    assert seconds(sleep.started_at, sleep.due_at) == pytest.approx(60)


def test_entry_replaces_the_one_of_its_name_and_keeps_its_place(bench: Bench) -> None:
    claimed = bench.running()
    first = entry("sleep", kind=EntryKind.SLEEP, status=EntryStatus.WAITING)
    bench.engine.journal.record(claimed, bench.executor_id, [first, entry("b"), entry("c")])
    bench.engine.journal.record(claimed, bench.executor_id, [entry("d"), entry("sleep", value="1")])

    entries = bench.engine.journal.read(claimed.id).entries

    assert [entry.name for entry in entries] == ["sleep", "b", "c", "d"]
    assert (entries[0].status, entries[0].value) == (EntryStatus.SUCCESSFUL, "1")


def test_two_tasks_may_have_entries_of_one_name(bench: Bench) -> None:
    first, other = bench.running(), bench.running()
    bench.engine.journal.record(first, bench.executor_id, [entry(value="1")])
    bench.engine.journal.record(other, bench.executor_id, [entry(value="2")])

    assert [e.value for e in bench.engine.journal.read(first.id).entries] == ["1"]
    assert [e.value for e in bench.engine.journal.read(other.id).entries] == ["2"]


@pytest.mark.parametrize("lost", ["number", "executor", "ended", "released", "gone"])
def test_executor_without_the_claim_records_nothing(bench: Bench, lost: str) -> None:
    claimed = bench.running()
    executor_id = bench.executor_id
    if lost == "number":
        bench.set(claimed.id, claim_number=claimed.claim_number + 1)
    if lost == "executor":
        executor_id = uuid4()
    if lost == "ended":
        bench.commit(outcome(claimed))
    if lost == "released":
        bench.engine.commits.release([claimed])
    if lost == "gone":
        bench.commit(outcome(claimed))
        bench.engine.tasks.delete([claimed.id])

    with pytest.raises(ClaimLost):
        bench.engine.journal.record(claimed, executor_id, [entry()])

    assert names(bench, claimed.id) == []


def test_journal_says_whether_a_cancel_was_requested(bench: Bench) -> None:
    claimed = bench.running()
    assert bench.engine.tasks.cancel([claimed.id]).requested == 1

    assert bench.engine.journal.read(claimed.id).is_cancel_requested
    assert bench.status(claimed.id) == Status.RUNNING


def test_journal_of_an_unknown_task_is_empty(bench: Bench) -> None:
    journal = bench.engine.journal.read(uuid4())

    assert (list(journal.entries), journal.is_cancel_requested) == ([], False)
