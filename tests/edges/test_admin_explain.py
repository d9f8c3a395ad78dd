"""The sentence on a task's page: a pure function of values."""

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.inspect.explain import Surroundings, explain
from jobqueue.models import Executor, Queue, Task
from tests.factories import error

TURN = "it is started when its turn in queue emails comes."
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


READY = [
    ({}, {"alive": 0, "serving": 0}, "Ready for 14 min: no executor of queue emails is alive."),
    ({}, {"serving": 0}, "Ready for 14 min: no executor of queue emails is alive."),
    (
        {},
        {"serving": 0, "quiet": 1},
        "Ready for 14 min: every executor of queue emails that is alive was told to claim nothing.",
    ),
    ({}, {"queue": paused()}, "Ready for 14 min: queue emails is paused by anna."),
    ({}, {"queue": paused(paused_by="")}, "Ready for 14 min: queue emails is paused."),
    (
        {},
        {"queue": paused(pause_reason="mail server moves", resume_at=after(3600))},
        "Ready for 14 min: queue emails is paused by anna until Nov. 20, 2026, 1 p.m. (mail server moves).",
    ),
    ({}, {"queue": paused(resume_at=before(1))}, "Ready for 14 min: " + TURN),
    (
        {},
        {"queue": Queue(name="emails", max_running=2), "running": 2},
        "Ready for 14 min: 2 tasks of queue emails run, and no more may.",
    ),
    ({}, {"queue": Queue(name="emails", max_running=2), "running": 1}, "Ready for 14 min: " + TURN),
    ({}, {"busy": 8}, "Ready for 14 min: all 8 slots that serve queue emails are busy."),
    ({}, {}, "Ready for 14 min: " + TURN),
    (
        {"executor_losses": 1},
        {},
        "Ready for 14 min: 1 executor was lost while it held the task; another one takes it up.",
    ),
    (
        {"executor_losses": 2},
        {},
        (
            "Ready for 14 min: 2 executors were lost while they held the task; it waits for one that is free to run it "
            "alone."
        ),
    ),
    (
        {"expires_at": before(180)},
        {},
        "Ready for 14 min: it expired 3 min ago and will end FAILED as soon as an executor takes it up.",
    ),
    ({"rank": before(840 + 600), "priority": 10}, {}, "Ready for 14 min: " + TURN),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), READY)
def test_ready(columns, around, sentence):
    assert say(task("READY", **columns), **around) == sentence


SCHEDULED = [
    (
        {"wake_at": after(40), "attempts": 2},
        {"errors": [error(), error()]},
        "Attempt 2 of 5 failed with SMTPServerBusy; next try in 40 s.",
    ),
    (
        {"wake_at": before(40), "attempts": 2},
        {"errors": [error()], "alive": 0},
        "Attempt 2 of 5 failed with SMTPServerBusy; the next try is due since 40 s, but no executor is alive.",
    ),
    (
        {"wake_at": after(10)},
        {"errors": [error(exception_class_path="jobqueue.exceptions.UnknownTask")]},
        "No executor knows the task shop.tasks.send_receipt; it is offered again in 10 s.",
    ),
    ({"wake_at": after(7200)}, {}, "Scheduled for Nov. 20, 2026, 2 p.m.; it becomes ready in 2 h."),
    ({"wake_at": before(5)}, {}, "Scheduled for Nov. 20, 2026, 11:59 a.m.; it is due since 5 s."),
    (
        {"wake_at": after(5)},
        {"errors": [error(exception_class_path="jobqueue.exceptions.Stale")]},
        "Handed back with Stale; next try in 5 s.",
    ),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), SCHEDULED)
def test_scheduled(columns, around, sentence):
    assert say(task("SCHEDULED", **columns), **around) == sentence


RUNNING = [
    ({}, {"executor": executor()}, "Running for 12 s on web-1, attempt 1 of 5."),
    ({"attempts": 1}, {"executor": executor()}, "Running for 12 s on web-1, attempt 2 of 5."),
    (
        {"cancel_requested_at": before(2)},
        {"executor": executor()},
        "Running for 12 s on web-1; told 2 s ago to cancel.",
    ),
    (
        {},
        {"executor": executor(silent=45)},
        "web-1 was last heard of 45 s ago: another executor takes the task over.",
    ),
    (
        {},
        {"executor": executor(silent=45), "alive": 0},
        "web-1 was last heard of 45 s ago, and no executor is alive to take the task over.",
    ),
    ({}, {}, "Running for 12 s on an executor that has no row: another one takes it over after 30 s."),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), RUNNING)
def test_running(columns, around, sentence):
    assert say(task("RUNNING", claimed_at=before(12), **columns), **around) == sentence


