"""The JSON boundary: what is let through comes back as it was, the rest is refused by name."""

import datetime
import decimal
import enum
import sys
import uuid
from collections import UserList, deque
from types import MappingProxyType
from typing import Any

import pytest
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.compat import normalize_json
from jobqueue.exceptions import InvalidArguments, InvalidResult
from jobqueue.payload import MAX_DEPTH, clean_text, decode, encode, encode_arguments, encode_result

MEGABYTE = 1_048_576
storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable_text
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable_text, inner, max_size=4)
)


def send_receipt(order: Any, currency: str = "EUR", *lines: Any, copies: int = 1, **rest: Any) -> None: ...


def only(order_id: int) -> None: ...


def with_context(context: Any, order_id: int, **rest: Any) -> None: ...


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        encode_arguments(send_receipt, args, kwargs, name="send_receipt()", max_bytes=MEGABYTE)
    return str(caught.value)


def stored(value: Any) -> Any:
    return decode(encode(value, place="value", max_bytes=MEGABYTE))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@given(json_values)
def test_json_comes_back_as_it_was(value: Any) -> None:
    back = stored(value)
    assert back == value
    assert type(back) is type(value)


@given(json_values)
def test_arguments_come_back_as_they_were(value: Any) -> None:
    args, kwargs = encode_arguments(
        send_receipt, (value, "x"), {"copies": value}, name="send_receipt()", max_bytes=MEGABYTE
    )
    assert (decode(args), decode(kwargs)) == ([value, "x"], {"copies": value})


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_never_looks_like_an_integer(value: float) -> None:
    # jsonb writes 1e22 as 10000000000000000000000, without a point.
    text = encode(value, place="value", max_bytes=MEGABYTE)
    number = decimal.Decimal(text)
    assert isinstance(decode(f"{number:f}"), float)
    assert decode(text) == value


@given(
    st.recursive(
        leaves | st.binary(max_size=5).filter(lambda raw: b"\x00" not in raw),
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(storable_text, inner, max_size=3),
    )
)
def test_values_are_normalised_as_django_does(value: Any) -> None:
    try:
        expected = normalize_json(value)
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
        (bytearray(b"ab"), [97, 98]),
        (deque([1]), [1]),
        (UserList([1]), [1]),
        (b"abc", "abc"),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({1: "a", True + 1: "b"}, {"1": "a", "2": "b"}),
        ({None: 1, 1.5: 2, False: 3, b"k": 4}, {"null": 1, "1.5": 2, "false": 3, "k": 4}),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        ({Colour.RED: Size.LARGE}, {"red": 3}),
        (1e22, 1e22),
        ([1e300, {"a": -1e16}], [1e300, {"a": -1e16}]),
    ],
)
def test_sequences_mappings_and_subclasses_become_plain_json(value: Any, expected: Any) -> None:
    assert stored(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN is not JSON"),
        (float("-inf"), "Infinity is not JSON"),
        ("a\x00b", "a NUL character cannot be stored"),
        ("\ud800", "a lone surrogate is not text"),
        ("é\udfff", "a lone surrogate is not text"),
        (b"a\x00", "a NUL character cannot be stored"),
        (b"\xff", "bytes that are not UTF-8 are not JSON; pass base64 text"),
        ({1, 2}, "set is not JSON; pass a list"),
        (datetime.date(2026, 1, 1), "datetime.date is not JSON; pass its isoformat()"),
        (uuid.UUID(int=0), "uuid.UUID is not JSON; pass str() of it"),
        (decimal.Decimal(1), "decimal.Decimal is not JSON; pass str() of it"),
        (gettext_lazy("x"), "is not JSON; pass str() of it"),
        (object(), "object is not JSON"),
        (len, "is not JSON"),
        pytest.param(10**4300, "an integer of more than 4300 digits cannot be read back", id="+"),
        pytest.param(-(10**4300), "an integer of more than 4300 digits cannot be read back", id="-"),
        (nested(MAX_DEPTH + 1), "nesting deeper than 64"),
    ],
)
def test_what_no_row_can_hold_is_refused_by_name_and_path(value: Any, reason: str) -> None:
    assert reason in refusal(value)
    assert "send_receipt(): argument 'currency'" in refusal(1, value)
    assert "send_receipt(): argument '*lines'[1]" in refusal(1, "x", 2, value)
    assert "send_receipt(): argument 'copies'" in refusal(1, copies=value)
    assert "send_receipt(): argument 'note'" in refusal(1, note=value)


def test_path_leads_to_the_guilty_value() -> None:
    found = refusal({"lines": [1, 2, 3, float("nan")]})
    assert found == "send_receipt(): argument 'order'[\"lines\"][3]: NaN is not JSON"


