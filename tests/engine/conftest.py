"""The three engines of the conformance suite."""

import pytest

from jobqueue.conf.options import parse_options
from jobqueue.engine.engine import Engine
from jobqueue.engine.postgres.engine import PostgresEngine
from tests.engine.bench import Bench

ENGINES = {
    "sqlite": (Engine, "sqlite"),
    "portable-on-postgresql": (Engine, "default"),
    "postgresql": (PostgresEngine, "default"),
}


def make_bench(name: str) -> Bench:
    kind, alias = ENGINES[name]
    return Bench(kind(alias, parse_options({"DATABASE": alias})))


@pytest.fixture(params=[name for name, (_, alias) in ENGINES.items() if alias == "default"])
def bench_on_server(request: pytest.FixtureRequest) -> Bench:
    """Return each engine on PostgreSQL in turn, for features that SQLite lacks."""
    return make_bench(request.param)


@pytest.fixture(params=ENGINES)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Return each engine in turn. All engines must give the same answers."""
    return make_bench(request.param)
