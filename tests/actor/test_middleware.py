"""OPTIONS["MIDDLEWARE"]: values that travel from an enqueue to the run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.core import checks
from django.db import connections
from django.utils import timezone, translation

from jobqueue import (
    Actor,
    Batch,
    Done,
    Every,
    InvalidArguments,
    PollContext,
    Spawn,
    Suspend,
    WorkflowContext,
    chain,
    task,
    workflow,
)
from jobqueue.api import schedules
from jobqueue.backend import EnqueueRequest
from jobqueue.conf.compat import task_backends
from jobqueue.contrib import middleware
from jobqueue.contrib.middleware import request_id
from jobqueue.declarations.checks import backend_problems
from jobqueue.declarations.middleware import NEITHER
from jobqueue.declarations.schedules import Declaration
from jobqueue.exceptions import PayloadTooLarge
from jobqueue.models import Task
from jobqueue.testing import run_until_idle
from jobqueue.values.states import Status
from tests.actor.stage import BACKOFF, Stage
from tests.fixtures import Options

SHIPPED = [f"jobqueue.contrib.middleware.{name}" for name in ("Language", "TimeZone", "RequestId")]
HERE = "tests.actor.test_middleware"


def seen() -> list[Any]:
    return [translation.get_language(), timezone.get_current_timezone_name(), request_id.get()]


pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

IN_REQUEST = ["fr", "Asia/Tokyo", "request-7"]
OUTSIDE = ["en-us", "UTC", None]


@task(max_attempts=2, backoff=BACKOFF)
def look(errors: int = 0) -> list[Any]:
    if errors and not retried:
        retried.append(seen())
        raise ValueError
    return seen()


@task
async def look_later() -> list[Any]:
    await asyncio.sleep(0)
    return seen()


@task(atomic=True)
def look_atomically() -> list[Any]:
    return seen()


class Parent(Actor):
    def poll(self, context: PollContext[Any]) -> Any:
        if ended := context.inbox.take():
            return Done([seen(), *(message.body for message in ended)])
        return [Spawn(look), Suspend()]


class AsyncParent(Actor):
    async def poll(self, context: PollContext[Any]) -> Any:
        if ended := context.inbox.take():
            return lambda: Done([seen(), *(message.body for message in ended)])
        return [Spawn(look_later), Suspend()]


@workflow(name="tests.middleware.steps")
def steps(context: WorkflowContext) -> list[Any]:
    return [seen(), context.step(seen), context.step(look), context.step(look_later)]


retried: list[Any] = []


class Broken:
    """Raises where the test says."""

    at = ""
    value: Any = 1

    def capture(self) -> Any:
        if self.at == "capture":
            raise LookupError("no tenant")
        return self.value

    @contextmanager
    def restore(self, value: Any) -> Iterator[None]:
        if self.at == "restore":
            raise LookupError("no tenant")
        try:
            yield
        except ValueError:
            if self.at != "suppress":
                raise


@pytest.fixture
def shipped(options: Options, database: str) -> None:
    options(MIDDLEWARE=SHIPPED, **({} if database == "default" else {"DATABASE": database}))


@pytest.fixture
def broken(options: Options, database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    options(MIDDLEWARE=[f"{HERE}.Broken"], **({} if database == "default" else {"DATABASE": database}))

    def broken(at: str, value: Any = 1) -> None:
        monkeypatch.setattr(Broken, "at", at)
        monkeypatch.setattr(Broken, "value", value)

    return broken


@contextmanager
def request() -> Iterator[None]:
    """Act as a request of a site."""
    token = request_id.set("request-7")
    try:
        with translation.override("fr"), timezone.override("Asia/Tokyo"):
            yield
    finally:
        request_id.reset(token)


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("body", [look, look_later, look_atomically])
def test_body_sees_values_of_its_enqueue(body: Any, stage: Stage) -> None:
    with request():
        inside, many = body.enqueue(), body.enqueue_many([((), {})])
    outside = body.enqueue()

    stage.run()

    assert stage.result(UUID(inside.id)) == stage.result(UUID(many[0].id)) == IN_REQUEST
    assert stage.result(UUID(outside.id)) == OUTSIDE


@pytest.mark.usefixtures("shipped")
def test_retry_sees_values_again(stage: Stage) -> None:
    retried.clear()
    with request():
        result = look.enqueue(errors=1)

    stage.run()
    stage.advance(60)
    stage.run()

    assert retried == [IN_REQUEST]
    assert stage.result(UUID(result.id)) == IN_REQUEST


@pytest.mark.usefixtures("shipped")
def test_workflow_gives_values_to_steps_and_children(stage: Stage) -> None:
    with request():
        result = steps.enqueue()

    stage.run()

    assert stage.result(UUID(result.id)) == [IN_REQUEST] * 4


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("actor", [Parent, AsyncParent])
def test_actor_gives_values_to_children(stage: Stage, actor: type[Actor]) -> None:
    with request():
        result = actor.enqueue()

    stage.run()

    assert stage.result(UUID(result.id)) == [IN_REQUEST, IN_REQUEST]


@pytest.mark.usefixtures("shipped")
def test_chain_and_callbacks_of_batch_get_values(stage: Stage) -> None:
    with request():
        planned = chain(look_later.plan_only(), look.plan_only()).enqueue()
        with Batch(on_success=look.plan_only()):
            look_later.enqueue()

    stage.run()
    stage.advance(1)
    stage.run()

    assert stage.result(UUID(planned.id)) == IN_REQUEST
    rows = Task.objects.using(stage.database).filter(task_type__startswith=HERE)
    assert [row.return_value for row in rows] == [IN_REQUEST] * 4


@pytest.mark.usefixtures("shipped")
def test_task_of_other_program_has_no_values(stage: Stage) -> None:
    with request():
        backend: Any = task_backends["default"]
        (answer,) = backend.submit([EnqueueRequest(task=look)])

    stage.run()

    assert stage.row(answer.id).metadata == {}
    assert stage.result(answer.id) == OUTSIDE


@pytest.mark.usefixtures("shipped")
def test_schedule_of_people_has_values_and_declared_one_has_none(stage: Stage) -> None:
    made = Declaration(name="made", task=look, expression=Every(timedelta(hours=1)), location="")
    declared = Declaration(name="declared", task=look, expression=Every(timedelta(hours=1)), location="shop/tasks.py:1")
    with request():
        row = schedules.create(made)
        columns = declared.columns()

    pk = schedules.run("made")
    stage.run()

    assert row.new_task["metadata"] != "{}"
    assert "metadata" not in columns["new_task"]
    assert stage.result(pk) == IN_REQUEST


@pytest.mark.usefixtures("shipped")
def test_values_are_in_metadata_beside_those_of_caller(stage: Stage) -> None:
    with request():
        beside = look.using(metadata={"order": 7}).enqueue()
        own = look.using(metadata={"context": {SHIPPED[0]: "de"}}).enqueue()

    stage.run()

    values = dict(zip(SHIPPED, IN_REQUEST, strict=True))
    assert stage.row(UUID(beside.id)).metadata == {"order": 7, "context": values}
    assert stage.result(UUID(own.id)) == ["de", "UTC", None]


def test_capture_that_raises_refuses_the_enqueue(broken: Callable[..., None], stage: Stage) -> None:
    broken("capture")

    with pytest.raises(LookupError, match="no tenant"):
        look.enqueue()

    assert not Task.objects.using(stage.database).exists()


@pytest.mark.parametrize(("value", "error"), [(object(), InvalidArguments), ("x" * 5000, PayloadTooLarge)])
def test_large_or_invalid_value_refuses_the_enqueue(
    broken: Callable[..., None], stage: Stage, value: Any, error: type[Exception]
) -> None:
    broken("", value)

    with pytest.raises(error, match="the values of MIDDLEWARE"):
        look.enqueue()

    assert not Task.objects.using(stage.database).exists()


@pytest.mark.parametrize("body", [look, look_later])
def test_restore_that_raises_fails_the_attempt_with_its_name(
    broken: Callable[..., None], stage: Stage, body: Any
) -> None:
    broken("restore")
    result = body.using(backoff=BACKOFF, max_attempts=2).enqueue()

    stage.run()

    assert stage.status(UUID(result.id)) is Status.SCHEDULED
    assert stage.error(UUID(result.id)) == (
        f"RestoreFailed: {HERE}.Broken.restore() raised LookupError: no tenant. The body was not called."
    )
    broken("")
    stage.advance(60)
    stage.run()
    assert stage.result(UUID(result.id)) == OUTSIDE


def test_restore_that_suppresses_leaves_the_failure(broken: Callable[..., None], stage: Stage) -> None:
    broken("suppress")
    retried.clear()
    result = look.using(max_attempts=1).enqueue(errors=1)

    stage.run()

    assert stage.error(UUID(result.id)).startswith("ValueError")


def test_check_names_class_that_cannot_be_used() -> None:
    options = {"MIDDLEWARE": ["shop.missing.Class", f"{HERE}.request"]}
    texts = [message.msg for message in backend_problems("default", options) if isinstance(message, checks.Error)]
    assert texts == [
        "TASKS['default']['OPTIONS']: MIDDLEWARE: 'shop.missing.Class' cannot be used: No module named 'shop'.",
        f"TASKS['default']['OPTIONS']: MIDDLEWARE: '{HERE}.request' cannot be used: {NEITHER}.",
    ]


# --- packages that this one does not need


@task(max_attempts=1)
def look_at_tenant() -> Any:
    return vars(connections["default"])["schema_name"]


@task(max_attempts=1)
async def look_at_tenant_later() -> Any:
    return await sync_to_async(look_at_tenant.func)()


@pytest.fixture
def tenants(monkeypatch: pytest.MonkeyPatch, options: Options) -> Callable[[str], None]:
    """Act as django-tenants with the tenant `acme`. Return what sets the tenant."""
    connection: Any = connections["default"]

    def get(schema_name: str) -> Any:
        if schema_name != "acme":
            raise LookupError(f"no tenant {schema_name}")
        return SimpleNamespace(schema_name=schema_name)

    def set_tenant(tenant: Any) -> None:
        monkeypatch.setattr(connection, "tenant", tenant, raising=False)
        monkeypatch.setattr(connection, "schema_name", tenant.schema_name, raising=False)

    utils: Any = ModuleType("django_tenants.utils")
    utils.get_public_schema_name = lambda: "public"
    utils.get_tenant_database_alias = lambda: "default"
    utils.get_tenant_model = lambda: SimpleNamespace(objects=SimpleNamespace(get=get))
    monkeypatch.setitem(sys.modules, "django_tenants", ModuleType("django_tenants"))
    monkeypatch.setitem(sys.modules, "django_tenants.utils", utils)
    monkeypatch.setattr(connection, "set_tenant", set_tenant, raising=False)
    set_tenant(SimpleNamespace(schema_name="public"))
    options(MIDDLEWARE=["jobqueue.contrib.middleware.Tenant"])
    return lambda name: set_tenant(SimpleNamespace(schema_name=name))


@pytest.mark.parametrize("body", [look_at_tenant, look_at_tenant_later])
def test_body_has_tenant_of_its_enqueue(tenants: Callable[[str], None], body: Any) -> None:
    public = body.enqueue()
    tenants("acme")
    of_tenant = body.enqueue()
    tenants("deleted")
    of_deleted = body.enqueue()
    tenants("public")

    run_until_idle()

    rows = Task.objects.in_bulk([public.id, of_tenant.id, of_deleted.id])
    assert rows[UUID(public.id)].return_value == "public"
    assert rows[UUID(of_tenant.id)].return_value == "acme"
    assert "LookupError: no tenant deleted" in rows[UUID(of_deleted.id)].errors[-1]["message"]
    assert vars(connections["default"])["schema_name"] == "public"


@task
def look_at_packages() -> list[Any]:
    return [request_id.get(), middleware._installed("django_guid").get_guid(), dict(bound)]


bound: dict[str, Any] = {}  # the contextvars of structlog


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, options: Options) -> Callable[[Any], None]:
    """Act as django-guid and structlog. Return what sets the guid."""
    guid: list[Any] = [None]

    @contextmanager
    def bound_contextvars(**values: Any) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in values.items():
                patch.setitem(bound, name, value)
            yield

    def set_guid(value: Any) -> None:
        guid[0] = value

    installed = {
        "django_guid": SimpleNamespace(get_guid=lambda: guid[0], set_guid=set_guid),
        "structlog": SimpleNamespace(
            contextvars=SimpleNamespace(bound_contextvars=bound_contextvars, get_contextvars=lambda: bound)
        ),
    }
    monkeypatch.setattr(middleware, "_installed", installed.get)
    options(MIDDLEWARE=["jobqueue.contrib.middleware.RequestId"])
    return set_guid


def test_request_id_of_other_packages_travels(packages: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    packages("guid-1")
    of_guid = look_at_packages.enqueue()
    packages(None)
    monkeypatch.setitem(bound, "request_id", "structlog-2")
    of_structlog = look_at_packages.enqueue()
    monkeypatch.delitem(bound, "request_id")

    run_until_idle()

    results = [look_at_packages.get_result(result.id).return_value for result in (of_guid, of_structlog)]
    assert results == [[name, name, {"request_id": name}] for name in ("guid-1", "structlog-2")]
    assert middleware._installed("django_guid").get_guid() is None
