import time
from typing import Any

import pytest

from jobqueue.conf.options import Options
from jobqueue.values.redaction import MASK, argument_secrets, redact, redact_text, redact_texts

DEFAULT = Options().redact


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "PASSWORD",
        "new_password",
        "access_token",
        "api_key",
        "client_secret",
        "Authorization",
        "session_cookie",
        "db_pwd",
        "apikey",
        "private_key_pem",
        "aws_credentials",
        "X-Hub-Signature",
    ],
)
def test_default_masks_names_of_secrets(name):
    assert redact({name: "x", "size": 1}, DEFAULT) == {name: MASK, "size": 1}


LONG = "x" * 300


@pytest.mark.parametrize(
    ("value", "patterns", "masked"),
    [
        ({"users": [{"name": "anna", "token": "t"}]}, DEFAULT, {"users": [{"name": "anna", "token": MASK}]}),
        ({"secrets": [1, 2], "token": {"a": 1}}, DEFAULT, {"secrets": MASK, "token": MASK}),
        ({"pin": 1, "card": {"pin": 2, "pins": 3}}, ["pin"], {"pin": MASK, "card": {"pin": MASK, "pins": 3}}),
        ({"pin": 1, "a": {"card": {"pin": 2}}}, ["card.pin"], {"pin": 1, "a": {"card": {"pin": 2}}}),
        ({"card": {"pin": 1}}, ["card.pin"], {"card": {"pin": MASK}}),
        ({"a": {"card": {"pin": 1}}}, ["*.pin"], {"a": {"card": {"pin": MASK}}}),
        ({"user": {"name": 1, "pin": 2}}, ["us*pin"], {"user": {"name": 1, "pin": MASK}}),
        ({"rows": [1, 2]}, ["rows.1"], {"rows": [1, MASK]}),
        ({"password": "x"}, (), {"password": "x"}),
        ({LONG: {"a": 1}, "b": 2}, ["card.pin"], {LONG: MASK, "b": 2}),  # too long to compare
        ({LONG: {"a": 1}, "b": 2}, ["pin"], {LONG: {"a": 1}, "b": 2}),
    ],
)
def test_redact_masks_keys_and_paths_that_match(value: Any, patterns: Any, masked: Any) -> None:
    assert redact(value, patterns) == masked


def test_name_of_value_itself_is_matched() -> None:
    assert redact("hunter2", DEFAULT, "password") == MASK
    assert redact("anna", DEFAULT, "name") == "anna"


@pytest.mark.parametrize("patterns", [DEFAULT, (*DEFAULT, "*.pin", "a*b")], ids=["default", "with whole paths"])
def test_masking_is_fast_below_long_names(patterns: tuple[str, ...]) -> None:
    """An earlier version searched the whole path for each number, which took minutes."""
    value: Any = list(range(100_000))
    for _ in range(50):
        value = {"x" * 8000: value}
    begun = time.process_time()

    masked = redact({"value": value}, patterns)

    assert time.process_time() - begun < 10
    assert list(masked) == ["value"]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("login failed: password=hunter2", f"login failed: password={MASK}"),
        ("{'password': 'hunter2', 'name': 'anna'}", f"{{'password': {MASK}, 'name': 'anna'}}"),
        ('{"api_key": "a b"}', f'{{"api_key": {MASK}}}'),
        ("?access_token=abc&page=2", f"?access_token={MASK}&page=2"),
        ("connect to postgresql://u:p%40w@host/db", f"connect to postgresql://u:{MASK}@host/db"),
        ("Authorization: Bearer sk_live_1 sent", f"Authorization: {MASK} sent"),
        ("password=basic ", f"password={MASK} "),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("at 12:30: nothing=1 to hide", "at 12:30: nothing=1 to hide"),
    ],
)
def test_text_after_a_name_is_masked(text: str, masked: str) -> None:
    assert redact_text(text, DEFAULT) == masked


def test_masking_is_fast_in_a_long_word() -> None:
    text = "password_" * 200_000

    assert redact_text(text, DEFAULT, limit=len(text)) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("x " * 6000 + "password='" + "S3CRET-" * 3000 + "'", "S3CRET"),
        ("a" * 10_000 + " password='hunter2-hunter3' " + "b" * 9990, "hunter"),
        ("a" * 9965 + " postgres://user:verysecret@host " + "c" * 15_000, "verysecret"),
    ],
)
def test_value_at_cut_of_text_is_masked(text: str, secret: str) -> None:
    assert secret not in redact_text(text, DEFAULT)


