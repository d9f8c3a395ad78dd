"""
Run the conformance tests of the PostgreSQL engine on a given server, in a separate pytest.

This module is also a plugin of that pytest: each method of the engine gets its own transaction.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

CHECKOUT = Path(__file__).parents[2]
LIMIT_SECONDS = 900.0
# Includes races for one key: enqueue() and send() must see the row that they waited for.
CHOSEN = "not portable and not sqlite and (conformance or KeysAtOnce or same_keys)"


def run_conformance(url: str) -> str:
    """Run the tests on an empty database, keep the database, and return the output of pytest."""
    unused = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:xdist"]  # plugins take seconds to load
    arguments = ["-m", "pytest", "-q", "-p", __name__, *unused, "--reuse-db", "-k", CHOSEN]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *arguments, "tests/engine"],
        cwd=CHECKOUT,
        env=environment | {"DATABASE_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def create_database(url: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("django_db") is not None:
            mark = pytest.mark.django_db(transaction=True, databases=["default"])
            item.add_marker(mark, append=False)
