"""Imports point one way, as docs/design.md says. The docstring of a package names its modules."""

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
PACKAGES = sorted(path.parent for path in FILES if path.name == "__init__.py" and path.parent != PACKAGE)
# An import points to a part above it. Parts of one line do not import each other.
LAYERS = [
    {"exceptions"},
    {"values"},
    {"conf", "schedules", "models"},
    {"engine", "declarations"},
    {"api"},
    {"backend", "operations", "executor"},
    {"admin", "http", "management", "testing"},
    {"apps", "urls", "templatetags"},
    {"contrib"},
]
RUNS_TASKS = {"executor", "management", "testing"}
EMBEDDED = "embedded.py"  # a web process that runs tasks imports it
FOR_DJANGO = {
    "__init__.py", "apps.py", "urls.py", "py.typed", "migrations", "models", "management", "admin", "templatetags",
    "templates", "static", "locale",
}  # fmt: skip
ON_TOP = {
    "api", "backend.py", "conf", "contrib", "declarations", "engine", "exceptions.py", "executor", "http", "operations",
    "schedules", "testing", "values",
}  # fmt: skip


def layer(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES if path != PACKAGE / "__init__.py"}


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports anywhere, also for type checkers only."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                modules |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                modules |= {f"{module}.{name.name}" if f"{module}.{name.name}" in MODULES else module for name in names}
            case ast.ImportFrom():
                raise AssertionError(f"{path}:{node.lineno}: a relative import")
    return modules & MODULES.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_import_only_lower_layers(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return  # it gives each name at its first use
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for imported in {module.split(".")[1] for module in imports(path)} - {part}:
        assert layer(imported) < layer(part), f"{part} imports {imported}"
        assert imported != "executor" or part in RUNS_TASKS or path.name == EMBEDDED, (
            "a web process never imports the executor"
        )


def test_modules_outside_the_engine_import_none_of_its_parts() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] != "engine":
            parts = {module for module in imports(path) if module.startswith("jobqueue.engine.")}
            assert parts == set(), f"{path} imports {parts}: use what jobqueue.engine exports"


def test_parts_of_operations_do_not_import_each_other() -> None:
    parts = {name_of(path / "__init__.py"): path for path in (PACKAGE / "operations").iterdir() if path.is_dir()}
    for path in (PACKAGE / "operations").rglob("*.py"):
        for module in imports(path):
            imported = next((part for part in parts if module.startswith(f"{part}.")), None)
            if imported and not path.is_relative_to(parts[imported]):
                assert (path.parent.name, imported) == ("bulk", "jobqueue.operations.list"), f"{path} imports {module}"


def test_top_level_has_thirteen_entries_beside_those_of_django() -> None:
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    entries = {path.parts[0] for path in files}
    assert entries - FOR_DJANGO == ON_TOP
    assert len(ON_TOP) == 13


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_docstring_of_a_package_names_each_of_its_modules(package: Path) -> None:
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    modules |= {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert set(re.findall(r"^\* `([^`]+)`: ", docstring, flags=re.MULTILINE)) == modules


def class_size(node: ast.ClassDef) -> tuple[int, int]:
    """Return how many methods and attributes a class has: fields, and what its methods assign to self."""
    methods = [entry for entry in node.body if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef)]
    fields = {
        entry.target.id
        for entry in node.body
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
    }
    assigned = {
        attribute.attr
        for attribute in ast.walk(node)
        if isinstance(attribute, ast.Attribute)
        and isinstance(attribute.ctx, ast.Store)
        and isinstance(attribute.value, ast.Name)
        and attribute.value.id == "self"
    }
    return len(methods), len(fields | assigned)


@pytest.mark.parametrize("folder", ["jobqueue", "tests", "verification", "benchmarks", "tools"])
def test_large_class_gives_its_reason(folder: str) -> None:
    for path in (PACKAGE.parent / folder).rglob("*.py"):
        for node in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            methods, attributes = class_size(node)
            reasons = re.findall(r"more than [^.]*because", ast.get_docstring(node) or "")
            excesses = {"20 methods": methods > 20, "15 attributes": attributes > 15}
            for bound, is_above in excesses.items():
                assert any(bound in reason for reason in reasons) == is_above, f"{node.name}: {methods}, {attributes}"


def test_web_process_does_not_load_executor() -> None:
    modules = [path.relative_to(PACKAGE.parent).with_suffix("") for path in FILES]
    of_web = [path for path in modules if path.parts[1] not in RUNS_TASKS and path.name != EMBEDDED.removesuffix(".py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in of_web]
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
