"""
Values that travel with a task, for OPTIONS["MIDDLEWARE"].

`capture()` is called when a task is enqueued, and returns JSON or None. `restore()` is called with this value before
the body, and returns a context manager around it. One object serves all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone, translation

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)  # for sites without another package


class Language:
    """The active language of django.utils.translation."""

    def capture(self) -> str | None:
        return translation.get_language()

    def restore(self, value: str) -> AbstractContextManager[None]:
        return translation.override(value)


class TimeZone:
    """The current time zone of django.utils.timezone, if it has a name."""

    def capture(self) -> str | None:
        return getattr(timezone.get_current_timezone(), "key", None)

    def restore(self, value: str) -> AbstractContextManager[None]:
        return timezone.override(value)


class RequestId:
    """The id of the request: of `request_id` here, of django-guid, or `request_id` of structlog's contextvars."""

    def capture(self) -> str | None:
        value = request_id.get()
        if value is None and (guid := _installed("django_guid")):
            value = guid.get_guid()
        if value is None and (structlog := _installed("structlog")):
            value = structlog.contextvars.get_contextvars().get("request_id")
        return value

    @contextmanager
    def restore(self, value: str) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(request_id.reset, request_id.set(value))
            if guid := _installed("django_guid"):
                stack.callback(guid.set_guid, guid.get_guid())
                guid.set_guid(value)
            if structlog := _installed("structlog"):
                stack.enter_context(structlog.contextvars.bound_contextvars(request_id=value))
            yield


class Tenant:
    """The tenant of django-tenants. A task of the public schema has none. A tenant that is deleted fails the task."""

    def capture(self) -> str | None:
        utils = import_module("django_tenants.utils")
        connection: Any = connections[utils.get_tenant_database_alias()]
        name: str = connection.schema_name
        return None if name == utils.get_public_schema_name() else name

    def restore(self, value: str) -> InTenant:
        return InTenant(value)


class InTenant(AbstractContextManager[None], AbstractAsyncContextManager[None]):
    """Sets the tenant of the body's connection. Around a coroutine, in the thread of its ORM calls."""

    def __init__(self, schema_name: str) -> None:
        self._schema_name = schema_name
        self._before: Any = None  # the tenant before

    @property
    def _connection(self) -> Any:
        return connections[import_module("django_tenants.utils").get_tenant_database_alias()]

    def __enter__(self) -> None:
        model = import_module("django_tenants.utils").get_tenant_model()
        tenant = model.objects.get(schema_name=self._schema_name)
        self._before = self._connection.tenant
        self._connection.set_tenant(tenant)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.set_tenant(self._before)

    async def __aenter__(self) -> None:
        await sync_to_async(self.__enter__)()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await sync_to_async(self.__exit__)(kind, error, traceback)


@cache
def _installed(name: str) -> Any:
    """Return a package; None: it is not installed."""
    return import_module(name) if find_spec(name) is not None else None
