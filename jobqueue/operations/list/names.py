"""The names of task types, queues and tags: declared, configured, counted, or of few tasks. Never read from all."""

from __future__ import annotations

from collections import Counter as CounterOf

from jobqueue.api import declared_queues
from jobqueue.declarations import registry
from jobqueue.engine import engine_for
from jobqueue.models import Counter, Queue, Task
from jobqueue.operations.backends import backends_on
from jobqueue.operations.formatting import short_type
from jobqueue.operations.payloads import texts_in

TASKS_READ = 1000  # the newest ones: their tags
TAGS_OF_TASKS = 30


def known_types(database: str) -> list[str]:
    """Return the names of tasks that code declares, or that have been counted."""
    counted = Counter.objects.using(database).filter(backend__in=backends_on(database))
    return sorted({*registry.by_name(), *counted.values_list("task_type", flat=True).distinct()})


def matching_types(text: str, database: str) -> list[str]:
    """Return the task types with a name, else those whose name contains it."""
    names = known_types(database)
    exact = [name for name in names if text in (name, short_type(name))]
    return exact or [name for name in names if text.casefold() in name.casefold()]


def known_queues(database: str) -> set[str]:
    """Return the queues of a database that are configured, declared, have a row, or have READY tasks."""
    backends = backends_on(database)
    names = {name for backend in backends for name in declared_queues(backend)}
    names.update(task.queue_name for task in registry.all().values() if task.backend in backends)
    names.update(Queue.objects.using(database).filter(backend__in=backends).values_list("name", flat=True))
    for backend in backends:
        names.update(engine_for(backend).queues.queues_in_use())
    return names


def known_tags(database: str) -> set[str]:
    """Return the tags that code declares, and the most frequent ones of the newest tasks."""
    newest = Task.objects.using(database).filter(backend__in=backends_on(database)).order_by("-pk")
    tags = (tag for value in newest.values_list("tags", flat=True)[:TASKS_READ] for tag in texts_in(value))
    counts = CounterOf(tags)
    declared = {tag for task in registry.all().values() for tag in task.tags}
    return declared | {tag for tag, _number in counts.most_common(TAGS_OF_TASKS)}
