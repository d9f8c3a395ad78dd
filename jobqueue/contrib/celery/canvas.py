"""Celery's signatures, chains, groups and chords as planned calls of jobqueue."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from uuid import uuid4

from django.db import transaction

import jobqueue
from jobqueue.contrib.celery import states
from jobqueue.contrib.celery.exceptions import refuse
from jobqueue.contrib.celery.payload import to_json
from jobqueue.contrib.celery.registry import current_app, task_by_name
from jobqueue.contrib.celery.result import AsyncResult, GroupResult
from jobqueue.contrib.celery.rows import insert, queue_databases, rename_context

IN_CANVAS = "Only a whole chain or chord has an id before it runs."


class Signature(dict[str, Any]):
    """
    A call that is not made yet. It is a dict, so it can be an argument of a task.

    It has more than 20 methods because Celery's signature has them.
    """

    kinds: ClassVar[dict[str, type[Signature]]] = {}

    def __init__(
        self,
        task: Any = None,
        args: Any = None,
        kwargs: Any = None,
        options: Any = None,
        type: Any = None,  # noqa: A002 - Celery's name
        subtask_type: str | None = None,
        immutable: bool = False,
        app: Any = None,
        **more: Any,
    ) -> None:
        if isinstance(task, dict):
            super().__init__(task)
            return
        super().__init__(
            task=getattr(task, "name", task),
            args=tuple(args or ()),
            kwargs=dict(kwargs or {}),
            options={**(options or {}), **more},
            subtask_type=subtask_type,
            immutable=immutable,
        )

    @classmethod
    def from_dict(cls, value: Any, app: Any = None) -> Any:
        """Return the signature of a dict, such as an argument of a task."""
        if isinstance(value, Signature):
            return value
        kind = cls.kinds.get(value.get("subtask_type") or "", Signature)
        made = dict.__new__(kind)
        dict.__init__(made, value)
        if "tasks" in value.get("kwargs", {}):
            made["kwargs"] = {**value["kwargs"], "tasks": [cls.from_dict(task) for task in value["kwargs"]["tasks"]]}
        return made

    task = property(operator.itemgetter("task"))
    args = property(lambda self: tuple(self["args"]))
    kwargs = property(operator.itemgetter("kwargs"))
    options = property(operator.itemgetter("options"))
    subtask_type = property(operator.itemgetter("subtask_type"))
    immutable = property(lambda self: bool(self.get("immutable")))
    name = task
    id = property(lambda self: self.options.get("task_id"))

    @property
    def type(self) -> Any:
        """The task. Raises NotRegistered if this process has none of this name."""
        return task_by_name(self["task"])

    @property
    def app(self) -> Any:
        """The current app."""
        return current_app

    # --- change it

    def clone(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Return a copy with further arguments, in front of its own. An immutable one takes options only."""
        made = _copy(self)
        made["options"] |= {name: value for name, value in options.items() if value is not None}
        if not self.immutable:
            made["args"] = (*(args or ()), *self.args)
            made["kwargs"] = {**self.kwargs, **(kwargs or {})}
        return made

    partial = clone

    def replace(self, args: Any = None, kwargs: Any = None, options: Any = None) -> Any:
        """Return a copy with other arguments and options."""
        made = _copy(self)
        for name, value in (("args", args), ("kwargs", kwargs), ("options", options)):
            if value is not None:
                made[name] = value
        return made

    def set(self, immutable: bool | None = None, **options: Any) -> Any:
        """Set options of apply_async()."""
        if immutable is not None:
            self.set_immutable(immutable)
        self.options.update(options)
        return self

    def set_immutable(self, immutable: bool) -> None:
        """Set whether a result is put in front of the arguments."""
        self["immutable"] = immutable

    def link(self, callback: Any) -> Any:
        """Add a call that is made with the result. Return it."""
        return self._append("link", callback)

    def link_error(self, errback: Any) -> Any:
        """Add a call that is made after a failure. Return it."""
        return self._append("link_error", errback)

    def on_error(self, errback: Any) -> Any:
        """Add a call that is made after a failure. Return this signature."""
        self.link_error(errback)
        return self

    def _append(self, option: str, sig: Any) -> Any:
        sigs = as_list(self.options.get(option))
        if sig not in sigs:
            self.options[option] = [*sigs, sig]
        return sig

    # --- start it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here, as a function."""
        made = self.clone(args, kwargs)
        return self.type(*made.args, **made.kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue the call, with further arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueue the call, with further arguments and options."""
        made = self.clone(args, kwargs, **options)
        return self.type.apply_async(made.args, made.kwargs, **made.options)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Enqueue the call after the commit."""
        transaction.on_commit(functools.partial(self.delay, *args, **kwargs))

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Run the call here and now."""
        made = self.clone(args, kwargs, **options)
        return self.type.apply(made.args, made.kwargs, **made.options)

    def freeze(self, _id: str | None = None, **_: Any) -> Any:
        """Give the call an id, and return its result."""
        task_id = self.options.setdefault("task_id", _id or str(uuid4()))
        return AsyncResult(task_id, task_name=self.task)

    def plan(self) -> jobqueue.PlannedCall:
        """Return jobqueue's planned call, for a chain, a group or a chord. Raises NotSupported for an id of its own."""
        task = self.type
        options = dict(self.options)
        if options.pop("task_id", None):
            raise refuse(f"The task_id of {self.task} in a chain, a group or a chord", IN_CANVAS)
        declared = task.converted(self.args, self.kwargs, {**options, "in_canvas": True})
        return jobqueue.PlannedCall(
            declared, tuple(to_json(self.args)), rename_context(to_json(self.kwargs)), takes_result=not self.immutable
        )

    # --- join it

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        return chain(self, other)

    def __invert__(self) -> Any:
        return self.apply_async().get()

    def __repr__(self) -> str:
        values = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task}({', '.join(values)})"

    def __json__(self) -> Any:
        return dict(self)

    def __reduce__(self) -> Any:
        return signature, (dict(self),)

    def __deepcopy__(self, memo: Any) -> Any:
        return _copy(self)


