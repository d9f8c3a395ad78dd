"""Celery's Task on this queue: how it is declared, called, run and retried."""

from __future__ import annotations

import functools
import inspect
import random
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn
from uuid import uuid4, uuid5

from django.db import IntegrityError, transaction

import jobqueue
from jobqueue.contrib.celery import options as celery_options
from jobqueue.contrib.celery import signals, states
from jobqueue.contrib.celery.canvas import Signature, as_list, group, map_signature
from jobqueue.contrib.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    TimeLimitExceeded,
    refuse,
)
from jobqueue.contrib.celery.payload import from_json, to_json
from jobqueue.contrib.celery.registry import current_app, task_by_name
from jobqueue.contrib.celery.request import METADATA, CeleryRequest, allow_join_result, innermost, pop, push, pushed
from jobqueue.contrib.celery.result import AsyncResult, EagerResult
from jobqueue.contrib.celery.rows import CONTEXT, RENAMED, insert, read_task, rename_context, row_id

MAX_META_BYTES = 10_000


class ExceptionInfo:
    """An exception with its traceback as text, as handlers of Celery get it."""

    def __init__(self, exception: BaseException) -> None:
        self.exception, self.type = exception, type(exception)
        self.traceback = "".join(traceback.format_exception(exception))

    def __str__(self) -> str:
        return self.traceback


