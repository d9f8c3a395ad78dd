"""An error tracker keeps what a body tells it in an object that a ContextVar holds, as Sentry does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async

from jobqueue import Actor, Backoff, Done, GiveUp, Retry, api, task
from jobqueue.conf.compat import PACKAGE, task_finished, task_started
from jobqueue.models import Task
from jobqueue.testing import run_until_idle
from jobqueue.values.states import Status
from tests.executor.harness import Burst, Start, connected, gates, on_postgresql, row_of, wait_for_status
from tests.waiting import wait_until

pytestmark = on_postgresql

AT_ONCE = Backoff(base=0.0, jitter=0.0)


@dataclass
class TrackerScope:
    tags: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


_scope: ContextVar[TrackerScope] = ContextVar("scope")


def scope() -> TrackerScope:
    try:
        return _scope.get()
    except LookupError:
        _scope.set(TrackerScope())
        return _scope.get()


@dataclass(frozen=True)
class TrackedEvent:
    message: str
    error: str
    tags: dict[str, Any]
    lines: list[str]


class Tracker(logging.Handler):
    """Makes an event of each error that is logged, with the scope of the code that logs it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.events: list[TrackedEvent] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(PACKAGE):
            return  # run_executors silences it
        if record.levelno < logging.ERROR:
            scope().lines.append(record.getMessage())
            return
        error = record.exc_info[1] if record.exc_info else None
        self.events.append(TrackedEvent(record.getMessage(), repr(error), {**scope().tags}, [*scope().lines]))


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    """Install the tracker, and give each thread a scope at its start, as Sentry's integration of threads does."""
    run = threading.Thread.run

    def run_in_scope(self: threading.Thread) -> None:
        _scope.set(TrackerScope())
        run(self)

    monkeypatch.setattr(threading.Thread, "run", run_in_scope)
    tracker = Tracker()
    logging.root.addHandler(tracker)
    levels = {name: logging.getLogger(name).level for name in ("jobqueue", "shop")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.INFO)
    yield tracker
    logging.root.removeHandler(tracker)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def fail_as(ending: str) -> Any:
    match ending:
        case "fail":
            raise ValueError(ending)
        case "give up":
            raise GiveUp(ending)
        case "retry":
            raise Retry(ending, after=0)
        case "result":
            return object()
        case "refused":
            return "x" * 100
    return None


@task(max_attempts=2, backoff=AT_ONCE)
def tag(customer: int, ending: str = "") -> Any:
    logging.getLogger("shop").info("body of %d", customer)
    scope().tags["customer"] = customer
    return fail_as(ending)


@task(max_attempts=2, backoff=AT_ONCE)
async def tag_later(customer: int, ending: str = "") -> Any:
    logging.getLogger("shop").info("body of %d", customer)
    scope().tags["customer"] = customer
    return fail_as(ending)


@task(max_attempts=2, backoff=AT_ONCE)
async def tag_in_a_thread(customer: int, ending: str = "") -> Any:
    scope()
    await sync_to_async(Task.objects.count)()
    await sync_to_async(tag.func)(customer)
    return fail_as(ending)


@task(max_attempts=2, backoff=AT_ONCE, atomic=True)
def tag_atomically(customer: int, ending: str = "") -> Any:
    return tag.func(customer, ending)


class Tags(Actor, max_attempts=2, backoff=AT_ONCE):
    """Sets its tag in the function that commits."""

    def poll(self, context: Any, customer: int, ending: str = "") -> Any:
        return lambda: Done(tag.func(customer, ending))


class TagsLater(Actor, max_attempts=2, backoff=AT_ONCE):
    async def poll(self, context: Any, customer: int, ending: str = "") -> Any:
        return lambda: Done(tag.func(customer, ending))


@task
def report() -> None:
    logging.getLogger("shop").error("hello")


@task
async def report_later() -> None:
    logging.getLogger("shop").error("hello")


@task(max_attempts=1)
def tag_and_wait(customer: int, gate: str) -> NoReturn:
    scope().tags["customer"] = customer
    gates[gate].pass_through()
    raise ValueError("after the gate")


