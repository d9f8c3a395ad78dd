"""JSON for rows: an accepted value comes back unchanged, and a rejected one is named."""

import datetime
import decimal
import enum
import itertools
import uuid
from collections import UserList, UserString, deque
from collections.abc import Iterator
from importlib import import_module
from types import MappingProxyType
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.conf.compat import PACKAGE
from jobqueue.exceptions import InvalidArguments, InvalidResult, PayloadTooLarge
from jobqueue.values.arguments import encode_arguments, read_parameters
from jobqueue.values.json import MAX_DEPTH, MAX_INTEGER, MIN_INTEGER, decode, encode, encode_result
from jobqueue.values.text import clean_text

utils = import_module("django.utils.json" if PACKAGE == "django.tasks" else "django_tasks.utils")
MEGABYTE = 1_048_576
storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable_text
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable_text, inner, max_size=4)
)


def send_receipt(order: Any, currency: str = "EUR", *lines: Any, copies: int = 1, **rest: Any) -> None: ...


def ship(order_id: int) -> None: ...


def with_context(context: Any, order_id: int, **rest: Any) -> None: ...


def encoded(*args: Any, **kwargs: Any) -> tuple[str, str]:
    return encode_arguments(send_receipt, args, kwargs, name="send_receipt()", max_bytes=MEGABYTE)


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        encoded(*args, **kwargs)
    return str(caught.value)


def stored(value: Any) -> Any:
    return decode(encode(value, where="value", max_bytes=MEGABYTE))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@given(json_values)
def test_json_values_come_back_unchanged(value: Any) -> None:
    back = stored(value)
    args, kwargs = encoded(value, "x", copies=value)

    assert back == value
    assert type(back) is type(value)
    assert (decode(args), decode(kwargs)) == ([value, "x"], {"copies": value})


@given(
    st.recursive(
        leaves | st.binary(max_size=5).filter(lambda raw: b"\x00" not in raw),
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(storable_text, inner, max_size=3),
    )
)
def test_values_are_normalized_as_in_django(value: Any) -> None:
    try:
        expected = utils.normalize_json(value)
    except ValueError:
        with pytest.raises(InvalidArguments, match="not UTF-8"):
            stored(value)
    else:
        assert stored(value) == expected


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (deque([1]), [1]),
        (UserList([1]), [1]),
        (b"abc", "abc"),
        (mark_safe("abc"), "abc"),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({None: 1, 1.5: 2, False: 3, b"k": 4, 5: 5}, {"null": 1, "1.5": 2, "false": 3, "k": 4, "5": 5}),
        ({Colour.RED: Size.LARGE}, {"red": 3}),
        (nested(MAX_DEPTH), nested(MAX_DEPTH)),
        pytest.param([MIN_INTEGER, MAX_INTEGER], [MIN_INTEGER, MAX_INTEGER], id="integers"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_other_types_become_plain_json(value: Any, expected: Any) -> None:
    assert stored(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN is not JSON"),
        (float("-inf"), "Infinity is not JSON"),
        ("a\x00b", "a NUL character cannot be stored"),
        ("é\udfff", "a lone surrogate is not text"),
        (b"a\x00", "a NUL character cannot be stored"),
        (b"\xff", "bytes that are not UTF-8 are not JSON; pass base64 text"),
        (bytearray(b"ab"), "bytearray is not JSON; pass its decode(), or base64 text"),
        (UserString("ab"), "collections.UserString is not JSON; pass str() of it"),
        ((number for number in [1]), "generator is not JSON; pass a list"),
        (memoryview(b"ab"), "memoryview is not JSON; pass str(it, 'utf-8'), or base64 text"),
        ({1, 2}, "set is not JSON; pass a list"),
        (datetime.date(2026, 1, 1), "datetime.date is not JSON; pass its isoformat()"),
        (uuid.UUID(int=0), "uuid.UUID is not JSON; pass str() of it"),
        (decimal.Decimal(1), "decimal.Decimal is not JSON; pass str() of it"),
        (gettext_lazy("x"), "is not JSON; pass str() of it"),
        (ContentType(), "is not JSON; pass its primary key"),
        (ContentType.objects.all(), "is not JSON; pass a list of primary keys"),
        (object(), "object is not JSON"),
        pytest.param(MAX_INTEGER + 1, "an integer of more than 4300 digits cannot be read back", id="+"),
        pytest.param(MIN_INTEGER - 1, "an integer of more than 4300 digits cannot be read back", id="-"),
        (nested(MAX_DEPTH + 1), "nesting deeper than 64"),
        ({1: "a", "1": "b"}, "two keys become the same text"),
        ({(1, 2): 3}, "tuple is not a JSON key"),
        ({"a\x00": 3}, "a NUL character cannot be stored"),
        ({float("nan"): 3}, "NaN is not JSON"),
    ],
)
def test_rejection_names_parameter_of_unstorable_value(value: Any, reason: str) -> None:
    assert reason in refusal(value)
    assert "send_receipt(): argument 'currency'" in refusal(1, value)
    assert "send_receipt(): argument '*lines'[1]" in refusal(1, "x", 2, value)
    assert "send_receipt(): argument 'copies'" in refusal(1, copies=value)
    assert "send_receipt(): argument 'note'" in refusal(1, note=value)


