"""What daemons do for each other, and what happens where one fails: nodes in one process over one S3 server."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd.access import AccessRules
from feedd.conversion import Conversion
from feedd.errors import BadConfig, ObjectChanged
from feedd.metrics import PEER_FETCHES, PEER_PAUSED, PEER_READ_BYTES, PEER_READS, PEER_SENT_BYTES, SOURCE_BYTES
from feedd.peers.breaker import LATE_MAX
from feedd.peers.entry_requests import render
from feedd.peers.peer_fetcher import may_travel
from feedd.peers.peer_options import PeerTls
from feedd.values import ByteRange, ObjectRef
from tests.fakes.cluster import a_node, free_address, held_by
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.server import S3Server
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.fakes.cluster import Node

SIZES = [1, 100_000, 700_000, 3_000_000]
COUNT = 12
QUICK_S = 0.2
"""Silence that is noticed within a test, and that a machine under load seldom causes by itself."""


@pytest.fixture
def server() -> Iterator[S3Server]:
    """Twelve objects of several sizes, with checksums."""
    with S3Server() as started:
        for number in range(COUNT):
            started.put("data", f"{number}.tar", content(number), Kept("crc32c", ()))
        yield started


def content(number: int) -> bytes:
    """Return the bytes of an object."""
    return np.random.default_rng(number).bytes(SIZES[number % len(SIZES)])


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Close nodes at the end, the last one first."""
    async with AsyncExitStack() as opened:
        yield opened


async def _refs(node: Node) -> list[ObjectRef]:
    refs = list(await node.sources.resolve(["s3://data/"]))
    return sorted(refs, key=lambda ref: int(ref.key.removesuffix(".tar")))


def _gets(server: S3Server) -> list[str]:
    return [request.key for request in server.requests if request.method == "GET" and request.key]


async def _pair(stack: AsyncExitStack, server: S3Server, folder: Path, **options: object) -> tuple[Node, Node]:
    """Open two nodes that know each other."""
    members = (free_address(), free_address())
    first, second = [
        await stack.enter_async_context(a_node(server, folder / str(at), address, members, **options))  # type: ignore[arg-type]  # as given
        for at, address in enumerate(members)
    ]
    return first, second


@pytest.mark.parametrize("in_memory", [False, True], ids=["disk", "memory"])
async def test_each_object_is_fetched_once(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path, in_memory: bool
) -> None:
    """Both nodes read everything at the same time: the store sends each object once, and all bytes are right."""
    nodes = await _pair(stack, server, tmp_path, in_memory=in_memory)
    refs = await _refs(nodes[0])
    wanted = [content(number) for number in range(COUNT)]
    for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
        assert read == wanted
    assert sorted(_gets(server)) == sorted(ref.key for ref in refs)
    for node, other in (nodes, nodes[::-1]):
        theirs = held_by(refs, other.address, (nodes[0].address, nodes[1].address))
        assert theirs
        total = sum(ref.size_bytes for ref in theirs)
        assert node.recorder.total(PEER_READ_BYTES) == other.recorder.total(PEER_SENT_BYTES) == total
        assert node.recorder.total(PEER_FETCHES, outcome="read") == len(theirs)


async def test_a_node_that_is_no_member_only_reads(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A daemon outside of the members asks them and is asked by none."""
    member, guest = free_address(), free_address()
    holder = await stack.enter_async_context(a_node(server, tmp_path / "a", member, (member,)))
    reader = await stack.enter_async_context(a_node(server, tmp_path / "b", guest, (member,)))
    refs = await _refs(reader)
    assert [await reader.read(ref) for ref in refs] == [content(number) for number in range(COUNT)]
    assert [await holder.read(ref) for ref in refs] == [content(number) for number in range(COUNT)]
    assert reader.recorder.total(SOURCE_BYTES) == 0
    assert holder.recorder.total(PEER_FETCHES) == 0


async def test_nodes_that_disagree_do_not_wait_for_each_other(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path
) -> None:
    """Each of two nodes believes that the other holds everything: both get everything, from the store if need be."""
    addresses = (free_address(), free_address())
    nodes = [
        await stack.enter_async_context(a_node(server, tmp_path / address, address, (other,)))
        for address, other in (addresses, addresses[::-1])
    ]
    refs = await _refs(nodes[0])
    async with asyncio.timeout(20):
        for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
            assert read == [content(number) for number in range(COUNT)]


@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
async def test_a_peer_that_does_not_answer(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path, silent: bool
) -> None:
    """Every object comes from the store instead. After a refused connection, or three silences, nobody asks it."""
    own = free_address()
    for number in range(COUNT, 3 * COUNT):  # the peer holds some of them
        server.put("data", f"{number}.tar", content(0))
    with socket.socket() as lost:
        lost.bind(("127.0.0.1", 0))
        if silent:
            lost.listen(64)  # the kernel accepts, and nobody answers
        gone = f"127.0.0.1:{lost.getsockname()[1]}"
        node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, (own, gone), timeout_s=QUICK_S))
        refs = await _refs(node)
        theirs = held_by(refs, gone, (own, gone))
        await node.read(theirs[0])
        assert node.recorder.total(PEER_FETCHES, outcome="failed") == 1
        assert [await node.read(ref) for ref in refs][:COUNT] == [content(number) for number in range(COUNT)]
        asked = LATE_MAX if silent else 1
        assert node.recorder.total(PEER_FETCHES) == asked, "entries of a failed peer are the other members'"
        assert sorted(_gets(server)) == sorted(ref.key for ref in refs)


async def test_a_peer_that_comes_back_is_used_again(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A probe in the background finds it; no read waits for that."""
    members = own, late = free_address(), free_address()
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members, timeout_s=2.0))
    refs = await _refs(node)
    theirs = held_by(refs, late, members)
    await node.read(theirs[0])
    holder = await stack.enter_async_context(a_node(server, tmp_path / "b", late, members))
    async with asyncio.timeout(20):
        while not node.recorder.peaks[PEER_PAUSED.name] or node.recorder.total(PEER_PAUSED):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.05)
    await node.read(theirs[1])
    assert node.recorder.total(PEER_FETCHES, outcome="read") == 1
    assert holder.recorder.total(PEER_SENT_BYTES) == theirs[1].size_bytes