def secrets_of(**kwargs: Any) -> Any:
    """Return the secrets among these arguments."""
    return argument_secrets(None, [], kwargs, DEFAULT)


@pytest.mark.parametrize(
    ("arguments", "text", "masked"),
    [
        (
            {"card": {"token": ["hunter22", 123456]}, "password": "hunter2", "name": "anna"},
            "anna: hunter22 hunter2 123456",
            f"anna: {MASK} {MASK} {MASK}",
        ),
        ({"tokens": {"sk_live_1": ["scope"]}}, "tokens: sk_live_1 for scope", f"tokens: {MASK} for {MASK}"),
        ({"password": "abc", "token": True, "secret": None}, "abc True None", "abc True None"),  # too short
    ],
)
def test_masked_values_and_their_names_are_masked_in_texts(arguments: Any, text: str, masked: str) -> None:
    assert redact_text(text, (), secrets_of(**arguments)) == masked


def test_names_and_numbers_that_repeat_a_secret_are_masked() -> None:
    secrets = secrets_of(tokens={"sk_live_1": [41111234, 12.125]})

    masked = redact_texts({"of sk_live_1": 1, "n": [41111234, -941111234.0, 12.125, 7, True, None]}, secrets)

    assert masked == {f"of {MASK}": 1, "n": [MASK, MASK, MASK, 7, True, None]}


@pytest.mark.parametrize(
    ("passwords", "text", "masked"),
    [
        (["hunter", "hunter2"], "a hunter2 b", f"a {MASK} b"),
        (["unte", "hunter"], "a hunter b", f"a {MASK} b"),
        (["hunter", "terrier"], "a hunterrier b", f"a {MASK} b"),
        (["hunter", "hunger"], "a hunhunger b hunter", f"a hun{MASK} b {MASK}"),
        (["hunter"], "hunterhunter", f"{MASK}{MASK}"),
        (["anan"], "banananana", f"b{MASK}a"),
    ],
    ids=["one begins another", "one within another", "they overlap", "one begins in vain", "side by side", "itself"],
)
def test_each_occurrence_of_a_secret_is_masked_whole(passwords: list[str], text: str, masked: str) -> None:
    assert redact_text(text, (), secrets_of(passwords=passwords)) == masked


def test_secret_at_the_edge_of_the_cut_is_masked() -> None:
    secret = "hunter2-of-anna"
    for shift in range(2 * len(secret)):
        text = "." * shift + (secret + "-") * 10_000

        masked = redact_text(text, (), secrets_of(password=secret))

        assert "characters left out" in masked
        assert not any(secret[n : n + 3] in masked.replace("characters", "") for n in range(len(secret) - 2))


def test_shortened_text_keeps_both_ends() -> None:
    masked = redact_text("first " + "x" * 1_000_000 + " last", DEFAULT)

    assert masked.startswith("first x")
    assert masked.endswith("x last")
    assert len(masked) < 30_000


MANY = list(range(10_000_000, 10_100_000))


@pytest.mark.parametrize(
    ("passwords", "text"),
    [
        (MANY, str(MANY)),
        (["a" * 50 + chr(200 + n) + "a" * 49 for n in range(100)], "a" * 1_000_000),
        (["a" * n + "b" for n in range(4, 150)], "a" * 1_000_000),
        (["a" * 1_000_000 + "b"], "a" * 2_000_000),
    ],
    ids=["many", "alike", "nested", "long"],
)
def test_masking_is_fast_for_all_secrets(passwords: list[Any], text: str) -> None:
    """An earlier search took 60 s for the first case."""
    begun = time.process_time()

    for _ in range(10):
        masked = redact_text(text, DEFAULT, secrets_of(passwords=passwords))

    assert "10050000" not in masked
    assert time.process_time() - begun < 10


def test_text_with_too_many_secrets_is_masked_whole() -> None:
    secrets = secrets_of(passwords=MANY)

    masked = redact_text("no login as anna", (), secrets)

    assert "anna" not in masked
    assert masked.startswith(MASK)
    assert "too many or too large" in masked
