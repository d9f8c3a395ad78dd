"""The explanation of a task's state, a pure function."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.inspect.explain import Surroundings, explain
from jobqueue.models import Executor, Queue, Task
from tests.factories import error

TURN = "Waiting for its turn in queue emails."
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def before(seconds):
    return NOW - timedelta(seconds=seconds)


def after(seconds):
    return NOW + timedelta(seconds=seconds)


def task(status, **columns):
    columns = {"enqueued_at": before(1000), "rank": before(840), "queue_name": "emails", "max_attempts": 5} | columns
    return Task(status=status, task_type="shop.tasks.send_receipt", **columns)


def say(row, **around):
    return explain(row, Surroundings(now=NOW, **({"alive": 1, "serving": 1, "slots": 8} | around)))


def executor(silent=3.0):
    return Executor(name="web-1", heartbeat=before(silent))


def paused(**columns):
    return Queue(name="emails", **({"paused_at": before(600), "paused_by": "anna"} | columns))


PAUSED = "Ready for 14 min. Queue emails is paused"
READY = [
    ({}, {"alive": 0, "serving": 0}, "Ready for 14 min. No executor is serving queue emails."),
    ({}, {"serving": 0}, "Ready for 14 min. No executor is serving queue emails."),
    (
        {},
        {"serving": 0, "paused": 1},
        "Ready for 14 min. All executors serving queue emails are paused: they claim no tasks.",
    ),
    ({}, {"queue": paused()}, "Ready for 14 min. Queue emails is paused by anna."),
    ({}, {"queue": paused(paused_by="")}, "Ready for 14 min. Queue emails is paused."),
    (
        {},
        {"queue": paused(pause_reason="mail server moves", resume_at=after(3600))},
        f"{PAUSED} by anna. Reason: mail server moves. It resumes automatically (Nov. 20, 2026, 1 p.m.).",
    ),
    ({}, {"queue": paused(resume_at=before(1))}, "Ready for 14 min. " + TURN),
    (
        {},
        {"queue": Queue(name="emails", max_running=2), "running": 2},
        "Ready for 14 min. The limit of queue emails is reached (2 running).",
    ),
    ({}, {"queue": Queue(name="emails", max_running=2), "running": 1}, "Ready for 14 min. " + TURN),
    ({}, {"busy": 8}, "Ready for 14 min. All 8 slots of the executors serving queue emails are busy."),
    ({}, {}, "Ready for 14 min. " + TURN),
    (
        {"executor_losses": 1},
        {},
        "Ready for 14 min. 1 executor was lost while running it; another one will run it.",
    ),
    (
        {"executor_losses": 2},
        {},
        ("Ready for 14 min. 2 executors were lost while running it; an idle one will run it alone."),
    ),
    (
        {"expires_at": before(180)},
        {},
        "Ready for 14 min. It expired 3 min ago and will fail when an executor claims it.",
    ),
    ({"rank": before(840 + 600), "priority": 10}, {}, "Ready for 14 min. " + TURN),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), READY)
def test_ready(columns, around, sentence):
    assert say(task("READY", **columns), **around) == sentence


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
    (
        {"wake_at": after(10)},
        {"errors": [error(exception_class_path="jobqueue.exceptions.UnknownTask")]},
        "No executor has code for the task shop.tasks.send_receipt. Next attempt in 10 s.",
    ),
    ({"wake_at": after(7200)}, {}, "It becomes ready in 2 h (Nov. 20, 2026, 2 p.m.)."),
    ({"wake_at": before(5)}, {}, "It was due 5 s ago (Nov. 20, 2026, 11:59 a.m.)."),
    (
        {"wake_at": after(5)},
        {"errors": [error(exception_class_path="jobqueue.exceptions.Stale")]},
        "Returned to the queue because of Stale. Next attempt in 5 s.",
    ),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), SCHEDULED)
def test_scheduled(columns, around, sentence):
    assert say(task("SCHEDULED", **columns), **around) == sentence


RUNNING = [
    ({}, {"executor": executor()}, "Running for 12 s on web-1 (attempt 1 of 5)."),
    ({"attempts": 1}, {"executor": executor()}, "Running for 12 s on web-1 (attempt 2 of 5)."),
    (
        {"cancel_requested_at": before(2)},
        {"executor": executor()},
        "Running for 12 s on web-1. Cancellation was requested 2 s ago.",
    ),
    (
        {},
        {"executor": executor(silent=45)},
        "Executor web-1 sent its last heartbeat 45 s ago. Another executor will rescue the task.",
    ),
    (
        {},
        {"executor": executor(silent=45), "alive": 0},
        "Executor web-1 sent its last heartbeat 45 s ago. No executor is running to rescue it.",
    ),
    (
        {},
        {},
        "Running for 12 s on an executor that no longer exists. Another executor will rescue the task after 30 s.",
    ),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), RUNNING)
def test_running(columns, around, sentence):
    assert say(task("RUNNING", claimed_at=before(12), **columns), **around) == sentence


UNTIL = "Waiting for a message, until Nov. 20, 2026, 12:01 p.m. (in 60 s)."
FOREVER = "Waiting for a message for 12 s, without a timeout."
SUSPENDED = [
    ({}, {}, FOREVER),
    ({}, {"live_children": 2}, f"{FOREVER} 2 children have not ended."),
    ({}, {"live_children": 1}, f"{FOREVER} 1 child has not ended."),
    ({"wake_at": after(60)}, {}, UNTIL),
    ({"wake_at": after(60)}, {"live_children": 3}, f"{UNTIL} 3 children have not ended."),
    ({"wake_at": after(60)}, {"is_orphan": True}, f"{UNTIL} Its parent has ended."),
    (
        {"wake_at": after(0.4), "unread_polls": 3},
        {"unread": 1},
        "It will check its unread messages again in 400 ms.",
    ),
    (
        {"wake_at": before(1), "unread_polls": 3},
        {"unread": 1},
        "It has 1 unread message. It will be woken in a moment.",
    ),
    ({"wake_at": after(60)}, {"unread": 1}, "It has 1 unread message. It will be woken in a moment."),
    ({"wake_at": before(4)}, {}, "Its wait ended 4 s ago. It becomes ready in a moment."),
    (
        {"wake_at": before(4)},
        {"alive": 0},
        "Its wait ended 4 s ago. No executor is running to wake it.",
    ),
    ({}, {"unread": 1}, "It has 1 unread message. It will be woken in a moment."),
    ({}, {"unread": 3, "alive": 0}, "It has 3 unread messages. No executor is running to wake it."),
    ({}, {"unread": 101}, "It has 100+ unread messages. It will be woken in a moment."),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), SUSPENDED)
def test_suspended(columns, around, sentence):
    assert say(task("SUSPENDED", last_attempted_at=before(12), **columns), **around) == sentence


FAILED = [
    (
        {"attempts": 5},
        [error("451 busy\nmore")],
        "Failed 5 min ago on its last attempt (5 of 5): SMTPServerBusy: 451 busy",
    ),
    (
        {"attempts": 1},
        [error("no such order")],
        "Failed 5 min ago on attempt 1 of 5; this error is not retried: SMTPServerBusy: no such order",
    ),
    (
        {"attempts": 2},
        [error("the address is wrong", exception_class_path="jobqueue.exceptions.GiveUp")],
        "Failed 5 min ago: the task gave up: the address is wrong",
    ),
    (
        {"executor_losses": 3},
        [error("", exception_class_path="jobqueue.exceptions.ExecutorLost")],
        "Failed 5 min ago: 3 executors were lost while running it.",
    ),
    (
        {},
        [error("", exception_class_path="jobqueue.exceptions.Expired")],
        "Failed 5 min ago: it expired before it started.",
    ),
    (
        {},
        [error("bad", exception_class_path="jobqueue.exceptions.UndecodableTask")],
        "Failed 5 min ago before it started, because its stored row is unreadable: bad",
    ),
    ({}, [], "Failed 5 min ago without a recorded error."),
    ({}, [{"unexpected": 1}], "Failed 5 min ago without a recorded error."),
]


@pytest.mark.parametrize(("columns", "errors", "sentence"), FAILED)
def test_failed(columns, errors, sentence):
    assert say(task("FAILED", finished_at=before(300), **columns), errors=errors) == sentence


def test_successful():
    row = task("SUCCESSFUL", last_attempted_at=before(302), finished_at=before(300))

    assert say(row) == "Succeeded 5 min ago in 2 s."


def test_cancelled_before_and_after_its_start():
    assert say(task("CANCELLED", finished_at=before(300))) == "Cancelled 5 min ago, before it started."
    assert (
        say(task("CANCELLED", finished_at=before(300), started_at=before(310)))
        == "Cancelled 5 min ago, after it started."
    )


def test_what_an_ended_task_leaves_behind():
    row = task("SUCCESSFUL", last_attempted_at=before(302), finished_at=before(300))
    well = "Succeeded 5 min ago in 2 s."

    assert say(row, live_children=1) == f"{well} 1 child has not ended."
    assert say(row, live_children=2, unread=1) == (f"{well} 2 children have not ended. 1 message was not delivered.")
    assert say(row, is_orphan=True) == well


@pytest.mark.parametrize("status", ["READY", "SCHEDULED", "RUNNING"])
def test_an_orphan_is_called_one_in_every_living_state(status):
    assert say(task(status, wake_at=after(5)), is_orphan=True).endswith(". Its parent has ended.")


@pytest.mark.parametrize("status", Task.Status.values)
def test_every_status_has_a_sentence_even_in_a_row_with_holes(status):
    assert say(task(status)).endswith(".")