def _copy(sig: Signature) -> Any:
    made = dict.__new__(type(sig))
    dict.__init__(made, sig)
    made["kwargs"], made["options"] = dict(sig["kwargs"]), dict(sig["options"])
    return made


def _in_header(tasks: Iterable[Signature], body: Signature) -> list[Any]:
    """
    Return copies of the calls of a chord's header that make the error callbacks of its body, as in Celery.

    These have ids, so they run once although several calls may fail.
    """
    errbacks = [Signature.from_dict(errback) for errback in as_list(body.options.get("link_error"))]
    once = [_copy(errback).set(task_id=errback.id or str(uuid4())) for errback in errbacks]
    return [_with_errbacks(task, once, errbacks) for task in tasks]


def _with_errbacks(sig: Signature, errbacks: list[Signature], instead_of: list[Signature]) -> Any:
    """Return a copy that makes these calls after its failure, or after that of one of its calls."""
    made = _copy(sig)
    if isinstance(made, _Canvas):
        made["kwargs"]["tasks"] = [_with_errbacks(task, errbacks, instead_of) for task in made.tasks]
        if made.kwargs.get("body") is not None:
            made["kwargs"]["body"] = _with_errbacks(maybe_signature(made.kwargs["body"]), errbacks, instead_of)
    elif errbacks:
        own = [kept for kept in as_list(made.options.get("link_error")) if kept not in (*instead_of, *errbacks)]
        made.options["link_error"] = [*own, *errbacks]
    return made


