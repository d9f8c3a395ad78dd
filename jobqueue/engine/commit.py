"""Commit: perform the outcomes of attempts, a whole batch in one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError
from django.db.models import Case, F, Value, When
from django.db.models.functions import Coalesce
from django.db.models.lookups import LessThan
from msgspec.structs import replace

from jobqueue.engine.admissions import Admissions
from jobqueue.engine.claim import is_held
from jobqueue.engine.code_waits import CodeWaits
from jobqueue.engine.counters import Counters
from jobqueue.engine.database import (
    ERRORS_KEPT,
    WORKERS_KEPT,
    Part,
    appended,
    json_from,
    read_list,
    with_texts,
)
from jobqueue.engine.entries import EntryStatements, newest
from jobqueue.engine.inserts import Inserts
from jobqueue.engine.messages import Messages, make_ending
from jobqueue.engine.tasks import LockedRow, Tasks
from jobqueue.engine.timeouts import SHORT_WAIT, is_locked
from jobqueue.exceptions import DuplicateKey, MessageAlreadyConsumed, TaskFinished, TaskNotFound
from jobqueue.models.clock import Clock, clock_to_store, rank_from
from jobqueue.values.failpoints import failpoint
from jobqueue.values.records import (
    NO_EFFECTS,
    ClaimedTask,
    CommitResult,
    Effects,
    Enqueued,
    NewMessage,
    NewTask,
    Outcome,
    release_outcome,
)
from jobqueue.values.safe_log import safe_logger
from jobqueue.values.states import FINAL, WAITING, Status

logger = safe_logger(__name__)

# Errors that the values of an outcome cause, not the state of the database.
REFUSALS = (
    DataError,
    IntegrityError,
    ValueError,
    OverflowError,
    TaskFinished,
    TaskNotFound,
    MessageAlreadyConsumed,
    DuplicateKey,
)
# Files of PostgreSQL that report exhausted transaction ids or blocks of a file. Then no outcome can be written.
SERVER_LIMITS = ("varsup.c", "multixact.c", "bufmgr.c", "md.c")
RELEASE_BATCH = 10_000  # more than an executor claims
UNBLOCKING_COLUMNS = ("concurrency_key", "rate_key")  # of Task.may_unblock_others
LOCKED_COLUMNS = tuple(LockedRow.__dataclass_fields__)


@dataclass(eq=False)
class Commits(Part):
    inserts: Inserts
    tasks: Tasks
    messages: Messages
    counters: Counters
    admissions: Admissions
    code_waits: CodeWaits
    entries: EntryStatements  # of journals

    def commit(
        self,
        outcomes: Sequence[Outcome],
        *,
        holder: UUID | None = None,
        wait: bool = False,
        lock_wait: str | None = None,
    ) -> CommitResult:
        """
        Perform outcomes, in one transaction if possible.

        Three rules: lock all rows first, in id order; read inboxes only in later statements; present the claim
        number. If another session has locked a row, its outcome is `unknown`. If the database refuses a value, the
        batch is halved until the bad outcome is alone, and `refused`. It is also halved if a statement waits too long
        for a lock, as for a unique key that an open transaction has inserted. The outcome alone is then `waiting`.
        wait: wait for the locks of the tasks' own rows, but never for others, so that a caller with locks cannot
        deadlock. holder: the executor that made the claims. The rows must still name it, because claim numbers repeat
        after the restore of a backup. lock_wait: how long a statement waits for other locks, if not as long as the
        session's lock_timeout.
        Locks: the tasks, and those receivers of their messages that are not locked. The caller wakes the other
        receivers after the commit.
        """
        if not outcomes:
            return CommitResult()
        try:
            return self._commit_together(outcomes, holder=holder, wait=wait, lock_wait=lock_wait)
        except (DatabaseError, *REFUSALS) as error:
            has_waited = is_locked(error) and not wait
            if not (has_waited or is_refusal(error)):
                raise
            if len(outcomes) == 1 and has_waited:
                return CommitResult(waiting={outcomes[0].task_id: error})
            if len(outcomes) == 1:
                return CommitResult(refused={outcomes[0].task_id: error})
        half = len(outcomes) // 2
        wait_again = SHORT_WAIT if has_waited else lock_wait
        parts = (outcomes[:half], outcomes[half:])
        return merge([self.commit(part, holder=holder, wait=wait, lock_wait=wait_again) for part in parts])

    def _commit_together(
        self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool, lock_wait: str | None
    ) -> CommitResult:
        with self.db.transaction(), nullcontext() if lock_wait is None else self.db.lock_timeout(lock_wait):
            committed = self.perform(outcomes, holder=holder, wait=wait)
            failpoint("commit.before")
            return committed

    def perform(self, outcomes: Sequence[Outcome], *, holder: UUID | None, wait: bool = False) -> CommitResult:
        own = {outcome.task_id for outcome in outcomes}
        reached = {outcome.task_id: other_tasks_of(outcome) for outcome in outcomes}
        others = set[UUID]().union(*reached.values())
        parents = [outcome.task_id for outcome in outcomes if outcome.effects.cancel_children]
        descendants = self.tasks.descendants(parents)
        locked = self._lock_for_commit(own, wait=True) if wait else {}
        if unlocked := (own | others | descendants) - locked.keys():
            locked |= self._lock_for_commit(unlocked, wait=False)
        # A concurrent commit may have spawned children. Search again: locked tasks cannot spawn any more.
        while new := self.tasks.descendants(parents) - descendants:
            descendants |= new
            locked |= self._lock_for_commit(new, wait=False)
        descendants_of = {pk: self.tasks.descendants([pk]) for pk in parents}
        gone = self.db.missing(own - locked.keys())
        # A descendant that is cancelled sends a message to its own parent, which may have ended.
        for pk, below in descendants_of.items():
            reached[pk] |= {row.parent_id for child in below if (row := locked.get(child)) and row.parent_id}
            others |= reached[pk]
        busy = self.messages.inbox.unreachable(others - locked.keys())
        held = [o for o in outcomes if is_held(locked.get(o.task_id), o.claim_number, holder)]
        ready = [
            outcome
            for outcome in held
            if busy.isdisjoint(reached[outcome.task_id]) and descendants_of.get(outcome.task_id, set()) <= locked.keys()
        ]

        to_cancel = {pk for outcome in ready for pk in descendants_of.get(outcome.task_id, ())}
        cancelled = to_cancel | {pk for pk, row in locked.items() if row.cancel_requested_at is not None}
        ready = [without_children(outcome) if outcome.task_id in cancelled else outcome for outcome in ready]
        self._write_journals(ready)
        deferring = self.entries.that_finish_themselves(cancelled & {o.task_id for o in ready})
        entering = {
            o.task_id: final_status(o, is_cancelled=o.task_id in cancelled, defers=o.task_id in deferring)
            for o in ready
        }
        notified = self._perform(ready, entering)
        # The search for children to cancel could not find these: they are inserted only now.
        ends_children = {pk for pk in cancelled if entering.get(pk) in FINAL}.union(parents)
        self.tasks.cancel_queued([child.id for o in ready if o.task_id in ends_children for child in o.effects.spawn])
        endings = [end for o in ready if (end := ending(o, entering[o.task_id], locked[o.task_id]))]
        notified |= self.messages.notify_parents(endings)
        dropped = Counter(end.sender_id for end in endings if end.sender_id and end.task_id not in notified)
        dropped.update(o.task_id for o in ready for m in o.effects.send if m.is_droppable and m.task_id not in notified)
        left = {o.task_id: len(o.effects.unread) for o in ready if entering[o.task_id] is Status.SUSPENDED}
        entering |= dict.fromkeys(self.messages.with_more_unread(left), Status.READY)
        self._write([(outcome, entering[outcome.task_id]) for outcome in ready])
        self.tasks.request_cancel(to_cancel & deferring)
        self.code_waits.begin([o for o in ready if entering[o.task_id] is Status.AWAITING_CODE])
        self.admissions.settle(
            {outcome.task_id: outcome.begun_seconds for outcome in ready if outcome.may_unblock_others}
        )
        if to_cancel:
            notified |= self.tasks.cancel_locked(locked[pk] for pk in to_cancel - entering.keys())[2]
        notified -= entering.keys()
        self.messages.inbox.wake_locked(notified & locked.keys())
        return CommitResult(
            done=entering,
            lost=frozenset(gone | (own & locked.keys()) - {outcome.task_id for outcome in held}),
            unknown=frozenset((own - locked.keys() - gone) | {o.task_id for o in held} - entering.keys()),
            wake=frozenset(notified - locked.keys()),
            dropped=dropped,
        )

    def _lock_for_commit(self, ids: Collection[UUID], *, wait: bool) -> dict[UUID, LockedRow]:
        return locked_rows(self.db.lock(ids, wait=wait).values_list(*LOCKED_COLUMNS))

    def _perform(self, outcomes: Sequence[Outcome], entering: Mapping[UUID, Status]) -> set[UUID]:
        """
        Consume, spawn and send. Return the receivers of messages, except for new children.

        A cancelled task spawns no children.
        """
        self._consume(outcomes)
        children = [
            child if child.parent_id == outcome.task_id else replace(child, parent_id=outcome.task_id)
            for outcome in outcomes
            if entering[outcome.task_id] is not Status.CANCELLED
            for child in outcome.effects.spawn
        ]
        if children:
            refuse_taken_keys(children, self.inserts.insert(children))
        not_spawned = {child.id for o in outcomes for child in o.effects.spawn} - {child.id for child in children}
        sent = [m for outcome in outcomes for m in outcome.effects.send if m.task_id not in not_spawned]
        notified = {message.task_id for message in sent if not message.is_droppable}
        if strict := [message for message in sent if not message.is_droppable]:
            self.messages.insert_or_raise(strict)
        if droppable := [message for message in sent if message.is_droppable]:
            reached = [receiver for _, receiver in self.messages.inbox.insert(droppable)]
            log_dropped(len(droppable) - len(reached))
            notified.update(reached)
        return notified - {child.id for child in children}

    def perform_effects(self, claimed: ClaimedTask, effects: Effects) -> set[UUID]:
        """
        Consume, spawn and send in the middle of a poll, whose row the caller's transaction has locked.

        Return the receivers of messages. They are woken after the commit.
        """
        outcome = replace(release_outcome(claimed), effects=effects)
        return self._perform([outcome], {claimed.id: outcome.status})

    def _write_journals(self, outcomes: Sequence[Outcome]) -> None:
        """Delete and write entries of journals, and change the arguments of a workflow that begins a new one."""
        changed = {o.task_id: o.effects for o in outcomes if o.effects is not NO_EFFECTS}
        if restarted := {pk: effects.restart for pk, effects in changed.items() if effects.restart is not None}:
            self.entries.delete_of(restarted)
            for pk, restart in restarted.items():
                texts = {"args": json_from(restart.args), "kwargs": json_from(restart.kwargs)}
                self.db.tasks.filter(pk=pk).update(**texts)
        for pk, effects in changed.items():
            if effects.forget:
                self.entries.forget(pk, effects.forget)
        if written := {pk: newest(effects.journal) for pk, effects in changed.items() if effects.journal}:
            self.entries.write(written)

    def _consume(self, outcomes: Sequence[Outcome]) -> None:
        """
        Delete the messages that were consumed, by their exact ids. With KEEP_MESSAGES they stay.

        Ids are not in the order of commits: `id <= last` would lose messages. A message with a dedupe_key keeps an
        empty row, so that a late repeat of it inserts nothing.
        """
        readers = {pk: outcome.task_id for outcome in outcomes for pk in outcome.effects.consumed}
        if readers and self._delete_read(readers) != len(readers):
            raise MessageAlreadyConsumed

    def _delete_read(self, readers: Mapping[int, UUID]) -> int:
        """Delete messages, or mark them as consumed. Return how many. readers: by message, the task that read it."""
        unread = self.db.messages.filter(pk__in=readers, consumed_at__isnull=True)
        if dict(unread.values_list("pk", "task_id")) != readers:
            return 0
        if self.db.options.keep_messages:
            return unread.update(consumed_at=Clock())
        emptied = unread.filter(dedupe_key__isnull=False).update(consumed_at=Clock(), body=None)
        return emptied + unread.filter(dedupe_key__isnull=True)._raw_delete(self.db.using)

    def _write(self, changes: Sequence[tuple[Outcome, Status]]) -> None:
        """Write outcomes into their own rows, which this transaction has locked."""
        ids = [outcome.task_id for outcome, _ in changes]
        rows = {row.pk: row for row in with_texts(self.db.tasks.filter(pk__in=ids))}
        self.counters.add_attempts([(outcome, entering, rows[outcome.task_id]) for outcome, entering in changes])
        for outcome, entering in changes:
            row = rows[outcome.task_id]
            columns: dict[str, Any] = {
                "status": entering,
                "attempts": outcome.attempts,
                "polls": F("polls") + int(outcome.has_succeeded),
                "unread_polls": outcome.unread_polls,
                "stale_polls": outcome.stale_polls,
                "claimed_at": None,
                "executor_id": None,
                "wake_at": None,
                "cause": outcome.cause,
            }
            if outcome.has_succeeded:
                columns["timed_out"] = False
                columns["timeout_at"] = None
                if entering not in FINAL:
                    columns["executor_losses"] = 0
                if outcome.recheck_seconds is not None and entering in (Status.READY, Status.SUSPENDED):
                    columns["timeout_at"] = end_of_wait(outcome)
            if entering in WAITING:
                columns["wake_at"] = next_wake(outcome)
            if entering is Status.READY and not outcome.keeps_rank:
                columns["rank"] = rank_from(Clock(), self.db.options.aging)
            if entering in FINAL:
                columns["finished_at"] = Clock()
                if outcome.parent_id is not None:
                    columns["parent_notified_at"] = Coalesce("parent_notified_at", Clock())
            if outcome.worker_id is not None:
                columns["worker_ids"] = [*read_list(row.worker_ids_text), outcome.worker_id][-WORKERS_KEPT:]
            if outcome.error is not None:
                columns["errors"] = [*read_list(row.errors_text), json.loads(outcome.error)][-ERRORS_KEPT:]
            if outcome.history is not None:
                columns["history"] = appended(outcome.history)
            for name in ("return_value", "inner_state", "metadata"):
                if (text := getattr(outcome, name)) is not None:
                    columns[name] = json_from(text)
            self.db.tasks.running().filter(pk=outcome.task_id, claim_number=outcome.claim_number).update(**columns)

    def cancel_children(self, outcome: Outcome, holder: UUID, limit: int) -> int:
        """
        Cancel some of the children that an outcome ends, before it. Return how many; fewer than the limit: all.

        So the end of a huge family takes several transactions. If its task loses the claim in between, these children
        stay cancelled. Locks: the task's row, and the children, skipping locked ones.
        """
        with self.db.transaction():
            locked = self._lock_for_commit({outcome.task_id}, wait=False)
            if not is_held(locked.get(outcome.task_id), outcome.claim_number, holder):
                return 0  # the commit finds out why
            children = self.db.tasks.live().filter(parent_id=outcome.task_id).order_by("pk")
            ids = list(children.values_list("pk", flat=True)[:limit])
            if len(ids) < limit:  # the children are few now; the search below them reads all of the family
                ids = sorted(self.tasks.descendants([outcome.task_id]))[:limit]
            rows = self._lock_for_commit(ids, wait=False)
            now = self.db.now()
            for row in rows.values():
                if row.parent_id == outcome.task_id:  # it ends, and reads no message any more
                    row.parent_notified_at = now
            self.tasks.cancel_locked(rows.values())
            return len(ids)

    # --- release

    def release(self, claims: Iterable[ClaimedTask]) -> CommitResult:
        """Make claimed tasks READY at their old rank, or CANCELLED if requested. No attempt is counted."""
        return self.commit([release_outcome(claimed) for claimed in claims])

    def release_unknown_claims(
        self, executor_id: UUID, own_claims: Collection[UUID], limit: int = RELEASE_BATCH
    ) -> int:
        """
        Release the tasks that an executor holds without knowing it, because the answer to its claim was lost.

        Return how many. own_claims: the tasks that it knows. limit: how many at most. Only the thread that claims for
        this executor may call this: it would also release new claims of another thread.
        """
        columns = ("pk", "claim_number", "attempts", "parent_id", "unread_polls", "stale_polls", *UNBLOCKING_COLUMNS)
        rows = self.db.tasks.running().filter(executor_id=executor_id).order_by("executor_id").only(*columns)
        tasks: list[Any] = [row for row in rows if row.pk not in own_claims]
        unknown = [release_outcome(task) for task in tasks[:limit]]
        if not unknown:
            return 0
        failpoint("release.before")
        done = self.commit(unknown).done
        failpoint("release.after")
        return sum(status is Status.READY for status in done.values())


def locked_rows(rows: Iterable[Sequence[Any]]) -> dict[UUID, LockedRow]:
    return {values[0]: LockedRow(*values) for values in rows}


def end_of_wait(outcome: Outcome) -> Any:
    """Return the end of an outcome's wait: the earlier of its wake_at and its delay."""
    if outcome.wake_after_seconds is None:
        return outcome.wake_at
    after = clock_to_store(after=outcome.wake_after_seconds)
    if outcome.wake_at is None:
        return after
    return Case(When(LessThan(after, Value(outcome.wake_at)), then=after), default=Value(outcome.wake_at))


