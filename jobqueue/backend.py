"""JobQueueBackend: the backend of Django's task framework that stores tasks as rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec
from django.core.exceptions import ImproperlyConfigured

from jobqueue import conf, registry
from jobqueue.backend_checks import backend_problems
from jobqueue.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    is_heard,
    task_enqueued,
)
from jobqueue.exceptions import DuplicateKey, InvalidArguments
from jobqueue.function import Call, FunctionTask, changed
from jobqueue.records import Enqueued, NewTask
from jobqueue.results import as_stored, made
from jobqueue.serialization.arguments import encode_arguments
from jobqueue.serialization.ids import new_id
from jobqueue.serialization.json import encode
from jobqueue.task_options import stored_options

if TYPE_CHECKING:
    from jobqueue import models

AnyTask: TypeAlias = FunctionTask[..., Any]
AnyResult: TypeAlias = "TaskResult[..., Any]"


REUSED_KEY = (
    "This idempotency key was used for another request ({where}): its task, arguments, queue or options differ. "
    "Use a new key for a new request."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """
    A request to run one task once.

    idempotency_key: unique in its backend until retention deletes the row. asked: the options that the caller
    sent, without defaults, because the site may change a default before the caller repeats the request.
    """

    task: AnyTask
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a digest to compare requests with the same key. The arguments must be valid."""
        request = [self.task.task_type, self.args, self.kwargs, self.asked]
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

    @cached_property
    def settings(self) -> conf.Options:
        """The parsed OPTIONS. Raises ImproperlyConfigured if they are invalid."""
        return conf.parse(self.options, self.alias)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise InvalidTask if this backend cannot run the task."""
        if isinstance(task, FunctionTask) and isinstance(
            task.run_after, timedelta
        ):  # a word of ours, which Django would trip over
            task = changed(task, run_after=None)
        try:
            super().validate_task(task)
        except InvalidTask as refusal:
            problem = str(refusal)
            if self.queues and task.queue_name not in self.queues:
                known = ", ".join(sorted(self.queues))
                problem = f"{refusal} (queue_name; QUEUES of TASKS[{self.alias!r}] has {known})"
            raise InvalidTask(f"{task.name}: {problem}") from None

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> AnyResult:  # type: ignore[override]
        """
        Insert the task in the caller's transaction and return its result.

        Raises InvalidArguments or InvalidTask, and writes nothing, if the task or its arguments are invalid.
        """
        return self._insert(self._accepted(task), [(args, kwargs)])[0]

    def enqueue_many(self, task: Task[..., Any], calls: Iterable[Call]) -> list[AnyResult]:
        """Insert one task per (args, kwargs), all or none. Results come in order."""
        return self._insert(self._accepted(task), list(calls), numbered=True)

    def get_result(self, result_id: str) -> AnyResult:
        """Return a task's result by its id. Raises TaskResultDoesNotExist."""
        pk = _parse_id(result_id)
        row = self._rows([pk]).get(pk) if pk is not None else None
        if row is None:
            raise TaskResultDoesNotExist(f"There is no task {str(result_id)[:64]!r} in backend {self.alias!r}.")
        if registry.get(row.task_type) is None:
            raise TaskResultDoesNotExist(
                f"Task {row.id} is of type {row.task_type!r}, which this process does not know. "
                "Import the module that declares it."
            )
        return self._shown(row)

    def check(self, **kwargs: Any) -> list[Any]:
        """Return the system check messages about this backend's settings."""
        return list(backend_problems(self.alias, self.options))

    def _accepted(self, task: Task[..., Any]) -> AnyTask:
        if not isinstance(task, FunctionTask):
            # The alias had another backend when the task was declared.
            task = self.task_class(**{f.name: getattr(task, f.name) for f in fields(task)})
        self.validate_task(task)
        return task

    def _insert(self, task: AnyTask, calls: Sequence[Call], *, numbered: bool = False) -> list[AnyResult]:
        from jobqueue.api import tasks as api

        rows = list(self._new_rows(task, calls, numbered))
        answers = api.enqueue(self.alias, rows) if rows else []
        results = [
            self._new_result(task, args, kwargs, answer) for (args, kwargs), answer in zip(calls, answers, strict=True)
        ]
        existing = self._rows([answer.id for answer in answers if not answer.created])
        has_receivers = is_heard(task_enqueued, logging.DEBUG)
        for place, answer in enumerate(answers):
            if not answer.created and answer.id in existing:
                results[place] = self._shown(existing[answer.id], task)
            elif answer.created and has_receivers:
                task_enqueued.send(sender=type(self), task_result=results[place])
        return results

    def submit(self, submissions: Sequence[Submission]) -> list[Enqueued]:
        """
        Insert one task per submission, all or none. A repeated idempotency_key returns the first task.

        Raises InvalidSubmissions with an error for each invalid submission, and for each key of another request.
        """
        rows, refused = [], {}
        for place, wanted in enumerate(submissions):
            try:
                task = self._accepted(wanted.task)
                row = self._new_row(
                    task,
                    self._columns(task),
                    wanted.args,
                    wanted.kwargs,
                    f"{task.name}()",
                    id=new_id(),
                    idempotency_key=wanted.idempotency_key,
                )
            except (InvalidArguments, InvalidTask) as error:
                refused[place] = error
            else:
                is_keyed = row.idempotency_key is not None
                rows.append(msgspec.structs.replace(row, idempotency_digest=wanted.digest()) if is_keyed else row)
        if refused:
            raise InvalidSubmissions(refused)
        answers = self._enqueue_once(rows)
        for wanted, answer in zip(submissions, answers, strict=True):
            if answer.created:
                result = self._new_result(wanted.task, wanted.args, wanted.kwargs, answer)
                task_enqueued.send(sender=type(self), task_result=result)
        return answers

    def _enqueue_once(self, rows: Sequence[NewTask]) -> list[Enqueued]:
        from jobqueue.api import tasks as api
        from jobqueue.engine import engine_for

        engine = engine_for(self.alias)
        with engine.transaction():
            answers = api.enqueue_once(self.alias, rows)
            seen = engine.tasks.filter(pk__in={answer.id for answer in answers if not answer.created})
            digests = dict(seen.values_list("pk", "idempotency_digest"))
            made = {answer.id for answer in answers if answer.created}
            others = {
                place: DuplicateKey(
                    REUSED_KEY.format(where="in this batch" if answer.id in made else f"task {answer.id}")
                )
                for place, (row, answer) in enumerate(zip(rows, answers, strict=True))
                if digests.get(answer.id, row.idempotency_digest) != row.idempotency_digest
            }
            if others:
                raise InvalidSubmissions(others)
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
        """Return the row of a child without inserting it. Raises as enqueue()."""
        columns = self._columns_of_child(task)
        return self._new_row(task, columns, args, kwargs, f"{task.name}()", id=id, parent_id=parent_id)

    def _new_rows(self, task: AnyTask, calls: Sequence[Call], numbered: bool) -> Iterator[NewTask]:
        columns = self._columns(task)
        for number, call in enumerate(calls):
            name = f"{task.name}(), call {number}" if numbered else f"{task.name}()"
            args, kwargs = _checked_call(call, name)
            yield self._new_row(task, columns, args, kwargs, name, id=new_id())

    def _new_row(
        self,
        task: AnyTask,
        columns: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        name: str,
        **own: Any,
    ) -> NewTask:
        limit = self.settings.max_payload_bytes
        args_text, kwargs_text = encode_arguments(
            task.func, args, kwargs, name=name, takes_context=task.takes_context, max_bytes=limit
        )
        return NewTask(args=args_text, kwargs=kwargs_text, **own, **columns)

    def _columns(self, task: AnyTask) -> dict[str, Any]:
        """Return the columns that all rows of a task share."""
        columns: dict[str, Any] = {
            "task_type": task.task_type,
            "queue_name": task.queue_name,
            "pool": registry.pool_for(task.func),
            "priority": int(task.priority),
            "max_attempts": task.max_attempts or self.settings.max_attempts,
            "options": msgspec.json.encode(stored_options(task, registry.get(task.task_type))).decode(),
            "key": task.key,
        }
        if task.metadata is not None:
            limit = self.settings.max_payload_bytes
            columns["metadata"] = encode(task.metadata, place=f"{task.name}(): metadata", max_bytes=limit)
        return columns | _moment("wake", task.run_after) | _moment("expires", task.expires)

    def _columns_of_child(self, task: AnyTask) -> Mapping[str, Any]:
        """Return _columns() after the checks of enqueue(). They are cached for tasks without changed options."""
        known = self._of_declared.get(task.task_type)
        if known is not None and known[0] is task:
            return known[1]
        columns = self._columns(self._accepted(task))
        if registry.get(task.task_type) is task and task.metadata is None:
            self._of_declared[task.task_type] = task, columns
        return columns

    @cached_property
    def _of_declared(self) -> dict[str, tuple[AnyTask, Mapping[str, Any]]]:
        return {}

    def _new_result(self, task: AnyTask, args: Any, kwargs: Any, answer: Enqueued) -> AnyResult:
        stored_args, stored_kwargs = as_stored(args, kwargs)
        return made(
            task=task,
            id=str(answer.id),
            status=TaskResultStatus.READY,
            enqueued_at=answer.enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=stored_args,
            kwargs=stored_kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _rows(self, ids: Sequence[UUID]) -> dict[UUID, models.Task]:
        if not ids:
            return {}
        from jobqueue.models import Task as Row

        rows = Row.objects.using(self.settings.database).filter(pk__in=ids, backend=self.alias)
        return {row.pk: row for row in rows}

    def _shown(self, row: models.Task, fallback: AnyTask | None = None) -> AnyResult:
        from jobqueue.results import from_row

        task = registry.get(row.task_type) or fallback
        assert task is not None
        return from_row(row, task)


def _checked_call(call: Any, name: str) -> Call:
    match call:
        case (list() | tuple() as args, dict() | Mapping() as kwargs):  # Mapping() alone takes a microsecond
            return args, kwargs
    raise InvalidArguments(f"{name}: must be a pair (args, kwargs) of a list or tuple and a dict")


def _moment(name: str, value: datetime | timedelta | None) -> dict[str, Any]:
    match value:
        case timedelta():
            return {f"{name}_after_seconds": value.total_seconds()}
        case datetime():
            return {f"{name}_at": value}
    return {}


def _parse_id(text: Any) -> UUID | None:
    """Parse an id in the form of TaskResult.id. UUID() alone accepts braces and URNs, too."""
    try:
        pk = UUID(text) if isinstance(text, str) and len(text) == 36 else None
    except ValueError:
        return None
    return pk if pk is not None and str(pk) == text.lower() else None
