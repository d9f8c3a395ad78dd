"""
A network proxy between executors and the server that delays, drops and cuts connections.

It reads the client's side of PostgreSQL's protocol just far enough to recognize a commit.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

Where = Literal["before", "after"]
T = TypeVar("T")

CHUNK = 65536
WRITES = b"UPDATE jobqueue_task "
READY = b"Z"  # the type of the message ReadyForQuery
HEAD = struct.Struct("!ci")
START = struct.Struct("!i")


class Proxy:
    """
    Listens on a loopback port, in a thread of its own, for a server on a Unix socket.

    delay_seconds: for each chunk, in each direction. cuts_logins: cut each connection when its login is complete. All
    methods are thread-safe.
    """

    def __init__(self, socket: Path) -> None:
        self.delay_seconds = 0.0
        self.cuts_logins = False
        self.cuts = 0
        self._socket = str(socket)
        self._cut_next: list[Where] = []
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port = self._do(self._listen())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> int:
        self._flows.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    # --- faults

    def cut_next_commit(self, where: Where) -> None:
        """Cut the connection of the next COMMIT: before the server gets it, or before the client gets the answer."""
        self._cut_next.append(where)

    def swallow(self) -> None:
        """Drop all traffic, without an error."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def flow(self) -> None:
        """Let traffic pass again."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut_all(self) -> None:
        """Reset every connection."""

        async def cut() -> None:
            for link in list(self._links):
                link.cut()

        self._do(cut())

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            for link in list(self._links):
                link.cut()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._do(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # --- used by links, in the event loop

    async def pass_network(self) -> None:
        """Wait for the configured delay, and while all traffic is dropped."""
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        await self._flows.wait()

    def commit_fault(self) -> Where | None:
        if not self._cut_next:
            return None
        self.cuts += 1
        return self._cut_next.pop(0)

    def cut_login(self) -> bool:
        """Return whether to cut a connection whose login is complete."""
        self.cuts += self.cuts_logins
        return self.cuts_logins

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # the proxy is closing
            try:
                server = await asyncio.open_unix_connection(self._socket)
            except OSError:
                writer.close()
                return
            link = _Link(self, (reader, writer), server)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)


class _Link:
    """One connection, in both directions."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._messages, self._commits = ProtocolMessages(), CommitRecognizer()
        self._answers, self._is_logged_in = ProtocolMessages(is_begun=True), False
        self._drops_answers = False  # the server's answers are dropped

    async def run(self) -> None:
        ways = [asyncio.ensure_future(way) for way in (self._there(), self._back())]
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cut()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def cut(self) -> None:
        for writer in (self._to_client, self._to_server):
            writer.transport.abort()

    async def _there(self) -> None:
        while data := await self._from_client.read(CHUNK):
            for message in self._messages.read(data):
                await self._proxy.pass_network()
                fault = self._proxy.commit_fault() if self._commits.is_next(message) else None
                if fault == "before":
                    return
                self._drops_answers = self._drops_answers or fault == "after"
                self._to_server.write(message)
            await self._to_server.drain()

    async def _back(self) -> None:
        while data := await self._from_server.read(CHUNK):
            await self._proxy.pass_network()
            if self._drops_answers:
                return
            is_last = self._completes_login(data) and self._proxy.cut_login()
            self._to_client.write(data)
            await self._to_client.drain()
            if is_last:
                return

    def _completes_login(self, data: bytes) -> bool:
        """Return whether the server reports for the first time that it is ready for a query."""
        if self._is_logged_in:
            return False
        self._is_logged_in = any(message[:1] == READY for message in self._answers.read(data))
        return self._is_logged_in


class ProtocolMessages:
    """Splits a byte stream into protocol messages. The first message of a client has no type."""

    def __init__(self, *, is_begun: bool = False) -> None:
        self._rest = b""
        self._is_begun = is_begun

    def read(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while True:
            head = HEAD if self._is_begun else START
            if len(self._rest) < head.size:
                return
            # The length includes itself, but not the type before it.
            end = head.unpack_from(self._rest)[-1] + head.size - START.size
            if len(self._rest) < end:
                return
            message, self._rest = self._rest[:end], self._rest[end:]
            self._is_begun = True
            yield message


class CommitRecognizer:
    """Recognizes commits: COMMIT, or a statement outside of a transaction that writes tasks."""

    def __init__(self) -> None:
        self._writing: set[bytes] = set()  # names of prepared statements, b"" for the unnamed one
        self._is_bound = self._is_in_transaction = False

    def is_next(self, message: bytes) -> bool:
        """Return whether this message commits."""
        body = message[HEAD.size :]
        match message[:1]:
            case b"Q":
                is_commit = body.upper().startswith(b"COMMIT")
                if body.upper().startswith(b"BEGIN"):
                    self._is_in_transaction = True
                elif is_commit or body.upper() == b"ROLLBACK\0":
                    self._is_in_transaction = False
                return is_commit
            case b"P":
                name, query, _ = body.split(b"\0", 2)
                self._writing.discard(name)
                if WRITES in query:
                    self._writing.add(name)
            case b"B":
                _, name, _ = body.split(b"\0", 2)
                self._is_bound = name in self._writing
            case b"E":
                return self._is_bound and not self._is_in_transaction
        return False
