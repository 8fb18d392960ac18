"""Whom an entry is asked of, and when this daemon may wait for a peer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

from feedd.flow.loop_thread import CallersLoop
from feedd.metrics import PEER_FETCHES
from feedd.peers.peer_fetcher import PeerFetcher
from feedd.peers.peer_link import Promise
from feedd.peers.peer_traffic import PeerTraffic
from feedd.values import ObjectRef
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from feedd.peers.peer_links import PeerLinks
    from feedd.protocols import SpanFetcher

REF = ObjectRef("s3://bucket", "key", 8, "etag")


class Cluster:
    """Peers with scripted answers, and the store.

    Attributes:
        log: what was asked, in order.
        traffic: the fetcher's.
        recorder: the fetcher's.
    """

    def __init__(self, *holders: str, **promises: list[Promise]) -> None:
        self._holders = list(holders)
        self._promises = promises
        self._stack = ExitStack()
        self.log: list[str] = []
        self.traffic = PeerTraffic()
        self.recorder = TallyRecorder()
        self.fetcher = PeerFetcher(
            cast("SpanFetcher", _Store(self.log)),
            cast("PeerLinks", self),
            CallersLoop(),
            lambda _: self._holders.pop(0) if self._holders else None,
            self.traffic,
            self.recorder,
        )

    async def ask(self, member: str, _: ObjectRef) -> Promise:
        """Answer as scripted; for the word ``wanted``, a peer asks this daemon meanwhile."""
        self.log.append(f"ask {member}")
        if member == "wanted":
            self._stack.enter_context(self.traffic.bringing(REF))
        return self._promises[member].pop(0)

    async def wait(self, member: str, _: ObjectRef) -> Promise:
        """Answer as scripted."""
        assert not self.traffic.may_promise(REF), "two daemons could wait for each other"
        self.log.append(f"wait {member}")
        return self._promises[member].pop(0)

    async def read(self, member: str, *_: object) -> str:
        """Answer that everything came."""
        assert self.traffic.may_promise(REF)
        self.log.append(f"read {member}")
        return "read"


class _Store:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def fetch(self, *_: object) -> None:
        """Note the call."""
        self._log.append("store")


HELD, FETCHING, FAILED, REFUSED = Promise.HELD, Promise.FETCHING, Promise.FAILED, Promise.REFUSED


@pytest.mark.parametrize(
    ("cluster", "log", "outcomes"),
    [
        (Cluster("a", a=[HELD]), ["ask a", "read a"], {"read": 1}),
        (Cluster("a", a=[FETCHING, HELD]), ["ask a", "wait a", "read a"], {"read": 1}),
        (Cluster("a", a=[FETCHING, FAILED]), ["ask a", "wait a", "store"], {"failed": 1}),
        (Cluster("a", "b", a=[REFUSED]), ["ask a", "store"], {"refused": 1}),
        (Cluster("a", "b", a=[FAILED], b=[HELD]), ["ask a", "ask b", "read b"], {"failed": 1, "read": 1}),
        (Cluster("a", a=[FAILED]), ["ask a", "store"], {"failed": 1}),
        (Cluster("a", "a", a=[FAILED]), ["ask a", "store"], {"failed": 1}),
        (Cluster("a", "b", "c", a=[FAILED], b=[FAILED]), ["ask a", "ask b", "store"], {"failed": 2}),
        (Cluster("wanted", wanted=[FETCHING]), ["ask wanted", "store"], {"refused": 1}),
        (Cluster("wanted", wanted=[HELD]), ["ask wanted", "read wanted"], {"read": 1}),
        (Cluster(), ["store"], {}),
    ],
    ids=["held", "waits", "fails", "refused", "next", "none left", "same", "two fail", "waited for", "read", "own"],
)
async def test_whom_an_entry_is_asked_of(cluster: Cluster, log: list[str], outcomes: dict[str, int]) -> None:
    """A silent holder has a successor, two are enough, and no daemon waits while a peer waits for it."""
    sink: Any = None
    await cluster.fetcher.fetch(REF, sink)
    assert cluster.log == log
    for outcome in ("read", "refused", "failed"):
        assert cluster.recorder.total(PEER_FETCHES, outcome=outcome) == outcomes.get(outcome, 0)


async def test_what_a_peer_waits_for_comes_from_the_store() -> None:
    """A request is never passed on."""
    cluster, sink = Cluster("a"), cast("Any", None)
    with cluster.traffic.bringing(REF):
        await cluster.fetcher.fetch(REF, sink)
    assert cluster.log == ["store"]
