"""Values that travel from an enqueue to the run: OPTIONS["MIDDLEWARE"]. They are stored in the row's metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import cache
from typing import Any

from django.utils.module_loading import import_string

from jobqueue.exceptions import RestoreFailed
from jobqueue.values.json import decode, encode

CONTEXT = "context"  # the key of the values in the metadata: an object by the paths of the classes
MAX_BYTES = 4096  # of all values of a row
NEITHER = "it needs the methods capture() and restore()"


@cache
def load(path: str) -> Any:
    """Return the middleware of this path, one for the process. Raises ImportError, TypeError or its own error."""
    middleware = import_string(path)()
    if not all(callable(getattr(middleware, name, None)) for name in ("capture", "restore")):
        raise TypeError(NEITHER)
    return middleware


def with_captured(metadata: Mapping[str, Any] | None, paths: Sequence[str], task_name: str) -> Mapping[str, Any] | None:
    """
    Return the metadata of a task with the values of this moment. Values that the caller has set itself are kept.

    Raises what a middleware raises, InvalidArguments for a value that is not JSON, and PayloadTooLarge.
    """
    if metadata is not None and CONTEXT in metadata:
        return metadata
    values = {path: value for path in paths if (value := load(path).capture()) is not None}
    if not values:
        return metadata
    encode(values, where=f"{task_name}(): the values of MIDDLEWARE", max_bytes=MAX_BYTES)
    return {**(metadata or {}), CONTEXT: values}


@contextmanager
def restored(metadata: str, paths: Sequence[str]) -> Iterator[None]:
    """Restore the values of a row for synchronous code. Raises RestoreFailed before it."""
    failure: BaseException | None = None
    with ExitStack() as stack:
        for path, value in _stored(metadata, paths):
            with _naming(path):
                stack.enter_context(load(path).restore(value))
        try:
            yield
        except BaseException as error:
            failure = error
            raise
    if failure is not None:  # a middleware must not turn the body's failure into a success
        raise failure


@asynccontextmanager
async def restored_async(metadata: str, paths: Sequence[str]) -> AsyncIterator[None]:
    """Restore the values of a row for a coroutine. What is an async context manager, too, is used as one."""
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        for path, value in _stored(metadata, paths):
            with _naming(path):
                manager = load(path).restore(value)
                if hasattr(manager, "__aenter__"):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
        try:
            yield
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        raise failure


def _stored(metadata: str, paths: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the values of a row, in the order of MIDDLEWARE. Values of other classes are left out."""
    values = decode(metadata).get(CONTEXT)
    return [(path, values[path]) for path in paths if path in values] if isinstance(values, dict) else []


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        raise RestoreFailed(f"{path}.restore() raised {kind}: {error}. The body was not called.") from error
