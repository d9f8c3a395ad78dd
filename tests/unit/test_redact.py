import pytest

from jobqueue.conf import Options
from jobqueue.redact import MASK, redact

DEFAULT = Options().redact


@pytest.mark.parametrize("name", ["password", "PASSWORD", "new_password", "access_token", "api_key", "client_secret"])
def test_default_masks_what_is_named_like_a_secret(name):
    assert redact({name: "x", "size": 1}, DEFAULT) == {name: MASK, "size": 1}


def test_secrets_are_found_at_any_depth():
    value = {"users": [{"name": "anna", "token": "t"}, {"name": "bert", "token": None}]}

    assert redact(value, DEFAULT) == {"users": [{"name": "anna", "token": MASK}, {"name": "bert", "token": MASK}]}


def test_a_masked_list_or_object_is_masked_whole():
    assert redact({"secrets": [1, 2], "token": {"a": 1}}, DEFAULT) == {"secrets": MASK, "token": MASK}


def test_pattern_without_a_dot_names_a_key_anywhere():
    assert redact({"pin": 1, "card": {"pin": 2, "pins": 3}}, ["pin"]) == {"pin": MASK, "card": {"pin": MASK, "pins": 3}}


def test_pattern_with_a_dot_names_the_whole_path():
    value = {"card": {"pin": 2}, "old": {"card": {"pin": 3}}}

    assert redact(value, ["card.pin"]) == {"card": {"pin": MASK}, "old": {"card": {"pin": 3}}}
    assert redact(value, ["*.pin"]) == {"card": {"pin": MASK}, "old": {"card": {"pin": MASK}}}


def test_list_positions_are_part_of_the_path():
    assert redact({"rows": [1, 2]}, ["rows.1"]) == {"rows": [1, MASK]}


def test_the_place_of_the_value_itself_counts():
    assert redact("hunter2", DEFAULT, "password") == MASK
    assert redact("anna", DEFAULT, "name") == "anna"


def test_nothing_is_masked_without_patterns():
    assert redact({"password": "x"}, ()) == {"password": "x"}


def test_the_value_given_is_left_as_it_was():
    value = {"password": "x"}

    redact(value, DEFAULT)

    assert value == {"password": "x"}
