"""
Check the English of this repository: python -m tools.check_english [FILE...]

Prints vague and archaic words and the length of sentences for each group of files.
Exits 1 and prints the lines at fault when a group is above its limit.
"""

from __future__ import annotations

import ast
import io
import operator
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from math import inf
from pathlib import Path

# For each group: vague words in 1,000, archaic words, words in a sentence.
LIMITS = {"documentation": (1.0, 0, 18.0), "code and SQL": (1.5, 0, inf), "tests": (2.0, 0, inf)}
VAGUE = re.compile(r"\b(who|whoever|whom|whose|nobody|somebody|whatever|told|says|meanwhile)\b", re.I)
ARCHAIC = re.compile(r"\b(gainsa\w+|mend(s|ed|ing)?|anew|borne|deeds?|thereof|of late|in vain|beforehand)\b", re.I)


def main(names: list[str]) -> int:
    lines: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for path in map(Path, names or subprocess.check_output(["git", "ls-files"], text=True).splitlines()):
        if path.suffix in READERS and path.is_file():
            lines[group_of(path)] += [(str(path), *line) for line in READERS[path.suffix](path.read_text())]
    print(f"{'':16}{'words':>8}{'vague / 1,000':>15}{'archaic':>9}{'words a sentence':>18}")
    failed = []
    for group, limits in LIMITS.items():
        text = " ".join(prose for _, _, prose in lines[group])
        words = max(1, len(re.findall(r"[A-Za-z']+", text)))
        sentences = [part for part in re.split(r"(?<=[.!?])\s+", text) if len(part.split()) > 2]
        measured = 1000 * len(VAGUE.findall(text)) / words, len(ARCHAIC.findall(text)), words / max(1, len(sentences))
        print(f"{group:16}{words:8}{measured[0]:15.2f}{measured[1]:9}{measured[2]:18.1f}")
        if any(map(operator.gt, measured, limits)):
            failed.append(group)
            for name, number, prose in lines[group]:
                if ARCHAIC.search(prose) or VAGUE.search(prose):
                    print(f"  {name}:{number}: {prose.strip()[:100]}")
    print(f"\nAbove the limit: {', '.join(failed)}" if failed else "\nEach group is within its limits.")
    return 1 if failed else 0


def group_of(path: Path) -> str:
    is_test = path.parts[0] in ("tests", "verification")
    return "documentation" if path.suffix == ".md" else "tests" if is_test else "code and SQL"


def markdown(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if line.strip() and not is_code and not line.lstrip().startswith(("|", "```")):
            yield number, line


def python(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            yield from enumerate(docstring.splitlines(), node.body[0].lineno if docstring else 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.search(r"noqa|type:", token.string):
            yield token.start[0], token.string.lstrip("# ")


def sql(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line[2:]) for number, line in enumerate(text.splitlines(), 1) if line.startswith("--"))


READERS = {".md": markdown, ".py": python, ".sql": sql}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
