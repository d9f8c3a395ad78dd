"""The explanation of a task's state, a pure function."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.engine import Count
from jobqueue.models import Executor, Queue, Task
from jobqueue.operations.explain import TaskFacts, explain
from jobqueue.operations.limits import Key, KeyState, rate_words
from jobqueue.values.states import LimitKind
from tests.factories import error

TURN = "Waiting for its turn in queue emails."
REACHED = "Blocked: the concurrency limit of account-42 is reached (1 of 1 active)."
USED_UP = "Blocked: the rate of api-7 is used up (100 a minute)."
LIMITED = Queue(name="emails", max_running=2)
FAILED_AT = "Failed 5 min ago"
SUCCEEDED = "Succeeded 5 min ago in 2 s."
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def before(seconds):
    return NOW - timedelta(seconds=seconds)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def task(status, **columns):
    columns = {"enqueued_at": before(1000), "rank": before(840), "queue_name": "emails", "max_attempts": 5} | columns
    return Task(status=status, task_type="shop.tasks.send_receipt", **columns)


def ended(status, **columns):
    return task(status, last_attempted_at=before(302), finished_at=before(300), **columns)


def failure(name, message="", **changes):
    return error(message, exception_class_path=f"jobqueue.exceptions.{name}", **changes)


def on_executor(silent=3.0, **facts):
    return {"executor": Executor(name="web-1"), "silent_seconds": silent, **facts}


def paused(**columns):
    return Queue(name="emails", **({"paused_at": before(600), "paused_by": "anna"} | columns))


READY = [
    ({}, {"alive": 0, "serving": 0}, "No executor is serving queue emails."),
    ({}, {"serving": 0}, "No executor is serving queue emails."),
    ({}, {"serving": 0, "paused": 1}, "All executors serving queue emails are paused: they claim no tasks."),
    ({}, {"queue": paused()}, "Queue emails is paused by anna."),
    ({}, {"queue": paused(paused_by="")}, "Queue emails is paused."),
    (
        {},
        {"queue": paused(pause_reason="90% full", resume_at=after(3600))},
        "Queue emails is paused by anna. Reason: 90% full. It resumes automatically (Nov. 20, 2026, 1 p.m.).",
    ),
    ({}, {"queue": paused(resume_at=before(1))}, TURN),
    ({}, {"queue": LIMITED, "running": 2}, "The limit of queue emails is reached (2 running)."),
    ({}, {"queue": LIMITED, "running": 1}, TURN),
    ({}, {"busy": 8}, "All 8 slots of the executors serving queue emails are busy."),
    ({}, {}, TURN),
    ({"executor_losses": 1}, {}, "1 executor was lost while running it; another one will run it."),
    ({"executor_losses": 2}, {}, "2 executors were lost while running it; an idle one will run it alone."),
    ({"expires_at": before(180)}, {}, "It expired 3 min ago and will fail when an executor claims it."),
    ({"rank": before(840 + 600), "priority": 10}, {}, TURN),
]


def of_key(kind="concurrency", number=1, active=1, **changes):
    """The state of account-42, or of api-7."""
    key = Key(LimitKind(kind), "shop.tasks.import_rows:account-42" if kind == "concurrency" else "api:api-7")
    counts = {"blocked": Count(3), "active": Count(active), "number": number, "declared": number}
    return KeyState(key=key, backend="default", now=NOW, **counts, **changes)


def rate(active=100, look=4.0, **changes):
    at = None if look is None else after(look)
    return of_key("rate", 100, active, seconds=60.0, next_look_at=at, **changes)


NEW_HOLDER = "0193a4b5-0000-7000-8000-000000000000"
BLOCKED = [
    ({}, {"limit": of_key()}, REACHED),
    ({}, {"limit": of_key(number=2, active=3)}, REACHED.replace("1 of 1", "3 of 2")),
    (
        {},
        {"limit": of_key(number=3)},
        "Blocked for 14 min by the concurrency limit of account-42 (1 of 3 active). It becomes ready in a moment.",
    ),
    ({}, {"limit": of_key(), "alive": 0}, f"{REACHED} No executor is running."),
    (
        {},
        {"limit": of_key(), "queue": paused()},
        f"{REACHED} Queue emails is paused by anna.",
    ),
    (
        {"expires_at": before(180)},
        {"limit": of_key()},
        f"{REACHED} It expired 3 min ago and will fail when an executor claims it.",
    ),
    ({}, {"limit": rate()}, f"{USED_UP} Next start in 4 s."),
    ({}, {"limit": rate(look=None)}, f"{USED_UP} It becomes ready in a moment."),
    ({}, {"limit": rate(look=-1)}, f"{USED_UP} It becomes ready in a moment."),
    ({}, {"limit": rate(unstarted=100)}, USED_UP),
    (
        {},
        {"limit": rate(active=99, look=None)},
        "Blocked for 14 min by the rate of api-7 (100 a minute). It becomes ready in a moment.",
    ),
    ({}, {}, "Blocked for 14 min by a limit. It becomes ready in a moment."),
]
SCHEDULED = [
    (
        {"wake_at": after(40), "attempts": 2},
        {"errors": [error(), error()]},
        "Attempt 2 of 5 failed with SMTPServerBusy. Next attempt in 40 s.",
    ),
    (
        {"wake_at": before(40), "attempts": 2},
        {"errors": [error()], "alive": 0},
        "Attempt 2 of 5 failed with SMTPServerBusy. Its next attempt was due 40 s ago. No executor is running.",
    ),
    ({"wake_at": after(7200)}, {}, "It becomes ready in 2 h (Nov. 20, 2026, 2 p.m.)."),
    ({"wake_at": before(5)}, {}, "It was due 5 s ago (Nov. 20, 2026, 11:59 a.m.)."),
    (
        {"wake_at": after(5)},
        {"errors": [failure("Stale")]},
        "Returned to the queue because of Stale. Next attempt in 5 s.",
    ),
]
NO_CODE = "No running executor has code for the task shop.tasks.send_receipt. It has waited for 40 s."
UNBOUND = {"errors": [failure("UnboundCall", awaited="missing a required argument: 'b'")]}
MISSING = "The code of the running executors does not fit: missing a required argument: 'b'."
CODE = (
    "An executor has code for the task shop.tasks.send_receipt now. It becomes ready when the executor has a free slot."
)
AWAITING_CODE = [
    ({}, {"errors": [failure("UnknownTask", awaited="name")]}, NO_CODE),
    ({}, {}, NO_CODE),
    ({"wake_at": after(60)}, {}, f"{NO_CODE} It expires in 60 s."),
    ({}, {"alive": 0}, "Waiting for code for 40 s. No executor is running."),
    (
        {"wake_at": after(3600)},
        {"knowing": 1, **UNBOUND},
        f"{MISSING} It has waited for 40 s. It fails in 60 min unless an executor has code that fits.",
    ),
    (
        {"counts_while_waiting": True},
        {"knowing": 1},
        f"{CODE} It still counts for its concurrency limit.",
    ),
]
SILENT = "Executor web-1 sent its last heartbeat 45 s ago."
RUNNING = [
    ({}, on_executor(), "Running for 12 s on web-1 (attempt 1 of 5)."),
    (
        {},
        on_executor(silent=20),
        "Running for 12 s on web-1 (attempt 1 of 5). Executor web-1 sent its last heartbeat 20 s ago.",
    ),
    ({"attempts": 1}, on_executor(), "Running for 12 s on web-1 (attempt 2 of 5)."),
    (
        {"cancel_requested_at": before(2)},
        on_executor(),
        "Running for 12 s on web-1. Cancellation was requested 2 s ago.",
    ),
    ({}, on_executor(silent=45), f"{SILENT} Another executor will rescue the task."),
    ({}, on_executor(silent=45, alive=0), f"{SILENT} No executor is running to rescue it."),
    (
        {},
        {},
        "Running for 12 s on an executor that no longer exists. Another executor will rescue the task after 30 s.",
    ),
]
UNTIL = "Waiting for a message, until Nov. 20, 2026, 12:01 p.m. (in 60 s)."
FOREVER = "Waiting for a message for 12 s, without a timeout."
UNREAD = "It has 1 unread message. It will be woken in a moment."
SUSPENDED = [
    ({}, {}, FOREVER),
    ({}, {"live_children": 2}, f"{FOREVER} 2 children have not ended."),
    ({}, {"live_children": 1}, f"{FOREVER} 1 child has not ended."),
    ({"wake_at": after(60)}, {}, UNTIL),
    ({"wake_at": after(60)}, {"live_children": 3}, f"{UNTIL} 3 children have not ended."),
    ({"wake_at": after(60)}, {"is_orphan": True}, f"{UNTIL} Its parent has ended."),
    ({"wake_at": after(0.4), "unread_polls": 3}, {"unread": 1}, "It will check its unread messages again in 400 ms."),
    ({"wake_at": before(1), "unread_polls": 3}, {"unread": 1}, UNREAD),
    ({"wake_at": after(60)}, {"unread": 1}, UNREAD),
    ({"wake_at": before(4)}, {}, "Its wait ended 4 s ago. It becomes ready in a moment."),
    ({"wake_at": before(4)}, {"alive": 0}, "Its wait ended 4 s ago. No executor is running to wake it."),
    ({}, {"unread": 1}, UNREAD),
    ({}, {"unread": 3, "alive": 0}, "It has 3 unread messages. No executor is running to wake it."),
    ({}, {"unread": 101}, "It has 100+ unread messages. It will be woken in a moment."),
]
FAILED = [
    ({"attempts": 5}, error("451 busy\nmore"), " on its last attempt (5 of 5): SMTPServerBusy: 451 busy"),
    (
        {"attempts": 1},
        error("no such order: 100%d"),
        " on attempt 1 of 5; this error is not retried: SMTPServerBusy: no such order: 100%d",
    ),
    ({"attempts": 2}, failure("GiveUp", "the address is wrong"), ": the task gave up: the address is wrong"),
    ({"executor_losses": 3}, failure("ExecutorLost"), ": 3 executors were lost while running it."),
    ({}, failure("Expired"), ": it expired before it started."),
    ({}, failure("UndecodableTask", "bad"), " before it started, because its stored row is unreadable: bad"),
    ({}, None, " without a recorded error."),
    ({}, {"unexpected": 1}, " without a recorded error."),
]


@pytest.mark.parametrize(
    ("row", "facts", "sentence"),
    [
        *((task("READY", **columns), facts, f"Ready for 14 min. {rest}") for columns, facts, rest in READY),
        *((task("BLOCKED", **columns), facts, sentence) for columns, facts, sentence in BLOCKED),
        *((task("SCHEDULED", **columns), facts, sentence) for columns, facts, sentence in SCHEDULED),
        *(
            (task("AWAITING_CODE", awaits_code_since=before(40), **columns), facts, sentence)
            for columns, facts, sentence in AWAITING_CODE
        ),
        *((task("RUNNING", claimed_at=before(12), **columns), facts, text) for columns, facts, text in RUNNING),
        *((task("SUSPENDED", last_attempted_at=before(12), **columns), *rest) for columns, *rest in SUSPENDED),
        *(
            (task("FAILED", finished_at=before(300), **columns), {"errors": [last] if last else []}, FAILED_AT + rest)
            for columns, last, rest in FAILED
        ),
        (ended("SUCCESSFUL"), {}, SUCCEEDED),
        (ended("SUCCESSFUL"), {"live_children": 1}, f"{SUCCEEDED} 1 child has not ended."),
        (
            ended("SUCCESSFUL"),
            {"live_children": 2, "unread": 1},
            f"{SUCCEEDED} 2 children have not ended. 1 message was not delivered.",
        ),
        (ended("SUCCESSFUL"), {"is_orphan": True}, SUCCEEDED),
        (ended("CANCELLED"), {}, "Cancelled 5 min ago, before it started."),
        (ended("CANCELLED", started_at=before(310)), {}, "Cancelled 5 min ago, after it started."),
    ],
    ids=lambda value: value.status if isinstance(value, Task) else "",
)
def test_state_is_explained_in_sentences(row, facts, sentence):
    assert explain(row, TaskFacts(now=NOW, **({"alive": 1, "serving": 1, "slots": 8} | facts))) == sentence


@pytest.mark.parametrize("status", ["READY", "SCHEDULED", "RUNNING"])
def test_orphan_is_called_one_in_every_living_state(status):
    sentence = explain(task(status, wake_at=after(5)), TaskFacts(now=NOW, is_orphan=True))
    assert sentence.endswith(". Its parent has ended.")


@pytest.mark.parametrize("status", Task.Status.values)
def test_every_status_has_a_sentence_even_in_a_row_with_holes(status):
    assert explain(task(status), TaskFacts(now=NOW)).endswith(".")


def test_retry_that_holds_its_place_says_so():
    row = task("SCHEDULED", wake_at=after(40), attempts=2, counts_while_waiting=True)
    sentence = explain(row, TaskFacts(now=NOW, errors=[error()], limit=of_key()))
    assert sentence.endswith("Next attempt in 40 s. It still counts for the concurrency limit of account-42.")


def test_running_task_names_the_task_that_took_over_its_key():
    row = task("RUNNING", claimed_at=before(12), taken_over_by_id=NEW_HOLDER)
    sentence = explain(row, TaskFacts(now=NOW, **on_executor()))
    assert f"Task {NEW_HOLDER} has taken over its unique key, and does not wait for it." in sentence


@pytest.mark.parametrize(
    ("number", "seconds", "words"),
    [
        (10, 1.0, "10 a second"),
        (1000, 60.0, "1,000 a minute"),
        (5, 3600.0, "5 an hour"),
        (1, 86_400.0, "1 a day"),
        (3, 10.0, "3 in 10 s"),
        (1, 0.25, "1 in 250 ms"),
    ],
)
def test_rate_is_read_as_people_say_it(number, seconds, words):
    assert rate_words(number, seconds) == words


def test_message_of_an_error_is_a_sentence_of_its_own():
    row = ended("FAILED", attempts=2)
    text = explain(row, TaskFacts(now=NOW, errors=[failure("GiveUp", "hidden")], unread=1))

    assert text == (
        "Failed 5 min ago: the task gave up: hidden. 1 message was not delivered. "
        "If you requeue it, the task reads what it has not read."
    )