def test_rejection_shows_path_without_value() -> None:
    assert refusal({"lines": [1, 2, {"hunter2"}]}) == (
        "send_receipt(): argument 'order'['lines'][2]: set is not JSON; pass a list"
    )
    assert "hunter2" not in refusal({"password": "hunter2\x00"})


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, 2), {}, "too many positional arguments: 2, and it takes 1"),
        ((1,), {"order_id": 2}, "multiple values for argument 'order_id'"),
        ((1,), {"orderid": 2}, "got an unexpected keyword argument 'orderid'"),
    ],
)
def test_arguments_outside_signature_are_rejected(args: Any, kwargs: Any, reason: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        encode_arguments(ship, args, kwargs, name="ship()", max_bytes=1000)
    assert str(caught.value) == f"ship(): {reason}"


def test_context_is_not_an_argument() -> None:
    def encoded(*args: Any, **kwargs: Any) -> Any:
        return encode_arguments(with_context, args, kwargs, name="with_context()", takes_context=True, max_bytes=1000)

    assert encoded(5) == ("[5]", "{}")
    assert encoded(order_id=5, extra=1) == ("[]", '{"order_id":5,"extra":1}')
    with pytest.raises(InvalidArguments, match="missing a required argument: 'order_id'"):
        encoded()
    with pytest.raises(InvalidArguments, match="'context' is given by the executor"):
        encoded(5, context=None)


def test_size_limit_counts_bytes_of_all_arguments() -> None:
    text = "é" * 100  # 202 bytes with its quotes
    assert encode_arguments(ship, (text,), {}, name="ship()", max_bytes=206)
    with pytest.raises(PayloadTooLarge, match=r"^ship\(\): more than 205 bytes"):
        encode_arguments(ship, (text,), {}, name="ship()", max_bytes=205)


class Endless(UserList[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(1)


def test_endless_values_are_rejected() -> None:
    again_and_again: Any = [1]
    for _ in range(60):
        again_and_again = [again_and_again, again_and_again]
    circular: list[Any] = []
    circular.append(circular)

    assert "more than 1,048,576 bytes" in refusal(again_and_again)
    assert "more than 1,048,576 bytes" in refusal(Endless([1]))
    assert "nesting deeper than 64" in refusal(circular)


def test_result_escapes_unstorable_characters() -> None:
    text = encode_result({"a": ("x\x00\ud800", b"y")}, max_bytes=1000)
    assert decode(text) == {"a": ["x\\u0000\\ud800", "y"]}


class Broken(UserList[int]):
    def __iter__(self) -> Any:
        raise ZeroDivisionError("on the way")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [set()]}, "result['a'][0]: set is not JSON"),
        (float("nan"), "NaN"),
        ("x" * 2000, "more than 1,000 bytes"),
        (Broken([1]), "on the way"),
    ],
)
def test_result_that_cannot_be_stored_is_rejected(value: Any, reason: str) -> None:
    with pytest.raises(InvalidResult) as caught:
        encode_result(value, max_bytes=1000)
    assert reason in str(caught.value)


@given(st.text(), st.integers(10, 50))
def test_cleaned_text_can_be_stored(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert stored(cleaned) == cleaned
    assert len(text) <= limit or "left out" in cleaned


def test_long_text_loses_its_middle() -> None:
    assert clean_text("a" * 50 + "b" * 50, 10) == "aaaaa\n... 90 characters left out ...\nbbbbb"


@pytest.mark.parametrize(
    "text", ["[" * 200_000, " " + "[" * 200_000, "9" * 5000, "NaN", "[Infinity]", "{", "", " ", "[1] 2", "\x00"]
)
def test_decode_rejects_text_that_is_not_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def positional_only(a: Any, /, b: Any, *, c: Any = 1) -> None: ...


def several(a: Any, b: Any = 1, *rest: Any, c: Any, d: Any = 1, **more: Any) -> None: ...


def plain_parameters(a: Any, b: Any, c: Any = 1, *, d: Any, e: Any = 2) -> None: ...


@pytest.mark.parametrize("function", [positional_only, several, plain_parameters])
def test_calls_fit_exactly_if_they_can_be_bound(function: Any) -> None:
    parameters = read_parameters(function, False)
    for count in range(5):
        for size in range(5):
            for names in itertools.combinations(["a", "b", "c", "d", "x"], size):
                args, kwargs = [0] * count, dict.fromkeys(names, 0)
                try:
                    parameters.signature.bind(*args, **kwargs)
                except TypeError:
                    fits = False
                else:
                    fits = True
                assert (parameters.problem(args, kwargs) is None) is fits, (args, kwargs)
