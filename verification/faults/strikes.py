"""
What befalls the server or the network while processes stand still at a failpoint.

Each is a context: what is done while they stand comes before the `yield`, at which they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from verification.faults.proxy import Proxy, Where
from verification.faults.rig import Member

if TYPE_CHECKING:  # which has them happen in the open, too
    from verification.faults.storm import Storm

Strike = Callable[["Storm", Sequence[Member]], AbstractContextManager[None]]


@contextmanager
def terminate(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    for pid in [pid for member in standing for pid in storm.rig.sessions(member.name)]:
        storm.rig.ask("SELECT pg_terminate_backend(%s)", pid)
    yield


@contextmanager
def kill_backend(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    """Of one of them; all sessions of the server end."""
    storm.kill_one_of(*(member.name for member in standing))
    yield


@contextmanager
def kill_postmaster(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    storm.kill_postmaster()
    yield


@contextmanager
def outage(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    """They find no server, for three timeouts."""
    storm.rig.forget_connection()
    storm.rig.cluster.stop("immediate")
    yield
    storm.wait(storm.rig.timeout_seconds * 3)
    storm.rig.cluster.start()


def cut(where: Where) -> Strike:
    """Each loses the connection of its next COMMIT."""

    @contextmanager
    def cut(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
        cuts = {proxy: proxy.cuts for proxy in _proxies(standing)}
        for proxy in cuts:
            proxy.cut_next_commit(where)
        yield
        storm.rig.wait_for(lambda: all(proxy.cuts > before for proxy, before in cuts.items()), "a COMMIT to cut")

    return cut


@contextmanager
def reset_network(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    for proxy in _proxies(standing):
        proxy.cut_all()
    yield


@contextmanager
def slow_network(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    """A tenth of a second each way, for two seconds."""
    for proxy in _proxies(standing):
        proxy.delay_seconds = 0.1
    yield
    storm.wait(2.0)
    for proxy in _proxies(standing):
        proxy.delay_seconds = 0.0


@contextmanager
def black_hole(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    """For longer than the timeout nothing arrives, and nothing fails."""
    for member in standing:
        storm.rig.hurt(member, "cut off")
    for proxy in _proxies(standing):
        proxy.swallow()
    yield
    storm.wait(storm.rig.timeout_seconds * 1.5)
    for proxy in _proxies(standing):
        proxy.flow()


@contextmanager
def full_disk(storm: Storm, standing: Sequence[Member]) -> Iterator[None]:
    """The tables cannot grow for a second."""
    storm.rig.ask("INSERT INTO trust_full VALUES (1.0)")
    yield
    storm.wait(1.0)
    storm.rig.ask("DELETE FROM trust_full")


def _proxies(standing: Sequence[Member]) -> list[Proxy]:
    return [member.proxy for member in standing if member.proxy is not None]


ALL: Mapping[str, Strike] = {
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
# For seconds: who stood at another point meanwhile would lose its tasks, and rightly so.
LASTING = {"cut_before_commit", "cut_after_commit", "slow_network", "black_hole"}
