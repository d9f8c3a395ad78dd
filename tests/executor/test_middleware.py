"""OPTIONS["MIDDLEWARE"] in an executor's threads and on its event loop. tests/actor/ has what does not need one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.utils import translation

from jobqueue import task
from tests.executor.harness import Burst, on_both_databases, on_postgresql, row_of
from tests.fixtures import Options

pytestmark = on_postgresql


@task
def say_language() -> str | None:
    return translation.get_language()


@task
async def say_language_later() -> str | None:
    await asyncio.sleep(0)
    return translation.get_language()


@on_both_databases
@pytest.mark.parametrize("body", [say_language, say_language_later])
def test_value_is_restored_around_its_body_only(burst: Burst, options: Options, backend: str, body: Any) -> None:
    database = {"DATABASE": backend} if backend == "sqlite" else {}
    options(MIDDLEWARE=["jobqueue.contrib.middleware.Language"], **database)
    bodies = body.using(backend=backend)
    with translation.override("fr"):
        french = bodies.enqueue()
    plain = bodies.enqueue()
    with translation.override(None):
        without = bodies.enqueue()

    burst(backend=backend, threads=1)

    assert [row_of(result).return_value for result in (french, plain, without)] == ["fr", "en-us", "en-us"]
    assert row_of(without).metadata == {}
