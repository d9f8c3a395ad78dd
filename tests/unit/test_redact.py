import pytest

from jobqueue.conf import Options
from jobqueue.redact import MASK, redact, redact_text, secrets_in

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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter2", f"login failed: password={MASK}"),
        ("{'password': 'hunter2', 'name': 'anna'}", f"{{'password': {MASK}, 'name': 'anna'}}"),
        ('{"api_key": "a b"}', f'{{"api_key": {MASK}}}'),
        ("?access_token=abc&page=2", f"?access_token={MASK}&page=2"),
        ("connect to postgresql://u:p%40w@host/db", f"connect to postgresql://u:{MASK}@host/db"),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("at 12:30: nothing=1 to hide", "at 12:30: nothing=1 to hide"),
    ],
)
def test_texts_are_masked_where_a_name_says_so(text: str, shown: str) -> None:
    assert redact_text(text, DEFAULT) == shown


def test_a_long_text_of_one_word_takes_no_time() -> None:
    text = "password_" * 200_000

    assert redact_text(text, DEFAULT) == text


def test_values_that_are_masked_are_found_in_texts() -> None:
    secrets = set(secrets_in({"card": {"token": ["hunter22", 123456]}, "password": "hunter2", "name": "anna"}, DEFAULT))

    assert secrets == {"hunter22", "123456", "hunter2"}
    assert redact_text("anna: hunter22 hunter2 123456", (), secrets) == f"anna: {MASK} {MASK} {MASK}"


def test_short_values_are_not_looked_for() -> None:
    assert not set(secrets_in({"password": "abc", "token": True, "secret": None}, DEFAULT))
