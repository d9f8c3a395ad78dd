"""Names and comments use the words of docs/glossary.md. This file is the only list of the retired words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("jobqueue", "tests", "verification", "demo_project", "benchmarks", "tools")

# Words that no part of a name may be, and what to use instead.
PARTS = {
    "alarm": "timeout, wake_at",
    "anew": "again",
    "appetite": "claim_policy",
    "chores": "maintenance",
    "crew": "thread_pool",
    "deed": "action",
    "dismiss": "stop",
    "eof": "child_status",
    "farewell": "exit_status",
    "hint": "notification",
    "housekeeping": "maintenance",
    "hurry": "wake",
    "lane": "pool, task_buffer",
    "ledger": "running_tasks",
    "letter": "message, StoredMessage",
    "mail": "message, inbox",
    "mended": "repaired",
    "nobody": "name the subject",
    "notice": "notification",
    "pulse": "loop, ExecutorLoop",
    "purge": "prune",
    "said": "what the variable holds: output, text, reply",
    "scribe": "console_log",
    "somebody": "name the subject",
    "steal": "rescue",
    "stray": "unknown claim",
    "suspect": "isolated task, isolation",
    "tally": "counter",
    "tidy": "maintenance",
    "told": "what the variable holds: events, results, calls",
    "upkeep": "maintenance",
    "vitals": "status",
    "ward": "aggregator",
    "whoever": "name the subject",
}
PLURALS = {"tallies": "tally", "housekeeper": "housekeeping"} | {f"{word}s": word for word in PARTS}

# Words that no name may consist of; they are allowed as a part of a name.
WHOLE_NAMES = {
    "given": "what the variable holds",
    "Hold": "RunningTask",
    "idle_polls": "two columns, one meaning each",
    "most": "limit, max_x",
    "over": "what the variable holds",
    "some": "what the variable holds",
}

# Names that hide what they hold. Say it: rows, digest, match, index, selected.
FILLERS = {"chosen", "each", "found", "known", "near", "one", "place", "shown"}

# Parts of the names of constants.
BOUNDS = {"MOST": "MAX_x", "LEAST": "MIN_x"}

INSTEAD = PARTS | WHOLE_NAMES | BOUNDS

# Retired names that are ordinary words of a sentence.
ORDINARY = {"hint", "letter", "mail", "notices"}

RETIRED = re.compile(rf"\b({'|'.join({*PARTS, *PLURALS} - ORDINARY)})\b", re.IGNORECASE)

MAX_TEST_NAME = 70

# A retired word in a name that another project decides, or that means something else there.
ALLOWED = {
    ("jobqueue/declarations/checks.py", "hint"): "Django's argument of a system check",
    ("jobqueue/management/cli/enqueue.py", "hint"): "advice in an error message",
    ("jobqueue/values/typed.py", "hint"): "a type hint",
    ("tests/admin/test_list.py", "test_search_for_other_text_shows_a_hint"): "advice on a page",
    ("tests/cli/test_reading.py", "hint"): "advice in an error message",
    ("tests/unit/test_registry.py", "test_unknown_database_error_has_a_hint"): "the hint of a system check",
    ("verification/interleavings/cases.py", "letter"): "a letter of the alphabet, which stands for an actor",
    ("verification/interleavings/orders.py", "letter"): "a letter of the alphabet",
    ("verification/interleavings/orders.py", "letters"): "letters of the alphabet",
    ("verification/interleavings/stepper.py", "letter"): "a letter of the alphabet",
    ("verification/interleavings/stepper.py", "letters"): "letters of the alphabet",
    ("verification/interleavings/stepper.py", "LETTERS"): "letters of the alphabet",
}


class Definition(NamedTuple):
    """Where a file defines a name."""

    name: str
    kind: Literal["class", "function", "variable", "attribute"]  # arguments are variables
    line: int
    is_inner: bool  # not at the top level of the file


def read_definitions(source: str) -> Iterator[Definition]:
    """Yield each name that a source defines."""
    tree = ast.parse(source)
    on_top = {*map(id, tree.body)}
    for node in ast.walk(tree):
        is_inner = id(node) not in on_top
        match node:
            case ast.ClassDef(name=name):
                yield Definition(name, "class", node.lineno, is_inner)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Definition(name, "function", node.lineno, is_inner)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield Definition(name, "variable", node.lineno, is_inner)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield Definition(name, "attribute", node.lineno, is_inner)


@cache
def definitions(path: Path) -> list[Definition]:
    return [*read_definitions(path.read_text())]


def retired_words(name: str) -> set[str]:
    """Return the retired words in a name."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    words = {PLURALS.get(part, part) for part in parts} & PARTS.keys()
    if name.isupper():
        words |= set(name.split("_")) & BOUNDS.keys()
    return words | ({name.strip("_")} & WHOLE_NAMES.keys())