BODIES = [tag, tag_later, tag_in_a_thread, tag_atomically, Tags, TagsLater]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("slots", [1, 8])
def test_scope_of_a_body_is_not_seen_by_later_bodies(burst: Burst, tracker: Tracker, body: Any, slots: int) -> None:
    for customer in (7, 8):
        body.enqueue(customer)
        report.enqueue_many([((), {})] * 2)
        report_later.enqueue_many([((), {})] * 2)

    burst(threads=slots, async_slots=slots)

    assert [(event.message, event.tags, event.lines) for event in tracker.events] == [("hello", {}, [])] * 8


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("ending", ["fail", "give up", "retry"])
def test_failure_is_reported_once_with_the_scope_of_its_body(
    burst: Burst, tracker: Tracker, body: Any, ending: str
) -> None:
    """That of the last attempt: those before it are not in the report."""
    for customer in range(3):
        body.enqueue(customer, ending)

    running = burst(threads=1, async_slots=1)

    assert running.loop.outcomes.counts.finished == 3
    assert sorted(event.tags["customer"] for event in tracker.events) == [0, 1, 2]
    for event in tracker.events:
        assert event.message.startswith("task.failed ")
        assert ending in event.error
        customer = event.tags["customer"]
        assert [line for line in event.lines if line.startswith("body")] == [f"body of {customer}"]


@pytest.mark.parametrize("body", [tag, tag_later, tag_in_a_thread])
@pytest.mark.parametrize("ending", ["result", "refused"])
def test_failure_after_the_body_is_reported_with_its_scope(
    burst: Burst, tracker: Tracker, body: Any, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ending == "refused":  # by the database, when it commits
        monkeypatch.setattr(
            "jobqueue.executor.running.task_runner.encode_result", lambda value, **_: f'"{value}\\u0000"'
        )
    body.using(max_attempts=1).enqueue(7, ending)

    burst(threads=1, async_slots=1)

    (event,) = tracker.events
    assert event.message.startswith("task.failed ")
    assert "InvalidResult" in event.error
    assert event.tags == {"customer": 7}


def test_failure_that_does_not_count_is_not_reported(start: Start, tracker: Tracker) -> None:
    """The task was cancelled, or its claim is lost."""
    cancelled: Any = tag_and_wait.enqueue(7, "cancelled")
    lost: Any = tag_and_wait.enqueue(8, "lost")
    running = start(threads=2)
    gates["cancelled"].wait_for()
    gates["lost"].wait_for()
    api.cancel(cancelled.id, backend="default")
    Task.objects.filter(pk=lost.id).update(claim_number=9, status=Status.SUCCESSFUL)
    wait_until(lambda: running.running_tasks[UUID(cancelled.id)].reason)
    for gate in ("cancelled", "lost"):
        gates[gate].open()

    wait_for_status(cancelled, Status.CANCELLED)
    wait_until(lambda: running.loop.outcomes.counts.lost == 1)
    running.stop()

    assert tracker.events == []


@pytest.mark.parametrize("body", [tag, tag_later])
def test_receivers_share_the_scope_of_the_body(burst: Burst, tracker: Tracker, body: Any) -> None:
    """What a receiver of task_started sets is in the report; each task has a scope of its own."""
    seen: list[dict[str, Any]] = []

    def at_the_start(task_result: Any, **_: Any) -> None:
        scope().tags["task"] = str(task_result.id)

    def at_the_end(task_result: Any, **_: Any) -> None:
        seen.append({**scope().tags})
        scope().tags["end"] = "seen"
        logging.getLogger("shop").info("of the receiver")

    with connected(at_the_start, task_started), connected(at_the_end, task_finished):
        results = [body.using(max_attempts=1).enqueue(customer, "fail") for customer in range(2)]
        burst(threads=1, async_slots=1)

    expected = [{"task": str(result.id), "customer": customer} for customer, result in enumerate(results)]
    assert seen == expected
    assert [event.tags for event in tracker.events] == expected
    assert [row_of(result).status for result in results] == [Status.FAILED] * 2


@pytest.mark.parametrize("body", [tag, tag_later])
def test_a_test_of_the_site_runs_each_body_in_a_scope_of_its_own(tracker: Tracker, body: Any) -> None:
    scope().tags["test"] = 1
    body.enqueue(7)
    report.enqueue()
    body.using(max_attempts=1).enqueue(8, "fail")

    run_until_idle()

    assert [event.tags for event in tracker.events] == [{}, {"customer": 8}]
    assert scope().tags == {"test": 1}
