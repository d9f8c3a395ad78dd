"""JobQueueBackend: the backend of Django's task framework that stores tasks as rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache, cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec
from django.core.exceptions import ImproperlyConfigured

from jobqueue.conf.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    is_heard,
    task_enqueued,
)
from jobqueue.conf.options import Options, parse_options
from jobqueue.declarations import function, registry, results
from jobqueue.declarations.checks import backend_problems
from jobqueue.declarations.function import Call, FunctionTask, copy_unchecked
from jobqueue.declarations.limits import replaces_or_reserves
from jobqueue.declarations.members import block_of, open_blocks
from jobqueue.declarations.new_task import new_task, new_tasks
from jobqueue.declarations.schedules import find_location
from jobqueue.exceptions import DuplicateKey, InvalidArguments
from jobqueue.values.records import Enqueued, NewTask
from jobqueue.values.states import Status
from jobqueue.values.text import printable

if TYPE_CHECKING:
    from types import ModuleType

    from jobqueue import models
    from jobqueue.engine import Engine

logger = logging.getLogger(__name__)

AnyTask: TypeAlias = FunctionTask[..., Any]
AnyResult: TypeAlias = "TaskResult[..., Any]"


REUSED_KEY = (
    "This idempotency key was used for another request ({where}): its task, arguments, queue or options differ. "
    "Use a new key for a new request."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueRequest:
    """A request to run one task once."""

    task: AnyTask  # with its options
    args: Sequence[Any] = ()  # of the task
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the task
    idempotency_key: str | None = None  # unique in its backend until retention deletes the row; None: without one
    # The options that the caller sent, without defaults, because the site may change a default before the caller
    # repeats the request
    asked: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a digest to compare requests with the same key. The arguments must be valid."""
        request = [self.task.first_name, self.args, self.kwargs, self.asked]
        return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class InvalidSubmissions(InvalidArguments):
    """Some submissions are invalid. errors: the reason of each, by its index."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__("; ".join(f"{index}: {error}" for index, error in errors.items()))
        self.errors = errors


class JobQueueBackend(BaseTaskBackend):
    """
    Stores tasks in the database named by OPTIONS["DATABASE"]. Executors run them.

    Django creates the backend before the apps are ready, so models are imported when a task is enqueued.
    """

    task_class = FunctionTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        queues = params.get("QUEUES", [])
        if isinstance(queues, str):  # Django would take each letter for a queue
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['QUEUES'] must be a list such as [{queues!r}], not a text.")
        super().__init__(alias, params)
        self.keys = list(params)
        self._valid: dict[str, AnyTask] = {}  # the declared tasks that validate_task() has accepted, by task_type

    @cached_property
    def settings(self) -> Options:
        """The parsed OPTIONS. Raises ImproperlyConfigured if they are invalid."""
        return parse_options(self.options, self.alias)

    @cached_property
    def settings_of_others(self) -> Options:
        """The settings for calls that are not made in a context of the site: over HTTP, and in a declaration."""
        return replace(self.settings, middleware=())

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise InvalidTask if this backend cannot run the task."""
        checked = task
        if isinstance(task, FunctionTask):
            task.raise_if_invalid()
            if self._valid.get(task.task_type) is task:
                return
            if isinstance(task.run_after, timedelta):
                checked = copy_unchecked(task, run_after=None)  # Django expects a datetime
        try:
            super().validate_task(checked)
        except InvalidTask as refusal:
            problem = str(refusal)
            if self.queues and task.queue_name not in self.queues:
                names = ", ".join(sorted(self.queues))
                problem = f"unknown queue {task.queue_name!r}. QUEUES of TASKS[{self.alias!r}]: {names}."
            raise InvalidTask(f"{task.name}: {problem}") from None
        if isinstance(task, FunctionTask) and registry.get(task.task_type) is task:
            self._valid[task.task_type] = task

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> AnyResult:  # type: ignore[override]
        """
        Insert the task in the caller's transaction and return its result.

        If a live task has the key, `on_conflict` decides: "keep" returns the result of that task, "replace" changes it
        or takes over the key, "raise" raises DuplicateKey. Raises InvalidArguments or InvalidTask, and writes nothing,
        if the task or its arguments are invalid.
        """
        ours = self._accept(task)
        return self._insert(ours, [new_task(ours, args, kwargs, self.settings)])[0]

    def enqueue_many(self, task: Task[..., Any], calls: Iterable[Call], first: int = 0) -> list[AnyResult]:
        """Insert one task per (args, kwargs), all or none. Results come in order. first: the number of the first."""
        ours = self._accept(task)
        rows = new_tasks(ours, calls, self.settings, first)
        return self._insert(ours, rows) if rows else []

    def get_result(self, result_id: str) -> AnyResult:
        """Return a task's result by its id. Raises TaskResultDoesNotExist."""
        pk = _parse_id(result_id)
        row = self._stored([pk]).get(pk) if pk is not None else None
        if row is None:
            raise TaskResultDoesNotExist(f"There is no task {str(result_id)[:64]!r} in backend {self.alias!r}.")
        task = registry.get(row.task_type)
        if task is None:
            raise TaskResultDoesNotExist(
                f"Task {row.id} is of type {row.task_type!r}, which this process does not know. "
                "Import the module that declares it."
            )
        return results.from_row(row, task)

    def check(self, **kwargs: Any) -> list[Any]:
        """Return the system check messages about this backend's settings."""
        return list(backend_problems(self.alias, self.options, self.keys, self.queues))

    def submit(self, submissions: Sequence[EnqueueRequest]) -> list[Enqueued]:
        """
        Insert one task per submission, all or none. A repeated idempotency_key returns the first task.

        Raises InvalidSubmissions with an error for each invalid submission, and for each key of another request.
        """
        from jobqueue.engine import engine_for

        rows: list[NewTask] = []
        errors: dict[int, Exception] = {}
        for index, submission in enumerate(submissions):
            key = submission.idempotency_key
            try:
                task = self._accept(submission.task)
                row = new_task(task, submission.args, submission.kwargs, self.settings_of_others, idempotency_key=key)
            except (InvalidArguments, InvalidTask) as error:
                errors[index] = error
            else:
                digest = submission.digest() if key is not None else None
                rows.append(msgspec.structs.replace(row, idempotency_digest=digest))
        if errors:
            raise InvalidSubmissions(errors)
        engine = engine_for(self.alias)
        with engine.db.transaction():
            answers = engine.enqueues.enqueue_once(rows)
            if errors := self._reused_keys(rows, answers):
                raise InvalidSubmissions(errors)
            self._notify(engine, rows, answers)
        new = zip(submissions, rows, answers, strict=True)
        self._send_enqueued(
            results.enqueued(row, request.task, answer.id, answer.enqueued_at)
            for request, row, answer in new
            if answer.created
        )
        return answers

    def new_row(
        self,
        task: AnyTask,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        id: UUID,  # noqa: A002 - the column's name
        parent_id: UUID,
    ) -> NewTask:
        """Return the row of a child without inserting it. Raises as enqueue(), and InvalidTask."""
        if replaces_or_reserves(task):
            raise InvalidTask(
                f"{task.name}: a child takes no on_conflict='replace', unique_for or debounce, because it is always a "
                "new task. Enqueue the task in a function instead, or leave the option out."
            )
        return new_task(self._accept(task), args, kwargs, self.settings, id=id, parent_id=parent_id)

    def enqueue_as(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any], **columns: Any) -> AnyResult:
        """Insert a task as enqueue() does, with these columns of its row, such as an id that the caller knows."""
        row = new_task(self._accept(task), args, kwargs, self.settings)
        return self._insert(task, [msgspec.structs.replace(row, **columns)])[0]

    def template(
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_declared: bool = False
    ) -> NewTask:
        """Return the row of each task of a schedule, with the id 0. Raises as enqueue()."""
        settings = self.settings_of_others if is_declared else self.settings
        return new_task(self._accept(task), args, kwargs, settings, id=UUID(int=0))

    # --- accept, insert, notify, answer; new_task() makes the rows

    def _accept(self, task: Task[..., Any]) -> AnyTask:
        """Return a task that this backend can enqueue. Raises InvalidTask."""
        if not isinstance(task, FunctionTask):
            # The alias had another backend when the task was declared.
            task = self.task_class(**{f.name: getattr(task, f.name) for f in fields(task)})
            function.late.discard(task.task_type)  # it was declared earlier, as a task of that backend
        self.validate_task(task)
        if function.late and task.task_type in function.late and not function.is_test():
            _warn_of_late(task)
        return task

    def _insert(self, task: AnyTask, rows: Sequence[NewTask]) -> list[AnyResult]:
        engine_module, _ = _late_modules()
        engine: Engine = engine_module.engine_for(self.alias)
        if open_blocks and (block := block_of(self.alias)):
            rows = block.as_members(rows)
            answers = engine.enqueues.enqueue(rows)
            block.count(rows, answers)
        else:
            answers = engine.enqueues.enqueue(rows)
        self._notify(engine, rows, answers)
        return self._answer(task, rows, answers)

    def _notify(self, engine: Engine, rows: Sequence[NewTask], answers: Sequence[Enqueued]) -> None:
        """Notify executors of new and replaced tasks after the commit: of READY ones, and of BLOCKED ones."""
        _, notifications = _late_modules()
        queues = set()
        for row, answer in zip(rows, answers, strict=True):
            # A call that replaces may have made its task READY, moved it to this queue, or raised its priority.
            if answer.status is Status.READY and (answer.created or row.on_conflict == "replace"):
                queues.add(row.queue_name)
            elif answer.status is Status.BLOCKED:
                queues.add(notifications.ADMIT_NOTIFICATION + row.queue_name)
        notifications.notify_after_commit(engine, queues)

    def _answer(self, task: AnyTask, rows: Sequence[NewTask], answers: Sequence[Enqueued]) -> list[AnyResult]:
        """Return the results of new tasks, and of those that hold a key. Send task_enqueued for the new ones."""
        stored = self._stored([answer.id for answer in answers if not answer.created])
        made = [
            results.from_row(holder, registry.get(holder.task_type) or task)
            if not answer.created and (holder := stored.get(answer.id))
            else results.enqueued(row, task, answer.id, answer.enqueued_at)
            for row, answer in zip(rows, answers, strict=True)
        ]
        if is_heard(task_enqueued, logging.DEBUG):
            self._send_enqueued(result for result, answer in zip(made, answers, strict=True) if answer.created)
        return made

    def announce(self, ids: Sequence[UUID]) -> None:
        """Send task_enqueued for tasks that were inserted in another way than by enqueue()."""
        if is_heard(task_enqueued, logging.DEBUG):
            declared = [(row, registry.get(row.task_type)) for row in self._stored(ids).values()]
            self._send_enqueued(results.from_row(row, task) for row, task in declared if task is not None)

    def _send_enqueued(self, created: Iterable[AnyResult]) -> None:
        if is_heard(task_enqueued, logging.DEBUG):
            for result in created:
                task_enqueued.send(sender=type(self), task_result=result)

    def _reused_keys(self, rows: Sequence[NewTask], answers: Sequence[Enqueued]) -> dict[int, Exception]:
        """Return an error for each row whose idempotency key belongs to another request."""
        created = {answer.id for answer in answers if answer.created}
        repeated = [answer.id for answer in answers if not answer.created]
        digests = {pk: task.idempotency_digest for pk, task in self._stored(repeated).items()}
        return {
            index: DuplicateKey(
                REUSED_KEY.format(where="in this batch" if answer.id in created else f"task {answer.id}")
            )
            for index, (row, answer) in enumerate(zip(rows, answers, strict=True))
            if digests.get(answer.id, row.idempotency_digest) != row.idempotency_digest
        }

    def _stored(self, ids: Sequence[UUID]) -> dict[UUID, models.Task]:
        if not ids:
            return {}
        from jobqueue.models import Task as Row

        return Row.objects.using(self.settings.database).filter(backend=self.alias).in_bulk(ids)


