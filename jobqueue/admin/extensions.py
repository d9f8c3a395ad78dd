"""
A site's extensions of the admin: links and columns of tasks, and the tasks of an object on the object's own page.

The functions of a site get the arguments that the reader may see: none without the permission, and masked by REDACT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from jobqueue.engine import Count
from jobqueue.models import Task
from jobqueue.operations.backends import databases, options_of
from jobqueue.operations.formatting import Text, when
from jobqueue.operations.list.interpretation import select
from jobqueue.operations.list.rows import read_rows
from jobqueue.operations.list.selection import Selection

Arguments = Mapping[str, Any]

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = object  # a mixin


class TaskLink(NamedTuple):
    """A link to a page of the site."""

    text: Text
    url: str


LinksOf = Callable[[Task, Arguments], Iterable[TaskLink]]
ValueOf = Callable[[Task, Arguments], Any]


@dataclass(frozen=True)
class Column:
    """A column of the site, which is a row of a task's page, too."""

    name: str
    title: Text
    value_of: ValueOf


@dataclass
class Extensions:
    """The additions of a site's modules. A module that is loaded again replaces its own."""

    links: dict[str, LinksOf] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)

    def read_links(self, task: Task, arguments: Arguments) -> list[TaskLink]:
        results = (_result(links, task, arguments, as_value=list) for links in self.links.values())
        return [link for links in results if links for link in links]

    def read_values(self, task: Task, arguments: Arguments) -> list[tuple[Text, Any]]:
        """Return titles and values, without empty ones."""
        values = [(column.title, _result(column.value_of, task, arguments)) for column in self.columns.values()]
        return [(title, value) for title, value in values if value not in (None, "")]

    @property
    def titles(self) -> dict[str, Text]:
        """The columns of the list by their names."""
        return {column.name: column.title for column in self.columns.values()}

    def cell(self, name: str) -> Callable[[Any], Any]:
        """Return a column of the list, as list_display takes it."""

        def cell(task: Any) -> Any:
            return _result(self.columns[name].value_of, task, task.named_arguments)

        cell.__name__ = name
        return admin.display(description=self.titles[name], empty_value="")(cell)


extensions = Extensions()


def task_links(links: LinksOf) -> LinksOf:
    """
    Add links to the list and the pages of tasks. Decorates a function of a task and its arguments, which yields links.

    arguments: by name, masked; empty if the reader may not see them. The list calls it for each row, so it should not
    query the database.
    """
    extensions.links[f"{links.__module__}.{links.__qualname__}"] = links
    return links


def task_column(title: Text) -> Callable[[ValueOf], ValueOf]:
    """Add a column to the list of tasks, and a line to their pages. Decorates a function as task_links() does."""

    def add(value_of: ValueOf) -> ValueOf:
        name = f"{value_of.__module__}_{value_of.__qualname__}".replace(".", "_")
        extensions.columns[name] = Column(name, title, value_of)
        return value_of

    return add


def _result(
    function: Callable[[Task, Arguments], Any],
    task: Task,
    arguments: Arguments,
    as_value: Callable[[Any], Any] = lambda result: result,
) -> Any:
    """
    Call a function of the site. An error is logged: the page must be readable when it matters.

    as_value: what reads the result; a generator raises only then.
    """
    try:
        result = function(task, arguments)
        return None if result is None else as_value(result)
    except Exception:
        logger.exception("extension.failed function=%s task=%s", function.__qualname__, task.pk)
        return None


def links_html(links: Sequence[TaskLink]) -> SafeString:
    return format_html_join(" ", '<a href="{1}">{0}</a>', links)


class TasksOfObjectMixin(ModelAdmin):
    """
    Show the last tasks of an object on its page of a ModelAdmin of the site.

    Write `tasks_search(self, obj)`. It returns what the search box of the task list takes: `tag:order-57` or
    `key:order-57`, which use an index, or `args.order_id:57`, which reads the newest 100,000 tasks.
    """

    max_tasks = 10

    def tasks_search(self, obj: Any) -> str:
        """Return the search that finds the tasks of an object."""
        raise NotImplementedError(f"{type(self).__name__} needs a method tasks_search(self, obj).")

    @property
    def media(self) -> forms.Media:
        return super().media + forms.Media(css={"all": ["jobqueue/admin.css"]})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), "tasks_of_object")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Append the tasks, unless the object is new or the user may not see tasks."""
        fieldsets = []
        for title, options in super().get_fieldsets(request, obj):
            fields = [name for name in options["fields"] if name != "tasks_of_object"]
            fieldsets.append((title, {**options, "fields": fields}))
        if obj is None or not request.user.has_perm("jobqueue.view_task"):
            return fieldsets
        obj._tasks_with_payload = request.user.has_perm("jobqueue.view_payload")
        return [*fieldsets, (gettext_lazy("Tasks"), {"fields": ["tasks_of_object"]})]

    @admin.display(description=gettext_lazy("Last tasks"))
    def tasks_of_object(self, obj: Any) -> SafeString:
        search, with_payload = self.tasks_search(obj), getattr(obj, "_tasks_with_payload", False)
        lists = [_read(search, database, self.max_tasks, with_payload=with_payload) for database in databases()]
        return render_to_string("admin/jobqueue/tasks_of_object.html", {"found": lists, "search": search})


class TasksOfObject(NamedTuple):
    """The last tasks of an object in one database."""

    selection: Selection  # all of them
    rows: list[tuple[Task, str]]  # the last ones, each with its address
    number: Count  # of all of them
    query: str  # of the address of the list of all of them


def _read(search: str, database: str, limit: int, *, with_payload: bool) -> TasksOfObject:
    selection = select(database, search, with_payload=with_payload)
    rows: list[Any] = read_rows(selection.tasks, list(selection.keys[:limit]), with_payload=with_payload)
    times = [when(row, row.now, options_of(row.backend).aging, row.executor_name)[0] for row in rows]
    return TasksOfObject(selection, list(zip(rows, times, strict=True)), selection.number, selection.query)
