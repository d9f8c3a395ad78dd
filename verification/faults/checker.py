"""
Check the history of a run against the promise.

Each rule is a function from a history to its violations. test_checker.py has a forged history for each rule.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobqueue.values.journal import OPEN
from verification.faults.diary import TASK
from verification.faults.history import Change, History

FINAL = ("SUCCESSFUL", "FAILED", "CANCELLED")
LEGAL: dict[str | None, tuple[str | None, ...]] = {
    None: ("READY", "BLOCKED", "SCHEDULED"),
    "READY": ("RUNNING", "BLOCKED", "AWAITING_CODE", "CANCELLED"),
    "BLOCKED": ("READY", "CANCELLED"),
    "SCHEDULED": ("READY", "BLOCKED", "CANCELLED"),
    "AWAITING_CODE": ("READY", "BLOCKED", "RUNNING", "CANCELLED"),
    "SUSPENDED": ("READY", "BLOCKED", "CANCELLED"),
    "RUNNING": ("READY", "BLOCKED", "SCHEDULED", "AWAITING_CODE", "SUSPENDED", *FINAL),
    "SUCCESSFUL": (None,),
    "FAILED": ("READY", "BLOCKED", None),
    "CANCELLED": ("READY", "BLOCKED", None),
}
PAID = '"paid"'  # the result of an atomic body
# A heartbeat reads the clock before other sessions see its commit.
UNSEEN = timedelta(seconds=0.3)

ENDS = {"succeeded": "SUCCESSFUL", "failed": "FAILED"}  # as executors log them
LOGGED_END = re.compile(r"task\.(succeeded|failed) task=\S+ id=(\S+) queue=")
TWO_ANSWERS = "InternalError: received 2 results"  # from psycopg, if the pooler's error follows the server's
FAILURE = re.compile(rf"^task\.(?:retried|failed) .*? error=({TWO_ANSWERS}|\w+)")
START = re.compile(r"task\.started task=\S+ id=(\S+) queue=")
END = re.compile(
    rf"task\.(?:succeeded|retried|failed|released) task=\S+ id=(\S+) queue=(?:.*? error=({TWO_ANSWERS}|\w*))?"
)
GRACE_SECONDS = 1.0  # after a fault; attempts that start later must reach the database
OF_THE_DATABASE = {"OperationalError", "InterfaceError", TWO_ANSWERS}
OF_BODIES = OF_THE_DATABASE | {"RuntimeError"}  # which bodies raise on purpose
WHEN_STARVED = ("database.timed_out", "executor.fenced")  # an overloaded machine is enough
TO_PROCESSES = {
    "kill_executor",
    "freeze_executor",
    "kill_sender",
    "hold_transaction",
    "poison",
    "kill",
    "freeze",
    "term",
}


@dataclass(frozen=True, slots=True)
class RuleViolation:
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


Rule = Callable[[History], Iterator[str]]


def lost(history: History) -> Iterator[str]:
    """Each acknowledged task ends with its result, and an actor reads every message."""
    stories = history.stories()
    for note in [*history.noted("enqueued"), *history.noted("poisoned")]:
        story = stories.get(str(note["task"]), [])
        end = next((change for change in reversed(story) if change.after is not None), None)
        if end is None or end.after not in FINAL:
            yield f"task {note['task']} was acknowledged and is {end.after if end else 'missing'}"
        elif end.after == "SUCCESSFUL" and "expected" in note and json.loads(end.result or "null") != note["expected"]:
            yield f"task {note['task']} gave {end.result}, not {note['expected']!r}"
    seen = numbers_seen(history)
    yield from (
        f"message {note['number']} was never read" for note in history.noted("sent") if not seen[note["number"]]
    )


def doubled(history: History) -> Iterator[str]:
    """Each poll and each message has its effect once, and each task ends once."""
    effects = Counter((effect.kind, effect.key) for effect in history.effects)
    yield from (
        f"effect {kind} {key} was committed {count} times" for (kind, key), count in effects.items() if count > 1
    )
    consumed = Counter(message.message_id for message in history.messages if message.event == "consumed")
    yield from (f"message {pk} was consumed {count} times" for pk, count in consumed.items() if count > 1)
    yield from (f"message {n} was read {count} times" for n, count in numbers_seen(history).items() if count > 1)
    for task_id, story in history.stories().items():
        ends = sum(change.after in FINAL and change.before not in FINAL for change in story)
        back = sum(change.before in FINAL and change.after in ("READY", "BLOCKED") for change in story)
        if ends > 1 + back:
            yield f"task {task_id} ended {ends} times"


def torn(history: History) -> Iterator[str]:
    """An effect of an atomic body commits in the same transaction as the outcome."""
    ended = {(change.task_id, change.xact) for change in history.changes if change.before == "RUNNING" != change.after}
    for effect in history.effects:
        if (effect.task_id, effect.xact) not in ended:
            yield f"effect {effect.kind} {effect.key} was committed without the outcome of task {effect.task_id}"
    yield from without_effect(history)
    gone = {(change.task_id, change.xact) for change in history.changes if change.after is None}
    gone |= {(entry.task_id, entry.xact) for entry in history.entries}  # a workflow consumes together with an entry
    for message in history.messages:
        if message.event == "consumed" and (message.task_id, message.xact) not in ended | gone:
            yield f"message {message.message_id} was consumed without the outcome of task {message.task_id}"


def without_effect(history: History) -> Iterator[str]:
    """A paid task has its effect. A collector writes a row for each message that its commit function reads."""
    written = Counter((effect.task_id, effect.xact) for effect in history.effects)
    read = Counter((message.task_id, message.xact) for message in history.messages if message.event == "consumed")
    collectors = {note["task"] for note in history.noted("enqueued") if "expected" not in note}
    for change in history.changes:
        here, polls = (change.task_id, change.xact), change.polls_before or 0
        if change.before != "RUNNING" or change.polls_after != polls + 1:
            continue
        if change.result == PAID and not written[here]:
            yield f"task {change.task_id} ended without its effect"
        if change.task_id in collectors and polls % 2 == 0 and written[here] != read[here]:
            yield f"task {change.task_id} read {read[here]} messages and entered {written[here]}"


def fenced(history: History) -> Iterator[str]:
    """Only the executor that holds the claim writes the outcome. Claim numbers rise by one. Transitions are legal."""
    names = history.names()
    for change in history.changes:
        where = f"task {change.task_id} {change.before} -> {change.after} by {change.actor}"
        if change.before != change.after and change.after not in LEGAL[change.before]:
            yield f"{where}: no such transition"
        if change.after is None or change.before is None:
            continue
        if (change.claim_after or 0) - (change.claim_before or 0) != int(change.is_claim):
            yield f"{where}: claim number {change.claim_before} -> {change.claim_after}"
        is_write = change.before == "RUNNING" and change.after != "RUNNING" and not change.is_rescue
        if is_write and names.get(change.holder or "") != change.actor:
            yield f"{where}: the claim is {names.get(change.holder or '', change.holder)}'s"
        if (change.taker is not None) != (change.after == "RUNNING"):
            yield f"{where}: held by {change.taker}"


def recorded(history: History) -> Iterator[str]:
    """Only the executor that holds the claim writes into a journal. The outcome of a call is recorded once."""
    names = history.names()
    ended = {(change.task_id, change.xact) for change in history.changes}
    outcomes = Counter((entry.task_id, entry.name) for entry in history.entries if entry.status not in OPEN)
    for entry in history.entries:
        if names.get(entry.holder or "") != entry.actor and (entry.task_id, entry.xact) not in ended:
            holder = names.get(entry.holder or "", "nobody")
            yield f"{entry.name} of task {entry.task_id} by {entry.actor}; the claim is {holder}'s"
    yield from (
        f"{name} of task {pk} was recorded {count} times" for (pk, name), count in outcomes.items() if count > 1
    )


def stolen(history: History) -> Iterator[str]:
    """A rescue takes tasks only from an executor with a fault and without a heartbeat for the timeout."""
    beats, names, hurt = history.beats_of(), history.names(), history.hurt_at()
    for change in filter(is_rescue, history.changes):
        name = names.get(change.holder or "", change.holder)
        silence = change.at - UNSEEN - last_beat(beats[change.holder or ""], change.at - UNSEEN)
        if silence + UNSEEN < timedelta(seconds=history.timeout_seconds):
            yield f"task {change.task_id} by {change.actor} from {name}, silent for {silence.total_seconds():.2f} s"
        elif hurt.get(name or "", float("inf")) > change.at.timestamp():
            yield f"task {change.task_id} by {change.actor} from {name}, which had no fault"


def miscounted(history: History) -> Iterator[str]:
    """The counts of attempts, polls, losses and workers are right. A lost executor uses no attempt."""
    for change in history.changes:
        if change.before is None or change.after is None or change.before == change.after:
            continue
        where = f"task {change.task_id} {change.before} -> {change.after} by {change.actor}"
        polled = (change.polls_after or 0) - (change.polls_before or 0)
        attempted = (change.attempts_after or 0) - (change.attempts_before or 0)
        worked = (change.workers_after or 0) - (change.workers_before or 0)
        lost_more = (change.losses_after or 0) - (change.losses_before or 0)
        is_end = change.before == "RUNNING"
        if not is_end and change.before not in FINAL and (polled or attempted or worked or lost_more):
            yield f"{where}: something was counted outside of a claim"
        is_good_end = is_end and change.after == "SUCCESSFUL"
        if is_end and polled not in (is_good_end, True):
            yield f"{where}: {polled} polls"
        if is_end and not polled and attempted not in (0, 1):
            yield f"{where}: {attempted} attempts"
        if (change.attempts_after or 0) > change.max_attempts:
            yield f"{where}: {change.attempts_after} attempts of {change.max_attempts}"
        if change.is_rescue and (lost_more != 1 or attempted or polled):
            yield f"{where}: a loss counted as {lost_more}, {attempted} attempts, {polled} polls"
        # The row keeps the newest hundred workers.
        is_full = change.workers_before == change.workers_after == 100
        has_worked = change.is_rescue or (is_good_end and not change.polls_before)
        if worked not in (0, 1) or (has_worked and worked != 1 and not is_full):
            yield f"{where}: {worked} workers more"
        if worked == 1 and change.last_worker != change.holder:
            yield f"{where}: worker {change.last_worker} of a claim of {change.holder}"


def failed(history: History) -> Iterator[str]:
    """No task becomes FAILED because of a fault, except a task that kills its executors MAX_EXECUTOR_LOSSES times."""
    poisoned = {note["task"]: note["losses"] for note in history.noted("poisoned")}
    cancelled = {note["task"] for note in history.noted("cancelled")}
    for change in history.changes:
        if change.after == "CANCELLED" and change.task_id in cancelled:
            continue
        if change.after in FINAL and change.after != change.before:
            wanted = ("FAILED", poisoned[change.task_id]) if change.task_id in poisoned else ("SUCCESSFUL", None)
            if change.after != wanted[0] or wanted[1] not in (None, change.losses_after):
                spent = f"{change.attempts_after} attempts and {change.losses_after} losses"
                yield f"task {change.task_id} {change.after} after {spent}"


def lingering(history: History) -> Iterator[str]:
    """No attempt gets a database error if it starts a second after a fault and ends before the next one."""
    calm, begun = calm_times(history), defaultdict[tuple[str, str], deque[float]](deque)
    for line in history.logs:
        if match := START.match(line["message"]):
            begun[line["who"], match[1]].append(line["at"])
        elif match := END.match(line["message"]):
            # An executor may log the end of an attempt after the next one has started.
            starts = begun[line["who"], match[1]]
            start = starts.popleft() if starts else -math.inf
            if match[2] in OF_THE_DATABASE and any(since <= start and line["at"] < until for since, until in calm):
                yield f"{line['who']} {line['message']}"


def stuck(history: History) -> Iterator[str]:
    """At the end of the run, each task is in a final state or deleted."""
    for task_id, story in history.stories().items():
        if story[-1].after not in (None, *FINAL):
            yield f"task {task_id} is {story[-1].after}"


def contradicted(history: History) -> Iterator[str]:
    """If an executor logs the end of a task, that executor has committed that end."""
    ends = {(change.task_id, change.after, change.actor) for change in history.changes if change.after != change.before}
    for line in history.logs:
        if (match := LOGGED_END.match(line["message"])) and (match[2], ENDS[match[1]], line["who"]) not in ends:
            yield f"task {match[2]} {match[1]}, logs {line['who']}"


def unexplained(history: History) -> Iterator[str]:
    """
    Each logged error follows from a fault, from an overloaded machine, or from a body that raises on purpose.
    """
    hurt = history.hurt_at()
    away_at = min(
        (note["at"] for note in history.noted("fault") if note["fault"] not in TO_PROCESSES), default=math.inf
    )
    poisoned = {note["task"] for note in history.noted("poisoned")}
    for line in history.logs:
        words, error = line["message"], str(line.get("error", "")).rpartition(".")[2]
        if words.startswith("task.failed "):  # the exception comes from the body
            error = ""
        failure = match[1] if (match := FAILURE.search(words)) else "RuntimeError"
        is_severe = line["level"] in ("ERROR", "CRITICAL") and not words.startswith(WHEN_STARVED)
        is_known = line["at"] >= min(hurt.get(line["who"], math.inf), away_at) or not poisoned.isdisjoint(
            TASK.findall(words)
        )
        if (error and error not in OF_THE_DATABASE) or failure not in OF_BODIES or (is_severe and not is_known):
            yield f"{line['who']} {line['level']} {words} {line.get('traceback', '')}".rstrip()


def exceeded(history: History) -> Iterator[str]:
    """
    Never are more tasks of a key READY or RUNNING than its limit, and in no window do more bodies begin than its rate.
    """
    keys = {note["task"]: note["limit"] for note in history.noted("enqueued") if "limit" in note}
    counted: defaultdict[str, set[str]] = defaultdict(set)
    for change in history.changes:
        if limit := keys.get(change.task_id):
            active = counted[limit["key"]]
            (active.add if change.after in ("READY", "RUNNING") else active.discard)(change.task_id)
            if len(active) > limit["number"]:
                yield f"{len(active)} tasks of {limit['key']} at {change.at}, limit {limit['number']}"
    rates = {note["task"]: note["rate"] for note in history.noted("enqueued") if "rate" in note}
    starts: defaultdict[tuple[str, int, float], list[float]] = defaultdict(list)
    for begun in history.noted("begun"):
        if rate := rates.get(begun["task"]):
            starts[rate["key"], rate["number"], rate["seconds"]].append(begun["at"])
    for (key, number, seconds), times in starts.items():
        times.sort()
        for first, last in zip(times, times[number:], strict=False):
            if last - first < seconds:
                yield f"{number + 1} bodies of {key} began within {last - first:.3f} s, rate {number} in {seconds:g} s"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        lost,
        doubled,
        torn,
        fenced,
        recorded,
        stolen,
        miscounted,
        failed,
        lingering,
        stuck,
        contradicted,
        unexplained,
        exceeded,
    )
}


def violations(history: History) -> list[RuleViolation]:
    return [RuleViolation(name, text) for name, rule in RULES.items() for text in rule(history)]


def numbers_seen(history: History) -> Counter[int]:
    """Count how often each number is in the final state of a collector."""
    seen: Counter[int] = Counter()
    for change in history.changes:
        result = json.loads(change.result or "null")
        if change.after == "SUCCESSFUL" != change.before and isinstance(result, list):
            seen.update(result)
    return seen


def calm_times(history: History) -> list[tuple[float, float]]:
    """Return the periods from a fault of the server or network, plus the grace period, to the next fault."""
    faults = [note["at"] for note in history.noted("fault")]
    ended = [note["at"] for note in history.noted("fault_over") if note["fault"] not in TO_PROCESSES]
    return [
        (at + GRACE_SECONDS, min((next_at for next_at in faults if next_at > at), default=math.inf)) for at in ended
    ]


def is_rescue(change: Change) -> bool:
    return change.is_rescue


def last_beat(beats: list[datetime], at: datetime) -> datetime:
    """Return the last heartbeat before a time, or the first one if none came before."""
    return beats[max(0, bisect_right(beats, at) - 1)] if beats else datetime.min.replace(tzinfo=at.tzinfo)


def restarts(history: History) -> list[float]:
    """
    Return the seconds from the last heartbeat of each dead executor to the next start of its tasks.

    If the rescuing executor sent its first heartbeat later, count from there. Leave out tasks that lost two
    executors: they run alone and wait for an empty process.
    """
    beats, names = history.beats_of(), history.names()
    first: dict[str, datetime] = {}
    for beat in history.beats:
        first.setdefault(beat.name, beat.at)
    seconds: list[float] = []
    pending: dict[str, datetime] = {}
    for change in history.changes:
        if change.is_rescue and change.losses_after == 1 and names.get(change.holder or ""):
            silent_since = last_beat(beats[change.holder or ""], change.at)
            pending[change.task_id] = max(silent_since, first.get(change.actor, silent_since))
        elif change.is_claim and (since := pending.pop(change.task_id, None)):
            seconds.append((change.at - since).total_seconds())
    return seconds