@cache
def _late_modules() -> tuple[ModuleType, ModuleType]:
    """Import what needs models: jobqueue.engine and jobqueue.api.notifications. An import in each call takes 4 us."""
    from jobqueue import engine
    from jobqueue.api import notifications

    return engine, notifications


def _warn_of_late(task: AnyTask) -> None:
    """
    Warn once of a task in a module that executors may not import.

    Raises InvalidTask for a task of __main__ without a name: for an executor, that is another module.
    """
    location = find_location(task)
    if task.task_type.startswith(f"{function.MAIN}."):
        raise InvalidTask(
            f"{task.name}: it is declared in {location}, which this process runs as {function.MAIN}. An executor runs "
            "manage.py under that name, and never finds the task. Move it to a module that executors import, such as "
            f"{registry.DISCOVERED_FILES} of an installed app."
        )
    function.late.discard(task.task_type)
    logger.warning(
        "task.misplaced task=%s location=%s hint=Executors may not import this module, because Django did not "
        "import it in its setup. Move the task to %s of an installed app, or import its module there.",
        printable(task.task_type),
        printable(location),
        registry.DISCOVERED_FILES,
    )


def _parse_id(text: Any) -> UUID | None:
    """Parse an id in the form of TaskResult.id. UUID() alone accepts braces and URNs, too."""
    try:
        pk = UUID(text) if isinstance(text, str) and len(text) == 36 else None
    except ValueError:
        return None
    return pk if pk is not None and str(pk) == text.lower() else None
