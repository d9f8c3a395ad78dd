"""`context.checkpoint()`: the place from which the next attempt of a function goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from jobqueue import api, task
from jobqueue.engine import engine_for
from jobqueue.exceptions import ClaimLost
from jobqueue.models import Task
from jobqueue.values.states import Status
from tests.cli.commands import jobqueue
from tests.executor.harness import Burst, Start, gates, on_both_databases, on_postgresql, row_of
from tests.executor.tasks import AT_ONCE
from tests.factories import TaskFactory
from tests.waiting import wait_until

pytestmark = on_postgresql

SECRET = {"row": 3, "api_token": "s3cret"}


@task(takes_context=True, max_attempts=3, backoff=AT_ONCE)
def count(context: Any, gate: str) -> int:
    row = context.last_checkpoint or 0
    gates[gate].arrive(row)
    if row < 20:
        context.checkpoint(row + 10)
        raise ValueError(row)
    return int(row)


@task(takes_context=True, max_attempts=3, backoff=AT_ONCE)
async def count_later(context: Any, gate: str) -> int:
    row = context.last_checkpoint or 0
    gates[gate].arrive(row)
    if row < 20:
        await context.acheckpoint(row + 10)
        raise ValueError(row)
    return int(row)


@task(takes_context=True, max_attempts=1)
def import_rows(context: Any, gate: str) -> str:
    row = context.last_checkpoint or 0
    gates[gate].arrive(row)
    while not gates[gate].is_open.is_set():
        row += 1
        context.checkpoint(row)
        if context.cancelled:
            return "to be continued"
        time.sleep(0.005)
    return "all of it"


@task(takes_context=True, max_attempts=1)
async def import_rows_later(context: Any, gate: str) -> str:
    row = context.last_checkpoint or 0
    gates[gate].arrive(row)
    while not gates[gate].is_open.is_set():
        row += 1
        await context.acheckpoint(row)
        if context.cancelled:
            return "to be continued"
        await asyncio.sleep(0.005)
    return "all of it"


@task(takes_context=True, max_attempts=2, backoff=AT_ONCE)
def write_with_checkpoint(context: Any, gate: str, is_rolled_back: bool) -> Any:
    gates[gate].arrive(context.last_checkpoint)
    if len(gates[gate].arrived) == 2:
        return context.last_checkpoint
    with transaction.atomic():
        Group.objects.create(name=gate)
        context.checkpoint(SECRET)
        if is_rolled_back:
            raise ValueError("rolled back")
    raise ValueError("after the commit")


@task(takes_context=True, max_attempts=1)
def keep(context: Any, kind: str) -> None:
    context.checkpoint("x" * 2_000_000 if kind == "large" else object())


@task(takes_context=True, max_attempts=1, atomic=True)
def keep_atomically(context: Any) -> None:
    context.checkpoint(1)


@on_both_databases
@pytest.mark.parametrize("body", [count, count_later])
def test_each_attempt_begins_with_the_last_checkpoint(burst: Burst, body: Any, backend: str) -> None:
    result = body.using(backend=backend).enqueue("counting")
    burst(backend=backend)
    assert gates["counting"].arrived == [0, 10, 20]
    assert (row_of(result).status, row_of(result).return_value) == (Status.SUCCESSFUL, 20)


@pytest.mark.parametrize("body", [import_rows, import_rows_later])
def test_body_keeps_its_place_over_a_stop(start: Start, body: Any) -> None:
    result = body.enqueue("import")
    first = start()
    gates["import"].wait_for()
    wait_until(lambda: row_of(result).inner_state, "a checkpoint")
    first.stop()
    first.join()
    stopped = row_of(result)
    assert (stopped.status, stopped.attempts) == (Status.READY, 0)
    state: Any = stopped.inner_state
    start()
    wait_until(lambda: len(gates["import"].arrived) == 2, "the second start")
    gates["import"].open()
    wait_until(lambda: row_of(result).status == Status.SUCCESSFUL, "the end")
    assert gates["import"].arrived == [0, state["checkpoint"]]


@pytest.mark.parametrize("is_rolled_back", [True, False])
def test_checkpoint_commits_with_the_transaction_around_it(burst: Burst, is_rolled_back: bool) -> None:
    write_with_checkpoint.enqueue("both", is_rolled_back)
    burst()
    assert gates["both"].arrived == [None, None if is_rolled_back else SECRET]
    assert Group.objects.filter(name="both").exists() is not is_rolled_back


@pytest.mark.parametrize(
    ("kind", "error"),
    [("large", "PayloadTooLarge: checkpoint:"), ("other", "InvalidArguments: checkpoint: object is not JSON")],
)
def test_value_that_cannot_be_stored_fails_the_attempt(burst: Burst, kind: str, error: str) -> None:
    result = keep.enqueue(kind)
    burst()
    (entry,) = row_of(result).errors
    assert error in f"{entry['exception_class_path'].rpartition('.')[2]}: {entry['message']}"
    assert row_of(result).inner_state is None


def test_atomic_task_cannot_keep_a_checkpoint(burst: Burst) -> None:
    result = keep_atomically.enqueue()
    burst()
    assert "checkpoint() needs a task without atomic=True" in row_of(result).errors[0]["message"]


@on_both_databases
def test_checkpoint_of_a_lost_claim_is_refused(backend: str) -> None:
    engine = engine_for(backend)
    row = TaskFactory.create(running=True, backend=backend, using=backend, claim_number=2)
    (claimed,) = engine.claims.read_claimed([row.pk])
    executor_id: Any = row.executor_id
    engine.checkpoints.store(claimed, executor_id, '{"checkpoint":1}')
    Task.objects.using(backend).filter(pk=row.pk).update(claim_number=3)
    with pytest.raises(ClaimLost):
        engine.checkpoints.store(claimed, executor_id, '{"checkpoint":2}')
    assert Task.objects.using(backend).get(pk=row.pk).inner_state == {"checkpoint": 1}


def test_requeue_keeps_the_checkpoint_and_new_arguments_forget_it(burst: Burst) -> None:
    failed = TaskFactory.create(failed=True, inner_state={"checkpoint": 1})
    api.requeue([str(failed.pk)])
    assert Task.objects.get(pk=failed.pk).inner_state == {"checkpoint": 1}
    waiting = TaskFactory.create(scheduled=True, key="one", inner_state={"checkpoint": 1})
    count.using(key="one", on_conflict="replace").enqueue("other")
    assert Task.objects.get(pk=waiting.pk).inner_state is None


def test_command_line_shows_the_checkpoint_without_secrets() -> None:
    row = TaskFactory.create(inner_state={"checkpoint": SECRET})
    out = jobqueue("show", row.pk).out
    assert "Checkpoint\n" in out
    assert '"row": 3' in out
    assert "s3cret" not in out
    assert "State\n" not in out
    assert jobqueue("show", row.pk, "--json").json["checkpoint"]["row"] == 3
