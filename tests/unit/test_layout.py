"""Imports point one way: values <- models <- engine <- api and bodies <- executor <- edges."""

import ast
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jobqueue"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)
VALUES = [
    "jobqueue",
    "actions",
    "backoff",
    "body_log",
    "causes",
    "compat",
    "conf",
    "connection_pool",
    "exceptions",
    "failpoints",
    "history",
    "records",
    "posix",
    "printable",
    "suggestions",
    "serialization",
    "metrics",
    "http_tokens",
    "schedules",
    "limits",
]
BODIES = ["actor", "function", "registry", "results", "declared_schedules", "task_options"]
LAYERS = [
    VALUES,
    ["models", "counter_models", "limit_models", "report_models", "schedule_models", "indexes"],
    ["engine"],
    ["api", *BODIES],
    ["executor"],
    ["inspect"],
]  # all other modules are edges
EDGES = {"admin", "cli", "http"}
RUNS_TASKS = ["executor", "management", "testing", "virtual_time"]


def layer(part: str) -> int:
    return next((number for number, parts in enumerate(LAYERS) if part in parts), len(LAYERS))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES if path != PACKAGE / "__init__.py"}


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports anywhere, also for type checkers only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found |= {f"{module}.{name.name}" if f"{module}.{name.name}" in MODULES else module for name in names}
            case ast.ImportFrom():
                raise AssertionError(f"{path}:{node.lineno}: a relative import")
    return found & MODULES.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_import_only_lower_layers(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for imported in {module.split(".")[1] for module in imports(path)}:
        assert layer(imported) <= layer(part), f"{part} imports {imported}"
        assert not (part in BODIES and imported == "engine"), "bodies do not know the engine"
        assert not {part, imported} <= EDGES or part == imported, "edges share code through inspect"
        assert imported != "executor" or part in RUNS_TASKS, "a web process never imports the executor"


def test_web_process_does_not_load_executor() -> None:
    modules = [path.relative_to(PACKAGE.parent).with_suffix("") for path in FILES]
    names = [".".join(path.parts).removesuffix(".__init__") for path in modules if path.parts[1] not in RUNS_TASKS]
    script = """if True:
        import importlib, sys, django
        django.setup()
        for name in sys.argv[1:]:
            importlib.import_module(name)
        print([name for name in sys.modules if name.startswith("jobqueue.executor")])
    """
    loaded = subprocess.run(
        [sys.executable, "-c", script, "tests.urls", *names],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.strip() == "[]"


def test_modules_have_no_import_cycles() -> None:
    TopologicalSorter({name: imports(path) - {name} for name, path in MODULES.items()}).prepare()


DESIGN = (PACKAGE.parent / "docs/design.md").read_text()
ROWS = [re.findall(r"`([^` ]+)`", line) for line in DESIGN.splitlines() if line.startswith("|")]


def named_files(row: list[str]) -> dict[str, list[Path]]:
    names = [name for name in row if name.endswith((".py", ".sql", "/"))]
    return {name: list(PACKAGE.rglob(name.strip("/"))) for name in names}


def test_tables_of_the_design_page_name_files_that_exist() -> None:
    named = [named_files(row) for row in ROWS]
    assert len([name for files in named for name in files]) > 50
    assert [name for files in named for name, paths in files.items() if not paths] == []


def test_tables_of_the_design_page_name_functions_of_these_files() -> None:
    missing = []
    for row in ROWS:
        code = "".join(path.read_text() for paths in named_files(row).values() for path in paths if path.is_file())
        missing += [name for name in row if name.endswith("()") and not re.search(rf"\b{name[:-2]}\b", code)]
    assert missing == []
