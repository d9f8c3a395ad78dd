"""Objects that isinstance() takes for a type that they do not have, and subclasses of JSON's own types."""

from __future__ import annotations

import enum
from collections import UserDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from unittest.mock import MagicMock, Mock

import pytest
from django.db import OperationalError
from django.utils.functional import LazyObject, SimpleLazyObject
from django.utils.translation import gettext_lazy

from jobqueue import Concurrency, Retry
from jobqueue.conf.compat import InvalidTask, InvalidTaskBackend
from jobqueue.declarations.context import checked_progress
from jobqueue.declarations.function import ChangedOptions
from jobqueue.declarations.options import stored_options
from jobqueue.exceptions import InvalidArguments, InvalidResult
from jobqueue.values.arguments import encode_arguments
from jobqueue.values.json import encode_message, encode_result
from tests.executor import tasks


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


class Whole(int):
    pass


class Real(float):
    pass


class Color(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Later(LazyObject):  # type: ignore[type-arg]
    def _setup(self) -> None:
        self._wrapped = "set up"


def lazy(value: Any) -> Any:
    return SimpleLazyObject(lambda: value)


def pack(*args: Any, **kwargs: Any) -> tuple[str, str]:
    return encode_arguments(lambda *a, **k: None, args, kwargs, name="pack()", max_bytes=10_000)


VALUES = [
    (lazy("x"), '"x"'),
    (lazy(3), "3"),
    (lazy(3.5), "3.5"),
    (lazy(True), "true"),
    (lazy(False), "false"),
    (lazy(None), "null"),
    (lazy([lazy(1)]), "[1]"),
    (lazy({"a": lazy("b")}), '{"a":"b"}'),
    (lazy(lazy("twice")), '"twice"'),
    (lazy(b"bytes"), '"bytes"'),
    (Later(), '"set up"'),
    ({lazy("key"): 1}, '{"key":1}'),
    ({lazy(3): 1}, '{"3":1}'),
    (Text("x"), '"x"'),
    (Whole(3), "3"),
    (Real(3.5), "3.5"),
    (Color.RED, '"red"'),
    (Size.SMALL, "1"),
    ({Text("x"): Size.SMALL, Size.SMALL: Color.RED}, '{"x":1,"1":"red"}'),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text for _, text in VALUES])
def test_value_is_stored_as_the_one_that_it_stands_for(value: Any, text: str) -> None:
    assert pack(value) == (f"[{text}]", "{}")
    assert pack(name=value) == ("[]", f'{{"name":{text}}}')
    assert encode_result(value, max_bytes=1000) == text


@pytest.mark.parametrize("kind", [str, int, float, bool, list, dict, bytes])
def test_mock_of_a_type_is_refused_with_its_place(kind: type) -> None:
    mock = Mock(spec=kind)
    reason = f"unittest.mock.Mock is not JSON, although its class is {kind.__name__}; pass {kind.__name__}() of it"

    with pytest.raises(InvalidArguments) as refused:
        pack([{"a": mock}])
    assert str(refused.value) == f"pack(): argument '*a'[0][0]['a']: {reason}"
    with pytest.raises(InvalidResult, match=r"result: unittest\.mock\.Mock is not JSON"):
        encode_result(mock, max_bytes=1000)
    with pytest.raises(InvalidArguments, match=r"message: unittest\.mock\.Mock is not JSON"):
        encode_message(mock, max_bytes=1000)


def test_key_that_is_a_mock_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="although its class is str"):
        pack({Mock(spec=str): 1})


def test_lazy_object_around_another_type_is_refused_by_that_type() -> None:
    with pytest.raises(InvalidArguments, match=r"argument '\*a'\[0\]: set is not JSON; pass a list"):
        pack(lazy({1}))


@pytest.mark.parametrize("pretender", [lazy("x"), Mock(spec=str)], ids=["lazy", "mock"])
@pytest.mark.parametrize("option", ["key", "queue_name"])
def test_lazy_text_of_an_option_is_refused(option: str, pretender: Any) -> None:
    with pytest.raises(InvalidTask, match=f"{option} must be a text"):
        tasks.add.using(**{option: pretender})


@pytest.mark.parametrize("pretender", [lazy("x"), Mock(spec=str)], ids=["lazy", "mock"])
def test_lazy_tag_is_refused(pretender: Any) -> None:
    with pytest.raises(InvalidTask, match="tags must be a list"):
        tasks.add.using(tags=[pretender])


@pytest.mark.parametrize(
    "pretender", [lazy(3), lazy(3.5), MagicMock(spec=int), Mock(spec=float)], ids=["int", "float", "magic", "mock"]
)
def test_lazy_number_is_refused_in_plain_words(pretender: Any) -> None:
    for option in ("priority", "timeout", "max_attempts"):
        with pytest.raises(InvalidTask, match=f"{option} must be"):
            tasks.add.using(**{option: pretender})
    with pytest.raises(InvalidTask, match="unique_for must be"):
        tasks.add.using(key="k", unique_for=pretender)
    with pytest.raises(InvalidTask, match="concurrency"):
        tasks.add.using(concurrency=Concurrency(pretender))
    with pytest.raises(TypeError, match="takes a number as done"):
        checked_progress(pretender, None, "")
    with pytest.raises(ValueError, match="must be a number of seconds"):
        Retry(after=pretender)


