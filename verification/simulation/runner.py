"""Runs plays in a process of its own, on a database of its own: what is recorded there is recorded of all."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from django.db import connections

from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres import wake
from jobqueue.models import Counter, CounterDelta, Queue
from verification.faults import history
from verification.simulation.play import Play
from verification.simulation.process import Played

RECORD = Path(history.__file__).with_name("record.sql")
TABLES = ("trust_change", "trust_beat", "trust_mail", "trust_effect")
DATABASES = ("default", "first_side", "second_side")
TIDY_EVERY = 50  # plays; dead rows make the later ones slow


def run(seeds: Sequence[int], moves: int, kind: type[Engine]) -> Played:
    """Run one play of each seed, until one fails."""
    played = Played()
    began = time.process_time()
    for name in DATABASES[1:]:
        connections.databases.setdefault(name, connections.databases["default"].copy())
    with patch.object(wake, "WAKE_LOCK_TIMEOUT", "20ms"), recording():
        for seed in seeds:
            play = Play(kind, seed, DATABASES)
            found = perform(play, moves)
            played.count += 1
            played.moves += len(play.diary)
            if found:
                played.seed, played.problems, played.diary = seed, found, play.diary
                break
            if played.count % TIDY_EVERY == 0:
                tidy()
    played.cpu_seconds = time.process_time() - began
    for name in DATABASES[1:]:
        connections[name].close()
    return played


def perform(play: Play, moves: int) -> list[str]:
    try:
        return play.run(moves)
    except Exception as error:  # noqa: BLE001 what a verb raises is a finding, whatever it is
        where = traceback.format_exception(error)[-4:]
        return [f"raised {type(error).__name__}: {error}", *where]
    finally:
        clear(play)


def clear(play: Play) -> None:
    play.clear()
    for model in (Queue, Counter, CounterDelta):
        model.objects.filter(backend=play.engine.alias).delete()
    with connections["default"].cursor() as cursor:
        cursor.execute("; ".join(f"DELETE FROM {table}" for table in TABLES))


@contextmanager
def recording() -> Iterator[None]:
    with connections["default"].cursor() as cursor:
        cursor.execute(RECORD.read_text())
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION trust_note_change, trust_note_beat, trust_note_mail, trust_extend CASCADE")
            cursor.execute(f"DROP TABLE trust_full, {', '.join(TABLES)}")


def tidy() -> None:
    tables = ", ".join(
        ["jobqueue_inboxmessage", "jobqueue_task", "jobqueue_executor", "jobqueue_counterdelta", *TABLES]
    )
    with connections["default"].cursor() as cursor:
        cursor.execute(f"VACUUM (TRUNCATE FALSE) {tables}")
