"""Nodes that share their caches, in one process: stores, peer cache and disk cache of each, over one S3 server."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from feedd.access import AccessRules
from feedd.cache.cache import Cache
from feedd.cache.options import CacheOptions
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.peers.peer_cache import PeerCache
from feedd.peers.peer_link import Promise
from feedd.peers.peer_options import PeerOptions
from feedd.peers.rendezvous import holder_of
from tests.fakes.caches import memory_cache
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.server import S3Server
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from feedd.peers.peer_link import PeerLink
    from feedd.peers.peer_options import PeerTls
    from feedd.values import ObjectRef


def free_address() -> str:
    """Return a loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass(slots=True)
class Node:
    """One node.

    Attributes:
        address: where it serves peers.
        sources: its stores.
        peers: its peer cache.
        cache: its cache.
        recorder: its measurements.
    """

    address: str
    sources: Sources
    peers: PeerCache
    cache: Cache
    recorder: TallyRecorder = field(default_factory=TallyRecorder)

    async def read(self, ref: ObjectRef) -> bytes:
        """Bring an object into the cache, and return its bytes from there."""
        with await self.cache.acquire([ref]) as pins:
            file = pins.files[0]
            data = Path(file.path).read_bytes()  # noqa: ASYNC240 - a small file of a test
            return data[file.data_at : file.data_at + ref.size_bytes]


@asynccontextmanager
async def a_node(
    server: S3Server,
    folder: Path,
    address: str,
    members: tuple[str, ...],
    *,
    timeout_s: float = 60.0,
    tls: PeerTls | None = None,
    rules: AccessRules | None = None,
    cache_bytes: int = 64 << 20,
    in_memory: bool = False,
) -> AsyncIterator[Node]:
    """Open a node; the long timeout is for slow machines, where nothing fails."""
    recorder, clock = TallyRecorder(), SystemClock()
    access = S3Options(endpoint_url=server.url, anonymous=True)
    options = PeerOptions(address, members, timeout_s=timeout_s, tls=tls)
    async with (
        Sources(SourceOptions(s3={"*": access}, hedge_share=0), recorder, clock) as sources,
        PeerCache(options, sources, recorder, clock) as peers,
    ):
        cache_options = CacheOptions(folder, cache_bytes, free_reserve_bytes=0)
        on_disk = Cache(cache_options, peers.fetcher, recorder, clock)
        async with (
            memory_cache(cache_bytes, peers.fetcher, recorder, clock) if in_memory else on_disk as cache,
            peers.serving(cache, rules or AccessRules()),
        ):
            yield Node(address, sources, peers, cache, recorder)


async def promised(link: PeerLink, ref: ObjectRef) -> Promise:
    """Ask a peer for an entry, and wait for it."""
    promise = await link.ask(ref)
    return await link.wait(ref) if promise is Promise.FETCHING else promise


def held_by(refs: list[ObjectRef], address: str, members: tuple[str, ...]) -> list[ObjectRef]:
    """Return the refs that a member holds."""
    return [ref for ref in refs if holder_of(members, ref) == address]


SIZES = [1, 100_000, 700_000, 3_000_000]
COUNT = 12
"""Objects of ``server_of_twelve``."""


def content(number: int) -> bytes:
    """Return the bytes of an object."""
    return np.random.default_rng(number).bytes(SIZES[number % len(SIZES)])


@contextmanager
def server_of_twelve() -> Iterator[S3Server]:
    """Serve twelve objects of several sizes, with checksums."""
    with S3Server() as server:
        for number in range(COUNT):
            server.put("data", f"{number}.tar", content(number), Kept("crc32c", ()))
        yield server


async def refs_of(node: Node) -> list[ObjectRef]:
    """List all objects, in the order of their numbers."""
    refs = list(await node.sources.resolve(["s3://data/"]))
    return sorted(refs, key=lambda ref: int(ref.key.removesuffix(".tar")))


def gets(server: S3Server) -> list[str]:
    """Return the keys of all GETs of objects so far."""
    return [request.key for request in server.requests if request.method == "GET" and request.key]
