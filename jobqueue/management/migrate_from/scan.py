"""Read a code base by its syntax trees, without importing it, and find the uses of a system."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobqueue.management.migrate_from.source import CodeBase, Module
from jobqueue.management.migrate_from.systems import Counterpart, Counterparts, System, find_rule
from jobqueue.management.migrate_from.uses import Location, NameUse, Scan, display_name

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef
ON_FUNCTION = Counterpart("rename", "@task on the function")


def scan(root: Path, system: System) -> Scan:
    """Return the uses of a system in a file, or below a folder. Raises no error for the content of files."""
    code = CodeBase(root, system)
    for _ in range(2):  # a module may come before the one with its app, or with the base class of its tasks
        for module in code.modules.values():
            _declare(code, module)
    result = Scan(problems=list(code.problems), files=len(code.modules))
    finders = [UseFinder(code, module, result) for module in code.modules.values()]
    for finder in finders:
        finder.visit(finder.module.tree)
    names = {use.name for use in result.uses if use.kind == "task" and use.rule != ON_FUNCTION}
    result.uses = [use for use in result.uses if use.rule != ON_FUNCTION or use.name not in names]
    for finder in finders:
        for name, location in finder.called_by_name:
            if name not in names:
                result.problems.append(f"{location}: calls the task {name!r}, which this code does not declare.")
    result.problems.sort()
    return result


def _declare(code: CodeBase, module: Module) -> None:
    """Add the apps, the tasks and the classes of tasks of a module to the code base."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                origin = code.origin(module, function)
                if origin in code.app_classes:
                    code.apps.add(f"{module.dotted}.{name}")
                elif origin == ":app.register_task":
                    code.tasks.add(f"{module.dotted}.{name}")
            case ast.ClassDef(name=name, bases=bases):
                origins = {code.origin(module, base) for base in bases}
                if origins & code.app_classes:
                    code.app_classes.add(f"{module.dotted}.{name}")
                elif any(_is_task_class(code.system, origin) for origin in origins):
                    code.tasks.add(f"{module.dotted}.{name}")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if any(_declares(code, module, decorator) for decorator in node.decorator_list):
                    code.tasks.add(f"{module.dotted}.{name}")


def _is_task_class(system: System, origin: str) -> bool:
    return bool(system.task_classes) and (origin == ":task" or origin.removeprefix(":") in system.task_classes)


