"""The races of schedules, in the shape of scenarios.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobqueue.values.policies import CatchUp, Overlap
from verification.interleavings import scenarios
from verification.interleavings.scenarios import SCENARIOS as SCENARIOS
from verification.interleavings.scenarios import Rules, SetUp
from verification.interleavings.schedule_backend import HOUR, NOON, START, ScheduleBackend
from verification.interleavings.schedule_invariants import ScheduleSnapshot, problems, run_to_end
from verification.interleavings.stepper import Script

ANY = (0, 1)
RULES = Rules(ScheduleBackend, ScheduleSnapshot, problems, run_to_end)


def race(
    name: str,
    *arguments: Any,
    clients: int = 2,
    on_portable: bool = False,
    time_passes: bool = False,
    **options: Any,
) -> Callable[[SetUp], SetUp]:
    """
    Register a race of schedules.

    time_passes: the clock moves, so that it matters when a client looks at it. on_portable: whether the race enqueues
    or cancels tasks in a way of its own. The portable engine has the same code for schedules.
    """

    def register(function: SetUp) -> SetUp:
        def set_up(backend: ScheduleBackend) -> Sequence[Script]:
            backend.time_passes = time_passes
            return function(backend, *arguments, **options)

        scenarios.race(name, clients=clients, on_portable=on_portable, rules=RULES)(set_up)
        return function

    return register


# --- fire x fire


@race("fire-x-fire", on_portable=True)
@race("fire-x-fire-of-missed-ticks", due=4)
@race("fire-x-fire-of-all-missed-ticks", due=3, runs=(3,), overlap=Overlap.ALLOW, catch_up=CatchUp.ALL)
@race("fire-x-fire-of-no-missed-ticks", due=3, catch_up=CatchUp.NONE)
def firing(backend: ScheduleBackend, **schedule: Any) -> Sequence[Script]:
    backend.schedule(**schedule)
    return [backend.fire, backend.fire]


@race("fire-x-fire-of-two-schedules")
@race("fire-x-fire-of-one-key", key="k")
def firing_two(backend: ScheduleBackend, *, key: str | None = None) -> Sequence[Script]:
    """Each executor fires one schedule at a time. With a key, the second task is refused."""
    for name in ("a", "b"):
        backend.schedule(name, key=key, runs=ANY if key else (1,))

    def fire_both() -> None:
        for _ in range(2):
            backend.fire(limit=1)

    return [fire_both, fire_both]


@race("fire-x-fire-that-skips", due=1)
@race("fire-x-fire-that-skips-two", due=2)
def firing_beside_a_running_task(backend: ScheduleBackend, *, due: int) -> Sequence[Script]:
    """The ticks extend a record of skipped ones."""
    pk = backend.schedule(due=due)
    backend.ran(pk, NOON - 24 * HOUR)
    backend.skipped(pk, NOON - 12 * HOUR)
    return [backend.fire, backend.fire]


@race("fire-x-fire-after-skips")
def firing_after_skipped_ticks(backend: ScheduleBackend) -> Sequence[Script]:
    """The task that was running has ended."""
    backend.skipped(backend.schedule(), NOON - 12 * HOUR)
    return [backend.fire, backend.fire]


@race("fire-x-time-passes-and-fire", time_passes=True)
@race("fire-x-time-passes-and-fire-queue-one", overlap=Overlap.QUEUE_ONE, runs=(2,), time_passes=True)
@race("fire-x-time-passes-and-fire-cancel", overlap=Overlap.CANCEL_RUNNING, runs=(2,), time_passes=True)
def firing_while_time_passes(backend: ScheduleBackend, **schedule: Any) -> Sequence[Script]:
    backend.schedule(**{"runs": ANY} | schedule)

    def fire_and_wait() -> None:
        backend.fire()
        backend.move_clock(HOUR)

    return [backend.fire, fire_and_wait]


@race("fire-x-clock-goes-back-x-fire", clients=3, time_passes=True)
def firing_while_the_clock_goes_back(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule(due=3, overlap=Overlap.ALLOW, catch_up=CatchUp.ALL, runs=(3,))

    def go_back_and_return() -> None:
        backend.move_clock(-2 * HOUR)
        backend.move_clock(2 * HOUR)

    return [backend.fire, go_back_and_return, backend.fire]


# --- fire x crash


@race("fire-x-crash-before-commit", after_commit=False, on_portable=True)
@race("fire-x-crash-after-commit", after_commit=True)
def firing_beside_a_crash(backend: ScheduleBackend, *, after_commit: bool) -> Sequence[Script]:
    backend.schedule("a")
    backend.schedule("b", due=3)
    return [backend.fire, lambda: backend.fire_and_crash(after_commit=after_commit)]


@race("fire-x-broken-schedule")
def firing_beside_a_broken_schedule(backend: ScheduleBackend) -> Sequence[Script]:
    """The database refuses one of two schedules."""
    backend.schedule("sound")
    backend.break_task(backend.schedule("broken", runs=(0,)))
    return [backend.fire, backend.fire]


# --- fire x edit


@race("fire-x-edit")
@race("fire-x-edit-of-missed-ticks", due=3)
@race("fire-x-edit-while-time-passes", time_passes=True)
def editing(backend: ScheduleBackend, *, due: int = 1) -> Sequence[Script]:
    """If time passes, the tick of an hour later has the old timing, or there are four of the new one."""
    backend.schedule(due=due, runs=(1, 2) if backend.time_passes else (1,), overlap=Overlap.ALLOW)

    def fire() -> None:
        backend.fire()
        if backend.time_passes:
            backend.move_clock(HOUR)

    return [fire, lambda: backend.edit_expression(every=HOUR / 4, overlap=Overlap.ALLOW)]


@race("fire-x-edit-of-the-task")
def editing_the_task(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule()
    return [backend.fire, lambda: backend.edit(overlap=Overlap.ALLOW)]


@race("fire-x-edit-with-jitter")
def editing_a_schedule_with_jitter(backend: ScheduleBackend) -> Sequence[Script]:
    """The moment of the tick has passed, and its jitter has not."""
    backend.schedule(jitter_seconds=3000.0)
    return [backend.fire, lambda: backend.edit_expression(every=HOUR / 4)]


@race("fire-x-edit-of-overlap", Overlap.SKIP)
@race("fire-x-edit-of-overlap-to-allow", Overlap.ALLOW)
def editing_the_overlap(backend: ScheduleBackend, overlap: Overlap) -> Sequence[Script]:
    """A tick waits for the running task, and nothing waits under the new overlap."""
    backend.waiting()
    return [backend.fire, lambda: backend.edit(overlap=overlap)]


@race("edit-x-edit")
def editing_twice(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule()
    return [
        lambda: backend.edit_expression(every=HOUR / 4),
        lambda: backend.edit_expression(every=HOUR / 3),
    ]


@race("create-x-create-and-fire")
def creating(backend: ScheduleBackend) -> Sequence[Script]:
    """Two executors write a schedule that is new."""

    def create_and_fire() -> None:
        backend.edit_expression(every=HOUR)
        backend.fire()

    return [create_and_fire, create_and_fire]


@race("edit-x-delete")
@race("fire-x-delete-and-create", create=True)
def deleting(backend: ScheduleBackend, *, create: bool = False) -> Sequence[Script]:
    backend.schedule(runs=ANY)

    def delete_and_create() -> None:
        backend.delete()
        if create:
            backend.edit_expression(every=HOUR)

    return [backend.fire if create else lambda: backend.edit_expression(every=HOUR / 4), delete_and_create]


# --- fire x pause


@race("fire-x-pause", due=1)
@race("fire-x-pause-after-a-downtime", due=3)
def pausing(backend: ScheduleBackend, *, due: int) -> Sequence[Script]:
    """A tick that was due before the pause still runs."""
    backend.schedule(due=due)
    return [backend.fire, backend.pause]


@race("fire-x-pause-while-time-passes", time_passes=True)
def pausing_while_time_passes(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule(runs=(1, 2), overlap=Overlap.ALLOW)

    def fire_and_wait() -> None:
        backend.fire()
        backend.move_clock(HOUR)

    return [fire_and_wait, backend.pause]


@race("fire-x-resume")
def resuming(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule(due=2, runs=(0,), paused_at=START - 5 * HOUR)
    return [backend.fire, backend.resume]


@race("pause-x-resume")
@race("pause-x-pause", both=False)
def pausing_twice(backend: ScheduleBackend, *, both: bool = True) -> Sequence[Script]:
    backend.schedule()
    return [backend.pause, backend.resume if both else backend.pause]


@race("pause-x-edit")
def pausing_beside_an_edit(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule()
    return [backend.pause, lambda: backend.edit_expression(every=HOUR / 4)]


# --- fire x retire


@race("fire-x-retire")
@race("fire-x-retire-of-missed-ticks", due=3)
@race("fire-x-retire-with-jitter", jitter_seconds=3000.0)
def retiring(backend: ScheduleBackend, **schedule: Any) -> Sequence[Script]:
    backend.schedule(**schedule)
    return [backend.fire, lambda: backend.retire("report")]


@race("fire-x-retire-while-time-passes", time_passes=True)
def retiring_while_time_passes(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule(runs=(1, 2), overlap=Overlap.ALLOW)

    def fire_and_wait() -> None:
        backend.fire()
        backend.move_clock(HOUR)

    return [fire_and_wait, lambda: backend.retire("report")]


@race("fire-x-retire-of-a-waiting-tick")
def retiring_a_waiting_tick(backend: ScheduleBackend) -> Sequence[Script]:
    backend.waiting(runs=(1, 2, 3))

    def end_and_fire() -> None:
        backend.end_task()
        backend.fire()

    return [end_and_fire, lambda: backend.retire("report")]


@race("retire-x-return")
def returning(backend: ScheduleBackend) -> Sequence[Script]:
    """One deploy removes a schedule, the other has it."""
    backend.schedule()
    return [lambda: backend.retire("report"), lambda: backend.edit(retired_at=None)]


# --- fire x key conflict


@race("fire-x-enqueue-of-its-key", commits=True, on_portable=True)
@race("fire-x-enqueue-of-its-key-rolled-back", commits=False)
def firing_a_key(backend: ScheduleBackend, *, commits: bool) -> Sequence[Script]:
    """The task is refused if the other one commits. The schedule without a key is not concerned."""
    backend.schedule("digest", key="k", runs=ANY if commits else (1,))
    backend.schedule("other")
    return [backend.fire, lambda: backend.enqueue("x", "k") if commits else backend.enqueue_and_roll_back("k")]


@race("fire-x-end-of-its-key")
def firing_while_the_key_becomes_free(backend: ScheduleBackend) -> Sequence[Script]:
    backend.add("x", key="k")
    backend.schedule(key="k", runs=ANY)
    return [backend.fire, lambda: backend.end_task("x")]


# --- fire x what people start


@race("fire-x-run-now")
@race("fire-x-run-now-of-missed-ticks", due=3)
def running_now(backend: ScheduleBackend, *, due: int = 1) -> Sequence[Script]:
    """The tick that was due before does not overlap with the task of people."""
    backend.schedule(due=due)
    return [backend.fire, backend.run_now]


@race("run-now-x-run-now")
@race("run-now-x-run-now-of-one-key", key="k")
def running_now_twice(backend: ScheduleBackend, *, key: str | None = None) -> Sequence[Script]:
    backend.schedule(due=0, runs=(0,), key=key)
    return [backend.run_now, backend.run_now]


@race("fire-x-backfill")
def backfilling(backend: ScheduleBackend) -> Sequence[Script]:
    """The range has ticks from before the schedule, and one that is due."""
    backend.schedule(due=1)
    return [backend.fire, lambda: backend.backfill(NOON - 2 * HOUR, NOON)]


@race("backfill-x-backfill")
def backfilling_twice(backend: ScheduleBackend) -> Sequence[Script]:
    backend.schedule(due=0, runs=(0,))
    return [
        lambda: backend.backfill(NOON - 2 * HOUR, NOON),
        lambda: backend.backfill(NOON - 3 * HOUR, NOON - HOUR),
    ]


# --- fire x the end, the claim and the cancel of the running task


@race("fire-x-end-of-the-running-task", Overlap.SKIP, (1, 2), on_portable=True)
@race("fire-x-end-of-the-running-task-queue-one", Overlap.QUEUE_ONE, (2,))
@race("fire-x-end-of-the-running-task-cancel", Overlap.CANCEL_RUNNING, (2,))
def ending_the_running_task(backend: ScheduleBackend, overlap: Overlap, runs: Sequence[int]) -> Sequence[Script]:
    pk = backend.schedule(overlap=overlap, runs=runs)
    backend.ran(pk, NOON - HOUR)
    return [backend.fire, backend.end_task]


@race("fire-x-end-of-the-running-task-x-fire", is_third=True, clients=3)
@race("fire-x-end-of-the-running-task-and-fire")
def ending_before_a_waiting_tick(backend: ScheduleBackend, *, is_third: bool = False) -> Sequence[Script]:
    """Another tick waits already, so the due one is skipped or waits."""
    backend.waiting(runs=(2, 3))
    if is_third:
        return [backend.fire, backend.end_task, backend.fire]

    def end_and_fire() -> None:
        backend.end_task()
        backend.fire()

    return [backend.fire, end_and_fire]


@race("fire-x-claim-of-the-running-task", on_portable=True)
def claiming_the_running_task(backend: ScheduleBackend) -> Sequence[Script]:
    """The tick replaces a task that an executor claims at this moment."""
    pk = backend.schedule(overlap=Overlap.CANCEL_RUNNING, runs=(2,))
    backend.ran(pk, NOON - HOUR)
    return [backend.fire, lambda: backend.claim_and_forget("report")]


@race("fire-x-cancel-of-the-running-task")
def cancelling_the_running_task(backend: ScheduleBackend) -> Sequence[Script]:
    pk = backend.schedule(overlap=Overlap.CANCEL_RUNNING, runs=(2,))
    task = backend.ran(pk, NOON - HOUR)
    return [backend.fire, lambda: backend.cancel(task)]


# --- fire x prune


@race("fire-x-prune")
def pruning(backend: ScheduleBackend) -> Sequence[Script]:
    """The due tick extends a record that is old enough to be pruned."""
    pk = backend.schedule(runs=ANY)
    backend.ran(pk, NOON - 24 * HOUR)
    backend.skipped(pk, NOON - 12 * HOUR)
    backend.make_records_old()
    return [backend.fire, backend.prune_ticks]


# --- synchronize x synchronize, synchronize x the others


@race("synchronize-x-synchronize", ("a", "b"), ("b", "c"))
@race("synchronize-x-synchronize-of-first-code", ("a", "b"), ("a", "b"))
@race("synchronize-x-synchronize-of-other-names", ("a",), ("b",))
def deploying(backend: ScheduleBackend, first: Sequence[str], other: Sequence[str]) -> Sequence[Script]:
    """The first deploys of two versions of the code. One of them must be in force at the end."""
    backend.schedules.deployed = [frozenset(first), frozenset(other)]
    return [lambda: backend.synchronize(".".join(first), *first), lambda: backend.synchronize(".".join(other), *other)]


@race("synchronize-x-synchronize-later", ("a",), ("b",))
def deploying_again(backend: ScheduleBackend, first: Sequence[str], other: Sequence[str]) -> Sequence[Script]:
    """Two versions of the code replace a third one."""
    backend.synchronize("first", "a", "b", "c")
    return deploying(backend, first, other)


@race("old-code-x-new-code")
def deploying_beside_old_code(backend: ScheduleBackend) -> Sequence[Script]:
    """No executor with the current code is alive. Old code comes back while new code is deployed, and must not win."""
    backend.synchronize("old", "old")
    backend.synchronize("current", "current")
    backend.executor("current", is_alive=False)
    backend.executor("new")
    backend.schedules.deployed = [frozenset(["new"])]
    return [lambda: backend.synchronize("old", "old"), lambda: backend.synchronize("new", "new")]


@race("fire-x-synchronize")
def firing_beside_a_deploy(backend: ScheduleBackend) -> Sequence[Script]:
    """The deploy changes one schedule, removes another and adds a third."""
    backend.deployed_schedules("kept", "gone")
    backend.schedules.deployed = [frozenset(["kept", "added"])]
    return [backend.fire, lambda: backend.synchronize("new", "kept", "added", every=HOUR / 4)]


@race("pause-x-synchronize")
def pausing_beside_a_deploy(backend: ScheduleBackend) -> Sequence[Script]:
    backend.deployed_schedules("kept", "gone")
    backend.schedules.deployed = [frozenset(["kept"])]
    return [lambda: backend.pause("kept"), lambda: backend.synchronize("new", "kept", every=HOUR / 4)]


@race("pause-two-x-synchronize", "b", "a")
@race("pause-two-x-synchronize-without-one", "a")
def pausing_several_beside_a_deploy(backend: ScheduleBackend, *names: str) -> Sequence[Script]:
    """The deploy names its schedules in another order."""
    backend.deployed_schedules("a", "b")
    backend.schedules.deployed = [frozenset(names)]
    return [lambda: backend.pause_several("a", "b"), lambda: backend.synchronize("new", *names, every=HOUR / 4)]