UNTIL = "Suspended: waits for a message, or until Nov. 20, 2026, 12:01 p.m., in 60 s"
SUSPENDED = [
    ({}, {}, "Suspended for 12 s with no timeout: only a message wakes it."),
    ({}, {"live_children": 2}, "Suspended for 12 s with no timeout; 2 children have not ended."),
    ({}, {"live_children": 1}, "Suspended for 12 s with no timeout; 1 child has not ended."),
    ({"wake_at": after(60)}, {}, f"{UNTIL}."),
    ({"wake_at": after(60)}, {"live_children": 3}, f"{UNTIL}; 3 children have not ended."),
    ({"wake_at": after(60)}, {"is_orphan": True}, f"{UNTIL}. Its parent has ended."),
    (
        {"wake_at": after(0.4), "unread_polls": 3},
        {"unread": 1},
        "Will look again in 400 ms at mail it left unread.",
    ),
    ({"wake_at": before(1), "unread_polls": 3}, {"unread": 1}, "1 unread message has come: woken in a moment."),
    ({"wake_at": after(60)}, {"unread": 1}, "1 unread message has come: woken in a moment."),
    ({"wake_at": before(4)}, {}, "Its sleep ended 4 s ago; it becomes ready in a moment."),
    (
        {"wake_at": before(4)},
        {"alive": 0},
        "Its sleep ended 4 s ago; it becomes ready in a moment, but no executor is alive.",
    ),
    ({}, {"unread": 1}, "1 unread message has come: woken in a moment."),
    ({}, {"unread": 3, "alive": 0}, "3 unread messages have come: woken as soon as an executor is alive."),
    ({}, {"unread": 101}, "100+ unread messages have come: woken in a moment."),
]


@pytest.mark.parametrize(("columns", "around", "sentence"), SUSPENDED)
def test_suspended(columns, around, sentence):
    assert say(task("SUSPENDED", last_attempted_at=before(12), **columns), **around) == sentence


FAILED = [
    (
        {"attempts": 5},
        [error("451 busy\nmore")],
        "Failed 5 min ago: attempt 5 of 5, the last, ended with SMTPServerBusy: 451 busy",
    ),
    (
        {"attempts": 1},
        [error("no such order")],
        "Failed 5 min ago: attempt 1 of 5 ended with what is not retried. SMTPServerBusy: no such order",
    ),
    (
        {"attempts": 2},
        [error("the address is wrong", exception_class_path="jobqueue.exceptions.GiveUp")],
        "Failed 5 min ago: it gave up. GiveUp: the address is wrong",
    ),
    (
        {"executor_losses": 3},
        [error("", exception_class_path="jobqueue.exceptions.ExecutorLost")],
        "Failed 5 min ago: 3 executors were lost while they held the task.",
    ),
    (
        {},
        [error("", exception_class_path="jobqueue.exceptions.Expired")],
        "Failed 5 min ago: it was not started before it expired.",
    ),
    (
        {},
        [error("bad", exception_class_path="jobqueue.exceptions.UndecodableTask")],
        "Failed 5 min ago, unstarted: its row cannot be read. UndecodableTask: bad",
    ),
    ({}, [], "Failed 5 min ago; no error was recorded."),
    ({}, [{"unexpected": 1}], "Failed 5 min ago; no error was recorded."),
]


@pytest.mark.parametrize(("columns", "errors", "sentence"), FAILED)
def test_failed(columns, errors, sentence):
    assert say(task("FAILED", finished_at=before(300), **columns), errors=errors) == sentence


def test_successful():
    row = task("SUCCESSFUL", last_attempted_at=before(302), finished_at=before(300))

    assert say(row) == "Ended well 5 min ago; the last attempt took 2 s."


def test_cancelled_before_and_after_its_start():
    assert say(task("CANCELLED", finished_at=before(300))) == "Cancelled 5 min ago, before it was started."
    assert (
        say(task("CANCELLED", finished_at=before(300), started_at=before(310)))
        == "Cancelled 5 min ago, after it had been started."
    )


def test_what_an_ended_task_leaves_behind():
    row = task("SUCCESSFUL", last_attempted_at=before(302), finished_at=before(300))
    well = "Ended well 5 min ago; the last attempt took 2 s."

    assert say(row, live_children=1) == f"{well} 1 of its children lives on."
    assert say(row, live_children=2, unread=1) == (f"{well} 2 of its children live on. 1 message was not delivered.")
    assert say(row, is_orphan=True) == well


@pytest.mark.parametrize("status", ["READY", "SCHEDULED", "RUNNING"])
def test_an_orphan_is_called_one_in_every_living_state(status):
    assert say(task(status, wake_at=after(5)), is_orphan=True).endswith(". Its parent has ended.")


@pytest.mark.parametrize("status", Task.Status.values)
def test_every_status_has_a_sentence_even_in_a_row_with_holes(status):
    assert say(task(status)).endswith(".")
