"""
What code calls to change the queue: views, tasks, the admin, commands, the backend.

Each function takes the backend's alias where it matters; ids are UUIDs or their text. Changes are
made in the caller's transaction, hints and wake-ups after its commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import transaction

from jobqueue import registry
from jobqueue.actions import Send, Spawn
from jobqueue.actor import ActorTask
from jobqueue.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from jobqueue.engine import engine_for
from jobqueue.engine.base import Engine
from jobqueue.engine.enqueue import Hear
from jobqueue.exceptions import InvalidArguments, TaskNotFound
from jobqueue.function import FunctionTask
from jobqueue.models import Executor, Task
from jobqueue.outcome import CancelReport, Command, Enqueued, NewMessage, NewTask, RequeueReport, Status
from jobqueue.payload import dedupe_key, encode_message, is_text
from jobqueue.task_options import time_problems

logger = logging.getLogger(__name__)

Report = TypeVar("Report", CancelReport, RequeueReport)

BATCH = 1000  # ids per statement
MOST_RUNNING = 1_000_000_000  # a limit, as far as a column goes
LOCK_WAIT_SECONDS = 1.0  # for somebody else's transaction to let go of a row, once per batch
LOCK_LOOK_SECONDS = 0.02  # between two looks
# At most one notice per queue and process in this time; a woken executor looks again after it. With 20 ms, a task that
# came within them waited for that look: of 50 tasks a second one in twenty for 22 ms.
NOTICE_GAP_SECONDS = 0.005
CANCEL_NOTICE = "!cancel"  # in place of a queue's name: look which running tasks are to be cancelled


def aliases() -> list[str]:
    """Name the backends in TASKS that are ours, subclasses included."""
    return [alias for alias in task_backends if issubclass(task_backends[alias].task_class, FunctionTask)]


def declared_queues(backend: str) -> set[str]:
    """Give the QUEUES of a backend; none where a site lets every name pass."""
    return set(settings.TASKS[backend].get("QUEUES", ["default"]))


def enqueue(backend: str, rows: Sequence[NewTask]) -> list[Enqueued]:
    """
    Insert tasks in the caller's transaction, one statement per thousand; answers in the order of `rows`.

    After the commit, waiting executors are told.
    """
    engine = engine_for(backend)
    return _told(engine, rows, engine.enqueue(rows))


def enqueue_batches(backend: str, batches: Sequence[Sequence[NewTask]], hear: Hear) -> list[Enqueued]:
    """Insert batches as enqueue(), all or none; `hear` gets the answers to each in its turn, before the commit."""
    engine = engine_for(backend)
    return _told(engine, list(chain.from_iterable(batches)), engine.enqueue_batches(batches, hear))


def enqueue_once(backend: str, rows: Sequence[NewTask]) -> list[Enqueued]:
    """As enqueue(), where a row whose idempotency_key was seen is answered with the task that has it."""
    engine = engine_for(backend)
    return _told(engine, rows, engine.enqueue_once(rows))


def _told(engine: Engine, rows: Sequence[NewTask], answers: list[Enqueued]) -> list[Enqueued]:
    ready = {
        row.queue_name
        for row, answer in zip(rows, answers, strict=True)
        if answer.created and answer.status is Status.READY
    }
    _notify_after_commit(engine, ready)
    return answers


def cancel(
    ids: Iterable[UUID | str] | UUID | str,
    *,
    tree: bool = False,
    backend: str | None = None,
    may: Callable[[Task], bool] | None = None,
) -> CancelReport:
    """
    Cancel tasks: queued, scheduled and suspended ones end at once, running ones are told to stop.

    tree: their living children go along, and theirs; they are counted too. backend: None looks in the default
    one, then in each other of ours until all ids are found. A running function is stopped as soon as it can be;
    one that returns a result all the same ends SUCCESSFUL. A running actor finishes its poll. What another
    transaction has locked for longer than a second is left as it is, and named in `busy`. may: is asked about each
    that lives, a row with its backend, task_type and queue_name; what it says no to goes on, named in `left`.
    """
    reports: list[CancelReport] = []
    busy: set[UUID] = set()
    for engine, mine in _shares(ids, backend):
        again = partial(_cancel, engine, tree=tree, may=may)
        done = _patiently(again(mine), again)
        reports, busy = reports + done, busy | done[-1].busy
    return CancelReport(
        cancelled=sum(report.cancelled for report in reports),
        requested=sum(report.requested for report in reports),
        skipped=sum(report.skipped for report in reports),
        busy=frozenset(busy),
        left=frozenset(chain.from_iterable(report.left for report in reports)),
    )


async def acancel(ids: Iterable[UUID | str] | UUID | str, **options: Any) -> CancelReport:
    """See cancel()."""
    return await sync_to_async(cancel, thread_sensitive=True)(ids, **options)


def _cancel(engine: Engine, ids: Collection[UUID], *, tree: bool, may: Callable[[Task], bool] | None) -> CancelReport:
    report = engine.cancel(ids, tree=tree, wait=False, may=may)
    if report.parents:
        _after_commit(engine, partial(_wake, engine, report.parents))
    if report.requested:
        _notify_after_commit(engine, {CANCEL_NOTICE})
    return report


def requeue(ids: Iterable[UUID | str] | UUID | str, *, backend: str | None = None) -> RequeueReport:
    """
    Put FAILED and CANCELLED tasks back in their queues, with all their attempts.

    A task whose key a live task holds stays as it is, and is counted as key_taken. backend, and what another
    transaction has locked: as for cancel().
    """
    reports: list[RequeueReport] = []
    busy: set[UUID] = set()
    for engine, mine in _shares(ids, backend):
        done = _patiently(_requeue(engine, mine), partial(_requeue, engine))
        reports, busy = reports + done, busy | done[-1].busy
    return RequeueReport(
        requeued=sum(report.requeued for report in reports),
        key_taken=sum(report.key_taken for report in reports),
        skipped=sum(report.skipped for report in reports),
        busy=frozenset(busy),
    )


async def arequeue(ids: Iterable[UUID | str] | UUID | str, **options: Any) -> RequeueReport:
    """See requeue()."""
    return await sync_to_async(requeue, thread_sensitive=True)(ids, **options)


def _requeue(engine: Engine, ids: Collection[UUID]) -> RequeueReport:
    report = engine.requeue(ids, wait=False)
    if report.requeued:
        queues = engine.tasks.filter(pk__in=ids).order_by().values_list("queue_name", flat=True).distinct()
        _notify_after_commit(engine, set(queues))
    return report


def _patiently(first: Report, again: Callable[[Collection[UUID]], Report]) -> list[Report]:
    """Do once more what somebody had locked, until a second is over; what the last report calls busy still is."""
    reports = [first]
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while reports[-1].busy and time.monotonic() < deadline:
        time.sleep(LOCK_LOOK_SECONDS)
        reports.append(again(reports[-1].busy))
    return reports


def send(
    to: UUID | str,
    body: Any = None,
    *,
    sender: UUID | str | None = None,
    dedupe: str | None = None,
    backend: str = "default",
) -> int | None:
    """
    Send a message to an actor, by its id or its live key, in the caller's transaction; gives the message's id.

    The receiver is woken after the commit. dedupe: a second message with this text to the same task does nothing
    and gives None, which makes a repeated webhook harmless, also when that task has ended. Raises TaskNotFound,
    TaskFinished, or InvalidArguments for a function task, a body that is not JSON, or a dedupe of more than 255
    characters; nothing is inserted then.
    """
    sent = send_many([Send(to, body, dedupe=dedupe)], sender=sender, backend=backend)
    return sent[0] if sent else None


def send_many(messages: Iterable[Send], *, sender: UUID | str | None = None, backend: str = "default") -> list[int]:
    """
    Send messages, all or none, in order; gives the ids of those that were not repeats.

    Locks its receivers in one order: several sends in one transaction may deadlock with another's, this not.
    """
    engine = engine_for(backend)
    wanted = list(messages)
    dedupe_keys = [dedupe_key(message.dedupe) for message in wanted]
    ids = receivers(engine, [message.to for message in wanted], dedupe_keys)
    sender_id = None if sender is None else _uuid(sender)
    rows = [
        NewMessage(
            task_id=pk,
            body=encode_message(message.body, max_bytes=engine.options.max_payload_bytes),
            sender_id=sender_id,
            dedupe_key=dedupe,
        )
        for pk, message, dedupe in zip(ids, wanted, dedupe_keys, strict=True)
    ]
    if not rows:
        return []
    refuse_functions(engine, ids)
    sent = engine.send(rows)
    _after_commit(engine, partial(_wake, engine, frozenset(ids)))
    return sent


async def asend(to: UUID | str, body: Any = None, **options: Any) -> int | None:
    """See send()."""
    return await sync_to_async(send, thread_sensitive=True)(to, body, **options)


async def asend_many(messages: Iterable[Send], **options: Any) -> list[int]:
    """See send_many()."""
    return await sync_to_async(send_many, thread_sensitive=True)(messages, **options)


def receivers(engine: Engine, names: Sequence[UUID | str | Spawn], dedupe_keys: Sequence[str | None]) -> list[UUID]:
    """
    Turn ids, their texts, keys and Spawns into ids, in order. Raises TaskNotFound for an unknown key.

    A key is that of a live task; for a message that is a repeat, also that of the task which has seen it and ended.
    """
    ids = [id_from(name) for name in names]
    wanted = list(zip(names, ids, dedupe_keys, strict=True))
    held = engine.find_keys({str(name) for name, pk, _ in wanted if pk is None})
    late = {(str(name), key) for name, pk, key in wanted if pk is None and key is not None and name not in held}
    seen = engine.find_seen(late)
    found = [pk or held.get(str(name)) or seen.get((str(name), key or "")) for name, pk, key in wanted]
    for name, pk in zip(names, found, strict=True):
        if pk is None:
            raise TaskNotFound(f"No live task of backend {engine.alias!r} has the id or key {str(name)!r}.")
    return [pk for pk in found if pk is not None]


def refuse_functions(engine: Engine, ids: Collection[UUID]) -> None:
    """Raise InvalidArguments for a receiver that reads no mail; one that no code here knows may be an actor's."""
    for pk, task_type in engine.task_types(ids).items():
        task = registry.get(task_type)
        if task is not None and not isinstance(task, ActorTask):
            raise InvalidArguments(f"Task {pk} runs {task_type}(), a function, which reads no messages: actors do.")