class _Canvas(Signature):
    """A signature of several calls."""

    tasks = property(lambda self: self["kwargs"]["tasks"])

    def __init__(self, kind: str, tasks: Iterable[Any], **kwargs: Any) -> None:
        sigs = [maybe_signature(task) for task in tasks]
        super().__init__(f"celery.{kind}", (), {"tasks": sigs, **kwargs}, subtask_type=kind)

    def started(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> jobqueue.PlannedCall:
        """Return the planned call with the arguments of its start."""
        raise NotImplementedError

    def plan(self) -> jobqueue.PlannedCall:
        """Return jobqueue's planned call."""
        return self.started(self.args, {}, self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue it."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueue it. Its result is that of the last call."""
        args = (*(args or ()), *self.args)
        if self.app.conf.task_always_eager:
            return self.apply(args, kwargs, **options)
        options = {**self.options, **options}
        task_id = options.pop("task_id", None)
        call = self.started(args, kwargs or {}, options)
        return AsyncResult(insert(call.task, call.args, call.kwargs, task_id), task_name=self.task)

    def link_error(self, errback: Any) -> Any:
        """Add a call that is made after the failure of one of the calls. Return it."""
        for task in self.tasks:
            task.link_error(errback)
        return errback

    def __len__(self) -> int:
        return len(self.tasks)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{self.subtask_type}({', '.join(map(repr, self.tasks)) or '<empty>'})"


class chain(_Canvas):
    """Calls one after the other, each with the result of the one before."""

    def __new__(cls, *tasks: Any, **_: Any) -> Any:
        """Return the chain; of a single list or generator of calls, or of a single call, the chain of it."""
        return dict.__new__(cls)

    def __init__(self, *tasks: Any, app: Any = None) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Signature):
            tasks = tuple(tasks[0])
        flat: list[Any] = []
        for task in map(maybe_signature, tasks):
            is_plain = isinstance(task, chain) and not (task.options or task.args)
            flat += task.tasks if is_plain else [task]
        super().__init__("chain", flat)

    def started(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> jobqueue.PlannedCall:
        """See _Canvas."""
        if not self.tasks:
            raise TypeError("A chain needs at least one call.")
        first, *others = self.tasks
        options = dict(options)
        callbacks, errbacks = options.pop("link", None), options.pop("link_error", None)
        first = first.clone(args, kwargs, **options)
        tasks = [_with_errbacks(task, as_list(errbacks), []) for task in (first, *others)]
        for callback in as_list(callbacks):
            tasks[-1].link(callback)
        for number, following in enumerate(tasks[1:]):
            if isinstance(tasks[number], group):  # with the next call, it is a chord
                [tasks[number]] = _in_header([tasks[number]], following)
        return jobqueue.chain(*(task.plan() for task in tasks))

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueue the calls. Its result is that of the last one. An empty chain does nothing."""
        return super().apply_async(args, kwargs, **options) if self.tasks else None

    def link(self, callback: Any) -> Any:
        """Add a call that is made with the last result."""
        return self.tasks[-1].link(callback)

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Run the calls here and now."""
        last: Any = None
        for task in self.tasks:
            values = (*(args or ()), *self.args) if last is None else (last.get(disable_sync_subtasks=False),)
            result = task.clone(values, kwargs if last is None else None, **options).apply()
            result.parent, last = last, result
            if getattr(result, "state", None) in (states.IGNORED, states.REJECTED):  # as in an executor
                break
        return last


class group(_Canvas):
    """Calls side by side."""

    def __init__(self, *tasks: Any, app: Any = None) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Signature):
            tasks = tuple(tasks[0])
        elif len(tasks) == 1 and isinstance(tasks[0], group):
            tasks = tuple(tasks[0].tasks)
        super().__init__("group", tasks)

    def started(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> jobqueue.PlannedCall:
        """See _Canvas."""
        return jobqueue.group(*(task.clone(args, kwargs, **options).plan() for task in self.tasks))

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueue the calls, all or none. Each has a result of its own."""
        if "link" in options or "link_error" in options:
            raise TypeError("Cannot add link or link_error to a group: use a chord, or set it in the calls.")
        options = {**self.options, **options}
        group_id = options.pop("task_id", None) or str(uuid4())
        args = (*(args or ()), *self.args)
        with transaction.atomic(using=queue_databases()[0]):
            results = [task.apply_async(args, kwargs, **{"group_id": group_id, **options}) for task in self.tasks]
        return GroupResult(group_id, results)

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Run the calls here and now."""
        args = (*(args or ()), *self.args)
        return GroupResult(str(uuid4()), [task.apply(args, kwargs, **options) for task in self.tasks])

    def link(self, callback: Any) -> Any:
        """Add a call that is made with the result of the first call, as in Celery."""
        return self.tasks[0].link(callback)

    def set_immutable(self, immutable: bool) -> None:
        """Set it for each call."""
        for task in self.tasks:
            task.set_immutable(immutable)

    def skew(self, start: float = 1.0, stop: float | None = None, step: float = 1.0) -> Any:
        """Let the calls start one after the other: after `start` seconds, and `step` more each."""
        for number, task in enumerate(self.tasks):
            wait = start + number * step
            task.set(countdown=wait if stop is None else min(wait, stop))
        return self


class chord(_Canvas):
    """A group, and a call with the list of its results."""

    def __init__(self, header: Any, body: Any = None, app: Any = None, **_: Any) -> None:
        tasks = header.tasks if isinstance(header, group) else [header] if isinstance(header, Signature) else header
        super().__init__("chord", tasks, body=None if body is None else maybe_signature(body))

    body = property(lambda self: maybe_signature(self["kwargs"]["body"]))

    def started(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> jobqueue.PlannedCall:
        """See _Canvas."""
        body = self.body.clone((), None, **options)
        header = _in_header((task.clone(args, kwargs) for task in self.tasks), body)
        return jobqueue.chord([task.plan() for task in header], body.plan())

    def __call__(self, body: Any = None, **options: Any) -> Any:
        """Enqueue it, with this body."""
        made = self if body is None else chord(self.tasks, body)
        return made.apply_async((), None, **{**self.options, **options})

    def link(self, callback: Any) -> Any:
        """Add a call that is made with the result of the body."""
        return self.body.link(callback)

    def link_error(self, errback: Any) -> Any:
        """Add a call that is made after a failure in the header, or after that of the body. Return it."""
        return self.body.link_error(errback)

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Run the calls here and now."""
        args = (*(args or ()), *self.args)
        results = [task.apply(args, kwargs).get(disable_sync_subtasks=False) for task in self.tasks]
        return self.body.apply((results,), **options)


Signature.kinds |= {"chain": chain, "group": group, "chord": chord}


def as_list(value: Any) -> list[Any]:
    """Return a value as a list of itself, and None as an empty one."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def signature(varies: Any, *args: Any, **options: Any) -> Any:
    """Return a signature of a name, a task or a dict."""
    if isinstance(varies, Mapping):
        return _copy(varies) if isinstance(varies, Signature) else Signature.from_dict(varies)
    return Signature(varies, *args, **options)


subtask = signature


def maybe_signature(value: Any, app: Any = None) -> Any:
    """Return a signature of a dict, and of a task; anything else as it is."""
    if isinstance(value, Mapping) and not isinstance(value, Signature):
        return Signature.from_dict(value)
    return value.s() if hasattr(value, "apply_async") and not isinstance(value, Signature) else value


def map_signature(task: Any, calls: list[list[Any]]) -> Signature:
    """Return a call that makes these calls of a task one after the other."""
    return Signature("celery.starmap", (), {"task": task.name, "calls": calls}, immutable=True)
