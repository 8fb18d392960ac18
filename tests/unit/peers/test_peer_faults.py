"""What daemons do for each other, and what happens where one fails: nodes in one process over one S3 server."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from feedd.clock import SystemClock
from feedd.errors import ObjectChanged
from feedd.metrics import PEER_FETCHES, PEER_PAUSED, PEER_READ_BYTES, PEER_READS, PEER_SENT_BYTES, SOURCE_BYTES
from feedd.peers.entry_requests import render
from feedd.peers.peer_link import Promise
from feedd.peers.peer_links import PeerLinks
from feedd.peers.peer_options import PeerOptions
from feedd.peers.peer_store import PeerStore
from feedd.values import ByteRange
from tests.budget import PATIENT_S
from tests.fakes.cluster import COUNT, a_node, content, free_address, gets, held_by, promised, refs_of
from tests.fakes.s3.faults import Fault
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from feedd.values import ObjectRef
    from tests.fakes.cluster import Node
    from tests.fakes.s3.server import S3Server

QUICK_S = 0.2
"""Silence that is noticed within a test, and that a machine under load seldom causes by itself."""


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
    refs = await refs_of(nodes[0])
    wanted = [content(number) for number in range(COUNT)]
    for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
        assert read == wanted
    assert sorted(gets(server)) == sorted(ref.key for ref in refs)
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
    refs = await refs_of(reader)
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
    refs = await refs_of(nodes[0])
    async with asyncio.timeout(PATIENT_S):
        for read in await asyncio.gather(*(asyncio.gather(*map(node.read, refs)) for node in nodes)):
            assert read == [content(number) for number in range(COUNT)]


async def test_a_request_is_never_passed_on(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A node that is asked for an entry takes it from the store, though it believes that a third node holds it."""
    first, second, third = free_address(), free_address(), free_address()
    last = await stack.enter_async_context(a_node(server, tmp_path / "c", third, (third,)))
    middle = await stack.enter_async_context(a_node(server, tmp_path / "b", second, (third,)))
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", first, (second,)))
    ref = (await refs_of(node))[2]
    assert await node.read(ref) == content(2)
    assert node.recorder.total(PEER_FETCHES, outcome="read") == 1
    assert middle.recorder.total(SOURCE_BYTES) == ref.size_bytes
    assert last.recorder.total(PEER_SENT_BYTES) == 0


async def test_a_waiting_peer_gets_signs_of_life(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """While the holder fetches from a slow store, a request that waits is answered again and again, then for good."""
    own = free_address()
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, (own,), timeout_s=0.04))
    ref = (await refs_of(node))[2]
    server.script("data", ref.key, Fault(drip_bytes_s=2 * ref.size_bytes))
    host, port = own.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(render(own, ref, wait=True))
    answer = b""
    while b" 200 OK" not in answer:
        answer += await reader.readuntil(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 102 ") > 1
    writer.close()


async def test_ranges_of_a_peer_that_is_left_alone(server: S3Server, tmp_path: Path) -> None:
    """Ranges that were planned when the peer failed come from the store, without a word to the peer."""
    own, clock, recorder = free_address(), SystemClock(), TallyRecorder()
    async with a_node(server, tmp_path, own, (own,)) as node:
        ref = (await refs_of(node))[2]
        options = PeerOptions("127.0.0.1:0", timeout_s=20.0)
        links = PeerLinks(options, node.sources.buckets, node.sources.ranges, None, recorder, clock)
        link = links.link(own)
        assert await promised(link, ref) is Promise.HELD
        store, target = PeerStore(node.sources.buckets.of("s3://data"), link, recorder), bytearray(100)
        await store.read_into(ref, ByteRange(0, 100), into(target))
        link.failed(OSError("lost"))
        await store.read_into(ref, ByteRange(100, 200), into(target))
        assert target == content(2)[100:200]
        assert recorder.total(PEER_READS, outcome="read") == recorder.total(PEER_READS, outcome="paused") == 1
        assert recorder.total(PEER_READ_BYTES) == 100
        await links.close()


@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
async def test_a_peer_that_does_not_answer(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path, silent: bool
) -> None:
    """Every object comes from the store instead. After a refused connection, or a silence, nobody asks it."""
    own = free_address()
    for number in range(COUNT, 3 * COUNT):  # the peer holds some of them
        server.put("data", f"{number}.tar", content(0))
    with socket.socket() as lost:
        lost.bind(("127.0.0.1", 0))
        if silent:
            lost.listen(64)  # the kernel accepts, and nobody answers
        gone = f"127.0.0.1:{lost.getsockname()[1]}"
        node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, (own, gone), timeout_s=QUICK_S))
        refs = await refs_of(node)
        theirs = held_by(refs, gone, (own, gone))
        await node.read(theirs[0])
        assert node.recorder.total(PEER_FETCHES, outcome="failed") == 1
        assert [await node.read(ref) for ref in refs][:COUNT] == [content(number) for number in range(COUNT)]
        assert node.recorder.total(PEER_FETCHES) == 1, "entries of a failed peer are the other members'"
        assert sorted(gets(server)) == sorted(ref.key for ref in refs)


