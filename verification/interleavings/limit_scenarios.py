"""The races of limits and of unique keys, in the shape of scenarios.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobqueue.values.records import ClaimedTask
from verification.interleavings import scenarios
from verification.interleavings.backend import Decide, give_up, retry, succeed, suspend
from verification.interleavings.limit_backend import QUEUE, LimitBackend
from verification.interleavings.limit_invariants import LimitSnapshot, at_each_end, problems, run_to_end
from verification.interleavings.scenarios import Rules, SetUp
from verification.interleavings.schedule_scenarios import SCENARIOS as SCENARIOS
from verification.interleavings.stepper import Script

RULES = Rules(LimitBackend, LimitSnapshot, problems, run_to_end, at_each_end)
DIGEST = {"key": "digest"}


def race(name: str, *arguments: Any, clients: int = 2, on_portable: bool = False, **options: Any) -> Any:
    """Register a race of limits. A function returns up to three scripts, of which the race runs the first ones."""

    def register(function: SetUp) -> SetUp:
        def set_up(backend: LimitBackend) -> Sequence[Script]:
            return function(backend, *arguments, **options)[:clients]

        scenarios.race(name, clients=clients, on_portable=on_portable, rules=RULES)(set_up)
        return function

    return register


def unique_race(name: str, *arguments: Any, clients: int = 2, on_portable: bool = False, **options: Any) -> Any:
    """Register a race of calls with a unique key, which may wait for each other."""

    def register(function: SetUp) -> SetUp:
        def set_up(backend: LimitBackend) -> Sequence[Script]:
            backend.may_wait = True
            return function(backend, *arguments, **options)

        race(name, clients=clients, on_portable=on_portable)(set_up)
        return function

    return register


# --- admit x admit


@race("admit-x-admit", on_portable=True)
@race("admit-x-admit-of-two", limit=2)
@race("admit-x-admit-x-admit", clients=3)
def admitting(backend: LimitBackend, *, limit: int = 1) -> Sequence[Script]:
    """Each enqueue has left a request of its own."""
    for _ in range(limit + 2):
        backend.limited(limit=limit)
    return [backend.admit_and_claim, backend.admit_and_claim, backend.admit_and_claim]


@race("admit-x-admit-of-two-keys")
def admitting_two_keys(backend: LimitBackend) -> Sequence[Script]:
    for key in ("imports:anna", "imports:bob", "imports:anna", "imports:bob"):
        backend.limited(key=key)
    return [backend.admit_and_claim, backend.admit_and_claim]


@race("admit-x-crash-before-commit", after=False)
@race("admit-x-crash-after-commit", after=True)
def admitting_beside_a_crash(backend: LimitBackend, *, after: bool) -> Sequence[Script]:
    backend.limited()
    backend.limited()
    return [backend.admit_and_claim, lambda: backend.admit_and_crash(after=after)]


# --- enqueue x admit


@race("enqueue-x-admit")
@race("enqueue-x-admit-x-admit", clients=3)
def enqueueing(backend: LimitBackend) -> Sequence[Script]:
    backend.limited()
    return [backend.limited, backend.admit_and_claim, backend.admit_and_claim]


@race("request-and-admit-x-admit", on_portable=True)
@race("request-and-admit-x-admit-x-admit", clients=3)
def requesting(backend: LimitBackend) -> Sequence[Script]:
    """A look at the key is requested while another session looks at it."""
    task = backend.limited()
    backend.limited()

    def request_and_admit() -> None:
        backend.request(task)
        backend.admit()

    return [request_and_admit, backend.admit, backend.admit]


@race("enqueue-x-end")
def enqueueing_beside_an_end(backend: LimitBackend) -> Sequence[Script]:
    """The new task is inserted before or after the count of the others."""
    claimed = backend.running("running", **of_anna(backend))
    return [backend.limited, lambda: backend.end_and_claim(claimed)]


@race("enqueue-x-enqueue-x-end", clients=3)
def enqueueing_twice_beside_an_end(backend: LimitBackend) -> Sequence[Script]:
    claimed = backend.running("running", **of_anna(backend))

    def enqueue_and_admit() -> None:
        backend.limited()
        backend.admit()

    return [enqueue_and_admit, enqueue_and_admit, lambda: backend.end(claimed)]


@race("enqueue-and-roll-back-x-end")
def rolling_back(backend: LimitBackend) -> Sequence[Script]:
    claimed = backend.running("running", **of_anna(backend))
    backend.limited()
    return [lambda: backend.roll_back(**of_anna(backend)), lambda: backend.end_and_claim(claimed)]


# --- ends of attempts


@race("end-x-admit", succeed)
@race("fail-x-admit", give_up)
@race("retry-x-admit", retry)
@race("suspend-x-admit", suspend)
@race("retry-that-counts-x-admit", retry, counts=True)
def ending(backend: LimitBackend, decide: Decide, *, counts: bool = False) -> Sequence[Script]:
    claimed = backend.running("running", **of_anna(backend, count_while_retrying=counts))
    backend.limited()
    return [lambda: backend.end(claimed, decide=decide), backend.admit_and_claim]


@race("end-and-claim-x-admit")
@race("end-and-claim-x-admit-x-admit", clients=3)
def ending_and_claiming(backend: LimitBackend) -> Sequence[Script]:
    """One transaction ends a task, admits the next one and claims it."""
    claimed = backend.running("running", **of_anna(backend))
    backend.limited()
    backend.limited()
    return [lambda: backend.end_and_claim(claimed), backend.admit_and_claim, backend.admit_and_claim]


@race("end-and-claim-x-end-and-claim", on_portable=True)
@race("end-and-claim-x-end-and-claim-x-admit", clients=3)
def ending_two(backend: LimitBackend) -> Sequence[Script]:
    first, other = (backend.running("running", **of_anna(backend, limit=2)) for _ in range(2))
    for _ in range(3):
        backend.limited(limit=2)
    return [
        lambda: backend.end_and_claim(first),
        lambda: backend.end_and_claim(other),
        backend.admit_and_claim,
    ]


@race("release-x-admit")
def releasing(backend: LimitBackend) -> Sequence[Script]:
    claimed = backend.running("running", **of_anna(backend))
    backend.limited()
    return [lambda: backend.release(claimed), backend.admit_and_claim]


@race("wake-due-x-end", counts=False)
@race("wake-due-x-admit-of-a-retry-that-counts", counts=True)
def waking_a_retry(backend: LimitBackend, *, counts: bool) -> Sequence[Script]:
    """A retry is due. It still counts, or it must be admitted again."""
    claimed = backend.running("retried", **of_anna(backend, count_while_retrying=counts))
    backend.end(claimed, decide=retry)
    backend.engine.db.tasks.filter(pk=claimed.id).update(wake_at=claimed.enqueued_at)
    backend.limited()
    backend.admit()
    return [backend.wake_due, backend.admit_and_claim]


@race("send-x-admit")
@race("send-x-end-and-claim", is_running=True)
def sending_to_a_limited_actor(backend: LimitBackend, *, is_running: bool = False) -> Sequence[Script]:
    """A suspended actor does not count. The message makes it BLOCKED."""
    actor = backend.running("actor", **of_anna(backend))
    backend.end(actor, decide=suspend)
    if not is_running:
        backend.limited()
        return [lambda: backend.send(actor.id, "m"), backend.admit_and_claim]
    claimed = backend.running("running", **of_anna(backend))
    return [lambda: backend.send(actor.id, "m"), lambda: backend.end_and_claim(claimed)]


# --- crashes


@race("rescue-x-admit")
@race("rescue-x-admit-after-the-last-loss", losses=2)
@race("rescue-x-late-end", is_late=True)
def rescuing(backend: LimitBackend, *, losses: int = 0, is_late: bool = False) -> Sequence[Script]:
    """The task of a lost executor counts until its last loss."""
    claimed = backend.lost("lost", **of_anna(backend))
    backend.engine.db.tasks.filter(pk=claimed.id).update(executor_losses=losses)
    backend.limited()

    def rescue_and_claim() -> None:
        backend.rescue()
        backend.admit_and_claim()

    return [rescue_and_claim, (lambda: backend.end_and_claim(claimed)) if is_late else backend.admit_and_claim]


@race("rescue-x-crash-at-the-end")
def crashing_at_the_end(backend: LimitBackend) -> Sequence[Script]:
    claimed = backend.lost("lost", **of_anna(backend))
    backend.limited()

    def rescue_and_claim() -> None:
        backend.rescue()
        backend.admit_and_claim()

    return [rescue_and_claim, lambda: backend.end_and_crash(claimed)]


# --- people


@race("cancel-x-admit", is_admitted=False)
@race("cancel-of-an-admitted-task-x-admit", is_admitted=True)
def cancelling(backend: LimitBackend, *, is_admitted: bool) -> Sequence[Script]:
    task = backend.limited()
    if is_admitted:
        backend.admit()
    backend.limited()
    return [lambda: backend.cancel(task), backend.admit_and_claim]


@race("cancel-and-roll-back-x-admit", on_portable=True)
@race("cancel-and-roll-back-x-admit-of-two", limit=2)
def rolling_back_a_cancel(backend: LimitBackend, *, limit: int = 1) -> Sequence[Script]:
    """The best task is locked while another session looks at the limit, and no other event comes."""
    task = backend.limited(limit=limit)
    if limit > 1:
        backend.limited(limit=limit)
    return [lambda: backend.cancel_and_roll_back(task), backend.admit]


@race("requeue-x-admit")
@race("requeue-x-enqueue-x-admit", clients=3)
def requeueing(backend: LimitBackend) -> Sequence[Script]:
    claimed = backend.running("failed", **of_anna(backend))
    backend.end(claimed, decide=give_up)
    backend.limited()
    return [lambda: backend.requeue(claimed.id), backend.admit_and_claim, backend.limited]


@race("raise-limit-x-end")
@race("raise-limit-x-enqueue-and-admit", is_new=True)
@race("raise-all-limits-x-enqueue-and-admit", is_new=True, key="imports:", on_portable=True)
@race("raise-limit-x-end-x-admit", clients=3)
def raising_the_limit(backend: LimitBackend, *, is_new: bool = False, key: str = "imports:anna") -> Sequence[Script]:
    backend.set_highest("imports:anna", 3)
    claimed = backend.running("running", **of_anna(backend))
    for _ in range(0 if is_new else 3):
        backend.limited()

    def enqueue_and_admit() -> None:
        backend.limited()
        backend.admit_and_claim()

    change = enqueue_and_admit if is_new else lambda: backend.end_and_claim(claimed)
    return [lambda: backend.set_number(3, key), change, backend.admit_and_claim]


@race("lower-limit-x-end")
@race("reset-limit-x-end", number=None)
def lowering_the_limit(backend: LimitBackend, *, number: int | None = 1) -> Sequence[Script]:
    backend.set_highest("imports:anna", 3)
    backend.set_number(3)
    claimed = [backend.running("running", **of_anna(backend)) for _ in range(3)]
    for _ in range(3):
        backend.limited()
    return [lambda: backend.set_number(number), lambda: backend.end_and_claim(claimed[0])]


@race("set-limit-x-set-limit")
def setting_the_limit_twice(backend: LimitBackend) -> Sequence[Script]:
    backend.set_highest("imports:anna", 3)
    for _ in range(4):
        backend.limited()
    return [lambda: backend.set_number(2), lambda: backend.set_number(3)]


@race("declared-limit-x-cancel")
@race("declared-limit-x-admit", is_cancelled=False)
def declaring_the_limit(backend: LimitBackend, *, is_cancelled: bool = True) -> Sequence[Script]:
    """Two tasks of SQL have been claimed. Their code declares a limit."""
    claimed = [backend.running("sql") for _ in range(2)]
    backend.limited()

    def apply() -> None:
        backend.limits.limits["imports:anna"] = 3  # those that run have no limit yet
        backend.apply(*claimed)

    return [apply, (lambda: backend.cancel(claimed[0].id)) if is_cancelled else backend.admit_and_claim]


# --- rates


@race("admit-x-admit-of-a-rate", limit=2)
@race("admit-x-admit-x-admit-of-a-rate", clients=3)
def admitting_a_rate(backend: LimitBackend, *, limit: int = 1) -> Sequence[Script]:
    for _ in range(limit + 2):
        backend.rated(limit=limit)
    return [backend.admit_and_claim, backend.admit_and_claim, backend.admit_and_claim]


@race("claim-x-admit-of-a-rate", on_portable=True)
def claiming_at_a_rate(backend: LimitBackend) -> Sequence[Script]:
    """Whether the admitted task has started or not, it counts."""
    backend.rated()
    backend.admit()
    backend.rated()
    return [lambda: backend.claim(QUEUE), backend.admit_and_claim]


@race("retry-x-admit-of-a-rate", retry, on_portable=True)
@race("end-x-admit-of-a-rate", succeed)
@race("suspend-x-admit-of-a-rate", suspend)
def ending_at_a_rate(backend: LimitBackend, decide: Decide) -> Sequence[Script]:
    """Each start counts, also of the task that has started before."""
    claimed = backend.running("running", **of_api(backend, limit=2))
    backend.rated(limit=2)
    backend.rated(limit=2)

    def end_and_wake() -> None:
        backend.end(claimed, decide=decide)
        backend.engine.db.tasks.filter(wake_at__isnull=False).update(wake_at=claimed.enqueued_at)
        backend.wake_due()
        backend.admit_and_claim()

    return [end_and_wake, backend.admit_and_claim]


@race("release-x-admit-of-a-rate", has_begun=True, on_portable=True)
@race("release-unstarted-x-admit-of-a-rate", has_begun=False, on_portable=True)
def releasing_at_a_rate(backend: LimitBackend, *, has_begun: bool) -> Sequence[Script]:
    claimed = backend.running("running", **of_api(backend, limit=2))
    backend.rated(limit=2)
    backend.rated(limit=2)

    def release_and_claim() -> None:
        backend.release(claimed, has_begun=has_begun)
        backend.admit_and_claim()

    return [release_and_claim, backend.admit_and_claim]


@race("count-start-x-admit-of-a-rate")
@race("count-start-x-end-x-admit-of-a-rate", is_ending=True, clients=3)
def counting_a_start(backend: LimitBackend, *, is_ending: bool = False) -> Sequence[Script]:
    """A start is counted once, while the body runs or with its outcome."""
    claimed = backend.running("running", **of_api(backend, limit=2))
    backend.rated(limit=2)
    backend.rated(limit=2)
    end = [lambda: backend.end(claimed)] * is_ending
    return [lambda: backend.count_start(claimed), *end, backend.admit_and_claim]


@race("rescue-x-admit-of-a-rate")
def rescuing_at_a_rate(backend: LimitBackend) -> Sequence[Script]:
    backend.lost("lost", **of_api(backend, limit=2))
    backend.rated(limit=2)
    backend.rated(limit=2)

    def rescue_and_claim() -> None:
        backend.rescue()
        backend.admit_and_claim()

    return [rescue_and_claim, backend.admit_and_claim]


@race("prune-x-admit-of-a-rate")
def pruning_at_a_rate(backend: LimitBackend) -> Sequence[Script]:
    """The start of a deleted task still counts."""
    claimed = backend.running("failed", **of_api(backend))
    backend.end(claimed, decide=give_up)
    backend.rated()
    return [backend.prune, backend.admit_and_claim]


@race("requeue-x-prune-x-admit-of-a-rate", clients=3)
def requeueing_at_a_rate(backend: LimitBackend) -> Sequence[Script]:
    claimed = backend.running("failed", **of_api(backend, limit=2))
    backend.end(claimed, decide=give_up)
    backend.rated(limit=2)
    return [lambda: backend.requeue(claimed.id), backend.prune, backend.admit_and_claim]


@race("cancel-and-admit-x-cancel-of-a-rate")
@race("cancel-and-admit-x-cancel-x-admit-of-a-rate", clients=3)
def cancelling_at_a_rate(backend: LimitBackend) -> Sequence[Script]:
    """A cancelled task gives its start to another one, which is locked, and a later look is requested already."""
    backend.count_start(backend.running("running", **of_api(backend, limit=2)))
    admitted = backend.rated(limit=2)
    waiting = backend.rated(limit=2)
    backend.admit()

    def cancel_and_admit() -> None:
        backend.cancel(admitted)
        backend.admit()

    return [cancel_and_admit, lambda: backend.cancel_and_roll_back(waiting), backend.admit_and_claim]


@race("admit-x-end-with-both-limits")
@race("admit-x-admit-x-end-with-both-limits", clients=3)
def admitting_with_both_limits(backend: LimitBackend) -> Sequence[Script]:
    """Tasks that count for their concurrency limit wait for their rate."""
    backend.set_highest("imports:anna", 1)
    backend.both()
    backend.admit()
    (claimed,) = backend.start()
    backend.both(rate=2)
    backend.both(concurrency_key="imports:bob", rate=2)
    backend.engine.db.tasks.update(rate_limit=2)
    return [backend.admit_and_claim, lambda: backend.end_and_claim(claimed), backend.admit_and_claim]


# --- one key, one task


@unique_race("replace-x-claim", on_portable=True)
@unique_race("replace-x-claim-of-a-limited-task", concurrency_key="imports:anna", concurrency_limit=1)
def replacing(backend: LimitBackend, **options: Any) -> Sequence[Script]:
    backend.last_call_runs = True
    backend.set_highest("imports:anna", 1)
    backend.call(1, **options)
    backend.admit()

    def claim_and_end() -> None:
        backend.end(*backend.claim(QUEUE))

    return [lambda: backend.call(2, on_conflict="replace", **options), claim_and_end]


@unique_race("replace-x-end", succeed, on_portable=True)
@unique_race("replace-x-retry", retry)
@unique_race("replace-x-fail", give_up)
@unique_race("replace-x-suspend", suspend)
def replacing_a_running_task(backend: LimitBackend, decide: Decide) -> Sequence[Script]:
    """The new task takes over the key and waits for nothing. A retry may start after it."""
    backend.last_call_runs = decide not in (suspend, retry)
    claimed = called(backend)

    def end_and_admit() -> None:
        backend.end(claimed, decide=decide)
        backend.admit_and_claim()

    return [lambda: backend.call(2, on_conflict="replace"), end_and_admit]


@unique_race("replace-x-replace")
@unique_race("replace-x-replace-of-a-running-task", is_running=True)
@unique_race("replace-x-replace-x-end", is_running=True, clients=3)
def replacing_twice(backend: LimitBackend, *, is_running: bool = False) -> Sequence[Script]:
    backend.last_call_runs = True
    backend.call(1)
    claimed = backend.claim(QUEUE) if is_running else []

    def end_and_admit() -> None:
        backend.end(*claimed)
        backend.admit_and_claim()

    return [
        lambda: backend.call(2, on_conflict="replace"),
        lambda: backend.call(3, on_conflict="replace"),
        end_and_admit,
    ]


@unique_race("replace-and-roll-back-x-end")
def rolling_back_a_replacement(backend: LimitBackend) -> Sequence[Script]:
    claimed = called(backend)

    def end_and_admit() -> None:
        backend.end(claimed)
        backend.admit_and_claim()

    return [lambda: backend.roll_back(on_conflict="replace", args="[2]", **DIGEST), end_and_admit]


@unique_race("replace-x-rescue", losses=0)
@unique_race("replace-x-rescue-after-the-last-loss", losses=2)
def replacing_beside_a_rescue(backend: LimitBackend, *, losses: int) -> Sequence[Script]:
    backend.last_call_runs = losses > 0  # otherwise the lost task starts again
    claimed = backend.lost("lost", args="[1]", **DIGEST)
    backend.limits.calls.append(1)
    backend.engine.db.tasks.filter(pk=claimed.id).update(executor_losses=losses)

    def rescue_and_claim() -> None:
        backend.rescue()
        backend.admit_and_claim()

    return [lambda: backend.call(2, on_conflict="replace"), rescue_and_claim]


@unique_race("replace-x-cancel-of-the-new-holder", clients=2)
@unique_race("replace-x-cancel-of-the-new-holder-x-end", clients=3)
def cancelling_the_new_holder(backend: LimitBackend) -> Sequence[Script]:
    """The key is free then, although the task runs that had it before."""
    claimed = called(backend)
    backend.call(2, on_conflict="replace")
    new_holder = backend.limits.answers[-1]

    def end_and_admit() -> None:
        backend.end(claimed)
        backend.admit_and_claim()

    return [lambda: backend.cancel(new_holder), lambda: backend.call(3, on_conflict="replace"), end_and_admit]


@unique_race("requeue-x-replace")
@unique_race("requeue-x-replace-x-end", clients=3)
def requeueing_beside_a_replacement(backend: LimitBackend) -> Sequence[Script]:
    claimed = called(backend)
    backend.end(claimed, decide=give_up)
    backend.call(2)
    (later,) = backend.claim(QUEUE)

    def end_and_admit() -> None:
        backend.end(later)
        backend.admit_and_claim()

    return [
        lambda: backend.requeue(claimed.id),
        lambda: backend.call(3, on_conflict="replace"),
        end_and_admit,
    ]


@unique_race("replace-two-x-replace-two-in-reverse", is_running=False)
@unique_race("replace-two-x-replace-two-that-run", is_running=True)
def replacing_two(backend: LimitBackend, *, is_running: bool) -> Sequence[Script]:
    """Two calls replace the same two tasks in different orders."""
    backend.call_with_keys("a", "b")
    if is_running:
        backend.claim(QUEUE, limit=2)
    return [
        lambda: backend.call_with_keys("a", "b", on_conflict="replace"),
        lambda: backend.call_with_keys("b", "a", on_conflict="replace"),
    ]


@unique_race("replace-two-x-cancel-two")
def replacing_two_beside_a_cancel(backend: LimitBackend) -> Sequence[Script]:
    """The order of their keys is not that of their ids."""
    backend.call_with_keys("b")
    backend.call_with_keys("a")
    ids = backend.limits.answers[-2:]
    return [
        lambda: backend.call_with_keys("a", "b", on_conflict="replace"),
        lambda: backend.cancel_all(*ids),
    ]


@unique_race("raise-x-raise", on_conflict="raise")
@unique_race("raise-x-raise-of-a-rate", on_conflict="raise", rate_key="api:", rate_limit=1)
@unique_race("keep-x-keep")
@unique_race("replace-x-replace-of-a-free-key", on_conflict="replace")
@unique_race("unique-for-x-unique-for", unique_for_seconds=3600.0, on_portable=True)
@unique_race("unique-for-x-unique-for-x-unique-for", unique_for_seconds=3600.0, clients=3)
@unique_race("unique-for-x-unique-for-that-replace", unique_for_seconds=3600.0, on_conflict="replace")
def calling_with_a_free_key(backend: LimitBackend, **options: Any) -> Sequence[Script]:
    backend.only_one = True
    backend.set_highest("api:", 1)
    if "rate_key" in options:
        options["rate_seconds"] = 3600.0
    return [
        lambda: backend.call(1, **options),
        lambda: backend.call(2, **options),
        lambda: backend.call(3, **options),
    ]


@unique_race("unique-for-x-end", is_reserved=True)
@unique_race("unique-for-x-end-of-another", is_reserved=False)
def calling_beside_an_end(backend: LimitBackend, *, is_reserved: bool) -> Sequence[Script]:
    """The running task has reserved the key, or has it without a time."""
    backend.call(1, unique_for_seconds=3600.0 if is_reserved else None)
    (claimed,) = backend.claim(QUEUE)
    backend.only_one = is_reserved

    def call_twice() -> None:
        for number in (2, 3):
            backend.call(number, unique_for_seconds=3600.0)

    return [call_twice, lambda: backend.end(claimed)]


@unique_race("unique-for-x-prune", on_portable=True)
@unique_race("unique-for-x-prune-x-unique-for", clients=3)
@unique_race("unique-for-and-end-and-unique-for-x-prune", ends=True)
def renewing_beside_a_prune(backend: LimitBackend, *, ends: bool = False) -> Sequence[Script]:
    """The key was reserved for a task that has ended. Each call creates a task, or returns that of the other call."""
    backend.call(1, unique_for_seconds=3600.0)
    backend.end(*backend.claim(QUEUE))
    backend.expire_reservations()
    backend.only_one = True

    def renew() -> None:
        backend.call(2, unique_for_seconds=3600.0)
        if ends:
            backend.end(*backend.claim(QUEUE))
            backend.call(3, unique_for_seconds=3600.0)

    return [renew, backend.prune_reservations, lambda: backend.call(4, unique_for_seconds=3600.0)]


@unique_race("unique-for-x-unique-for-of-an-expired-key", on_portable=True)
def renewing_twice(backend: LimitBackend) -> Sequence[Script]:
    renew, _, renew_too = renewing_beside_a_prune(backend)
    return [renew, renew_too]


@unique_race("debounce-x-debounce")
@unique_race("debounce-x-wake-due-and-claim", is_due=True)
def debouncing(backend: LimitBackend, *, is_due: bool = False) -> Sequence[Script]:
    backend.last_call_runs = True
    options = {"on_conflict": "replace", "wake_after_seconds": 60.0, "max_wait_seconds": 600.0}
    backend.call(1, **options)
    backend.engine.db.tasks.update(wake_at=backend.engine.db.now() - timedelta(seconds=1))

    def wake_and_claim() -> None:
        backend.wake_due()
        backend.claim(QUEUE)

    return [
        lambda: backend.call(2, **options),
        wake_and_claim if is_due else lambda: backend.call(3, **options),
    ]


# --- rows


def of_anna(backend: LimitBackend, *, limit: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the columns of a task with a concurrency limit."""
    backend.set_highest("imports:anna", limit)
    return {"concurrency_key": "imports:anna", "concurrency_limit": limit} | changes


def of_api(backend: LimitBackend, *, limit: int = 1) -> dict[str, Any]:
    """Return the columns of a task with a rate limit."""
    backend.set_highest("api:", limit)
    return {"rate_key": "api:", "rate_limit": limit, "rate_seconds": 3600.0}


def called(backend: LimitBackend) -> ClaimedTask:
    """Return the running task of the first call with the key."""
    backend.call(1)
    (claimed,) = backend.claim(QUEUE)
    return claimed