def next_wake(outcome: Outcome) -> Any:
    """Return when to wake the task: at the end of its wait, or earlier to read its messages again."""
    waits = [wait for wait in (outcome.wake_after_seconds, outcome.recheck_seconds) if wait is not None]
    return end_of_wait(replace(outcome, wake_after_seconds=min(waits, default=None)))


def other_tasks_of(outcome: Outcome) -> set[UUID]:
    """Return the other tasks that an outcome may write to."""
    receivers = {message.task_id for message in outcome.effects.send}
    return receivers if outcome.parent_id is None else receivers | {outcome.parent_id}


def without_children(outcome: Outcome) -> Outcome:
    """Leave out the children of a workflow whose cancel was requested. A requeue lets it spawn others."""
    effects = outcome.effects
    if not (effects.spawn and effects.journal):
        return outcome
    return replace(outcome, effects=effects.without_children())


def final_status(outcome: Outcome, *, is_cancelled: bool, defers: bool = False) -> Status:
    """
    Return the state that an outcome leads to. A cancelled task does not run again, unless its journal defers that.

    Then it runs until its compensations have run. The poll that learns of the cancel does not wait for a message.
    """
    if not is_cancelled or outcome.status in FINAL or outcome.effects.finishes_itself:
        return outcome.status
    if not defers:
        return Status.CANCELLED
    return Status.READY if outcome.status is Status.SUSPENDED else outcome.status


