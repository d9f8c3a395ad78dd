"""Reports of what the body of a workflow must not do outside of its steps: a later run may get another answer."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from inspect import unwrap
from types import CodeType
from typing import Any

from django.db import connections

from jobqueue.declarations.function import location_of_caller, relative
from jobqueue.exceptions import NonDeterminism
from jobqueue.executor.telemetry.logger import get_logger

logger = get_logger(__name__)

CLOCKS = {
    *(("datetime", name) for name in ("now", "utcnow", "today")),
    *(("time", name) for name in ("time", "time_ns", "monotonic", "perf_counter")),
    *(("random", name) for name in ("random", "randint", "choice", "shuffle", "uniform", "sample")),
    *(("uuid", name) for name in ("uuid1", "uuid4")),
    ("timezone", "now"),
    ("date", "today"),
}
NAMES = {"uuid1", "uuid4", "localtime", "localdate"}  # as imported from their modules
_reported: set[str] = set()  # problems with their places, each once in a process


class Guard:
    """Reports queries while the body runs outside of its steps. is_strict: raise, in a test."""

    def __init__(self, is_strict: bool) -> None:
        self.is_strict = is_strict
        self._is_on = False

    @contextmanager
    def watch(self, function: Callable[..., Any]) -> Iterator[None]:
        """Watch the body of a workflow that this thread runs."""
        for location, name in calls_of_clocks(function):
            self.report(f"calls {name}(). Use context.now(), uuid() or random(), or call it in a step", location)
        with ExitStack() as stack:
            for connection in connections.all():
                stack.enter_context(connection.execute_wrapper(self._execute))
            self._is_on = True
            yield
            self._is_on = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Allow queries, as of a step."""
        before, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = before

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if self._is_on and not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):  # of transaction.atomic()
            self.report("queries the database. Do it in a step: context.step(function)", location_of_caller())
        return execute(sql, params, many, context)

    def report(self, problem: str, location: str) -> None:
        """Raise NonDeterminism in a test. Otherwise log each problem once."""
        sentence = f"The workflow {problem}. A later run may get another answer."
        if self.is_strict:
            raise NonDeterminism(f"{location}: {sentence}")
        if f"{location} {problem}" not in _reported:
            _reported.add(f"{location} {problem}")
            logger.warning("workflow.undetermined location=%s hint=%s", location, sentence)


@cache
def calls_of_clocks(function: Callable[..., Any]) -> tuple[tuple[str, str], ...]:
    """Return the places where a function's own code reads a clock or makes random values, with what it calls."""
    code = unwrap(function).__code__
    return tuple((relative(f"{code.co_filename}:{line}"), name) for line, name in _clocks_in(code))


def _clocks_in(code: CodeType) -> Iterator[tuple[int, str]]:
    line, before = code.co_firstlineno, ""
    for instruction in dis.get_instructions(code):
        # Python 3.13 has renamed it, and keeps the old name for a bool.
        line = getattr(instruction, "line_number", instruction.starts_line) or line
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL" and name in NAMES:
            yield line, name
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and (before, name) in CLOCKS:
            yield line, f"{before}.{name}"
        before = name if isinstance(name, str) else ""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _clocks_in(constant)