def test_numbers_of_subclasses_are_stored_as_numbers() -> None:
    changed = tasks.add.using(timeout=Real(2.5), max_attempts=Whole(7))

    assert stored_options(changed, tasks.add) == '{"max_attempts":7,"timeout":2.5}'
    assert tasks.add.using(timeout=timedelta(seconds=1)).timeout == 1.0


def test_texts_of_subclasses_become_plain_texts() -> None:
    changed = tasks.add.using(key=Text("k"), queue_name=Text("emails"))

    assert (changed.key, changed.queue_name) == ("k", "emails")
    assert {type(changed.key), type(changed.queue_name)} == {str}


@pytest.mark.parametrize("error", [InvalidArguments, InvalidResult])
def test_invalid_values_are_type_errors_as_django_wants(error: type[Exception]) -> None:
    assert issubclass(error, TypeError)


TIME = datetime(2040, 1, 1, tzinfo=UTC)


def fail(*_: Any) -> NoReturn:
    raise RuntimeError("by itself")


class FailingText(str):
    __slots__ = ()
    __len__ = fail


class FailingNumber(int):
    __le__ = __ge__ = __eq__ = fail
    __hash__ = int.__hash__


class FailingTime(datetime):
    year = property(fail)


class FailingDuration(timedelta):
    __abs__ = __le__ = fail


class FailingList(list[Any]):
    __iter__ = fail


class FailingDict(dict[str, Any]):
    items = fail


class FailingPairs(UserDict[str, Any]):
    def items(self) -> Any:
        return [1]


class Failing:
    """Fails at every use."""

    __class__ = property(fail)
    __repr__ = __eq__ = __bool__ = __len__ = __iter__ = fail
    __hash__ = object.__hash__


class FailingIterator(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield 1
        fail()


HOSTILE: dict[str, Callable[[], Any]] = {
    "lazy duration": lambda: lazy(timedelta(hours=1)),
    "lazy time": lambda: lazy(TIME),
    "lazy that fails": lambda: SimpleLazyObject(fail),
    "translated": lambda: gettext_lazy("Yes"),
    "mock of a duration": lambda: Mock(spec=timedelta),
    "mock of a time": lambda: Mock(spec=datetime),
    "failing text": lambda: FailingText("x"),
    "failing number": lambda: FailingNumber(3),
    "failing time": lambda: FailingTime(2040, 1, 1, tzinfo=UTC),
    "failing duration": lambda: FailingDuration(hours=1),
    "failing list": lambda: FailingList(["x"]),
    "failing iterator": lambda: FailingIterator(["x"]),
    "failing dict": lambda: FailingDict(a=1),
    "failing pairs": lambda: FailingPairs(a=1),
    "failing": Failing,
    "huge": lambda: 10**5000,
    "surrogate": lambda: "\ud800",
    "not a number": lambda: float("nan"),
}
# Values that an option takes, as plain ones.
TAKEN = {
    "timeout": {"failing duration", "failing number"},
    "unique_for": {"failing duration", "failing number"},
    "priority": {"failing number"},
    "max_attempts": {"failing number"},
    "key": {"failing text"},
    "queue_name": {"failing text"},
}


@pytest.mark.parametrize("option", ChangedOptions.__annotations__)
@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_value_is_refused_or_taken_as_a_plain_one(option: str, value: str) -> None:
    """No database is there: nothing is written."""
    options: dict[str, Any] = {option: HOSTILE[value]()}
    if option in ("on_conflict", "unique_for", "debounce"):
        options["key"] = "k"

    def enqueue() -> None:
        task = tasks.add.using(**options)
        if option == "metadata":
            task.enqueue(1)

    if value in TAKEN.get(option, ()):
        tasks.add.using(**options)
    else:
        with pytest.raises((InvalidTask, InvalidTaskBackend, InvalidArguments), match=option):
            enqueue()


@pytest.mark.parametrize("option", ["run_after", "expires"])
def test_lazy_time_is_refused_in_plain_words(option: str) -> None:
    with pytest.raises(InvalidTask, match=f"add: {option} must be a datetime or a timedelta, not <SimpleLazyObject"):
        tasks.add.using(**{option: lazy(timedelta(hours=1))})


@pytest.mark.parametrize("value", ["failing list", "failing iterator", "failing dict", "failing pairs", "failing"])
def test_argument_whose_own_code_fails_is_named(value: str) -> None:
    for argument, where in ((HOSTILE[value](), ""), ([{"k": HOSTILE[value]()}], r"\[0\]\['k'\]")):
        with pytest.raises(
            InvalidArguments, match=rf"^pack\(\): argument '\*a'\[0\]{where}.* cannot be read: "
        ) as refused:
            pack(argument)
        assert refused.value.__cause__ is not None


def test_lazy_argument_that_the_database_refuses_is_no_wrong_argument() -> None:
    with pytest.raises(OperationalError):
        pack(SimpleLazyObject(_down))


def _down() -> NoReturn:
    raise OperationalError("the server is down")


def test_mapping_as_backoff_is_refused() -> None:
    with pytest.raises(InvalidTask, match=r"backoff must be a jobqueue\.Backoff, not \{'base': 1\.0\}"):
        tasks.add.using(backoff={"base": 1.0})  # type: ignore[arg-type]
