"""The modules of a code base, and the meaning of the names in them."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jobqueue.management.migrate_from.systems import System

SKIPPED = {"node_modules", "site-packages", "__pycache__", "build", "dist"}
MAX_HOPS = 8  # imports of imports
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Module:
    """A file and its names."""

    file: str  # relative to the folder that was scanned
    dotted: str  # the folder that was scanned, then the path in it
    name: str  # the path that the site imports it from, such as shop.tasks
    tree: ast.Module  # its syntax
    bindings: dict[str, str] = field(default_factory=dict)  # dotted paths of what it imports, by local name
    defined: set[str] = field(default_factory=set)  # its functions and classes

    def __post_init__(self) -> None:
        self._bind_imports()
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        self.defined = {node.name for node in self.tree.body if isinstance(node, definitions)}

    def _bind_imports(self) -> None:
        """Read the imports, also those within functions."""
        package = self.dotted if Path(self.file).name == "__init__.py" else self.dotted.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    self.bindings[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin_of(node, package)
                for name in node.names:
                    self.bindings[name.asname or name.name] = f"{origin}.{name.name}".lstrip(".")

    def _origin_of(self, node: ast.ImportFrom, package: str) -> str:
        if not node.level:
            return node.module or ""
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1])
        return ".".join(filter(None, [base, node.module]))


class CodeBase:
    """The modules below a folder that contain a word of the system."""

    def __init__(self, root: Path, system: System) -> None:
        self.root, self.system = root, system
        self.packages = {module.partition(".")[0] for module in system.modules}
        self.problems: list[str] = []
        self.modules: dict[str, Module] = {}
        self.by_suffix: dict[str, str] = {}  # dotted paths by their ends: the root of imports may be a subfolder
        self.apps, self.app_classes = set(system.apps), set(system.app_classes)  # dotted paths
        self.tasks: set[str] = set()  # dotted paths of functions and classes
        for path in _python_files(root):
            self._read(path)
        for dotted in sorted(self.modules, key=lambda name: name.count(".")):
            parts = dotted.split(".")
            for first in range(len(parts)):
                if parts[first] in self.packages:  # shop/celery.py is not celery
                    continue
                self.by_suffix.setdefault(".".join(parts[first:]), dotted)

    def _read(self, path: Path) -> None:
        relative = path.relative_to(self.root if self.root.is_dir() else self.root.parent)
        try:
            content = path.read_bytes()
            if not any(word.encode() in content for word in self.system.words):
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the site's own code, such as an invalid escape
                tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            reason = getattr(error, "msg", None) or str(error)
            self.problems.append(f"{relative}:{line}: is not valid Python {VERSION}, so it is left out: {reason}.")
            return
        except OSError as error:
            self.problems.append(f"{relative}: cannot be read, so it is left out: {error.strerror}.")
            return
        parts = (self.root.resolve().name, *relative.with_suffix("").parts)
        dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.modules[dotted] = Module(str(relative), dotted, _import_path(path), tree)

    def is_foreign(self, dotted: str) -> bool:
        """Return whether a resolved path is a name of the system."""
        return dotted.startswith(":") or any(f"{dotted}.".startswith(f"{name}.") for name in self.system.modules)

    def import_path(self, dotted: str) -> str:
        """Return the path that the site imports a function from."""
        parts = dotted.split(".")
        for size in range(len(parts) - 1, 0, -1):
            if (module := self.modules.get(".".join(parts[:size]))) is not None:
                return ".".join([module.name, *parts[size:]])
        return dotted

    def origin(self, module: Module, node: ast.expr) -> str:
        """Return the dotted path of a name or an attribute; empty for other expressions."""
        if isinstance(node, ast.Name):
            return self.resolve(module.bindings.get(node.id) or f"{module.dotted}.{node.id}")
        if isinstance(node, ast.Attribute) and (origin := self.origin(module, node.value)):
            return self.resolve(f"{origin}.{node.attr}")
        return ""

    def resolve(self, dotted: str) -> str:
        """Follow imports. What belongs to an app or a task becomes `:app.x` or `:task.x`."""
        for _ in range(MAX_HOPS):
            dotted = self.system.aliases.get(dotted, dotted)
            for owners, word in ((self.apps, ":app"), (self.tasks, ":task")):
                if (owner := _owner(dotted, owners)) is not None:
                    return word + dotted[len(owner) :]
            if (following := self._follow(dotted)) == dotted:
                break
            dotted = following
        return dotted

    def _follow(self, dotted: str) -> str:
        """Return the object that a module of the code base binds to a name."""
        parts = dotted.split(".")
        for size in range(len(parts) - 1, 0, -1):
            path = self.by_suffix.get(".".join(parts[:size]))
            if path is None:
                continue
            bound = self.modules[path].bindings.get(parts[size])
            head = [bound] if bound and bound != dotted else [path, parts[size]]
            return ".".join([*head, *parts[size + 1 :]])
        return dotted


def _owner(dotted: str, owners: set[str]) -> str | None:
    while dotted and dotted not in owners:
        dotted = dotted.rpartition(".")[0]
    return dotted or None


def _import_path(path: Path) -> str:
    """Return the dotted path of a file from the last folder that is no package."""
    parts = [] if path.stem == "__init__" else [path.stem]
    for folder in path.resolve().parents:
        if not (folder / "__init__.py").exists():
            break
        parts.append(folder.name)
    return ".".join(reversed(parts))


def _python_files(root: Path) -> Iterator[Path]:
    """Yield the files with code, in order. Environments and hidden folders are left out."""
    if root.is_file():
        yield root
        return
    for folder, folders, files in os.walk(root):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder, name)
