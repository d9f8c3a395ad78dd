"""The first line of a docstring says what a function does, in the imperative, or what a class or a value is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
VAGUE = re.compile(r"(What|Return what)\b")
# Words at the start of a function's docstring that is not in the imperative. Properties are named as values are.
NO_VERBS = re.compile(
    r"(A|After|All|An|As|Before|How|Only|Raises|Returns|Since|Some|The|When|Where|Whether|Which|Why)\b"
)


def docstrings(source: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield each module, class and function with its docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, ast.get_docstring(node) or ""


def has_other_form(node: ast.AST, docstring: str) -> bool:
    """Return whether the first line has another form."""
    if VAGUE.match(docstring):
        return True
    if not docstring or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    return not is_property and not (docstring[0].isupper() and not NO_VERBS.match(docstring))


def test_check_finds_docstrings_of_another_form() -> None:
    source = '''
"""What a person means."""
class Range:
    """How far back a chart looks."""
    @property
    def end(self):
        """The end of it."""
    def read(self):
        """The rows of it."""
    def lock(self):
        """Return what is locked."""
    def write(self):
        """Write the rows. rows: of one queue."""
'''
    assert [docstring for node, docstring in docstrings(source) if has_other_form(node, docstring)] == [
        "What a person means.",
        "The rows of it.",
        "Return what is locked.",
    ]


def test_first_line_is_imperative_or_a_noun() -> None:
    wrong = [
        f"{path.relative_to(CHECKOUT)}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}"
        for path in CHECKOUT.glob("jobqueue/**/*.py")
        for node, docstring in docstrings(path.read_text())
        if has_other_form(node, docstring)
    ]
    assert not wrong, "\n".join(wrong)
