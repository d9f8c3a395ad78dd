"""The statements as they are read from their files."""

from __future__ import annotations

from importlib.resources import files

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from jobqueue.engine.postgres.connection import statement

NAMES = sorted(path.name.removesuffix(".sql") for path in (files("jobqueue.engine.postgres") / "sql").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_statement_is_short_enough_to_be_parsed_once(name: str) -> None:
    assert 0 < len(statement(name)) <= MAX_CACHED_STATEMENT_LENGTH


def test_comments_and_indentation_stay_in_the_file() -> None:
    assert statement("heartbeat").startswith("WITH own AS MATERIALIZED")
    assert not [line for line in statement("commit").splitlines() if line != line.strip() or line.startswith("--")]
