"""
Interpret the text of the search box.

The answer becomes a part of the address, before anything is searched. So a link or a bulk action finds the tasks that
the list has shown, even if a key has disappeared or a new error has appeared since.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.translation import gettext as _

from jobqueue.models import Task
from jobqueue.operations.backends import backends_on
from jobqueue.operations.list.failures import TooManyCauses, causes_in_database
from jobqueue.operations.list.names import matching_types
from jobqueue.operations.list.search import ARGUMENT, ERROR, KEY, TAG, TASK, clean, id_range, ids_with_key
from jobqueue.operations.list.selection import Selection, has_tag, read_keys
from jobqueue.values.states import Status


def interpret(text: str, database: str, *, with_payload: bool) -> dict[str, str]:
    """
    Return the filters that a text stands for. `q` is what is left to search, with a prefix such as `key:`.

    An error becomes the causes of failures that have it in class or message. So masked parts of messages find nothing.
    with_payload: whether the reader may see errors. Others search for the class only.
    """
    text = clean(text)
    if text.lower().startswith(ERROR):
        wanted = text[len(ERROR) :].strip()
        if not with_payload:
            return {"status": Status.FAILED.value, "q": text}
        try:
            causes = causes_in_database(database, wanted) if wanted else []
        except TooManyCauses:
            causes = []
        return {"status": Status.FAILED.value, "cause": ",".join(causes)} if causes else {"q": text}
    if text.lower().startswith(TAG) and (tag := text[len(TAG) :].strip()):
        return {"tag": tag}
    if not text or text.lower().startswith((KEY, TASK, ARGUMENT, TAG)):
        return {"q": text}
    return _without_word(text, database)


def select(database: str, text: str = "", filters: Mapping[str, str] | None = None, *, with_payload: bool) -> Selection:
    """Return the tasks that filters and a text of the search box select. Raises ValueError if these contradict."""
    meaning = interpret(text, database, with_payload=with_payload)
    text = meaning.pop("q", "")
    merged = {**meaning, **(filters or {})}
    for name, value in meaning.items():  # of an error: its status and its causes
        if merged[name] != value:
            problem = _("A search for an error finds only FAILED tasks. Remove the filter for the status %(status)s.")
            raise ValueError(problem % {"status": merged[name]})
    return Selection(database, merged, text, with_payload=with_payload)


def _without_word(text: str, database: str) -> dict[str, str]:
    tasks = Task.objects.using(database).filter(backend__in=backends_on(database))
    if ids_with_key(tasks, text, limit=1):
        return {"q": f"{KEY}{text}"}
    ids = id_range(text)
    if ids is not None and tasks.filter(ids)[:1].exists():
        return {"q": text}
    if matching_types(text, database):
        return {"q": f"{TASK}{text}"}
    # Not exists(): for one row, the planner would read the table instead of the index.
    return {"tag": text} if read_keys(tasks.filter(has_tag(text))) else {"q": text}
