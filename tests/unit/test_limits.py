"""What limits may be declared, and which keys they make."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobqueue import Concurrency, Debounce, InvalidArguments, Rate, task
from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations.limits import format_key
from jobqueue.values.arguments import read_parameters

pytestmark = pytest.mark.usefixtures("own_registry")


def move(order_id: int, shop: dict[str, Any], *, priority: str = "low") -> None: ...


def key(limit: Concurrency | Rate, *args: Any, **kwargs: Any) -> str:
    """Return the key that a call of move() has for a limit."""
    declared = task(name="move")(move)
    return format_key(limit, declared, read_parameters(move, False), args, kwargs)


SHOP = {"id": 7}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Concurrency(1), "move:"),
        (Concurrency(1, shared="orders"), "orders:"),
        (Concurrency(1, key="order-{order_id}"), "move:order-1"),
        (Concurrency(1, key="{shop[id]}-{priority}"), "move:7-low"),
        (Concurrency(1, key="{order_id:05}"), "move:00001"),
        (Concurrency(1, key="{order_id:{shop[id]}}"), "move:      1"),
        (Rate(1, 60, key="everything", shared="orders"), "orders:everything"),
        (Rate(1, 60, key=lambda order_id, shop: f"{order_id} in {shop['id']}"), "move:1 in 7"),
    ],
)
def test_key_is_made_from_the_arguments(limit: Concurrency | Rate, expected: str) -> None:
    assert key(limit, 1, SHOP) == expected
    assert key(limit, order_id=1, shop=SHOP) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{shop[name]}", "cannot make the key of its limit"),
        (lambda *args, **kwargs: 1 / 0, "cannot make the key of its limit"),
        (lambda *args, **kwargs: 5, "must be a text of 1 to 255 characters, not 5"),
        (lambda *args, **kwargs: "", "must be a text of 1 to 255 characters, not ''"),
        (lambda *args, **kwargs: "x" * 256, "must be a text of 1 to 255 characters"),
        (lambda *args, **kwargs: "a\x00b", "must be a text of 1 to 255 characters"),
    ],
)
def test_call_without_a_valid_key_is_refused(source: Any, message: str) -> None:
    with pytest.raises(InvalidArguments, match=message):
        key(Concurrency(1, key=source), 1, SHOP)


@pytest.mark.parametrize("template", ["order-{order_id}", "{order_id!s}", "{shop[id]}", "{priority:>{shop[id]}}"])
def test_template_refuses_none(template: str) -> None:
    """Otherwise None, a missing argument and "None" have one key."""
    with pytest.raises(InvalidArguments, match=r"(order_id|shop\[id\]) is None\. If None is a key, write a function"):
        key(Rate(1, 60, key=template), None, {"id": None})


def test_function_may_make_a_key_of_none() -> None:
    assert key(Rate(1, 60, key=lambda order_id, shop: f"order-{order_id or 'none'}"), None, SHOP) == "move:order-none"


def test_number_and_its_text_have_the_same_key() -> None:
    template = Rate(1, 60, key="order-{order_id}")
    assert key(template, 1, SHOP) == key(template, "1", SHOP) == "move:order-1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 5}, "concurrency must be a Concurrency, not 5"),
        ({"concurrency": Concurrency(0)}, "limit must be a whole number from 1 to 1,000,000,000, not 0"),
        ({"concurrency": Concurrency(True)}, "limit must be a whole number"),
        ({"concurrency": Concurrency(1, key="{customer}")}, "'customer', .* The task has: order_id, shop, priority"),
        ({"concurrency": Concurrency(1, key="{customer[id]}")}, "names 'customer', which is no argument"),
        ({"concurrency": Concurrency(1, key="{}")}, "names '', which is no argument"),
        ({"concurrency": Concurrency(1, key="{order_id")}, "is not a valid template"),
        ({"concurrency": Concurrency(1, key="{order_id!x}")}, "is not a valid template"),
        ({"concurrency": Concurrency(1, key="{order_id:{width}}")}, "names 'width', which is no argument"),
        ({"concurrency": Concurrency(1, key="")}, "key must not be empty"),
        ({"concurrency": Concurrency(1, count_while_retrying=1)}, "must be True or False, not 1"),  # type: ignore[arg-type]
        ({"rate": Rate(1, 60, adjustable="no")}, "adjustable must be True or False, not 'no'"),  # type: ignore[arg-type]
        ({"concurrency": Concurrency(1, key=5)}, "key must be a template or a function, not 5"),  # type: ignore[arg-type]
        ({"concurrency": Concurrency(1, shared="a:b")}, "shared must be a text of 1 to 300 characters without ':'"),
        ({"concurrency": Concurrency(1), "name": "a:b"}, r"concurrency needs shared='\.\.\.'"),
        ({"rate": Concurrency(1)}, "rate must be a Rate"),
        ({"rate": Rate(1, 0)}, "rate: per must be seconds or a timedelta, above 0 and a year at most, not 0"),
        ({"rate": Rate(1, timedelta(days=1000))}, "rate: per must be seconds or a timedelta"),
    ],
)
def test_limit_with_a_mistake_cannot_be_declared(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        task(**{"name": "move", **options})(move)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_conflict": "replace"}, "need a key"),
        ({"unique_for": 60}, "need a key"),
        ({"debounce": Debounce(1)}, "need a key"),
        ({"key": "k", "on_conflict": "skip"}, "on_conflict must be one of 'keep', 'replace', 'raise', not 'skip'"),
        ({"key": "k", "unique_for": -1}, "unique_for must be seconds or a timedelta"),
        ({"key": "k", "debounce": 5}, "debounce must be a Debounce, not 5"),
        ({"key": "k", "debounce": Debounce(0)}, "debounce: wait must be seconds"),
        ({"key": "k", "debounce": Debounce(1, max_wait=0)}, "debounce: max_wait must be seconds"),
        ({"key": "k", "debounce": Debounce("1", max_wait=5)}, "debounce: wait must be seconds"),  # type: ignore[arg-type]
        ({"key": "k", "debounce": Debounce(30, max_wait=5)}, "max_wait must not be shorter than wait"),
        ({"key": "k", "debounce": Debounce(1), "on_conflict": "raise"}, "remove on_conflict='raise'"),
        ({"key": "k", "debounce": Debounce(1), "run_after": timedelta(1)}, "remove run_after"),
    ],
)
def test_call_with_contradicting_options_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        task(name="move")(move).using(**options)