def id_from(name: UUID | str | Spawn) -> UUID | None:
    """Give the id that a receiver's name is; None where it must be a key."""
    match name:
        case UUID():
            return name
        case Spawn(id=pk):
            return pk
    try:
        return UUID(name) if len(name) == 36 else None
    except TypeError:
        raise TypeError(f"A message goes to a task's id or key, not to {name!r:.200}.") from None
    except ValueError:
        return None


def wake(ids: Iterable[UUID | str] | UUID | str, *, backend: str = "default") -> int:
    """Wake SUSPENDED tasks now; returns how many woke. After the commit, waiting executors are told."""
    engine, woken = engine_for(backend), 0
    for batch in _batches(ids):
        if count := engine.wake(batch):
            _after_commit(engine, partial(_tell_of, engine, batch))
            woken += count
    return woken


async def awake(ids: Iterable[UUID | str] | UUID | str, **options: Any) -> int:
    """See wake()."""
    return await sync_to_async(wake, thread_sensitive=True)(ids, **options)


def pause(
    queue_name: str,
    *,
    by: str = "",
    reason: str = "",
    until: datetime | timedelta | None = None,
    backend: str = "default",
) -> None:
    """
    Keep executors from claiming tasks of a queue; what runs goes on. Seen within a second.

    until: when it runs again by itself, a moment or so long from now. Raises ValueError for one that has passed, or is
    beyond the year 9000, and for a text that is longer than its column.
    """
    for problem in time_problems("until", until):
        raise ValueError(f"{problem}.")
    for name, value, most in (("by", by, 150), ("reason", reason, 255)):
        if value != "" and not is_text(value, most):
            raise ValueError(f"{name} must be a text of at most {most} characters, not {value!r:.200}.")
    engine = engine_for(backend)
    now = engine.now()
    resume_at = now + until if isinstance(until, timedelta) else until
    if resume_at is not None and resume_at <= now:
        raise ValueError(f"A pause of {queue_name!r} until {resume_at:%Y-%m-%d %H:%M:%S} has ended already.")
    _write_queue(engine, queue_name, paused_at=now, paused_by=by, pause_reason=reason, resume_at=resume_at)