@pytest.mark.parametrize("verified", [True, False], ids=["whole object", "range"])
async def test_wrong_bytes_are_noticed(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: bool
) -> None:
    """A peer that sends other bytes, or another range, is found out; the object comes from the store."""
    node, holder = await _pair(stack, server, tmp_path)
    refs = await _refs(node)
    ref = max(held_by(refs, holder.address, (node.address, holder.address)), key=lambda ref: ref.size_bytes)
    real = os.sendfile
    if verified:
        monkeypatch.setattr(os, "sendfile", lambda out, fd, at, size: real(out, fd, max(0, at - 1), size))
    else:
        monkeypatch.setattr("feedd.peers.peer_server._head", _wrong_range)
    assert await node.read(ref) == content(refs.index(ref))
    outcome = "damaged" if verified else "failed"
    assert node.recorder.total(PEER_READS, outcome=outcome) >= 1
    assert node.recorder.total(SOURCE_BYTES) >= ref.size_bytes


def _wrong_range(status: str, size_bytes: int = 0, more: str = "") -> bytes:
    more = more.replace("bytes ", "bytes 1")
    return f"HTTP/1.1 {status}\r\nContent-Length: {size_bytes}\r\n{more}\r\n\r\n".replace(
        "\r\n\r\n\r\n", "\r\n\r\n"
    ).encode()


async def test_a_changed_object_is_never_served(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A peer serves the version that is asked for, or nothing; if the store has another by now, that is an error."""
    node, holder = await _pair(stack, server, tmp_path)
    refs = await _refs(node)
    old = held_by(refs, holder.address, (node.address, holder.address))[0]
    assert await holder.read(old) == content(refs.index(old))
    server.put("data", old.key, b"new")
    with pytest.raises(ObjectChanged):
        await node.read(old)
    (new,) = [ref for ref in await _refs(node) if ref.key == old.key]
    assert await node.read(new) == b"new"


async def test_a_full_holder_refuses(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A holder whose cache has no room for the entry says so at once, and the store is used."""
    members = own, small = free_address(), free_address()
    for number in range(100, 112):  # the small node holds some of them
        server.put("data", f"{number}.tar", bytes(2_000_000))
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members))
    holder = await stack.enter_async_context(a_node(server, tmp_path / "b", small, members, cache_bytes=1 << 20))
    refs = await _refs(node)
    large = held_by([ref for ref in refs if ref.size_bytes == 2_000_000], small, members)[0]
    assert await node.read(large) == bytes(large.size_bytes)
    assert node.recorder.total(PEER_FETCHES, outcome="refused") == 1
    assert holder.recorder.total(SOURCE_BYTES) == 0


async def test_only_what_a_peer_may_read(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """The rules for URLs hold for peers; what they do not cover is neither fetched nor served."""
    members = own, strict = free_address(), free_address()
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members))
    holder = await stack.enter_async_context(
        a_node(server, tmp_path / "b", strict, members, rules=AccessRules(("s3://public/",)))
    )
    refs = await _refs(node)
    theirs = held_by(refs, strict, members)
    await holder.read(theirs[0])
    assert await node.read(theirs[0]) == content(refs.index(theirs[0]))
    assert holder.recorder.total(PEER_SENT_BYTES) == 0
    assert node.recorder.total(PEER_FETCHES, outcome="refused") == 1


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
    refs = await _refs(nodes[0])
    for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
        assert read == [content(number) for number in range(COUNT)]
    assert sorted(_gets(server)) == sorted(ref.key for ref in refs)


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
    refs = await _refs(outsider)
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