def _declares(code: CodeBase, module: Module, decorator: ast.expr) -> str:
    """Return the name of a decorator that makes a function a task; empty for others."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = code.origin(module, function).removeprefix(":")
    return name if name in code.system.declares else ""


class UseFinder(ast.NodeVisitor):
    """
    Finds the uses of a system in one module.

    It has more than 20 methods because each kind of node and of name has one.
    """

    def __init__(self, code: CodeBase, module: Module, result: Scan) -> None:
        self.code, self.module, self.result, self.system = code, module, result, code.system
        self.called_by_name: list[tuple[str, Location]] = []
        self.selves: list[str] = []  # parameters that are the task itself, in the functions around a node
        self.locals: list[set[str]] = []  # the variables of these functions, which hide the names of the module
        self.dicts = {
            target.id: node.value
            for node in module.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    # --- names

    def origin(self, node: ast.expr) -> str:
        """Return the meaning of a name or an attribute; empty for other expressions."""
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        if isinstance(first, ast.Name) and first.id in self.selves:
            return ":task" + ast.unparse(node)[len(first.id) :]
        if isinstance(first, ast.Name) and any(first.id in names for names in self.locals):
            return ""
        return self.code.origin(self.module, node)

    def look_up(self, node: ast.expr, *, is_call: bool = False) -> tuple[str, str, Counterpart] | None:
        """Return the kind, the name and the rule of a name or an attribute. A call may be of any object."""
        origin = self.origin(node)
        if self.code.is_foreign(origin):
            match = self.system.rule_of(origin.removeprefix(":"))
            if match is not None and (match[1] != "task" or (self.system.call_enqueues and is_call)):
                return match
        if isinstance(node, ast.Attribute) and (is_call or origin.startswith((":task.", ":app."))):
            name = f"any.{node.attr}"
            return next(((kind, name, rules[name]) for kind, rules in self.system.names.items() if name in rules), None)
        return None

    def add(self, node: ast.AST, kind: str, name: str, rule: Counterpart) -> None:
        self.result.uses.append(NameUse(kind, name, rule, self.location(node)))

    def location(self, node: ast.AST) -> Location:
        return Location(self.module.file, getattr(node, "lineno", 1))

    def problem(self, node: ast.AST, sentence: str) -> None:
        self.result.problems.append(f"{self.location(node)}: {sentence}")

    # --- imports, names, calls

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self._import(node, name.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            self._import(node, node.module)

    def _import(self, node: ast.AST, name: str) -> None:
        if self.code.is_foreign(name):
            is_main = f"{name}.".startswith(f"{self.system.modules[0]}.")
            becomes = f"from {self.system.shim}" if self.system.shim and is_main else ""
            self.add(node, "import", name, Counterpart("rename", "from jobqueue", becomes))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._use(node):
            self.visit(node.value)

    def _use(self, node: ast.expr, *, is_call: bool = False) -> str:
        """Record the use of a name. Return the name in the tables; empty if it has none."""
        match = self.look_up(node, is_call=is_call)
        if match is None:
            return ""
        kind, name, rule = match
        self.add(node, kind, display_name(name), rule)
        return name

    def visit_Call(self, node: ast.Call) -> None:
        name = self._use(node.func, is_call=True)
        if name:
            self._options(node, name)
            self._target(node, name)
        if isinstance(node.func, ast.Attribute) and (not name or not self.origin(node.func)):
            self.visit(node.func.value)
        elif not name:
            self.visit(node.func)
        if self.system.conf_prefix and self.origin(node.func) == ":app.conf.update":
            for key, value in self._members(node):
                self._setting(value, f"{self.system.conf_prefix}{key.upper()}", value)
        for child in (*node.args, *node.keywords):
            self.visit(child)

    def _members(self, node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Yield the keywords of a call, and the members of dicts in it."""
        for argument in (*node.args, *(keyword.value for keyword in node.keywords if keyword.arg is None)):
            if isinstance(argument, ast.Dict):
                yield from _items(argument)
            else:
                self.problem(argument, f"{ast.unparse(argument):.60} is computed at runtime, so it is not read.")
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)

    def _options(self, node: ast.Call, name: str) -> None:
        """Record the options of a call."""
        kind, rules = self.system.option_rules(name)
        for keyword in node.keywords if rules else ():
            if keyword.arg:
                self._option(kind, rules, keyword.arg, keyword.value)
            elif isinstance(keyword.value, ast.Dict):
                for key, value in _items(keyword.value):
                    self._option(kind, rules, key, value)
            else:
                text = f"the options **{ast.unparse(keyword.value):.40} of {display_name(name)} are computed at runtime"
                self.problem(node, f"{text}, so they are not read.")

    def _option(self, kind: str, rules: Counterparts, name: str, value: ast.expr) -> None:
        rule = find_rule(rules, name, _literal(value))
        if rule is not None:
            self.add(value, kind, name, rule)

    def _target(self, node: ast.Call, name: str) -> None:
        """Record the task that a call names or gives as a function."""
        index = self.system.targets.get(name)
        if index is None or len(node.args) <= index:
            return
        function, text = node.args[index], _literal(node.args[index])
        if self.system.must_be_declared:
            if isinstance(text, str):
                self.called_by_name.append((text, self.location(node)))
            else:
                self.problem(node, f"the name of the task of {display_name(name)} is computed at runtime.")
        elif isinstance(text, str):
            self.add(node, "task", text, ON_FUNCTION)
        elif (origin := self.origin(function)) != ":task":
            first = ast.unparse(function).partition(".")[0]
            if origin and (first in self.module.bindings or first in self.module.defined):
                self.add(node, "task", self.code.import_path(origin), ON_FUNCTION)
            else:
                self.problem(
                    node, f"the task of {display_name(name)} is computed at runtime: {ast.unparse(function):.60}."
                )

    # --- tasks

    def visit_FunctionDef(self, node: AnyFunction) -> None:
        declaration = None
        for decorator in node.decorator_list:
            if name := _declares(self.code, self.module, decorator):
                declaration = decorator
                self._task(node, decorator, name)
            else:
                self.visit(decorator)
        is_bound = isinstance(declaration, ast.Call) and any(
            keyword.arg == "bind" and _literal(keyword.value) is True for keyword in declaration.keywords
        )
        self._body(node, is_bound=is_bound)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _task(self, node: AnyFunction, decorator: ast.expr, name: str) -> None:
        match = self.system.rule_of(name)
        own_name = None
        if isinstance(decorator, ast.Call):
            self._options(decorator, name)
            own_name = next((_literal(word.value) for word in decorator.keywords if word.arg == "name"), None)
            for child in (*decorator.args, *decorator.keywords):
                self.visit(child)
        if match is not None:
            self.add(node, "task", str(own_name or f"{self.module.name}.{node.name}"), match[2])

    def _body(self, node: AnyFunction, *, is_bound: bool) -> None:
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args]
        others = [*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
        self.selves.append(parameters[0].arg if is_bound and parameters else "")
        self.locals.append({parameter.arg for parameter in (*parameters, *others)} | set(_assigned(node)))
        for child in ast.iter_child_nodes(node):
            if child not in node.decorator_list:
                self.visit(child)
        self.selves.pop()
        self.locals.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not any(_is_task_class(self.system, self.origin(base)) for base in node.bases):
            self.generic_visit(node)
            return
        kind, rules = self.system.option_rules("task class")
        own_name = None
        for child in node.body:
            match child:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in rules:
                    own_name = _literal(value) if name == "name" else own_name
                    self._option(kind, rules, name, value)
            if isinstance(child, AnyFunction):
                self._body(child, is_bound=True)
            else:
                self.visit(child)
        rule = self.system.rule_of(self.system.task_classes[0])
        if rule is not None:
            self.add(node, "task", str(own_name or f"{self.module.name}.{node.name}"), rule[2])

    # --- settings

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(node, target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node, node.target, node.value)
        self.generic_visit(node)

    def _assign(self, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                self._setting(node, name, value)
            case ast.Subscript(value=ast.Name(id=name), slice=key) if name in self.system.beat:
                self._beat_entry(node, _literal(key), value)
            case ast.Attribute(value=owner, attr=name) if self.system.conf_prefix and self.origin(owner) == ":app.conf":
                self._setting(node, f"{self.system.conf_prefix}{name.upper()}", value)

    def _setting(self, node: ast.AST, name: str, value: ast.expr) -> None:
        rule = find_rule(self.system.settings, name, _literal(value)) if name.isupper() else None
        if rule is None:
            return
        self.add(node, "setting", name, rule)
        has_members = any(key.startswith(f"{name}.") for key in self.system.settings)
        if not has_members and name not in self.system.beat:
            return
        members = self.dicts.get(value.id) if isinstance(value, ast.Name) else value
        if not isinstance(members, ast.Dict) or None in members.keys:
            self.problem(node, f"{name} is computed at runtime, so what it contains is not all read.")
        for key, member in _items(members):
            if name in self.system.beat:
                self._beat_entry(member, key, member)
            elif (match := find_rule(self.system.settings, f"{name}.{key}")) is not None:
                self.add(member, "setting", f"{name}.{key}", match)

    def _beat_entry(self, node: ast.AST, name: Any, value: ast.expr) -> None:
        """Record a periodic task and its options."""
        entry = dict(_items(value))
        if not {"task", "schedule"} <= entry.keys():
            self.problem(node, f"the periodic task {name!r} is computed at runtime, so it is not read.")
            return
        function = entry["schedule"].func if isinstance(entry["schedule"], ast.Call) else entry["schedule"]
        match = self.look_up(function)
        rule = match[2] if match else Counterpart("same", "")
        text = f"{ast.unparse(entry['schedule']):.60} of {ast.unparse(entry['task'])}"
        becomes = rule.natively or ("Every" if rule.effect == "same" else "")
        self.add(
            node, "periodic task", str(name), Counterpart(rule.effect, f"a schedule, {becomes}: {text}", rule.note)
        )
        if isinstance(task := _literal(entry["task"]), str):
            self.called_by_name.append((task, self.location(entry["task"])))
        kind, rules = self.system.option_rules("beat entry")
        for key, option in _items(entry.get("options")):
            self._option(kind, rules, key, option)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (rule := self.system.strings.get(node.value)) is not None:
            self.add(node, "setting", node.value, rule)


def _assigned(node: AnyFunction) -> Iterator[str]:
    """Yield the names that a function assigns, without those that it declares global."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id


def _literal(node: ast.expr) -> Any:
    """Return the value of a constant, or None."""
    return node.value if isinstance(node, ast.Constant) else None


def _items(node: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """Yield the members of a dict that have a text as their key: of `{...}` or `dict(...)`."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and isinstance(_literal(key), str):
                yield key.value, value  # type: ignore[attr-defined]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