class Task:
    """
    A task of Celery. `@shared_task` makes a subclass of it and its only instance.

    It has more than 15 attributes because each option of a task is one, and more than 20 methods because code of
    Celery calls and overrides them.
    """

    abstract: bool = True
    name: str = ""
    app: Any = current_app
    queue: str | None = None
    priority: int | None = None
    expires: Any = None
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_kwargs: dict[str, Any] | None = None
    retry_backoff: bool | float = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    rate_limit: str | float | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = None
    track_started: bool | None = None
    typing: bool = True
    acks_late: bool = True
    throws: tuple[type[BaseException], ...] = ()
    serializer: str | None = None
    MaxRetriesExceededError = MaxRetriesExceededError
    declared: jobqueue.FunctionTask[..., Any] | None = None

    # --- what the site writes

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work. Each task defines it."""
        raise NotImplementedError("Tasks must define the run method.")

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Override it: it is called before each attempt."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Override it: it is called after an attempt that succeeded."""

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: ExceptionInfo) -> None:
        """Override it: it is called after an attempt that will be retried."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: ExceptionInfo) -> None:
        """Override it: it is called after an attempt that failed the task."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: ExceptionInfo | None
    ) -> None:
        """Override it: it is called after an attempt that succeeded, or that failed the task."""

    # --- call it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here, as a function."""
        with pushed(self, CeleryRequest(args=args, kwargs=kwargs)):
            return self.run(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Enqueue the task with these arguments, in the caller's transaction."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """
        Enqueue the task with options of Celery: countdown, eta, expires, queue, priority, link, and others.

        With task_always_eager, run it now. Raises TypeError for arguments that it does not take, and NotSupported for
        an option without counterpart.
        """
        if not isinstance(args or (), list | tuple) or not isinstance(kwargs or {}, Mapping):
            raise TypeError("The arguments of a task must be a list or tuple, and a mapping.")
        args, kwargs = list(args or ()), dict(kwargs or {})
        if self.soft_time_limit and self.time_limit and self.soft_time_limit > self.time_limit:
            raise ValueError("soft_time_limit must be less than or equal to time_limit")
        if self.typing:
            signature_of(self).bind(*args, **kwargs)
        if self.app.conf.task_always_eager:
            self.converted(args, kwargs, options)
            with allow_join_result(False):
                return self.apply(from_json(to_json(args)), from_json(to_json(kwargs)), task_id=task_id, **options)
        if task_id is not None:
            options["task_id"] = str(task_id)
        task = self.converted(args, kwargs, options)
        return AsyncResult(insert(task, to_json(args), rename_context(to_json(kwargs)), task_id), task_name=self.name)

    def converted(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> jobqueue.FunctionTask[..., Any]:
        """Return jobqueue's task with the options of a call, of its route and of this task."""
        own = {name: value for name in celery_options.OWN_OPTIONS if (value := getattr(self, name, None)) is not None}
        options = own | {name: value for name, value in options.items() if value is not None}
        routed = celery_options.route(self.name, args, kwargs, options, self, self.app.conf)
        using = celery_options.call_options(self.name, routed, self.app.conf)
        task = declared_task(self)
        return task.using(**using) if using else task

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Enqueue the task after the commit. delay() is as safe, because its row is part of the transaction."""
        transaction.on_commit(functools.partial(self.delay, *args, **kwargs))

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """See delay_on_commit()."""
        transaction.on_commit(functools.partial(self.apply_async, *args, **kwargs))

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        retries: int = 0,
        throw: bool | None = None,
        link: Any = None,
        link_error: Any = None,
        headers: Any = None,
        **options: Any,
    ) -> EagerResult:
        """Run the task here and now, with its retries, which do not wait. throw: raise its error."""
        outer, task_id = innermost()[1], str(task_id or uuid4())
        address = {"exchange": None, "routing_key": options.get("queue"), "priority": options.get("priority")}
        request = CeleryRequest(
            id=task_id,
            task=self.name,
            args=args or (),
            kwargs=kwargs or {},
            retries=retries,
            is_eager=True,
            called_directly=False,
            hostname=socket.gethostname(),
            callbacks=as_list(link),
            errbacks=as_list(link_error),
            headers=headers,
            parent_id=outer.id,
            root_id=outer.root_id or task_id,
            delivery_info={"is_eager": True, **address},
            ignore_result=options.get("ignore_result"),
            **(headers or {}),
        )
        attempt = CeleryRun(self, request)
        throws = self.app.conf.task_eager_propagates if throw is None else throw
        try:
            value = attempt.run()
        except Retry as retry:
            if retry.sig is None:
                return EagerResult(task_id, retry, states.RETRY, name=self.name)
            more = {"throw": throws, "headers": headers, "link": link, "link_error": link_error}
            return self.apply(args, kwargs, task_id, retries=retries + 1, **more, **options)
        except Exception as error:
            if throws:
                raise
            text = ExceptionInfo(error).traceback
            return EagerResult(task_id, error, attempt.state, traceback=text, name=self.name)
        return EagerResult(task_id, value, attempt.state, name=self.name)

    # --- plan a call

    def signature(self, args: Any = None, *starargs: Any, **options: Any) -> Signature:
        """Return a signature of the task."""
        return Signature(self, args, *starargs, **options)

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature: the result of what came before is put in front of these arguments."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a signature with these arguments only."""
        return self.signature(args, kwargs, immutable=True)

    def map(self, iterable: Any) -> Signature:
        """Return a signature that calls the task here with each value. Its result is the list of results."""
        return map_signature(self, [[value] for value in iterable])

    def starmap(self, iterable: Any) -> Signature:
        """Return a signature as map(), with tuples of arguments."""
        return map_signature(self, [list(value) for value in iterable])

    def chunks(self, iterable: Any, n: int) -> Any:
        """Return a group of starmap(), with n tuples of arguments each."""
        calls = list(iterable)
        return group(self.starmap(calls[first : first + n]) for first in range(0, len(calls), n))

    # --- in a run

    @property
    def request(self) -> CeleryRequest:
        """The request of the running task."""
        return innermost(self)[1]

    def push_request(self, *args: Any, **values: Any) -> None:
        """Set the request of the task, for tests."""
        push(self, CeleryRequest(args=args, **{"called_directly": False, **values}))

    def pop_request(self) -> None:
        """Undo push_request()."""
        pop()

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """
        End this attempt, and run the task again later. Raises Retry.

        After max_retries, raises the current exception, or exc, or MaxRetriesExceededError. Raises NotSupported for
        other arguments or options than those of this run.
        """
        request = self.request
        if request.called_directly:
            raise_with_context(exc or Retry("Task can be retried"))
        if not eta and countdown is None:
            countdown = self.default_retry_delay
        limit = self.max_retries if max_retries is None else max_retries
        request.max_retries = max_retries  # autoretry_for obeys what the body has asked for
        if limit is not None and request.retries + 1 > limit:
            if exc:
                raise_with_context(exc)
            raise self.MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
                task_args=request.args,
                task_kwargs=request.kwargs,
            )
        is_same = (args is None or [*args] == [*request.args]) and kwargs in (None, request.kwargs)
        if not is_same or options or not throw:
            names = ["args or kwargs"] * (not is_same) + [*options] + ["throw=False"] * (not throw)
            raise refuse(f"retry() with {', '.join(names)}", "The same row runs again; call apply_async() for another.")
        sig = self.signature(request.args, request.kwargs) if request.is_eager else None
        when = celery_options.aware_moment(eta) if eta else countdown
        attempts = celery_options.EVERY_ATTEMPT if limit is None else limit + 1
        raise Retry(exc=exc, when=when, is_eager=request.is_eager, sig=sig, max_attempts=attempts)

    def update_state(self, task_id: str | None = None, state: str | None = None, meta: Any = None, **_: Any) -> None:
        """Show a state and a value of this run to readers of its AsyncResult. Written at most once a second."""
        request = self.request
        if task_id not in (None, request.id):
            raise refuse("update_state() of another task", "Each task reports its own state.")
        request.reported = state, meta
        if request.context is not None:
            request.context.report(*progress_of(state, meta))

    def AsyncResult(self, task_id: str, **_: Any) -> AsyncResult:
        """Return the result of a call of this task."""
        return AsyncResult(task_id, task_name=self.name)

    def replace(self, sig: Any) -> NoReturn:
        raise refuse("Task.replace()", "Write a workflow: it is Python, with if and for.")

    add_to_chord = add_trail = replace

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"

    def __reduce__(self) -> Any:
        return task_by_name, (self.name,)


