"""Fingerprints of failures."""

import pytest

from jobqueue.values.causes import MESSAGE_CHARACTERS, fingerprint, mask_message


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("order 57 has no address", "order # has no address"),
        ("timeout after 30.5 s, 1,024 bytes at 12:30", "timeout after # s, # bytes at #"),
        ("no row 01939a4e-7c2b-7f00-8000-00000000002a", "no row …"),
        ("commit 9fceb02d0ae598e9 at 0x7f3ab3976e50", "commit … at …"),
        ("10.0.0.1 refused the connection", "# refused the connection"),
        ("deadbeef is a word, facade too", "deadbeef is a word, facade too"),
        ("two\n  lines", "two lines"),
        ("", ""),
    ],
)
def test_pattern_replaces_numbers_and_ids(message: str, pattern: str) -> None:
    assert mask_message(message) == pattern


def test_pattern_of_long_message_is_cut() -> None:
    assert len(mask_message("word " * 10_000)) == MESSAGE_CHARACTERS


def test_cause_depends_on_task_class_and_pattern() -> None:
    cause = fingerprint("send", "builtins.ValueError", "order 57")
    assert len(cause) == 16
    assert cause == fingerprint("send", "builtins.ValueError", "order 58")
    others = [("other", "builtins.ValueError", "order 57"), ("send", "builtins.KeyError", "order 57")]
    assert cause not in {fingerprint(*other) for other in [*others, ("send", "builtins.ValueError", "order no 57")]}


def test_cause_of_text_without_encoding_exists() -> None:
    assert len(fingerprint("send", "builtins.ValueError", "\ud800")) == 16
