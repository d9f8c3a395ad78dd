"""printable() turns untrusted text into one line."""

from __future__ import annotations

import sys

import pytest

from jobqueue.values.text import printable


@pytest.mark.parametrize("text", ["", "emails", "mail ✉ é 😀", "non-breaking\u00a0space", "back\\slash"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x7f\x9b31m\x85", r"\x7f\x9b31m\x85"),
        ("a\u2028b\u2029c\u202ed\u2066", r"a\u2028b\u2029c\u202ed\u2066"),
        ("\udcff", r"\udcff"),
    ],
)
def test_control_characters_are_written_as_escapes(text: str, escaped: str) -> None:
    assert printable(text) == escaped


def test_printable_text_is_one_line() -> None:
    for code in range(sys.maxunicode + 1):
        assert len(printable(f"a{chr(code)}b").splitlines()) == 1
