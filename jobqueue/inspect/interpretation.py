"""
What a text in the search box means.

The answer becomes a part of the address, before anything is searched. So a link or a bulk action finds the tasks that
the list has shown, also when a key has gone, or when another error has come.
"""

from __future__ import annotations

from jobqueue.engine import engine_for
from jobqueue.inspect.backends import backends_on
from jobqueue.inspect.failures import TooManyCauses, causes_with
from jobqueue.inspect.names import matching_types
from jobqueue.inspect.search import ARGUMENT, ERROR, KEY, TAG, TASK, clean, id_range, ids_with_key
from jobqueue.models import Task
from jobqueue.records import Status


def interpret(text: str, database: str, *, with_payload: bool) -> dict[str, str]:
    """
    Return the filters and the search that a text means: q is the text with the word in front that finds something.

    An error becomes the causes of failures that have it in class or message. So masked parts of messages find nothing.
    with_payload: whether the reader may see errors. Others search for the class only.
    """
    text = clean(text)
    if text.lower().startswith(ERROR):
        wanted = text[len(ERROR) :].strip()
        if not with_payload:
            return {"status": Status.FAILED.value, "q": text}
        engines = map(engine_for, backends_on(database))
        try:
            causes = ",".join(sorted({cause for engine in engines for cause in causes_with(engine, wanted)}))
        except TooManyCauses:
            causes = ""
        return {"status": Status.FAILED.value, "cause": causes} if causes and wanted else {"q": text}
    if text.lower().startswith(TAG) and (tag := text[len(TAG) :].strip()):
        return {"tag": tag}
    return {"q": _with_word(text, database)}


def _with_word(text: str, database: str) -> str:
    if not text or text.lower().startswith((KEY, TASK, ARGUMENT)):
        return text
    tasks = Task.objects.using(database).filter(backend__in=backends_on(database))
    if ids_with_key(tasks, text, limit=1):
        return f"{KEY}{text}"
    ids = id_range(text)
    if (ids is None or not tasks.filter(ids)[:1].exists()) and matching_types(text, database):
        return f"{TASK}{text}"
    return text