def names_with_retired_words() -> dict[str, list[str]]:
    """Return "file: name" for each name with a retired word, by word."""
    by_word: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in [*CHECKOUT.joinpath(folder).rglob("*.py"), *CHECKOUT.joinpath(folder).rglob("*.sql")]:
            file = path.relative_to(CHECKOUT).as_posix()
            names = {definition.name for definition in definitions(path)} if path.suffix == ".py" else set()
            for name in {path.stem, *names}:
                if (file, name) not in ALLOWED:
                    for word in retired_words(name):
                        by_word[word].add(f"{file}: {name}")
    return {word: sorted(names) for word, names in sorted(by_word.items())}


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment and docstring."""
    source = path.read_text()
    if not RETIRED.search(source):  # tokens take their time
        return
    if path.suffix == ".sql":
        yield from ((line, text) for line, text in enumerate(source.splitlines(), 1) if text.lstrip().startswith("--"))
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def retired_words_of_text(text: str) -> set[str]:
    """Return the retired words in a comment."""
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", text)} - ORDINARY
    return {PLURALS.get(word, word) for word in words} & PARTS.keys() - ORDINARY


# Names that several classes may have, and why.
SHARED_CLASSES = {
    "Command": "Django looks for this name in each command; `jobqueue.api.Command` is what people send to executors",
    "Effect": "a table of two sites: of the tests, and of the load test",
    "Fibonacci": "the example of the README, also in tests and benchmarks",
    **dict.fromkeys(("Reject", "Retry", "Task", "TaskError"), "Celery's names, which code of a site imports"),
    "Producer": "the adapter of each queue in benchmarks/peers has one",
}


def shared_class_names() -> dict[str, list[str]]:
    """
    Return the files of each class name that stands for several things.

    Test files may use the same names for their own classes, but not those of the package. The demo is a site.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for path in OURS:
        for definition in definitions(path):
            if definition.kind == "class" and not definition.is_inner:
                files[definition.name].append(path.relative_to(CHECKOUT).as_posix())
    return {
        name: sorted(paths)
        for name, paths in files.items()
        if len(paths) > 1
        and (any(path.startswith("jobqueue/") for path in paths) or sum("/test_" not in path for path in paths) > 1)
    }


# Names that several functions of the package may have, and why.
VERBS = "a verb of the API, which the admin, the command line or HTTP offers under its name"
SHARED_FUNCTIONS = {
    "add_arguments": "the arguments of each verb of the command line",
    **dict.fromkeys(("backfill", "cancel", "delete", "pause", "requeue", "reset_limit", "resume", "run"), VERBS),
    **dict.fromkeys(("send", "set_limit", "show", "submit"), VERBS),
    "enqueued": "a column of the admin, and the result of an enqueue",
    "start": "of an executor in a web process, and of an action on many tasks",
}


def shared_function_names() -> dict[str, list[str]]:
    """Return the files of each public function name that several modules of the package define."""
    files: dict[str, set[str]] = defaultdict(set)
    for path in OURS:
        for name, kind, _, is_inner in definitions(path) if path.is_relative_to(CHECKOUT / "jobqueue") else ():
            if kind == "function" and not is_inner and not name.startswith("_"):
                files[name].add(path.relative_to(CHECKOUT).as_posix())
    return {name: sorted(paths) for name, paths in files.items() if len(paths) > 1}


NAMES = names_with_retired_words()
SOURCES = [path for folder in FOLDERS for kind in ("*.py", "*.sql") for path in CHECKOUT.joinpath(folder).rglob(kind)]
# The demo is a site, and migrations that have landed are not rewritten.
OURS = [path for path in SOURCES if path.suffix == ".py" and not {"demo_project", "migrations"} & {*path.parts}]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("send_mail", {"mail"}),
        ("MailTallies", {"mail", "tally"}),
        ("MOST_ROWS", {"MOST"}),
        ("at_most", set()),
        ("Hold", {"Hold"}),
        ("threshold", set()),
        ("type_annotation", set()),
    ],
)
def test_retired_words_are_found_in_a_name(name: str, words: set[str]) -> None:
    assert retired_words(name) == words


@pytest.mark.parametrize("word", INSTEAD)
def test_no_name_has_a_retired_word(word: str) -> None:
    names = NAMES.get(word, [])
    message = f"Use {INSTEAD[word]} instead of {word}:\n" + "\n".join(names)
    assert not names, message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# a second: housekeeping, polls", {"housekeeping"}),
        ("Nobody looks at it, and no mail is sent.", {"nobody"}),
        ("-- It notices the lock.", set()),
    ],
)
def test_retired_words_are_found_in_a_comment(text: str, words: set[str]) -> None:
    assert retired_words_of_text(text) == words


def test_no_comment_has_a_retired_word() -> None:
    wrong = [
        f"{path.relative_to(CHECKOUT)}:{line}: {', '.join(words)}"
        for path in SOURCES
        for line, text in comments(path)
        if (words := retired_words_of_text(text))
    ]
    assert not wrong, "\n".join(wrong)


def filler_names(definitions: Iterable[Definition]) -> list[tuple[int, str]]:
    """Return the line and the name of each function, variable and argument that hides what it holds."""
    return [(line, name) for name, kind, line, _ in definitions if name in FILLERS and kind in ("function", "variable")]


def test_names_say_what_they_hold() -> None:
    source = "found = [one for one in rows]\nasync def shown(known): pass"
    assert sorted(filler_names(read_definitions(source))) == [(1, "found"), (1, "one"), (2, "known"), (2, "shown")]
    wrong = [
        f"{path.relative_to(CHECKOUT)}:{line}: {name}"
        for path in OURS
        for line, name in filler_names(definitions(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_class_name_stands_for_one_thing() -> None:
    shared = {name: files for name, files in shared_class_names().items() if name not in SHARED_CLASSES}
    assert not shared, "\n".join(f"{name}: {', '.join(files)}" for name, files in shared.items())


def test_function_name_stands_for_one_thing() -> None:
    shared = {name: files for name, files in shared_function_names().items() if name not in SHARED_FUNCTIONS}
    assert not shared, "\n".join(f"{name}: {', '.join(files)}" for name, files in shared.items())


def test_names_of_tests_are_short() -> None:
    long = [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for folder in ("tests", "verification", "benchmarks")
        for path in CHECKOUT.joinpath(folder).rglob("*.py")
        for name in (definition.name for definition in definitions(path))
        if name.startswith("test_") and len(name) > MAX_TEST_NAME
    ]
    assert not long, "\n".join(long)
