"""Each field of a value is explained where it stands, so that a reader finds its unit and the meaning of None."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
VALUES = re.compile(r"\b(dataclass|NamedTuple|Struct)\b")
MAX_UNEXPLAINED = 3  # fields of a value that its name and its docstring explain


def value_classes(source: str) -> Iterator[ast.ClassDef]:
    """Yield the dataclasses, named tuples and structs of a module, and their subclasses in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            words = [ast.unparse(word) for word in (*node.decorator_list, *node.bases)]
            if any(VALUES.search(word) or word in names for word in words):
                names.add(node.name)
                yield node


def fields(value: ast.ClassDef) -> list[ast.AnnAssign]:
    """Return the fields of a value, without those of a class."""
    lines = [node for node in value.body if isinstance(node, ast.AnnAssign)]
    return [node for node in lines if not ast.unparse(node.annotation).startswith("ClassVar")]


def explained_in_docstring(value: ast.ClassDef) -> list[str]:
    """Return the fields that a docstring explains in the form "name: text" or "name, name: text"."""
    docstring = " ".join((ast.get_docstring(value) or "").split())
    names = [ast.unparse(field.target) for field in fields(value)]
    return [name for name in names if re.search(rf"(^|[.;:,] ){name}((, | and )\w+)*: ", docstring)]


def unexplained_fields(source: str, value: ast.ClassDef) -> list[str]:
    """Return the fields of a large value without a comment, a docstring or a description of JSON."""
    lines = source.splitlines()
    declared = fields(value)
    if len(declared) <= MAX_UNEXPLAINED:
        return []
    unexplained = []
    for field in declared:
        own = lines[field.lineno - 1 : field.end_lineno]
        follows = value.body.index(field) + 1
        following = value.body[follows] if follows < len(value.body) else None
        is_explained = (
            any("#" in line.replace("# type:", "") or "description=" in line for line in own)
            or lines[field.lineno - 2].lstrip().startswith("#")
            or (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
            or names_its_type(field)
        )
        if not is_explained:
            unexplained.append(ast.unparse(field.target))
    return unexplained


def names_its_type(field: ast.AnnAssign) -> bool:
    """Whether a field has the name of its class, as in `inserts: Inserts`."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", ast.unparse(field.annotation)).lower()
    return ast.unparse(field.target) in (snake, f"_{snake}")


SOURCES = {path.relative_to(CHECKOUT).as_posix(): path.read_text() for path in CHECKOUT.glob("jobqueue/**/*.py")}
CLASSES = [(path, source, value) for path, source in SOURCES.items() for value in value_classes(source)]

EXAMPLE = textwrap.dedent(
    '''
    @dataclass(frozen=True)
    class Wait(Struct):
        """How long a task waits. seconds: of the wait. since, until: its ends."""

        seconds: float
        # The start.
        since: datetime | None
        until: datetime | None  # the end; None: it still waits
        clock: Clock
    '''
)


def test_checks_of_values_find_fields_without_an_explanation() -> None:
    (value,) = value_classes(EXAMPLE)
    assert explained_in_docstring(value) == ["seconds", "since", "until"]
    assert unexplained_fields(EXAMPLE, value) == ["seconds"]
    assert len(CLASSES) > 100


def test_docstring_of_a_value_does_not_explain_its_fields() -> None:
    paragraphs = [(path, value.name, names) for path, _, value in CLASSES if (names := explained_in_docstring(value))]
    assert paragraphs == [], "Move each explanation to its field: name: type  # unit; meaning of None"


def test_each_field_of_a_large_value_is_explained() -> None:
    unexplained = [
        (path, value.name, names) for path, source, value in CLASSES if (names := unexplained_fields(source, value))
    ]
    message = "\n".join(f"{path}: {name}: {', '.join(names)}" for path, name, names in unexplained)
    assert not unexplained, f"Say what each field holds, with its unit and the meaning of None:\n{message}"