class CeleryRun:
    """One attempt to run a task, in an executor or eagerly, with the handlers and signals around it."""

    def __init__(self, task: Task, request: CeleryRequest) -> None:
        self.task, self.request = task, request
        self.state = states.FAILURE
        self.value: Any = None
        self.einfo: ExceptionInfo | None = None

    def run(self) -> Any:
        """Return the result of the body, or None if it raises Ignore. Raises its other errors."""
        task, request = self.task, self.request
        call = (request.id or "", request.args, request.kwargs)
        names = {"task_id": request.id, "task": task, "args": request.args, "kwargs": request.kwargs}
        with pushed(task, request):
            try:
                signals.task_prerun.send(task, **names)
                task.before_start(*call)
                self._run_body()
            except Ignore:
                self.state, self.value = states.IGNORED, None
            except Reject as rejected:
                self.state, self.value = states.REJECTED, rejected
                raise
            except Retry as retry:
                self._keep(states.RETRY, retry)
                assert self.einfo
                task.on_retry(retry.exc, *call, self.einfo)
                signals.task_retry.send(task, request=request, reason=retry, einfo=self.einfo)
                raise
            except (Exception, TimeLimitExceeded) as error:
                self._keep(states.FAILURE, error)
                assert self.einfo
                self._call_errbacks(error)
                task.on_failure(error, *call, self.einfo)
                signals.task_failure.send(
                    task,
                    task_id=request.id,
                    exception=error,
                    args=request.args,
                    kwargs=request.kwargs,
                    traceback=error.__traceback__,
                    einfo=self.einfo,
                )
                raise
            finally:
                if self.einfo or self.state != states.FAILURE:  # not after an interruption
                    if self.state in (states.SUCCESS, states.FAILURE):
                        task.after_return(self.state, self.value, *call, self.einfo)
                    signals.task_postrun.send(task, **names, retval=self.value, state=self.state)
        return self.value

    def _keep(self, state: str, error: BaseException) -> None:
        self.state, self.value, self.einfo = state, error, ExceptionInfo(error)

    def _run_body(self) -> None:
        task, request = self.task, self.request
        body = task.run if type(task).__call__ is Task.__call__ else task
        try:
            value = body(*request.args, **request.kwargs)
        except (Ignore, Reject, Retry):
            raise
        except task.dont_autoretry_for:
            raise
        except tuple(task.autoretry_for) as error:
            options = dict(task.retry_kwargs or {})
            if task.retry_backoff:
                options["countdown"] = backoff(task, request.retries)
            if request.max_retries is not None:
                options["max_retries"] = request.max_retries
            raise task.retry(exc=error, **options) from error
        self._call_callbacks(value)
        self.state, self.value = states.SUCCESS, value
        task.on_success(value, request.id or "", request.args, request.kwargs)
        signals.task_success.send(task, result=value)

    def _call_callbacks(self, value: Any) -> None:
        for number, stored in enumerate(self.request.callbacks or ()):
            start_after(self.request, f"link{number}", stored, (value,))

    def _call_errbacks(self, error: BaseException) -> None:
        """Call those that take the request, the error and the traceback here, and enqueue others with the task's id."""
        for number, stored in enumerate(self.request.errbacks or ()):
            errback = Signature.from_dict(stored)
            task = getattr(errback, "type", None)
            if isinstance(task, Task) and not errback.immutable and takes_error(task, errback):
                task(self.request, error, error.__traceback__, *errback.args, **errback.kwargs)
            else:
                start_after(self.request, f"link_error{number}", stored, (self.request.id,))


def start_after(request: CeleryRequest, name: str, stored: Any, args: tuple[Any, ...]) -> None:
    """Start a linked call, once: an attempt that runs again after a crash finds it by its id."""
    sig = Signature.from_dict(stored)
    if request.is_eager:
        sig.apply(args)
        return
    pk = sig.id or str(uuid5(row_id(request.id), name))
    if read_task(pk) is None:
        with suppress(jobqueue.DuplicateKey, IntegrityError):  # another call of its chord has failed at this moment
            sig.apply_async(args, task_id=pk)


def takes_error(task: Task, errback: Signature) -> bool:
    """Return whether a callback takes a request, an error and a traceback, beside its own arguments."""
    kinds = inspect.Parameter
    parameters = signature_of(task).parameters.values()
    by_position = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    return any(p.kind is kinds.VAR_POSITIONAL for p in parameters) or len(by_position) - len(errback.args) >= 3


