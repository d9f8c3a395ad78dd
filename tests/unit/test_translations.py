"""The German and French catalogues are correct and compiled; for a release, complete. No test needs gettext's tools."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from gettext import GNUTranslations
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

PACKAGE = Path(__file__).parents[2] / "jobqueue"
LANGUAGES = ("de", "fr")
STRING = r"""u?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
CALL = re.compile(rf"\b(_|n?p?gettext)\(\s*({STRING}(?:\s*,\s*{STRING})*)")
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[a-zA-Z%]")
ADVICE = "run `make translations`, and fill what is empty or fuzzy"
# A commit needs no translation. `make translations` and the release checklist run these tests.
for_a_release = pytest.mark.skipif("JOBQUEUE_RELEASE" not in os.environ, reason="only `make translations` needs all")


@dataclass
class CatalogueEntry:
    """A string of a catalogue and its translations: one, or one for each plural form."""

    context: str | None = None
    singular: str = ""
    plural: str | None = None
    translations: list[str] = field(default_factory=list)
    flags: str = ""

    @property
    def key(self) -> tuple[str | None, str]:
        return self.context, self.singular


def read_catalogue(language: str) -> list[CatalogueEntry]:
    """Read the .po file without its header."""
    entries = [CatalogueEntry()]
    target = ""
    texts: dict[str, str] = {}  # of the entry being read, by keyword

    def finish() -> None:
        if "msgid" in texts:
            entry = entries[-1]
            entry.context, entry.singular, entry.plural = (
                texts.get("msgctxt"),
                texts["msgid"],
                texts.get("msgid_plural"),
            )
            entry.translations = [text for name, text in texts.items() if name.startswith("msgstr")]
            entries.append(CatalogueEntry())
        texts.clear()

    for line in (PACKAGE / f"locale/{language}/LC_MESSAGES/django.po").read_text().splitlines():
        if not line:
            finish()
        elif line.startswith("#,"):
            entries[-1].flags += line
        elif not line.startswith("#"):
            if not line.startswith('"'):
                target, _, line = line.partition(" ")
            texts[target] = texts.get(target, "") + ast.literal_eval(line)
    finish()
    return entries[1:-1]


@cache
def strings_in_use() -> frozenset[tuple[str | None, str]]:
    return frozenset((*strings_of_code(), *strings_of_templates()))


def strings_of_code() -> Iterator[tuple[str | None, str]]:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        aliases = {
            alias.asname or alias.name: alias.name.removesuffix("_lazy").removesuffix("_noop")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation"
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in aliases:
                texts = [
                    argument.value
                    for argument in node.args
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                ]
                if aliases[node.func.id].endswith("gettext") and texts:
                    yield keyed(aliases[node.func.id], texts)


def strings_of_templates() -> Iterator[tuple[str | None, str]]:
    for path in PACKAGE.rglob("templates/**/*.html"):
        # As in makemessages: a template becomes Python's calls of gettext.
        for name, arguments in CALL.findall(templatize(path.read_text(), origin=str(path))):
            texts = [ast.literal_eval(text) for text in re.findall(STRING, arguments)]
            yield keyed("gettext" if name == "_" else name, texts)


def keyed(function: str, texts: list[str]) -> tuple[str | None, str]:
    return (texts[0], texts[1]) if "pgettext" in function else (None, texts[0])


@for_a_release
@pytest.mark.parametrize("language", LANGUAGES)
def test_catalogue_has_each_string_of_the_code_and_no_other(language):
    used = strings_in_use()
    translated = {entry.key for entry in read_catalogue(language)}

    assert len(used) > 700
    assert used - translated == set(), f"untranslated: {ADVICE}"
    assert translated - used == set(), f"no longer used: {ADVICE}"


@for_a_release
@pytest.mark.parametrize("language", LANGUAGES)
def test_catalogue_has_no_empty_and_no_fuzzy_translation(language):
    for entry in read_catalogue(language):
        assert "fuzzy" not in entry.flags, entry
        assert len(entry.translations) == (1 if entry.plural is None else 2), entry
        assert all(text.strip() for text in entry.translations), entry


@pytest.mark.parametrize("language", LANGUAGES)
def test_translation_keeps_placeholders_and_spaces_at_its_ends(language):
    for entry in translated_entries(language):
        for text, original in zip(entry.translations, (entry.singular, entry.plural), strict=False):
            assert original is not None
            assert sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(original)), entry
            assert ends(text) == ends(original), entry


def translated_entries(language: str) -> list[CatalogueEntry]:
    """Return the entries that a compiled catalogue contains."""
    return [entry for entry in read_catalogue(language) if all(entry.translations) and "fuzzy" not in entry.flags]


def ends(text: str) -> tuple[str, str]:
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


@pytest.mark.parametrize("language", LANGUAGES)
def test_compiled_catalogue_equals_its_source(language):
    with (PACKAGE / f"locale/{language}/LC_MESSAGES/django.mo").open("rb") as file:
        compiled = GNUTranslations(file)
    expected: dict[str | tuple[str, int], str] = {}
    for entry in translated_entries(language):
        key = entry.singular if entry.context is None else f"{entry.context}\x04{entry.singular}"
        if entry.plural is None:
            expected[key] = entry.translations[0]
        else:
            for form, text in enumerate(entry.translations):
                expected[key, form] = text

    texts = {key: text for key, text in vars(compiled)["_catalog"].items() if key}

    assert texts == expected, "run `make translations`"
