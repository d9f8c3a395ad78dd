"""The checker: a good history passes, and each forged one breaks the rule that it should."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from verification.faults.checker import RULES, restarts, violations
from verification.faults.diary import Logbook, last_lines, read_logs
from verification.faults.history import Change, EffectRecord, EntryRecord, HeartbeatRecord, History, MessageEvent
from verification.faults.pages import PAGE

DAWN = datetime(2030, 1, 1, tzinfo=UTC)
TIMEOUT = 2.0


def at(seconds: float) -> datetime:
    return DAWN + timedelta(seconds=seconds)


def story(*steps: Change) -> tuple[Change, ...]:
    return tuple(replace(step, id=number) for number, step in enumerate(steps))


def born(task_id: str = "t", seconds: float = 0.0) -> Change:
    return Change(id=0, task_id=task_id, before=None, after="READY", claim_after=0, attempts_after=0, at=at(seconds))


def claimed(seconds: float, number: int = 1, by: str = "a", losses: int = 0) -> Change:
    return Change(
        id=0, task_id="t", before="READY", after="RUNNING", claim_before=number - 1, claim_after=number,
        losses_before=losses, losses_after=losses, workers_before=losses, workers_after=losses, taker=by,
        actor=f"executor-{by}", xact="1", at=at(seconds),
    )  # fmt: skip


def rescued(seconds: float, by: str = "b", holder: str = "a") -> Change:
    return Change(
        id=0, task_id="t", before="RUNNING", after="READY", claim_before=1, claim_after=1, losses_before=0,
        losses_after=1, workers_before=0, workers_after=1, last_worker=holder, holder=holder,
        actor=f"executor-{by}", xact="2", at=at(seconds),
    )  # fmt: skip


def ended(seconds: float, number: int = 1, by: str = "a", losses: int = 0, result: str = '"paid"') -> Change:
    return Change(
        id=0, task_id="t", before="RUNNING", after="SUCCESSFUL", claim_before=number, claim_after=number,
        polls_before=0, polls_after=1, losses_before=losses, losses_after=losses, workers_before=losses,
        workers_after=losses + 1, last_worker=by, holder=by, result=result, actor=f"executor-{by}", xact="3",
        at=at(seconds),
    )  # fmt: skip


def logged(level: str, message: str, seconds: float = 5.1, who: str = "b", **more: str) -> dict[str, Any]:
    return {
        "kind": "log",
        "who": f"executor-{who}",
        "at": at(seconds).timestamp(),
        "level": level,
        "message": message,
    } | more


GOOD = History(
    timeout_seconds=TIMEOUT,
    notes=[
        {"kind": "enqueued", "task": "t", "expected": "paid", "at": 0.0},
        {"kind": "hurt", "whom": "executor-a", "at": at(1).timestamp()},
    ],
    changes=story(born(), claimed(0.5), rescued(3.5), claimed(4, 2, "b", 1), ended(5, 2, "b", 1)),
    beats=[
        HeartbeatRecord(id=1, executor_id="a", name="executor-a", at=at(0.1)),
        HeartbeatRecord(id=2, executor_id="b", name="executor-b", at=at(0.2)),
        HeartbeatRecord(id=3, executor_id="a", name="executor-a", at=at(0.9)),
        HeartbeatRecord(id=4, executor_id="b", name="executor-b", at=at(3.4)),
    ],
    effects=[EffectRecord(id=1, kind="paid", key="t:0", task_id="t", xact="3", at=at(5))],
    messages=[MessageEvent(id=1, message_id=7, task_id="t", event="sent", at=at(1))],
    logs=[
        logged(
            "INFO",
            "task.started task=pay id=t queue=default attempt=1/1000",
            seconds=0.5,
            who="a",
        ),
        logged(
            "WARNING",
            "task.retried task=stumble id=s queue=default attempt=1/9 error=RuntimeError: as asked",
        ),
        logged("ERROR", "executor.release_failed tasks=3", seconds=1.5, who="a"),  # it was hurt
        logged(
            "INFO",
            "task.succeeded task=pay id=t queue=default attempt=2/1000",
        ),
    ],
)


def test_good_history_passes() -> None:
    assert violations(GOOD) == []
    assert restarts(GOOD) == [pytest.approx(3.1)]


def test_poison_that_fails_after_its_losses_passes() -> None:
    end = replace(rescued(6.5, by="c", holder="b"), after="FAILED", claim_before=2, claim_after=2, losses_before=1,
        losses_after=2, workers_before=1, workers_after=2)  # fmt: skip
    hurt = {"kind": "hurt", "whom": "executor-b", "at": at(4).timestamp()}
    history = poisoned(end)
    assert violations(replace(history, notes=[*history.notes, hurt])) == []


def test_error_that_a_fault_explains_passes() -> None:
    fault = {"kind": "fault", "fault": "kill_postmaster", "at": at(4).timestamp()}
    torn = with_line("ERROR", "heartbeat.crashed", error="django.db.utils.OperationalError")
    assert {violation.rule for violation in violations(torn)} == {"unexplained"}
    assert violations(replace(torn, notes=[*GOOD.notes, fault])) == []


def test_attempt_that_a_fault_hits_passes() -> None:
    assert violations(look_fails_beside_a_fault(begins=4.5, fault_is_over=4.7)) == []
    two = with_line(
        "WARNING",
        "task.retried task=t id=u queue=default error=InternalError: received 2 results from command X",
    )
    assert violations(two) == []
    assert violations(look_fails_beside_a_fault(begins=6.5, fault_is_over=4.7, next_fault=6.7)) == []
    assert violations(look_fails_beside_a_fault(begins=4.5, fault_is_over=4.7, begins_again=6.5)) == []


def test_failure_shows_the_last_lines_of_who_and_what_it_names() -> None:
    task = "01a20507-6033-7ca8-a4f1-7bc1291d5f5a"
    logs = [logged("INFO", f"line {number}", seconds=number, who="2") for number in range(9)]
    logs += [logged("INFO", f"task.started {task}", who="c"), logged("INFO", "of no interest", who="d")]

    text = last_lines(logs, f"stolen: task {task} from executor-2", of_each=2)

    assert [line.split(" ", 1)[1] for line in text.splitlines()] == [
        f"executor-c INFO task.started {task}",
        "executor-2 INFO line 7",
        "executor-2 INFO line 8",
    ]


def test_process_keeps_a_logbook_of_which_half_a_line_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERIFICATION_DIARY", str(tmp_path / "diary.jsonl"))
    monkeypatch.setenv("PGAPPNAME", "executor-1")
    logger = logging.Logger("jobqueue.executor")
    logger.addHandler(Logbook())
    try:
        raise KeyError(7)
    except KeyError:
        logger.exception("executor.%s", "loop_crashed")
    with (tmp_path / "executor-1.jsonl").open("a") as book:
        book.write('{"kind": "log", "wh')

    (line,) = read_logs(str(tmp_path / "diary.jsonl"))

    assert (line["who"], line["level"], line["logger"]) == ("executor-1", "ERROR", "jobqueue.executor")
    assert (line["message"], line["error"], line["pid"]) == ("executor.loop_crashed", "builtins.KeyError", os.getpid())
    assert "raise KeyError(7)" in line["traceback"]


def test_message_that_was_read_and_entered_passes() -> None:
    assert (
        violations(book(EffectRecord(id=1, kind="entered", key="collector-0:1", task_id="t", xact="3", at=at(5)))) == []
    )


def test_tasks_within_their_limits_pass() -> None:
    limits = {"limit": {"key": "k", "number": 2}, "rate": {"key": "k", "number": 1, "seconds": 2.5}}
    rules = {violation.rule for violation in violations(two_tasks(seconds=3.0, **limits))}
    assert "exceeded" not in rules


def test_restart_counts_from_the_first_beat_of_a_late_rescuer() -> None:
    late = [replace(beat, at=at(1.4)) if beat.id == 2 else beat for beat in GOOD.beats]
    assert restarts(replace(GOOD, beats=late)) == [pytest.approx(2.6)]


def with_changes(*steps: Change) -> History:
    return replace(GOOD, changes=story(*steps), effects=[])


def changed(number: int, **columns: object) -> History:
    steps = [replace(step, **columns) if step.id == number else step for step in GOOD.changes]  # type: ignore[arg-type]
    return replace(GOOD, changes=steps)


def collected(*numbers: int) -> Change:
    return ended(5, 2, "b", 1, result=str(list(numbers)))


def with_message(*seen: int) -> History:
    """Return a history in which number 1 was sent, and its reader ended with `seen`."""
    return replace(
        with_changes(*GOOD.changes[:4], collected(*seen)),
        notes=[*GOOD.notes[1:], {"kind": "sent", "number": 1, "at": 0.0}],
    )


def consumed(pk: int, xact: str = "3") -> MessageEvent:
    return MessageEvent(id=pk, message_id=7, task_id="t", event="consumed", xact=xact, at=at(2))


def book(*effects: EffectRecord) -> History:
    """Return a history in which a commit function reads one message and writes `effects`."""
    notes = [{"kind": "enqueued", "task": "t", "at": 0.0}, *GOOD.notes[1:]]
    return replace(
        with_changes(*GOOD.changes[:4], collected(1)),
        notes=notes,
        messages=[*GOOD.messages, consumed(2)],
        effects=effects,
    )


def poisoned(*more: Change) -> History:
    """Return a history with one executor loss, for a task that may have two."""
    notes = [{"kind": "poisoned", "task": "t", "losses": 2, "at": 0.0}, *GOOD.notes[1:]]
    return replace(with_changes(*GOOD.changes[:4], *more), notes=notes, logs=())


FORGED: list[tuple[str, str, Callable[[], History]]] = [
    ("lost", "a task that vanished", lambda: replace(GOOD, changes=[], effects=[])),
    ("lost", "a task that was deleted before its end", lambda: with_changes(
        born(), replace(born(), before="READY", after=None))),
    ("lost", "a wrong result", lambda: changed(4, result='"kept"')),
    ("lost", "a message that was not read", lambda: with_message(2)),
    ("failed", "a task cancelled without a request", lambda: changed(4, after="CANCELLED", result=None)),
    ("doubled", "an effect twice", lambda: replace(GOOD, effects=[*GOOD.effects, *GOOD.effects])),
    ("doubled", "a message read twice", lambda: with_message(1, 1)),
    ("doubled", "a message consumed twice", lambda: replace(GOOD, messages=[*GOOD.messages, consumed(2), consumed(3)])),
    ("doubled", "two ends", lambda: with_changes(*GOOD.changes, ended(6, 2, "b", 1))),
    ("torn", "an effect whose outcome came later", lambda: changed(4, xact="4")),
    ("torn", "an effect without an outcome", lambda: with_effect_of_a_dead_claim()),
    ("torn", "an outcome without its effect", lambda: replace(GOOD, effects=[])),
    ("torn", "a message that was read without an effect", book),
    ("torn", "a message consumed without an outcome", lambda: replace(
        GOOD, messages=[*GOOD.messages, consumed(2, "4")])),
    ("fenced", "an outcome of a replaced claim", lambda: changed(4, actor="executor-a")),
    ("fenced", "a claim number used twice", lambda: changed(3, claim_before=1, claim_after=1)),
    ("fenced", "a claim number that was reset", lambda: changed(3, claim_before=1, claim_after=0)),
    ("fenced", "an end without a claim", lambda: with_changes(born(), replace(ended(1), before="READY"))),
    ("fenced", "a claim that outlives its end", lambda: changed(4, taker="b")),
    ("recorded", "an entry of an executor that has lost its claim", lambda: replace(
        GOOD, entries=[EntryRecord(id=1, task_id="t", name="charge", status="SUCCESSFUL", holder="b",
                                   actor="executor-a", xact="7", at=at(4.5))])),
    ("recorded", "a step that is recorded twice", lambda: replace(
        GOOD, entries=[EntryRecord(id=number, task_id="t", name="charge", status="SUCCESSFUL", holder="b",
                                   actor="executor-b", xact="7", at=at(4.5)) for number in (1, 2)])),
    ("stolen", "a rescue from an executor with heartbeats", lambda: with_beat_of_the_dead(2.5)),
    ("stolen", "a rescue from an executor without a fault", lambda: replace(GOOD, notes=GOOD.notes[:1])),
    ("miscounted", "a loss that costs an attempt", lambda: changed(2, attempts_before=0, attempts_after=1)),
    ("miscounted", "a loss that counts twice", lambda: changed(2, losses_after=2)),
    ("miscounted", "two attempts in one", lambda: changed(
        4, after="SCHEDULED", polls_after=0, attempts_before=0, attempts_after=2)),
    ("miscounted", "an attempt too many", lambda: changed(
        4, after="SCHEDULED", polls_after=0, attempts_before=1000, attempts_after=1001)),
    ("miscounted", "two polls in one", lambda: changed(4, polls_after=2)),
    ("miscounted", "a good end without a poll", lambda: changed(4, polls_after=0)),
    ("miscounted", "a good end without its worker", lambda: changed(4, workers_after=1)),
    ("miscounted", "a poll without a claim", lambda: changed(3, polls_before=0, polls_after=1)),
    ("miscounted", "the name of another worker", lambda: changed(4, last_worker="a")),
    ("miscounted", "a lost attempt without its worker", lambda: changed(2, workers_after=0)),
    ("failed", "a task that fails because another one kills the process", lambda: changed(4, after="FAILED")),
    ("failed", "a task that kills its process and succeeds", lambda: poisoned(ended(5, 2, "b", 1))),
    ("failed", "a failure before the last loss", lambda: poisoned(replace(ended(5, 2, "b", 1), after="FAILED"))),
    ("lost", "a task that kills its process and vanishes", lambda: replace(poisoned(), changes=[])),
    ("contradicted", "an end that only the log contains", lambda: with_line(
        "INFO", "task.succeeded task=pay id=u queue=default attempt=1/1000")),
    ("contradicted", "an end that another executor committed", lambda: with_line(
        "INFO", "task.succeeded task=pay id=t queue=default attempt=1/1000", who="a")),
    ("unexplained", "an error of the executor", lambda: with_line(
        "WARNING", "executor.loop_crashed", error="builtins.KeyError", traceback="KeyError: 7", who="a", seconds=2.0)),
    ("unexplained", "a body that fails without being asked to", lambda: with_line(
        "WARNING", "task.retried task=pay id=t queue=default attempt=1/9 error=AttributeError: no")),
    ("unexplained", "an executor that fails by itself", lambda: with_line("CRITICAL", "executor.failed")),
    ("unexplained", "an error before the fault", lambda: with_line("ERROR", "executor.failed", who="a", seconds=0.7)),
    ("lingering", "an attempt that fails after the fault", lambda: look_fails_beside_a_fault(
        begins=6.5, fault_is_over=4.7)),
    ("lingering", "an attempt that is given back after the fault", lambda: look_fails_beside_a_fault(
        begins=6.5, fault_is_over=4.7, word="released")),
    ("stuck", "a task of a dead executor", lambda: with_changes(*GOOD.changes[:2])),
    ("stuck", "an actor that was not woken", lambda: changed(4, after="SUSPENDED")),
    ("exceeded", "two tasks of a key with a limit of 1", lambda: two_tasks(
        seconds=3.0, limit={"key": "k", "number": 1})),
    ("exceeded", "two starts in a window of a rate", lambda: two_tasks(
        seconds=5.4, rate={"key": "k", "number": 1, "seconds": 5.0})),
]  # fmt: skip


def with_line(*args: Any, **more: Any) -> History:
    return replace(GOOD, logs=[*GOOD.logs, logged(*args, **more)])


def look_fails_beside_a_fault(
    *, begins: float, fault_is_over: float, begins_again: float = 0.0, next_fault: float = 90.0, word: str = "retried"
) -> History:
    """Return a history with a failed attempt. begins_again: start of the next attempt, logged before the failure."""
    what = "task=look id=u queue=default attempt=1/9"
    starts = [begins, begins_again] if begins_again else [begins]
    failed_at = starts[-1] + 0.3
    logs = [
        *GOOD.logs,
        *(logged("INFO", f"task.started {what}", seconds=start) for start in starts),
        logged(
            "WARNING",
            f"task.{word} {what} error=OperationalError: the connection is closed",
            seconds=failed_at,
        ),
    ]
    notes = [
        *GOOD.notes,
        {"kind": "fault", "fault": "outage", "at": at(4).timestamp()},
        {"kind": "fault_over", "fault": "outage", "at": at(fault_is_over).timestamp()},
        {"kind": "fault", "fault": "outage", "at": at(next_fault).timestamp()},
    ]
    return replace(GOOD, logs=logs, notes=notes)


def two_tasks(*, seconds: float, **limits: Any) -> History:
    """Return a history with a second task, which starts at this time. Both have these limits."""
    others = [born("u"), claimed(seconds), ended(seconds + 0.1)]
    steps = [*GOOD.changes, *(replace(step, task_id="u") for step in others)]
    begun = [{"kind": "begun", "task": task, "at": at(when).timestamp()} for task, when in (("t", 0.5), ("u", seconds))]
    notes = [{**GOOD.notes[0], **limits}, {**GOOD.notes[0], "task": "u", **limits}, *GOOD.notes[1:], *begun]
    return replace(GOOD, changes=story(*sorted(steps, key=lambda step: step.at)), notes=notes)


def with_effect_of_a_dead_claim() -> History:
    return replace(
        GOOD, effects=[*GOOD.effects, EffectRecord(id=2, kind="paid", key="t:1", task_id="t", xact="9", at=at(2))]
    )


def with_beat_of_the_dead(seconds: float) -> History:
    beats = [*GOOD.beats, HeartbeatRecord(id=5, executor_id="a", name="executor-a", at=at(seconds))]
    return replace(GOOD, beats=sorted(beats, key=lambda beat: beat.at))


@pytest.mark.parametrize(("rule", "forge"), [(rule, forge) for rule, _, forge in FORGED], ids=[f[1] for f in FORGED])
def test_forged_history_is_caught(rule: str, forge: Callable[[], History]) -> None:
    assert rule in {violation.rule for violation in violations(forge())}


def test_each_rule_has_a_forgery() -> None:
    assert {rule for rule, _, _ in FORGED} == set(RULES)


def test_promise_is_the_same_on_each_page() -> None:
    root = PAGE.parents[1]
    (promise,) = quotes((root / "docs/reliability.md").read_text())
    for page in ("README.md", "docs/design.md"):
        assert promise in quotes((root / page).read_text()), page


def quotes(page: str) -> list[str]:
    """Return the block quotes of a page, however their lines are wrapped."""
    paragraphs = re.findall(r"(?:^>.*\n)+", page, re.MULTILINE)
    return [" ".join(quote.replace("\n>", " ").removeprefix(">").split()) for quote in paragraphs]