def test_long_path_is_shortened_to_its_ends() -> None:
    value: Any = {"last": object()}
    for depth in range(MAX_DEPTH - 10):
        value = {depth: value}

    assert refusal(value) == "send_receipt(): argument 'order'[53][52][51]...[\"last\"]: object is not JSON"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1: "a", "1": "b"}, "argument 'order'[\"1\"]: two keys are the same once they are text"),
        ({(1, 2): 3}, "argument 'order'[(1, 2)]: tuple is not a JSON key"),
        ({"a\x00": 3}, "argument 'order'[\"a\\u0000\"]: a NUL character cannot be stored"),
        ({"\ud800": 3}, "argument 'order'[\"\\ud800\"]: a lone surrogate is not text"),
        ({float("nan"): 3}, "argument 'order'[NaN]: NaN is not JSON"),
        ({datetime.date(2026, 1, 1): 3}, "date is not a JSON key"),
    ],
)
def test_keys_are_checked_as_they_will_be_stored(value: Any, reason: str) -> None:
    assert reason in refusal(value)


def test_error_shows_no_value() -> None:
    assert "hunter2" not in refusal({"password": "hunter2\x00"}) + refusal({"password": {"hunter2"}})


def test_model_is_refused_with_a_hint() -> None:
    from django.contrib.contenttypes.models import ContentType

    assert "pass its primary key" in refusal(ContentType())
    assert "pass a list of primary keys" in refusal(ContentType.objects.all())


@pytest.mark.parametrize(
    "value",
    [
        nested(MAX_DEPTH),
        pytest.param(10**4300 - 1, id="4300 digits"),
        pytest.param(1 - 10**4299, id="4299 digits and a sign"),
        -(2**63),
        2**64,
        "\U0001f600",
    ],
)
def test_the_last_value_within_the_limits_is_taken(value: Any) -> None:
    assert stored(value) == value


def test_integer_that_this_process_could_not_read_is_refused() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert "more than 640 digits" in refusal(10**640)
    finally:
        sys.set_int_max_str_digits(before)


def test_integer_limit_is_that_of_an_ordinary_process() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert "more than 4300 digits" in refusal(10**4300)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"order_id": 2}, "multiple values for argument 'order_id'"),
        ((1,), {"orderid": 2}, "got an unexpected keyword argument 'orderid'"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(args: Any, kwargs: Any, reason: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        encode_arguments(only, args, kwargs, name="only()", max_bytes=1000)
    assert str(caught.value) == f"only(): {reason}"


def test_context_is_the_executors_to_fill() -> None:
    def encoded(*args: Any, **kwargs: Any) -> Any:
        return encode_arguments(with_context, args, kwargs, name="with_context()", takes_context=True, max_bytes=1000)

    assert encoded(5) == ("[5]", "{}")
    assert encoded(order_id=5, extra=1) == ("[]", '{"order_id":5,"extra":1}')
    with pytest.raises(InvalidArguments, match="missing a required argument: 'order_id'"):
        encoded()
    with pytest.raises(InvalidArguments, match="'context' is given by the executor"):
        encoded(5, context=None)


def test_size_counts_bytes_of_all_arguments() -> None:
    text = "é" * 100  # 202 bytes with its quotes
    assert encode_arguments(only, (text,), {}, name="only()", max_bytes=206)
    with pytest.raises(InvalidArguments) as caught:
        encode_arguments(only, (text,), {}, name="only()", max_bytes=205)
    assert str(caught.value).startswith("only(): argument 'order_id' takes 202 of 206 bytes: more than 205 bytes")


def test_lists_that_hold_each_other_over_and_over_are_refused_soon() -> None:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    assert "more than 1,048,576 bytes" in refusal(value)


def test_list_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    assert "nesting deeper than 64" in refusal(value)


def test_result_keeps_what_can_be_kept() -> None:
    text = encode_result({"a": ("x\x00\ud800", b"y")}, max_bytes=1000)
    assert decode(text) == {"a": ["x\\u0000\\ud800", "y"]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [set()]}, 'result["a"][0]: set is not JSON'),
        (float("nan"), "NaN"),
        ("x" * 2000, "more than 1,000 bytes"),
    ],
)
def test_result_that_cannot_be_stored_says_why(value: Any, reason: str) -> None:
    with pytest.raises(InvalidResult) as caught:
        encode_result(value, max_bytes=1000)
    assert reason in str(caught.value)


class Broken(UserList[int]):
    def __iter__(self) -> Any:
        raise ZeroDivisionError("on the way")


def test_result_that_breaks_while_it_is_read_is_refused() -> None:
    with pytest.raises(InvalidResult, match="on the way"):
        encode_result(Broken([1]), max_bytes=1000)


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
def test_poisoned_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


@pytest.mark.parametrize("text", ["[1]", " [1]", "[1] ", "\n[1]\t"])
def test_spaces_around_stored_text_are_passed_over(text: str) -> None:
    assert decode(text) == [1]
