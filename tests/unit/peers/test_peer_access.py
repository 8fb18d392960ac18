"""Who may read what from a daemon, and how daemons know each other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from feedd.access import AccessRules
from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.conversion import Conversion
from feedd.errors import BadConfig
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.doors import PortLimits
from feedd.metrics import PEER_FETCHES, PEER_SENT_BYTES
from feedd.peers.entry_requests import render
from feedd.peers.peer_cache import PeerCache
from feedd.peers.peer_fetcher import may_travel
from feedd.peers.peer_options import PeerOptions, PeerTls
from feedd.values import ByteRange, ObjectRef
from tests.fakes.caches import memory_cache
from tests.fakes.cluster import COUNT, a_node, content, free_address, gets, held_by, refs_of
from tests.fakes.tally import TallyRecorder
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.fakes.s3.server import S3Server


async def test_only_what_a_peer_may_read(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """The rules for URLs hold for peers; what they do not cover is neither fetched nor served."""
    members = own, strict = free_address(), free_address()
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members))
    holder = await stack.enter_async_context(
        a_node(server, tmp_path / "b", strict, members, rules=AccessRules(("s3://public/",)))
    )
    refs = await refs_of(node)
    theirs = held_by(refs, strict, members)
    await holder.read(theirs[0])
    assert await node.read(theirs[0]) == content(refs.index(theirs[0]))
    assert holder.recorder.total(PEER_SENT_BYTES) == 0
    assert node.recorder.total(PEER_FETCHES, outcome="refused") == 1


@asynccontextmanager
async def _peers_at(server: S3Server, address: str) -> AsyncIterator[PeerCache]:
    """Listen for peers at an address."""
    recorder, clock = TallyRecorder(), SystemClock()
    access = SourceOptions(s3={"*": S3Options(endpoint_url=server.url, anonymous=True)})
    async with (
        Sources(access, recorder, clock) as sources,
        PeerCache(PeerOptions(address, (address, free_address())), sources, recorder, clock) as peers,
    ):
        yield peers


async def test_the_port_is_free_before_the_cache_is(server: S3Server, tmp_path: Path) -> None:
    """A daemon that stands by begins when the cache is free, and then listens at the port of the former one."""
    own = free_address()
    async with AsyncExitStack() as former:
        peers = await former.enter_async_context(_peers_at(server, own))
        cache = await former.enter_async_context(memory_cache(1 << 20, peers.fetcher, TallyRecorder(), SystemClock()))
        async with peers.serving(cache, AccessRules()):
            with pytest.raises(BadConfig, match=own):
                await former.enter_async_context(_peers_at(server, own))
        async with _peers_at(server, own):
            pass


def _files(authority: Authority, name: str) -> PeerTls:
    return PeerTls(*authority.issue(name), authority.ca_path)


async def test_members_with_certificates(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """With TLS in both directions everything is as without: each object once, all bytes right, rules by name."""
    authority, members = Authority(tmp_path), (free_address(), free_address())
    rules = AccessRules(("s3://public/",), {"node-0": ("s3://data/",), "node-1": ("s3://data/",)})
    nodes = [
        await stack.enter_async_context(
            a_node(server, tmp_path / str(at), one, members, tls=_files(authority, f"node-{at}"), rules=rules)
        )
        for at, one in enumerate(members)
    ]
    refs = await refs_of(nodes[0])
    for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
        assert read == [content(number) for number in range(COUNT)]
    assert sorted(gets(server)) == sorted(ref.key for ref in refs)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["nothing", "half a greeting"])
@pytest.mark.parametrize("secured", [True, False])
async def test_silent_connections_shut_no_member_out(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secured: bool, said: bytes
) -> None:
    """With many more of them than places at both nodes, each object still leaves the store once."""
    monkeypatch.setattr(PortLimits, "of_process", lambda: PortLimits.of(1000))  # 100 for peers
    authority, members = Authority(tmp_path), (free_address(), free_address())
    nodes = [
        await stack.enter_async_context(
            a_node(server, tmp_path / str(at), one, members, tls=_files(authority, f"node-{at}") if secured else None)
        )
        for at, one in enumerate(members)
    ]
    for one in members:
        host, port = one.split(":")
        for _ in range(150):
            conn = stack.enter_context(socket.socket())
            conn.setblocking(False)
            await asyncio.get_running_loop().sock_connect(conn, (host, int(port)))
            with contextlib.suppress(ConnectionError):  # dropped already
                await asyncio.get_running_loop().sock_sendall(conn, said)
    refs = await refs_of(nodes[0])
    for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
        assert read == [content(number) for number in range(COUNT)]
    assert sorted(gets(server)) == sorted(ref.key for ref in refs)


async def test_a_stranger_is_refused(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A daemon whose certificate another authority signed gets nothing; neither does one without a certificate."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    members = member, stranger = free_address(), free_address()
    holder = await stack.enter_async_context(
        a_node(server, tmp_path / "a", member, members, tls=_files(ours, "member"))
    )
    mixed = PeerTls(*theirs.issue("stranger"), ours.ca_path)
    outsider = await stack.enter_async_context(a_node(server, tmp_path / "b", stranger, members, tls=mixed))
    refs = await refs_of(outsider)
    ref = held_by(refs, member, members)[0]
    await holder.read(ref)
    assert await outsider.read(ref) == content(refs.index(ref))
    assert outsider.recorder.total(PEER_FETCHES, outcome="failed") == 1
    bare = ssl.create_default_context(cafile=str(ours.ca_path))
    host, port = member.split(":")
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await _ask(host, int(port), bare, render(member, ref, ByteRange(0, 1)))
    assert holder.recorder.total(PEER_SENT_BYTES) == 0


async def _ask(host: str, port: int, context: ssl.SSLContext, request: bytes) -> bytes:
    """Send a request and return the first byte of the answer."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(request)
        return await reader.readexactly(1)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"x" * 400 + b"\r\n\r\n", b"y" * 20_000])
async def test_nonsense_ends_a_connection(stack: AsyncExitStack, server: S3Server, tmp_path: Path, sent: bytes) -> None:
    """A connection that sends anything else is closed, and others are served as before."""
    own = free_address()
    await stack.enter_async_context(a_node(server, tmp_path / "a", own, (own,)))
    host, port = own.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(render(own, None))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_an_address_in_use_is_an_error(server: S3Server, tmp_path: Path) -> None:
    """The error names the address and the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadConfig, match=r"to listen on for peers, got .*in use"):
            async with a_node(server, tmp_path / "a", address, (address,)):
                pass


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"root": "file://"}, False),
        ({"size_bytes": 0}, False),
        ({"conversion": Conversion("gunzip")}, False),
        ({"key": "\ud800"}, False),
        ({"etag": 'a"b'}, False),
        ({"etag": "\u00e4"}, False),
        ({"etag": "span-100-200-abc"}, True),
        ({"etag": "span-101-200-abc"}, False),
        ({"etag": "span-x-200-abc"}, False),
        ({"etag": "span-1"}, False),
    ],
    ids=range(11),
)
def test_what_may_travel(change: dict[str, Any], may: bool) -> None:
    """Whole objects, spans and packs of S3, whose names fit into a request; nothing that a peer could misuse."""
    assert may_travel(replace(ObjectRef("s3://data", "a", 100, "etag"), **change)) == may
