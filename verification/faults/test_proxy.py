"""Test the proxy of the fault environment."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tools.postgres import Cluster, throwaway_cluster
from verification.faults.proxy import CommitRecognizer, ProtocolMessages, Proxy, Where

NUMBERS = itertools.count(1)


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
        (rows,) = connection.execute("SELECT count(*) FROM written WHERE number = %s", [number]).fetchone() or (0,)
        return int(rows)


def insert_and_commit(connection: psycopg.Connection[tuple[int]], number: int) -> None:
    connection.execute("INSERT INTO written VALUES (%s)", [number])
    connection.commit()


def insert_in_one_statement(connection: psycopg.Connection[tuple[int]], number: int) -> None:
    connection.autocommit = True
    claim = "WITH claimed AS (UPDATE jobqueue_task SET number = number) INSERT INTO written VALUES (%s)"
    connection.execute(claim, [number], prepare=True)


@pytest.mark.parametrize("insert", [insert_and_commit, insert_in_one_statement])
@pytest.mark.parametrize(("where", "written"), [("before", 0), ("after", 1)])
def test_commit_is_cut(
    cluster: Cluster,
    proxy: Proxy,
    insert: Callable[[psycopg.Connection[tuple[int]], int], None],
    where: Where,
    written: int,
) -> None:
    connection, number = connect(proxy), next(NUMBERS)
    insert(connection, 0)
    proxy.cut_next_commit(where)
    connection.execute("SELECT %s", [0])
    with pytest.raises(psycopg.OperationalError):
        insert(connection, number)
    assert proxy.cuts == 1
    assert count(cluster, number) == written
    connect(proxy).close()  # only that one was cut


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
    messages = ProtocolMessages()
    read = [message for byte in start + query + query for message in messages.read(bytes([byte]))]
    assert read == [start, query, query]
    commits = CommitRecognizer()
    assert [commits.is_next(message) for message in read] == [False, True, True]
