"""Files beside the rows. A rollback does not undo them, so each of these may be done twice."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage


def put(path: str, data: bytes) -> None:
    """Write a file, in the place of one that an earlier try left."""
    default_storage.delete(path)
    default_storage.save(path, ContentFile(data))


def read(path: str) -> bytes:
    with default_storage.open(path) as file:
        return bytes(file.read())


def remove(paths: Iterable[str]) -> None:
    """Delete files, those that are gone already too."""
    for path in paths:
        default_storage.delete(path)
