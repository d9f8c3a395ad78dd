"""Find tasks and schedules whose code is missing: in the running executors, and in the code of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Any

from django.core import checks
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobqueue.declarations import registry
from jobqueue.declarations.checks import sound_backends
from jobqueue.engine import MAX_GROUPS, Count, Engine, count, engine_for, missing_migrations, missing_tables
from jobqueue.models import TaskQuerySet
from jobqueue.operations.formatting import duration
from jobqueue.operations.links import AdminTarget
from jobqueue.operations.overview.stats import BackendStats
from jobqueue.operations.queries import many_tasks, tasks_with_status
from jobqueue.values.states import LIVE, Status
from jobqueue.values.text import printable

CODE_AWAITED_LONG = timedelta(minutes=5)  # a rolling deploy may take as long
MAX_NAMES = 10  # that one answer names: of tasks, or of executors
READ = 20_000  # tasks of each state whose names a system check reads


@dataclass(slots=True)
class AwaitedName:
    """The tasks of one name that wait for code, and the executors that might run them."""

    since: datetime  # when the first one began to wait
    queues: set[str] = field(default_factory=set)  # of the tasks
    having: list[str] = field(default_factory=list)  # executors that serve such a queue and know the name
    lacking: list[str] = field(default_factory=list)  # executors that serve such a queue and do not know it
    served: set[str] = field(default_factory=set)  # queues that the former serve

    def meet(self, name: str, queues: Sequence[str], is_known: bool) -> None:
        """Note a running executor. queues: those it serves; none: all."""
        own = self.queues & {*queues} if queues else self.queues
        if own:
            (self.having if is_known else self.lacking).append(name)
        if is_known:
            self.served |= own

    @property
    def is_known(self) -> bool:
        """Whether each queue has an executor that knows the name."""
        return self.queues <= self.served

    @property
    def executors(self) -> str:
        """Say which executors have the code and which lack it."""
        having = _("Executors that know the name: %(names)s.") % {"names": _listed(self.having)}
        lacking = _("Executors that do not know the name: %(names)s.") % {"names": _listed(self.lacking)}
        return " ".join(text for text, names in ((having, self.having), (lacking, self.lacking)) if names)


def code_findings(engine: Engine, stats: BackendStats) -> Iterator[checks.CheckMessage]:
    """Find tasks whose name no running executor knows, or whose arguments do not fit the code of these."""
    if not stats.totals[Status.AWAITING_CODE]:
        return
    groups = engine.code_waits.groups()
    awaited: dict[str, AwaitedName] = {}
    for group in groups:
        awaited_name = awaited.setdefault(group.task_type, AwaitedName(group.since))
        awaited_name.since = min(awaited_name.since, group.since)
        awaited_name.queues.add(group.queue_name)
    oldest = sorted(awaited, key=lambda name: awaited[name].since)
    alive = engine.db.executors.filter(pk__in=[executor.row.pk for executor in stats.alive])
    for executor, queues, names in alive.order_by("name").values_list("name", "queues", "task_types"):
        for name in oldest[:MAX_NAMES]:
            awaited[name].meet(executor, queues, name in names)
    for name in oldest[:MAX_NAMES]:
        yield _awaited(engine, stats, name, awaited[name])
    if others := oldest[MAX_NAMES:]:
        text = ngettext(
            "Backend %(backend)s: tasks of %(number)s more name wait for code.",
            "Backend %(backend)s: tasks of %(number)s more names wait for code.",
            len(others),
        ) % {"backend": engine.alias, "number": Count(len(others), is_more=len(groups) == MAX_GROUPS)}
        advice = _("List them: %(command)s") % {"command": "manage.py jobqueue list --status AWAITING_CODE"}
        yield checks.Warning(text, hint=advice, obj=AdminTarget("task", {"status": Status.AWAITING_CODE}))


def _awaited(engine: Engine, stats: BackendStats, name: str, awaited_name: AwaitedName) -> checks.CheckMessage:
    rows = engine.db.tasks.awaiting_code().filter(queue_name__in=awaited_name.queues, task_type=name)
    values = {
        "backend": engine.alias,
        "task": name,
        "tasks": many_tasks(count(rows.order_by())),
        "time": duration(stats.now - awaited_name.since),
        "executors": awaited_name.executors,
    }
    if awaited_name.is_known and (stats.now - awaited_name.since < CODE_AWAITED_LONG or not _is_unbound(engine, rows)):
        # A deploy is under way, or the executors with the code are busy.
        text = _(
            "Backend %(backend)s: executors with their code will run %(tasks)s of %(task)s. "
            "The first has waited for %(time)s. %(executors)s"
        )
        return checks.Info(text % values)
    if awaited_name.is_known:
        text = _(
            "Backend %(backend)s: no running executor has code that takes the arguments of %(tasks)s of %(task)s. "
            "The first has waited for %(time)s. %(executors)s"
        )
    else:
        text = _(
            "Backend %(backend)s: no running executor has code for %(tasks)s of %(task)s. "
            "The first has waited for %(time)s. %(executors)s"
        )
    advice = _("Deploy code for them, or cancel them here or with: %(command)s")
    target = AdminTarget("task", {"status": Status.AWAITING_CODE, "task": name})
    return checks.Warning(
        (text % values).rstrip(),
        hint=advice % {"command": _cancel(engine, name, "--status AWAITING_CODE")},
        obj=replace(target, action="cancel_selected"),
    )


def _cancel(engine: Engine, name: str, more: str) -> str:
    return f"manage.py jobqueue cancel --backend {quote(engine.alias)} {more} --task {quote(name)}".replace("  ", " ")


def _listed(names: Sequence[str]) -> str:
    more = f", … ({len(names)})" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _is_unbound(engine: Engine, rows: TaskQuerySet) -> bool:
    """Return whether an executor has reported that its code does not take the arguments of the first of these tasks."""
    first = rows.order_by("queue_name", "task_type", "awaits_code_since").values_list("pk", flat=True)[:1]
    (last,) = engine.code_waits.last_errors(first).values() or (None,)
    return isinstance(last, dict) and last.get("awaited", "name") != "name"


def find_unknown_names(databases: Collection[str] | None = None, **_kwargs: Any) -> list[checks.CheckMessage]:
    """
    Warn of unfinished tasks and schedules whose names this code does not have.

    Django runs it only where checks may connect: `migrate`, and `check --database`.
    """
    backends = [backend for backend in sound_backends() if backend.settings.database in (databases or ())]
    ready = {
        database: not missing_tables(database) and not missing_migrations(database)
        for database in {backend.settings.database for backend in backends}
    }
    engines = [engine_for(backend.alias) for backend in backends if ready[backend.settings.database]]
    return [message for engine in engines for message in _unknown_names(engine)]


def _unknown_names(engine: Engine) -> Iterator[checks.CheckMessage]:
    is_partial, names_here = False, registry.by_name()
    tasks: Counter[str] = Counter()
    for status in LIVE:
        names = tasks_with_status(engine, Status(status)).values_list("task_type", flat=True)[:READ]
        read = Counter(names.iterator())
        is_partial = is_partial or read.total() == READ
        tasks += Counter({name: number for name, number in read.items() if name not in names_here})
    tasks += Counter({group.task_type for group in engine.code_waits.groups()} - names_here.keys() - tasks.keys())
    schedules: dict[str, list[str]] = {}
    for name, task_type in engine.db.schedules.active().order_by("name").values_list("name", "task_type"):
        if task_type not in names_here:
            schedules.setdefault(task_type, []).append(name)
    unknown = sorted({*tasks, *schedules})
    if not unknown:
        return
    parts = [_stored(name, tasks[name], schedules.get(name, []), is_partial) for name in unknown[:MAX_NAMES]]
    if unknown[MAX_NAMES:]:
        parts.append(f"{len(unknown) - MAX_NAMES} more names")
    first = printable(unknown[0])
    yield checks.Warning(
        f"Backend {engine.alias!r}: this code does not have {'; '.join(parts)}. Tasks of these names wait until an "
        "executor has their code.",
        hint=f"Renamed or moved: @task(aliases=[{first!r}]). Removed: {_cancel(engine, first, '')}, and delete its "
        "schedules. In the code of another site: give that site a backend of its own.",
        id="jobqueue.W009",
    )


def _stored(name: str, number: int, schedules: Sequence[str], is_partial: bool) -> str:
    """Return a name with what has it."""
    tasks = f"{number:,}{'+' if is_partial else ''} task{'s' if number != 1 or is_partial else ''}"
    of_schedules = f"the schedule{'s' if len(schedules) > 1 else ''} {_listed([*map(printable, schedules)])}"
    parts = [text for text, is_there in ((tasks, number), (of_schedules, schedules)) if is_there]
    return f"{printable(name)} ({' and '.join(parts)})"