def backoff(task: Task, retries: int) -> int:
    """Return the seconds before a retry that autoretry_for asks for."""
    wait = min(task.retry_backoff_max, int(max(1.0, float(task.retry_backoff))) * 2**retries)
    return random.randrange(wait + 1) if task.retry_jitter else wait


def raise_with_context(error: Any) -> NoReturn:
    """Raise the current exception, if it is this one; otherwise this one, because of it."""
    current = sys.exc_info()[1]
    if current is None or current is error:
        raise error
    raise error from current


def progress_of(state: str | None, meta: Any) -> tuple[float, float | None, str]:
    """Return progress for a state: its numbers, if it has some, and both as JSON."""
    import json

    text = json.dumps({"state": state, "meta": to_json(meta)})
    if len(text) > MAX_META_BYTES:
        raise ValueError(
            f"update_state() takes at most {MAX_META_BYTES} bytes as meta, not {len(text)}. Store the rest elsewhere."
        )
    numbers = meta if isinstance(meta, Mapping) else {}
    done, total = numbers.get("current", numbers.get("done", 0)), numbers.get("total")
    is_number = all(isinstance(value, int | float) and value >= 0 for value in (done, total or 0))
    return (float(done), None if total is None else float(total), text) if is_number else (0.0, None, text)


# --- jobqueue's task


def signature_of(task: Task) -> inspect.Signature:
    """Return the signature of the task without self."""
    cached: inspect.Signature | None = task.__dict__.get("_signature")
    if cached is None:
        cached = task.__dict__["_signature"] = inspect.signature(task.run)
    return cached


def declared_task(task: Task) -> jobqueue.FunctionTask[..., Any]:
    """Return jobqueue's task, which runs Celery's, and declare it at the first call."""
    if task.declared is None:

        def body(context: Any, *args: Any, **kwargs: Any) -> Any:
            return run_in_executor(task, context, args, kwargs)

        function: Any = inspect.unwrap(task.run)
        parameters = [
            parameter.replace(name=RENAMED) if name == CONTEXT else parameter
            for name, parameter in signature_of(task).parameters.items()
        ]
        first = inspect.Parameter(CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        body.__module__, body.__doc__ = type(task).__module__, task.__doc__
        body.__name__ = body.__qualname__ = getattr(function, "__name__", type(task).__name__)
        body.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        is_named = task.name != f"{body.__module__}.{body.__qualname__}"
        declared = celery_options.declared_options(task, task.app.conf) | ({"name": task.name} if is_named else {})
        task.declared = jobqueue.task(takes_context=True, **declared)(body)
    return task.declared


def run_in_executor(task: Task, context: Any, args: Any, kwargs: Any) -> Any:
    """Run an attempt of Celery's task as the body of jobqueue's. Raises what asks the executor for a retry."""
    result = context.task_result
    own = context.metadata.get(METADATA, {})
    kwargs = {CONTEXT if name == RENAMED else name: from_json(value) for name, value in kwargs.items()}
    pk = own.get("id", result.id)
    queue, headers = result.task.queue_name, own.get("headers") or {}
    redelivered = context.attempt > context.retries + 1
    request = CeleryRequest(
        **{
            **headers,
            "id": pk,
            "task": task.name,
            "args": [from_json(value) for value in args],
            "kwargs": kwargs,
            "retries": context.retries,
            "called_directly": False,
            "hostname": socket.gethostname(),
            "correlation_id": pk,
            "root_id": own.get("root_id", pk),
            "parent_id": own.get("parent_id"),
            "group": own.get("group_id"),
            "headers": headers,
            "callbacks": as_list(from_json(own.get("link"))),
            "errbacks": as_list(from_json(own.get("link_error"))),
            "ignore_result": own.get("ignore_result"),
            "context": context,
            "delivery_info": {
                "exchange": "",
                "routing_key": queue,
                "priority": result.task.priority,
                "redelivered": redelivered,
            },
        }
    )
    try:
        run = CeleryRun(task, request)
        value = run.run()
    except Reject as rejected:
        if rejected.requeue:
            raise jobqueue.Retry(f"Rejected: {rejected.reason}", after=0) from rejected
        raise jobqueue.GiveUp(f"Rejected: {rejected.reason}") from rejected
    state, meta = request.reported
    if run.state == states.IGNORED and state == states.FAILURE:  # Celery keeps this state, too
        raise jobqueue.GiveUp(f"The body has reported FAILURE: {meta!r:.1000}")
    if own.get("in_canvas"):
        if run.state == states.IGNORED:  # Celery does not go on with the chain either
            raise jobqueue.GiveUp("Ignored: what comes after it in its chain or chord does not run.")
        return to_json(value)
    ignored = next((flag for flag in (request.ignore_result, task.ignore_result) if flag is not None), None)
    return None if (task.app.conf.task_ignore_result if ignored is None else ignored) else to_json(value)