async def test_a_peer_that_comes_back_is_used_again(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A probe in the background finds it; no read waits for that."""
    members = own, late = free_address(), free_address()
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members, timeout_s=2.0))
    refs = await refs_of(node)
    theirs = held_by(refs, late, members)
    await node.read(theirs[0])
    holder = await stack.enter_async_context(a_node(server, tmp_path / "b", late, members))
    async with asyncio.timeout(PATIENT_S):
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
    refs = await refs_of(node)
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
    refs = await refs_of(node)
    old = held_by(refs, holder.address, (node.address, holder.address))[0]
    assert await holder.read(old) == content(refs.index(old))
    server.put("data", old.key, b"new")
    with pytest.raises(ObjectChanged):
        await node.read(old)
    (new,) = [ref for ref in await refs_of(node) if ref.key == old.key]
    assert await node.read(new) == b"new"


async def test_a_full_holder_refuses(stack: AsyncExitStack, server: S3Server, tmp_path: Path) -> None:
    """A holder whose cache has no room for the entry says so at once, and the store is used."""
    members = own, small = free_address(), free_address()
    for number in range(100, 112):  # the small node holds some of them
        server.put("data", f"{number}.tar", bytes(2_000_000))
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members))
    holder = await stack.enter_async_context(a_node(server, tmp_path / "b", small, members, cache_bytes=1 << 20))
    refs = await refs_of(node)
    large = held_by([ref for ref in refs if ref.size_bytes == 2_000_000], small, members)[0]
    assert await node.read(large) == bytes(large.size_bytes)
    assert node.recorder.total(PEER_FETCHES, outcome="refused") == 1
    assert holder.recorder.total(SOURCE_BYTES) == 0


async def test_peers_evict_nothing_that_is_needed_sooner(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path
) -> None:
    """A full holder takes an entry for a peer only if it needs the entry sooner than one of its own."""
    members = own, full = free_address(), free_address()
    for number in range(100, 124):
        server.put("data", f"{number}.tar", bytes(2_000_000))
    node = await stack.enter_async_context(a_node(server, tmp_path / "a", own, members))
    holder = await stack.enter_async_context(a_node(server, tmp_path / "b", full, members, cache_bytes=9 << 20))
    refs = [ref for ref in await refs_of(node) if ref.size_bytes == 2_000_000]
    wanted, sooner, *_ = held_by(refs, full, members)
    residents = [ref for ref in refs if ref not in {wanted, sooner}][:4]
    for ref in residents:
        await holder.read(ref)
    times = {wanted: 9.0, sooner: 1.0}
    holder.cache.note_next_use(lambda asked: [times.get(ref, 5.0) for ref in asked])
    await node.read(wanted)
    assert node.recorder.total(PEER_FETCHES, outcome="refused") == 1
    assert all(map(holder.cache.holds, residents))
    await node.read(sooner)
    assert node.recorder.total(PEER_FETCHES, outcome="read") == 1


async def _read(links: PeerLinks, member: str, ref: ObjectRef, target: bytearray) -> bool:
    assert await promised(links.link(member), ref) is Promise.HELD
    return await links.read(member, ref, into(target), None) == "read"


async def test_a_peer_that_left_and_returned(server: S3Server, tmp_path: Path) -> None:
    """Its connections are closed when it leaves; when it is back, new ones are made."""
    own = free_address()
    async with a_node(server, tmp_path, own, (own,)) as node:
        refs = await refs_of(node)
        options, target = PeerOptions("127.0.0.1:0", timeout_s=20.0), bytearray(refs[2].size_bytes)
        links = PeerLinks(options, node.sources.buckets, node.sources.ranges, None, TallyRecorder(), SystemClock())
        assert await _read(links, own, refs[2], target)
        await links.retain([own])
        assert await _read(links, own, refs[2], target)
        await links.retain([])
        target[:] = bytes(len(target))
        assert await _read(links, own, refs[2], target)
        assert target == content(2)
        await links.close()


async def test_the_members_find_the_successor_of_a_silent_holder(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path
) -> None:
    """Two nodes that ask a silent third one at the same time come to the same successor: the store is asked once."""
    first, second = free_address(), free_address()
    for number in range(COUNT, 3 * COUNT):  # each holds some of them
        server.put("data", f"{number}.tar", content(0))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        members = (first, second, f"127.0.0.1:{silent.getsockname()[1]}")
        nodes = [
            await stack.enter_async_context(a_node(server, tmp_path / own, own, members, timeout_s=QUICK_S))
            for own in (first, second)
        ]
        refs = await refs_of(nodes[0])
        assert held_by(refs, members[2], members)
        await asyncio.gather(*(node.read(ref) for node in nodes for ref in refs))
        assert sorted(gets(server)) == sorted(ref.key for ref in refs)


@pytest.mark.nightly
async def test_peers_that_are_late_because_the_machine_is_busy(
    stack: AsyncExitStack, server: S3Server, tmp_path: Path
) -> None:
    """Each thread waits for each of its turns, answers take longer than the timeout, and no peer is taken for dead."""
    nodes = await _pair(stack, server, tmp_path, timeout_s=0.05)
    refs = await refs_of(nodes[0])
    stop, interval_s = threading.Event(), sys.getswitchinterval()
    spinner = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    spinner.start()
    sys.setswitchinterval(0.02)
    try:
        await asyncio.gather(*(node.read(ref) for node in nodes for ref in refs))
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        spinner.join()
    assert sorted(gets(server)) == sorted(ref.key for ref in refs)
