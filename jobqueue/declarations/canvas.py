"""chain(), group() and chord(): planned calls as workflows of this package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.backends import HOME
from jobqueue.declarations.function import RESULT, FunctionTask, PlannedCall
from jobqueue.declarations.stored_calls import decode_call, encode_call, planned
from jobqueue.declarations.workflow import workflow
from jobqueue.declarations.workflow_context import Handle, WorkflowContext
from jobqueue.exceptions import InvalidArguments
from jobqueue.values.kinds import MAX_TASK_ATTEMPTS
from jobqueue.values.records import INTERNAL_PREFIX

Calls = Iterable[PlannedCall | FunctionTask[..., Any]]

# A chain waits for an executor with the code of its next call. A result that this call does not take fails it at once.
ATTEMPTS = MAX_TASK_ATTEMPTS
GIVE_UP_ON = (InvalidArguments, InvalidTask)


@workflow(name=f"{INTERNAL_PREFIX}chain", max_attempts=ATTEMPTS, give_up_on=GIVE_UP_ON, **HOME)
def run_chain(context: WorkflowContext, *arguments: Any) -> Any:
    """Make calls one after the other. arguments: the result of what came before, if there is one, and the calls."""
    *result, calls = arguments
    for call in calls:
        result = context.gather(spawn(context, call, result))
    return result[0]


@workflow(name=f"{INTERNAL_PREFIX}group", max_attempts=ATTEMPTS, give_up_on=GIVE_UP_ON, **HOME)
def run_group(context: WorkflowContext, *arguments: Any) -> list[Any]:
    """Make calls at once. arguments: as of run_chain()."""
    *result, calls = arguments
    return [*context.gather(*[spawn(context, call, result) for call in calls])]


def spawn(context: WorkflowContext, stored: Any, result: Iterable[Any]) -> Handle[Any]:
    call = decode_call(stored)
    return context.spawn(call.task, *call.arguments(*result), **call.kwargs)


def chain(*calls: PlannedCall | FunctionTask[..., Any]) -> PlannedCall:
    """
    Plan calls one after the other, each with the result of the one before. The result is the last one.

    Start it with enqueue(). Raises InvalidArguments if a call does not take a result in front of its arguments.
    """
    if not calls:
        raise TypeError("chain() takes at least one call.")
    first, *others = map(planned, calls)
    return _planned_workflow(run_chain, [first, *(call.check((RESULT,)) for call in others)])


def group(*calls: PlannedCall | FunctionTask[..., Any]) -> PlannedCall:
    """Plan calls that run side by side, each with the previous result. The result is the list of theirs, in order."""
    return _planned_workflow(run_group, [planned(call) for call in calls])


def chord(header: PlannedCall | Calls, then: PlannedCall | FunctionTask[..., Any]) -> PlannedCall:
    """Plan a group, and a call with the list of its results. header: a group(), or its calls."""
    return chain(header if isinstance(header, PlannedCall) else group(*header), then)


def _planned_workflow(task: FunctionTask[..., Any], calls: list[PlannedCall]) -> PlannedCall:
    """Plan a workflow of calls in the backend and the queue of the first one. Raises InvalidTask for two backends."""
    places = [(call.task.backend, call.task.queue_name) for call in calls] or [(task.backend, task.queue_name)]
    backend, queue_name = places[0]
    for call in calls:
        if call.task.backend != backend:
            raise InvalidTask(
                f"{call.task.name}: it is of backend {call.task.backend!r}, the first call of {backend!r}. Give all "
                "calls the same backend with using(backend=...)."
            )
    return PlannedCall(task.using(backend=backend, queue_name=queue_name), ([encode_call(call) for call in calls],))
