"""Statements read from the SQL files."""

from __future__ import annotations

from importlib.resources import files

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from jobqueue.engine.postgres.connection import short_statement, statement

NAMES = sorted(path.name.removesuffix(".sql") for path in (files("jobqueue.engine.postgres") / "sql").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_statement_fits_cache_of_parsed_statements(name: str) -> None:
    assert 0 < len(short_statement(name)) <= MAX_CACHED_STATEMENT_LENGTH


def test_statement_has_no_comments_or_indentation() -> None:
    assert statement("heartbeat").startswith("INSERT INTO jobqueue_heartbeat")
    assert not [line for line in statement("commit").splitlines() if line != line.strip() or line.startswith("--")]


@pytest.mark.parametrize("name", NAMES)
def test_short_statement_differs_in_spaces_only(name: str) -> None:
    assert "".join(short_statement(name).split()) == "".join(statement(name).split())
