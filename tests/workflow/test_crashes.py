"""assert_crash_safe() repeats a workflow with a crash at each write, and WorkflowStub runs one without a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from jobqueue import Status, WorkflowContext, step, task, workflow
from jobqueue.engine import engine_for
from jobqueue.testing import WorkflowStub, assert_crash_safe, at
from tests.models import Effect
from tests.workflow.workflows import Shipped, charges, checkout, refunds

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

DAY = timedelta(days=1)


@dataclass
class Approved:
    by: str


def write_effect(kind: str) -> str:
    Effect.objects.using(engine_for("default").database).create(
        task_id="00000000-0000-0000-0000-000000000001", kind=kind, pid=0
    )
    return kind


@step(atomic=True)
def book(kind: str) -> str:
    return write_effect(kind)


@step
def call_service(kind: str) -> str:
    return write_effect(kind)


@task
def pack(item: int) -> int:
    return item


@workflow(max_attempts=1)
def approval(context: WorkflowContext) -> str:
    context.step(book, "booked")
    approved = context.receive(Approved, timeout=DAY)
    return "too late" if approved is None else f"approved by {approved.by}"


@workflow(max_attempts=1)
def careless(context: WorkflowContext) -> None:
    context.step(call_service, "called")


@dataclass
class Declined:
    by: str


@workflow(max_attempts=1)
def lonely(context: WorkflowContext) -> None:
    context.receive(Declined)


@workflow(max_attempts=1)
def order(context: WorkflowContext) -> list[Any]:
    with context.compensate(book, "refunded"):
        charge = context.step(call_service, "charged")
        context.receive(Approved, timeout=DAY)
        items = context.gather(*(context.spawn(pack, item) for item in (1, 2)))
    return [charge, *items]


@pytest.mark.slow
def test_workflow_with_an_atomic_step_survives_each_crash(database: str, db: None) -> None:
    effects = Effect.objects.using(database)
    crashes = assert_crash_safe(approval, script=[at(hours=1).send(Approved("anna"))], check=effects.count)
    assert crashes > 10
    assert not effects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [[at(hours=1).send(Shipped("T1"))], [at(hours=1).cancel()]], ids=["ship", "cancel"])
def test_checkout_of_the_documentation_survives_each_crash(database: str, db: None, ending: list[Any]) -> None:
    def booked() -> tuple[set[int], set[str]]:
        """Return the bookings of a run. A service that knows idempotency keys books a repeated call once."""
        books = set(charges), set(refunds)
        charges.clear()
        refunds.clear()
        return books

    assert assert_crash_safe(checkout, [42, [1]], script=ending, check=booked) > 10


def test_message_without_a_reader_keeps_no_scenario_going(database: str, db: None) -> None:
    assert assert_crash_safe(lonely, script=[at(hours=1).send(Approved("anna"))]) > 1


@pytest.mark.slow
def test_effect_that_a_crash_repeats_is_reported(database: str, db: None) -> None:
    with pytest.raises(AssertionError, match=r"With a crash (?s:.*)checked: 2\n  without a crash: 1"):
        assert_crash_safe(careless, check=Effect.objects.using(database).count)


def test_stub_runs_a_workflow_with_values_in_place_of_steps() -> None:
    stub = WorkflowStub(order)
    stub.returns(call_service, "c1")
    assert stub.run().status is Status.SUSPENDED
    stub.send(Approved("anna"))
    assert (stub.status, stub.result) == (Status.SUCCESSFUL, ["c1", 1, 2])
    assert list(stub.journal) == ["book", "call_service", "receive", "pack", "pack#2"]


def test_stub_lets_time_pass_and_replaces_children() -> None:
    stub = WorkflowStub(order)
    stub.returns(call_service, "c1")
    stub.returns(pack, 7)
    stub.run()
    assert stub.advance(DAY).result == ["c1", 7, 7]


def test_stub_runs_the_compensations_of_a_failed_step() -> None:
    stub = WorkflowStub(order)
    stub.raises(call_service.using(max_attempts=1), ValueError("declined"))
    stub.returns(book, None)
    while stub.run().status is Status.SUSPENDED:
        stub.advance(DAY)
    assert (stub.status, stub.journal["book"]) == (Status.FAILED, "SUCCESSFUL")
    assert stub.error.startswith("Step call_service failed")


def test_stub_is_cancelled_while_it_waits() -> None:
    stub = WorkflowStub(order)
    stub.returns(call_service, "c1")
    stub.returns(book, None)
    assert stub.run().cancel().status is Status.CANCELLED
    assert stub.journal["book"] == "SUCCESSFUL"
