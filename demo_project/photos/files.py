"""Files of the photos. A rollback does not undo their changes, so each function may be repeated safely."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage


def put(path: str, data: bytes) -> None:
    """Write a file. Replace a file that an earlier attempt left."""
    default_storage.delete(path)
    default_storage.save(path, ContentFile(data))


def read(path: str) -> bytes:
    with default_storage.open(path) as file:
        return bytes(file.read())


def remove(paths: Iterable[str]) -> None:
    """Delete files. A missing file is no error."""
    for path in paths:
        default_storage.delete(path)