async def apause(queue_name: str, **options: Any) -> None:
    """See pause()."""
    await sync_to_async(pause, thread_sensitive=True)(queue_name, **options)


def resume(queue_name: str, *, backend: str = "default") -> None:
    """Let executors claim tasks of a paused queue again."""
    engine = engine_for(backend)
    engine.queues.filter(name=queue_name).update(paused_at=None, paused_by="", pause_reason="", resume_at=None)
    _notify_after_commit(engine, {queue_name})


async def aresume(queue_name: str, **options: Any) -> None:
    """See resume()."""
    await sync_to_async(resume, thread_sensitive=True)(queue_name, **options)


def limit(queue_name: str, max_running: int | None, *, backend: str = "default") -> None:
    """
    Let no more tasks of a queue run at once, in all executors together; None lets any number. Seen within a second.

    What runs goes on, though it be more. Raises ValueError for less than 1: to let none run, pause the queue.
    """
    is_number = isinstance(max_running, int) and not isinstance(max_running, bool)
    if max_running is not None and not (is_number and 0 < max_running <= MOST_RUNNING):
        raise ValueError(
            f"max_running must be None or a whole number from 1 to {MOST_RUNNING:,}, not {max_running!r}; "
            "pause() lets none run."
        )
    engine = engine_for(backend)
    _write_queue(engine, queue_name, max_running=max_running)
    _notify_after_commit(engine, {queue_name})


