"""Names in the code use the words of docs/glossary.md. This file is the only list of the retired words."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

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

# Parts of the names of constants.
BOUNDS = {"MOST": "MAX_x", "LEAST": "MIN_x"}

INSTEAD = PARTS | WHOLE_NAMES | BOUNDS

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


def python_names(path: Path) -> Iterator[str]:
    """Yield each name that a file defines: classes, functions, arguments, variables and attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def retired_words(name: str) -> set[str]:
    """Return the retired words in a name."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    words = {PLURALS.get(part, part) for part in parts} & PARTS.keys()
    if name.isupper():
        words |= set(name.split("_")) & BOUNDS.keys()
    return words | ({name.strip("_")} & WHOLE_NAMES.keys())


def names_with_retired_words() -> dict[str, list[str]]:
    """Return "file: name" for each name with a retired word, by word."""
    found: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in [*CHECKOUT.joinpath(folder).rglob("*.py"), *CHECKOUT.joinpath(folder).rglob("*.sql")]:
            file = path.relative_to(CHECKOUT).as_posix()
            for name in [path.stem, *(python_names(path) if path.suffix == ".py" else ())]:
                if (file, name) not in ALLOWED:
                    for word in retired_words(name):
                        found[word].add(f"{file}: {name}")
    return {word: sorted(names) for word, names in sorted(found.items())}


NAMES = names_with_retired_words()


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
