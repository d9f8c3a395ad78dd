"""Celery's app: the settings, the tasks by name, and what a site calls on it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from jobqueue.contrib.celery import registry
from jobqueue.contrib.celery.canvas import signature
from jobqueue.contrib.celery.conf import Conf
from jobqueue.contrib.celery.exceptions import refuse
from jobqueue.contrib.celery.options import REFUSED, check_names
from jobqueue.contrib.celery.request import innermost
from jobqueue.contrib.celery.result import AsyncResult
from jobqueue.contrib.celery.schedules import declare_entry
from jobqueue.contrib.celery.signals import Signal
from jobqueue.contrib.celery.task import Task, declared_task

# Options of tasks that Celery's tasks do not take as attributes.
NOT_ATTRIBUTES = ("base", "bind", "name", "app", "lazy", "shared", "serializer")


class Control:
    """Celery's app.control: what people do with running tasks."""

    def revoke(self, task_id: Any, terminate: bool = False, **_: Any) -> None:
        """Cancel a task, or several. terminate: also if they run."""
        for pk in task_id if isinstance(task_id, list | tuple) else [task_id]:
            AsyncResult(pk).revoke(terminate=terminate)

    def __getattr__(self, name: str) -> Any:
        raise refuse(f"app.control.{name}()", "Use `manage.py jobqueue`, or jobqueue.api.")


class Celery:
    """An app of Celery. All apps share their tasks."""

    tasks = registry.tasks
    Task = Task
    AsyncResult = AsyncResult
    signature = staticmethod(signature)

    def __init__(self, main: str | None = None, set_as_current: bool = True, tasks: Any = None, **options: Any) -> None:
        self.main, self.conf, self.control = main, Conf(), Control()
        self.on_configure, self.on_after_configure, self.on_after_finalize = Signal(), Signal(), Signal()
        self._modules: list[tuple[str, Any]] = []
        self.conf.update({name: options[name] for name in ("timezone",) if name in options})
        if "include" in options:
            self.conf.imports = options["include"]
        if "broker" in options:
            self.conf.broker_url = options["broker"]
        if set_as_current:
            self.set_current()

    def set_current(self) -> None:
        """Make it the app of current_app."""
        registry.current[:] = [self]

    set_default = set_current

    # --- settings

    def config_from_object(self, obj: Any, silent: bool = False, force: bool = False, namespace: str = "") -> None:
        """Read the settings from an object, with names in capitals behind the namespace."""
        self.conf.read_from(obj, namespace)

    def autodiscover_tasks(self, packages: Any = None, related_name: str | None = "tasks", force: bool = False) -> None:
        """Import a module of each package, or of each installed app, when Django has loaded the apps."""
        self._modules.append((related_name or "tasks", packages))

    def finalize(self) -> None:
        """Import modules with tasks, declare these to jobqueue, and declare the schedules of beat."""
        for module in self.conf.imports or ():
            import_module(module)
        for related_name, packages in self._modules:
            if packages is None:
                autodiscover_modules(related_name)
            for package in (packages() if callable(packages) else packages) or ():
                _import_related(package, related_name)
        declare_pending()
        for signal in (self.on_configure, self.on_after_configure, self.on_after_finalize):
            signal.send(self)
        for name, entry in (self.conf.beat_schedule or {}).items():
            declare_entry(self, str(name), entry)

    def add_periodic_task(
        self, schedule: Any, sig: Any, args: Any = (), kwargs: Any = (), name: str | None = None, **options: Any
    ) -> str:
        """Add an entry to conf.beat_schedule, for a signal such as on_after_configure."""
        key = name or repr(sig)
        entry = {"schedule": schedule, "task": sig.task, "options": {**sig.options, **options}}
        entry |= {"args": (*args, *sig.args), "kwargs": {**dict(kwargs), **sig.kwargs}}
        self.conf.beat_schedule = {**(self.conf.beat_schedule or {}), key: entry}
        return key

    # --- tasks

    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declare a task, with the options of Celery's tasks."""
        if functions:
            return declare_function(functions[0], self, options)
        return lambda function: declare_function(function, self, options)

    def register_task(self, task: Any, **options: Any) -> Any:
        """Declare an instance of a Task with a run() of its own."""
        task = task() if isinstance(task, type) else task
        vars(task).update(options)
        task.name = task.name or f"{type(task).__module__}.{type(task).__name__}"
        named = {name: getattr(task, name, None) for name in ("serializer", "exchange", "routing_key")}
        check_names(task.name, named)
        type(task).abstract = False
        self.tasks[task.name] = task
        pending.append(task)
        if settings.configured:
            declare_pending()
        return task

    def gen_task_name(self, name: str, module: str) -> str:
        """Return the name of a task that has none of its own."""
        return f"{self.main if module == '__main__' and self.main else module}.{name}"

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueue a task by its name. Raises NotRegistered if this process has none of this name."""
        return registry.task_by_name(name).apply_async(args, kwargs, **options)

    @property
    def current_task(self) -> Any:
        """The task that runs here, or None."""
        return innermost()[0]

    def now(self) -> Any:
        """Return the current time."""
        from django.utils import timezone

        return timezone.now()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refuse(f"The attribute {name} of an app")


pending: list[Any] = []  # tasks that jobqueue does not know yet, because the settings are not read
current_app: Celery = registry.current_app
Celery("default").conf.read_from("django.conf:settings", "CELERY")


def declare_function(function: Callable[..., Any], app: Celery, options: dict[str, Any]) -> Any:
    """Make the class and the instance of a task, as Celery does. Raises NotSupported for an option."""
    name = options.get("name") or app.gen_task_name(function.__name__, function.__module__)
    check_names(f"@shared_task of {name}", {key: options.get(key) for key in ("serializer", *REFUSED)})
    attributes = {key: value for key, value in options.items() if key not in NOT_ATTRIBUTES}
    attributes |= {
        "name": name,
        "run": function if options.get("bind") else staticmethod(function),
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "__wrapped__": staticmethod(function),
    }
    for listed in ("autoretry_for", "dont_autoretry_for"):
        if listed in attributes:
            attributes[listed] = tuple(attributes[listed])
    kind = type(function.__name__, (options.get("base") or Task,), attributes)
    task = kind()
    task.__name__ = function.__name__
    return app.register_task(task)


def shared_task(*functions: Callable[..., Any], **options: Any) -> Any:
    """Declare a task, with the options of Celery's tasks."""
    return current_app.task(*functions, **options)


def declare_pending() -> None:
    """Declare tasks to jobqueue that were declared before the settings were read."""
    while pending:
        declared_task(pending.pop(0))


def _import_related(package: str, related_name: str) -> None:
    name = f"{package}.{related_name}"
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise


def finalize() -> None:
    """Finish the current app when Django has loaded the apps. jobqueue's AppConfig calls it."""
    registry.current[0].finalize()
