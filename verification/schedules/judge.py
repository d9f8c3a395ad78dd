"""An independent account of all ticks. It reads what triggers recorded, and knows nothing of the engine's plans."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from jobqueue.values.policies import MAX_COUNTED
from jobqueue.values.states import LIVE
from verification.schedules.account import Account, Life
from verification.schedules.virtual_database import RecordedChange, moment_of

ONCE: Final = "each tick is accounted for once"
IN_TIME: Final = "a due tick is accounted for by the first executor that looks"
UNKNOWN: Final = "only ticks of the schedule are accounted for"
TRUE_REASON: Final = "the reason of a skipped tick is true"
MAY_RUN: Final = "a tick runs only if the policies allow it"
ONE_TASK: Final = "each task of a schedule belongs to one tick"
ASKED: Final = "people get the tasks that they asked for"


class Violation(Exception):
    """The record contradicts the account."""


class Judge:
    """The accounts of all schedules, the tasks of the record, and what was found so far."""

    def __init__(self) -> None:
        self.accounts: dict[int, Account] = {}
        self.lives: dict[UUID, Life] = {}
        self.locked: Collection[int] = ()  # schedules that a frozen executor has locked
        self.enqueued = self.skipped = 0
        self._unmatched: dict[UUID, Life] = {}
        self._made_up_for: set[tuple[int, datetime]] = set()  # by people

    # --- the record

    def record(
        self,
        entries: Sequence[RecordedChange],
        since: datetime,
        until: datetime,
        *,
        changed: int | None = None,
        asked: Collection[datetime] = (),
    ) -> None:
        """
        Read the entries of one transaction, which read the clock between two moments.

        changed: a schedule with a change, which cuts its jitter short. asked: ticks that people run.
        """
        for account in self.accounts.values():
            account.owe(until, with_jitter=account.pk != changed)
        for entry in entries:
            match entry.source:
                case "task":
                    self._task(entry)
                case "tick":
                    self._tick(entry, since, until, asked)
                case "schedule":
                    self._waiting(entry)
        if self._unmatched:
            raise Violation(f"{ONE_TASK}: {[*self._unmatched.values()]}")
        for account in self.accounts.values():
            account.give_back(since, with_jitter=account.pk != changed)

    def must_be_done(self, pks: Collection[int], until: datetime, *, with_jitter: bool = True) -> None:
        """Check that these schedules owe no tick that was due, but for the waiting one."""
        for account in (self.accounts[pk] for pk in pks if pk not in self.locked):
            account.owe(until, with_jitter=with_jitter)
            left = [tick for tick in account.owed if tick != account.waiting]
            if left:
                raise Violation(f"{IN_TIME}: {account.name} owes {show(left)}, waiting: {account.waiting}")

    def waiting_must_run(self, now: datetime) -> None:
        """Check that each waiting tick has something to wait for."""
        for account in self.can_run_waiting(now):
            raise Violation(f"{IN_TIME}: {account.waiting} of {account.name} waits for no task")

    def can_run_waiting(self, now: datetime) -> list[Account]:
        """Return the schedules with a waiting tick that can become a task."""
        return [
            account
            for account in self.accounts.values()
            if account.waiting
            and account.pk not in self.locked
            and not account.is_paused_for(now)
            and all(life.died for life in account.lives)
        ]

    def next_due(self) -> datetime | None:
        """Return when the next tick is due. Schedules that are locked do not count."""
        return min((due for _, due in self._due()), default=None)

    def _due(self) -> Iterator[tuple[int, datetime]]:
        for account in self.accounts.values():
            if account.pk not in self.locked and (due := account.next_due):
                yield account.pk, due

    def _task(self, entry: RecordedChange) -> None:
        pk = UUID((entry.after or entry.before)["id"])
        is_live = entry.operation != "DELETE" and entry.after["status"] in LIVE
        if entry.operation == "INSERT":
            self.lives[pk] = life = life_of(entry, pk)
            if account := self.accounts.get(life.schedule or 0):
                life.others = account.has_task(entry.id)
                if not self.locked:
                    account.forget_dead()
                account.lives.append(life)
                self._unmatched[pk] = life
        if not is_live and (ended := self.lives.get(pk)) and ended.died is None:
            ended.died = entry.id
        if entry.operation == "DELETE":
            self.lives.pop(pk, None)

    def _waiting(self, entry: RecordedChange) -> None:
        account = self.accounts.get(entry.after["id"])
        if account is not None:
            text = entry.after["waiting_at"]
            account.waiting = moment_of(text) if text else None

    # --- ticks

    def _tick(self, entry: RecordedChange, since: datetime, until: datetime, asked: Collection[datetime]) -> None:
        row = entry.after
        account = self.accounts[row["schedule_id"]]
        first, last = moment_of(row["tick_at"]), moment_of(row["last_at"])
        if row["task_id"] is not None:
            life = self._unmatched.pop(UUID(row["task_id"]), None)
            if life is None or (life.schedule, life.tick) != (account.pk, first) or entry.operation != "INSERT":
                raise Violation(f"{ONE_TASK}: {account.name} at {first} has {life}")
            if row["trigger"] == "schedule":
                self._runs(account, first, life, since)
            else:
                self._is_asked(
                    account, first, {first} if row["trigger"] == "manual" and since <= first <= until else asked
                )
            return
        before = moment_of(entry.before["last_at"]) if entry.operation == "UPDATE" else None
        counted_before = entry.before["count"] if before else 0
        ticks = [
            tick
            for tick in sorted(account.owed)
            if (first <= tick if before is None else before < tick) and tick <= last
        ]
        has_more = counted_before + len(ticks) > row["count"]
        if has_more and row["count"] < MAX_COUNTED and account.waiting in ticks:
            ticks.remove(account.waiting)  # it may go on waiting, or be skipped with the others
        if before is not None and moment_of(entry.before["tick_at"]) != first:
            raise Violation(f"{ONCE}: a record of {account.name} moved from {entry.before['tick_at']} to {first}")
        counted = min(counted_before + len(ticks), MAX_COUNTED)
        if counted != row["count"] or not ticks or ticks[-1] != last or (before is None and ticks[0] != first):
            why = ONCE if first in account.done or last in account.done else UNKNOWN
            raise Violation(
                f"{why}: {account.name} has {row['count']} {row['reason']} from {first} to {last}, not {show(ticks)}"
            )
        for tick in ticks:
            if not self._is_true(account, tick, row["reason"], entry.id, until):
                raise Violation(f"{TRUE_REASON}: {account.name} at {tick} is not {row['reason']}")
        for tick in ticks:
            account.settle(tick, row["reason"])
        self.skipped += len(ticks)

    def _runs(self, account: Account, tick: datetime, life: Life, now: datetime) -> None:
        """Check that this tick may become a task."""
        if tick not in account.owed:
            why = ONCE if tick in account.done else UNKNOWN
            raise Violation(f"{why}: {account.name} enqueued {tick}, {account.done.get(tick, 'which is not its tick')}")
        if tick != account.waiting:
            self._may_catch_up(account, tick, now)
        overlap = account.columns["overlap"]
        if overlap in ("skip", "queue_one") and life.others:
            raise Violation(f"{MAY_RUN}: {account.name} at {tick} runs beside another task")
        if account.is_paused_for(now if tick == account.waiting else tick):
            raise Violation(f"{MAY_RUN}: {account.name} at {tick} runs although it is paused")
        account.settle(tick, "enqueued")
        self.enqueued += 1

    def _may_catch_up(self, account: Account, tick: datetime, now: datetime) -> None:
        columns = account.columns
        if not account.is_late(tick, now):
            return
        is_all = columns["catch_up"] == "all"
        later = sum(
            later_tick > tick and (not is_all or account.is_late(later_tick, now)) for later_tick in account.owed
        )
        limit = {"none": 0, "latest": 1, "all": columns["max_catch_up"]}[columns["catch_up"]]
        window = columns["catch_up_window_seconds"]
        if later >= limit or (window is not None and tick < now - timedelta(seconds=window)):
            raise Violation(f"{MAY_RUN}: {account.name} makes up for {tick} at {now}, with {later} later ones")

    def _is_true(self, account: Account, tick: datetime, reason: str, entry: int, now: datetime) -> bool:
        match reason:
            case "overlap":
                # So does a tick that waited. So does one that came together with an earlier one, if the key was taken.
                has_key = account.columns["new_task"].get("key") is not None
                is_later = tick > min([*account.owed, *sorted(account.done)[-1:]], default=tick)
                return account.has_task(entry) or tick == account.waiting or (has_key and is_later)
            case "paused":
                return account.is_paused_for(tick)
            case "missed":
                return account.is_late(tick, now) and self._is_given_up(account, tick, now)
            case "key":
                key = account.columns["new_task"].get("key")
                return key is not None and any(life.key == key and life.lives_at(entry) for life in self.lives.values())
        return False

    def _is_given_up(self, account: Account, tick: datetime, now: datetime) -> bool:
        """Return whether `catch_up` drops a late tick."""
        columns = account.columns
        window = columns["catch_up_window_seconds"]
        if columns["catch_up"] == "none" or (window is not None and tick < now - timedelta(seconds=window)):
            return True
        later = sum(later_tick > tick for later_tick in account.owed) + sum(work > tick for work in account.done)
        return later >= (columns["max_catch_up"] if columns["catch_up"] == "all" else 1)

    def _is_asked(self, account: Account, tick: datetime, asked: Collection[datetime]) -> None:
        """Check a tick that people run: now, or one of those that have no task."""
        if tick not in asked or tick == account.waiting or account.done.get(tick) == "enqueued":
            raise Violation(f"{ASKED}: {account.name} has a task at {tick}, asked: {show(asked)}")
        if (account.pk, tick) in self._made_up_for:
            raise Violation(f"{ASKED}: {account.name} has two tasks at {tick}")
        self._made_up_for.add((account.pk, tick))


def life_of(entry: RecordedChange, pk: UUID) -> Life:
    options: dict[str, Any] = entry.after["options"]
    tick = options.get("scheduled_at")
    return Life(pk, entry.after["schedule_id"], moment_of(tick) if tick else None, entry.after["key"], entry.id)


def show(ticks: Collection[datetime]) -> str:
    texts = [f"{tick:%Y-%m-%d %H:%M:%S.%f}" for tick in sorted(ticks)]
    return ", ".join(texts if len(texts) < 6 else [*texts[:3], f"... {len(texts)} in all ...", texts[-1]])
