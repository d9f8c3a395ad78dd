"""The parameters of a task's function, and its arguments as JSON."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import msgspec

from jobqueue.exceptions import InvalidArguments, PayloadTooLarge
from jobqueue.values.json import Normalizer, Oversized, Rejected

encode_json = msgspec.json.Encoder().encode


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or class."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # A name imported under TYPE_CHECKING must not raise.
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a task's function without its context."""

    signature: inspect.Signature  # without the context
    positional: tuple[str, ...]  # names in order
    variable: str | None  # the name of `*args`
    # positional arguments in a call without keywords; infinite if the function requires a keyword
    min_positional: float
    context: str | None  # the name of the context parameter
    is_context_positional: bool  # a call may give the context by its position
    by_keyword: frozenset[str] = frozenset()  # names that a keyword may give
    required: frozenset[str] = frozenset()  # names without a default

    def name_of(self, index: int) -> str:
        """Return the parameter of a positional argument, as errors name it."""
        if index < len(self.positional):
            return repr(self.positional[index])
        return f"'*{self.variable}'[{index - len(self.positional)}]"

    def problem(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Return why the arguments do not fit the signature, or None. Types are not checked."""
        if not kwargs:
            # The common case, in a fifth of the time that Signature.bind() takes.
            if self.min_positional <= len(args) <= len(self.positional):
                return None
        elif self.context in kwargs:
            return f"argument {self.context!r} is given by the executor"
        elif len(args) <= len(self.positional) and kwargs.keys() <= self.by_keyword:
            by_position = self.positional[: len(args)]
            if kwargs.keys().isdisjoint(by_position) and self.required <= kwargs.keys() | {*by_position}:
                return None
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            if str(error) == "too many positional arguments":
                return f"{error}: {len(args)}, and it takes {len(self.positional)}"
            return str(error)
        return None


@lru_cache(maxsize=4096)
def read_parameters(function: Callable[..., Any], takes_context: bool) -> Parameters:
    """Return the parameters of a function. A decorator that changes them should set __signature__."""
    signature = read_signature(function)
    parameters = list(signature.parameters.values())
    context = parameters.pop(0) if takes_context and parameters else None
    kinds = inspect.Parameter
    by_position = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    required = [p.kind for p in parameters if p.default is kinds.empty]
    return Parameters(
        signature=signature.replace(parameters=parameters),
        positional=tuple(p.name for p in parameters if p.kind in by_position),
        variable=next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), None),
        by_keyword=frozenset(p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)),
        required=frozenset(
            p.name
            for p in parameters
            if p.default is kinds.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        ),
        min_positional=inf if kinds.KEYWORD_ONLY in required else sum(map(by_position.count, required)),
        context=None if context is None else context.name,
        is_context_positional=context is None or context.kind in by_position,
    )


def encode_arguments(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    takes_context: bool = False,
    max_bytes: int,
) -> tuple[str, str]:
    """
    Return the JSON texts of a task's arguments, checked against its function's signature.

    name: the task in errors, such as `send_receipt()`. max_bytes: of both texts together, in UTF-8.
    Raises InvalidArguments, which names the argument and the path inside it, or PayloadTooLarge.
    """
    parameters = read_parameters(function, takes_context)
    problem = parameters.problem(args, kwargs)
    if problem is not None:
        raise InvalidArguments(f"{name}: {problem}")
    normalizer = Normalizer(max_bytes)
    normalize = normalizer.normalize
    position: int | str = 0
    plain_args: list[Any] = []
    plain_kwargs: dict[str, Any] = {}
    try:
        for position, value in enumerate(args):  # noqa: B007 - read by the except clauses
            plain_args.append(normalize(value))
        for position, value in kwargs.items():
            plain_kwargs[normalizer.key(position)] = normalize(value)
        args_json = encode_json(plain_args)
        kwargs_json = encode_json(plain_kwargs) if plain_kwargs else b"{}"
        if len(args_json) + len(kwargs_json) > max_bytes:
            raise Oversized(max_bytes)
    except Oversized as oversized:
        raise PayloadTooLarge(f"{name}: {oversized}") from None
    except Rejected as rejected:
        label = parameters.name_of(position) if isinstance(position, int) else ascii(position)
        raise InvalidArguments(f"{name}: argument {rejected.describe(label)}") from rejected.__cause__
    return args_json.decode(), kwargs_json.decode()
