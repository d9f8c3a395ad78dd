"""Test the proxy of the fault environment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from demo_project.postgres import Cluster, throwaway_cluster
from verification.faults.proxy import Commits, Messages, Proxy


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with throwaway_cluster() as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE written (number int); CREATE TABLE jobqueue_task (number int)")
        yield cluster


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    proxy = Proxy(cluster.data / ".s.PGSQL.5432")
    yield proxy
    proxy.close()


def connect(proxy: Proxy) -> psycopg.Connection[tuple[int]]:
    return psycopg.connect(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable&gssencmode=disable")


def count(cluster: Cluster, number: int) -> int:
    with psycopg.connect(cluster.url) as connection:
        (found,) = connection.execute("SELECT count(*) FROM written WHERE number = %s", [number]).fetchone() or (0,)
        return int(found)


@pytest.mark.parametrize(("where", "number", "written"), [("before", 1, 0), ("after", 2, 1)])
def test_commit_is_cut(cluster: Cluster, proxy: Proxy, where: str, number: int, written: int) -> None:
    connection = connect(proxy)
    connection.execute("INSERT INTO written VALUES (%s)", [number])
    proxy.cut_next_commit(where)  # type: ignore[arg-type]
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert proxy.cuts == 1
    assert count(cluster, number) == written
    connect(proxy).close()  # only that one was cut


@pytest.mark.parametrize(("where", "number", "written"), [("before", 3, 0), ("after", 4, 1)])
def test_statement_that_is_a_transaction_is_cut(
    cluster: Cluster, proxy: Proxy, where: str, number: int, written: int
) -> None:
    connection = connect(proxy)
    connection.autocommit = True
    claim = "WITH claimed AS (UPDATE jobqueue_task SET number = number) INSERT INTO written VALUES (%s)"
    connection.execute(claim, [0], prepare=True)
    proxy.cut_next_commit(where)  # type: ignore[arg-type]
    connection.execute("SELECT %s", [0])
    with pytest.raises(psycopg.OperationalError):
        connection.execute(claim, [number], prepare=True)
    assert proxy.cuts == 1
    assert count(cluster, number) == written


def test_statement_in_a_transaction_is_not_cut(cluster: Cluster, proxy: Proxy) -> None:
    with connect(proxy) as connection:
        proxy.cut_next_commit("before")
        connection.execute("UPDATE jobqueue_task SET number = %s", [1])
        assert proxy.cuts == 0
        connection.rollback()


def test_swallowed_packets_raise_no_error_until_the_network_is_back(proxy: Proxy) -> None:
    answers = []
    with connect(proxy) as connection:
        proxy.swallow()
        thread = threading.Thread(target=lambda: answers.append(connection.execute("SELECT 1").fetchone()))
        thread.start()
        thread.join(0.3)
        assert not answers
        proxy.flow()
        thread.join(30)
    assert answers == [(1,)]


def test_delay_is_felt(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        proxy.delay_seconds = 0.1
        began = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - began >= 0.2
        proxy.delay_seconds = 0.0


def test_reset_reaches_the_client(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.execute("SELECT 1")
        proxy.cut_all()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_connection_is_cut_after_its_login(proxy: Proxy) -> None:
    with connect(proxy) as open_before:
        proxy.cuts_logins = True
        connection = connect(proxy)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        assert proxy.cuts == 1
        proxy.cuts_logins = False
        for other in (open_before, connect(proxy)):
            with other:
                assert other.execute("SELECT 1").fetchone() == (1,)


def test_messages_are_recognized_in_pieces_of_any_size() -> None:
    start, query = b"\0\0\0\x08\0\3\0\0", b"Q\0\0\0\x0bCOMMIT\0"
    messages = Messages()
    read = [message for byte in start + query + query for message in messages.read(bytes([byte]))]
    assert read == [start, query, query]
    commits = Commits()
    assert [commits.is_next(message) for message in read] == [False, True, True]