def ending(outcome: Outcome, entering: Status, row: LockedRow) -> NewMessage | None:
    return make_ending(row, entering, outcome.return_value if entering is Status.SUCCESSFUL else outcome.error)


def refuse_taken_keys(children: Sequence[NewTask], answers: Sequence[Enqueued]) -> None:
    """Raise DuplicateKey for a child that was not inserted, because its parent would wait for it without end."""
    for child, answer in zip(children, answers, strict=True):
        if not answer.created:
            raise DuplicateKey(f"No child {child.task_type} was spawned: task {answer.id} holds its key {child.key!r}.")


def log_dropped(count: int) -> None:
    if count:
        logger.info("message.dropped count=%d reason=parent ended", count)


def merge(parts: Iterable[CommitResult]) -> CommitResult:
    """Join the answers of several commits."""
    results = list(parts)
    return CommitResult(
        done={pk: status for part in results for pk, status in part.done.items()},
        lost=frozenset().union(*(part.lost for part in results)),
        unknown=frozenset().union(*(part.unknown for part in results)),
        refused={pk: error for part in results for pk, error in part.refused.items()},
        waiting={pk: error for part in results for pk, error in part.waiting.items()},
        wake=frozenset().union(*(part.wake for part in results)),
        dropped={pk: count for part in results for pk, count in part.dropped.items()},
    )


def is_refusal(error: Exception) -> bool:
    """Return whether the values caused the error. After any other error of the database, the commit is retried."""
    if isinstance(error, REFUSALS):
        return True
    cause: Any = error.__cause__
    match str(getattr(cause, "sqlstate", "") or "")[:2]:
        case "54":  # program limit exceeded: for example, a jsonb that is too large
            return cause.diag.source_file not in SERVER_LIMITS
        case "P0":  # a trigger of the site raised it
            return True
        case "":
            return False
    return type(error) is DatabaseError  # a state that the driver does not know, perhaps of a trigger