async def alimit(queue_name: str, max_running: int | None, **options: Any) -> None:
    """See limit()."""
    await sync_to_async(limit, thread_sensitive=True)(queue_name, max_running, **options)


def command(executor_ids: Iterable[UUID | str], command: Command, *, backend: str = "default") -> int:
    """
    Ask executors to claim nothing more (QUIET), to claim again (RESUME) or to stop gracefully (STOP).

    Each hears it within a second or so, wherever it runs; its `state` says what it does. Written after the commit: a
    transaction that held an executor's row would keep it from beating. Returns how many have not stopped already.
    """
    engine = engine_for(backend)
    ids = [UUID(str(pk)) for pk in executor_ids]
    there = engine.executors.filter(pk__in=ids).exclude(state=Executor.State.STOPPED).count()
    transaction.on_commit(partial(engine.command, ids, Command(command)), using=engine.database)
    return there


def _write_queue(engine: Engine, name: str, **columns: Any) -> None:
    if not is_text(name, 128):
        raise ValueError(f"The name of a queue is a text of 1 to 128 characters, not {name!r:.200}.")
    engine.queues.update_or_create(backend=engine.alias, name=name, defaults=columns)


def _shares(ids: Iterable[UUID | str] | UUID | str, backend: str | None) -> Iterator[tuple[Engine, list[UUID]]]:
    """
    Share out ids among the backends that have them, in batches; those that nobody has go to the last.

    The default backend comes first and no further database is asked than need be: a TestCase may forbid it.
    """
    names = sorted(aliases(), key=lambda alias: alias != DEFAULT_TASK_BACKEND_ALIAS) if backend is None else [backend]
    *others, last = names or [DEFAULT_TASK_BACKEND_ALIAS]
    for batch in _batches(ids):
        left = list(dict.fromkeys(batch))
        for engine in map(engine_for, others):
            found = set(engine.among(left).values_list("pk", flat=True)) if left else set()
            if found:
                yield engine, [pk for pk in left if pk in found]
            left = [pk for pk in left if pk not in found]
        if left:
            yield engine_for(last), left


def _batches(ids: Iterable[UUID | str] | UUID | str) -> Iterator[list[UUID]]:
    try:
        numbers = iter([ids] if isinstance(ids, UUID | str) else ids)
    except TypeError:
        raise TypeError(f"ids are UUIDs, as in TaskResult.id, one or an iterable of them; not {ids!r:.200}") from None
    while batch := [_uuid(value) for value in islice(numbers, BATCH)]:
        yield batch


def _uuid(value: UUID | str) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise TaskNotFound(f"{value!r:.200} is not the id of a task; ids are UUIDs, as in TaskResult.id.") from error


def _wake(engine: Engine, ids: frozenset[UUID]) -> None:
    engine.wake_or_leave(ids)
    _tell_of(engine, ids)


def _tell_of(engine: Engine, ids: Collection[UUID]) -> None:
    """Send notices for those of these tasks that are READY."""
    if engine.options.notify:
        queues = engine.tasks.ready().filter(pk__in=ids).order_by().values_list("queue_name", flat=True).distinct()
        notices.send(engine, set(queues))


class Notices:
    """Notices to waiting executors, at most one per backend, queue and gap from this process."""

    def __init__(self) -> None:
        self._sent_at: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def send(self, engine: Engine, queues: Iterable[str]) -> None:
        now = time.monotonic()
        with self._lock:
            due = [
                queue
                for queue in queues
                if now - self._sent_at.get((engine.alias, queue), float("-inf")) >= NOTICE_GAP_SECONDS
            ]
            self._sent_at.update(((engine.alias, queue), now) for queue in due)
        if due:
            engine.notify(due)


notices = Notices()


def _notify_after_commit(engine: Engine, queues: set[str]) -> None:
    if queues and engine.options.notify:
        # A notice takes a database-wide lock at commit, so it never travels in the user's transaction.
        _after_commit(engine, partial(notices.send, engine, queues))


def _after_commit(engine: Engine, hint: Callable[[], object]) -> None:
    """Do what saves others time; that it fails, say because the database is away, is logged and no more."""

    def give_hint() -> None:  # Django's log asks a hint that fails for its name, and a partial has none
        hint()

    transaction.on_commit(give_hint, using=engine.database, robust=True)
