"""
Faults of the server and the network, for some processes.

Each fault is a context manager. If the processes are stopped at a failpoint, they continue at `yield`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from verification.faults.environment import FaultEnvironment, LaunchedProcess
from verification.faults.proxy import Proxy, Where


class Runner(Protocol):
    """Runs faults in an environment. A fault may wait, and choose a server process to kill."""

    @property
    def env(self) -> FaultEnvironment: ...

    def wait(self, seconds: float) -> None: ...

    def kill_one_of(self, *likes: str) -> None: ...


ServerFault = Callable[[Runner, Sequence[LaunchedProcess]], AbstractContextManager[None]]


@contextmanager
def terminate(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    for pid in [pid for process in stopped for pid in runner.env.sessions(process.name)]:
        runner.env.query("SELECT pg_terminate_backend(%s)", pid)
    yield


@contextmanager
def kill_backend(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    """Kill the server process of one stopped process. The server then ends all sessions."""
    runner.kill_one_of(*(process.name for process in stopped))
    yield


@contextmanager
def kill_postmaster(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    runner.env.forget_connection()
    runner.env.cluster.kill()
    runner.env.cluster.start()
    yield


@contextmanager
def outage(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    """Stop the server for three timeouts. No claim of a live executor may be lost."""
    runner.env.forget_connection()
    runner.env.cluster.stop("immediate")
    yield
    runner.wait(runner.env.timeout_seconds * 3)
    runner.env.cluster.start()


def cut(where: Where) -> ServerFault:
    """Cut each connection at its next COMMIT."""

    @contextmanager
    def cut(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
        cuts = {proxy: proxy.cuts for proxy in _proxies(stopped)}
        for proxy in cuts:
            proxy.cut_next_commit(where)
        yield
        runner.env.wait_for(lambda: all(proxy.cuts > before for proxy, before in cuts.items()), "a COMMIT to cut")

    return cut


@contextmanager
def reset_network(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    for proxy in _proxies(stopped):
        proxy.cut_all()
    yield


@contextmanager
def slow_network(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    """Delay each direction by 0.1 s, for two seconds."""
    for proxy in _proxies(stopped):
        proxy.delay_seconds = 0.1
    yield
    runner.wait(2.0)
    for proxy in _proxies(stopped):
        proxy.delay_seconds = 0.0


@contextmanager
def black_hole(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    """Drop all traffic for longer than the timeout, without an error."""
    for process in stopped:
        runner.env.note_harm(process, "disconnected")
    for proxy in _proxies(stopped):
        proxy.swallow()
    yield
    runner.wait(runner.env.timeout_seconds * 1.5)
    for proxy in _proxies(stopped):
        proxy.flow()


@contextmanager
def full_disk(runner: Runner, stopped: Sequence[LaunchedProcess]) -> Iterator[None]:
    """Let the tables fail to grow for a second."""
    runner.env.query("INSERT INTO verification_full VALUES (1.0)")
    yield
    runner.wait(1.0)
    runner.env.query("DELETE FROM verification_full")


def _proxies(stopped: Sequence[LaunchedProcess]) -> list[Proxy]:
    return list({process.proxy: None for process in stopped if process.proxy is not None})


ALL: Mapping[str, ServerFault] = {
    "terminate": terminate,
    "kill_backend": kill_backend,
    "kill_postmaster": kill_postmaster,
    "outage": outage,
    "cut_before_commit": cut("before"),
    "cut_after_commit": cut("after"),
    "reset_network": reset_network,
    "slow_network": slow_network,
    "black_hole": black_hole,
    "full_disk": full_disk,
}
THROUGH_PROXY = {"cut_before_commit", "cut_after_commit", "reset_network", "slow_network", "black_hole"}
# They last for seconds. A process stopped at another point would rightly lose its tasks in that time.
LASTING = {"cut_before_commit", "cut_after_commit", "slow_network", "black_hole"}
