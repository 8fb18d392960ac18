"""Two daemons in one process hand over: clients go on at the successor, and nothing is lost if either one dies."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import grpc
import msgspec
import pytest

from feedd.clock import SystemClock
from feedd.daemon.handover_messages import (
    MESSAGE_BYTES_MAX,
    VERSION,
    HandoverBroken,
    HandoverLink,
    HandoverMessage,
    session_messages,
    socket_in,
)
from feedd.daemon.predecessor import Predecessor
from feedd.daemon.signals import StopRequests
from feedd.daemon.successor import Successor
from feedd.errors import CacheUnavailable, NotFound
from feedd.owner import Owner
from feedd.serve.grpc_server import FeedServer
from feedd.serve.preopened import ClientState, Preopened
from feedd.serve.server_options import ServeOptions
from feedd.values import Cursor
from feedd.wire.feed_messages import OpenLimits
from tests.fakes.backend import FakeBackend, FakeScript
from tests.fakes.tally import TallyRecorder
from tests.unit.serve.raw_client import WAIT_S, Rig, Stream, attach, open_request, release, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from feedd.wire import feedd_pb2 as pb

STEPS = 60


@dataclass
class Old:
    """The predecessor, with what the daemon around it does."""

    rig: Rig
    predecessor: Predecessor
    requests: StopRequests
    folder: Path

    def link(self) -> HandoverLink:
        """Return a connection to it."""
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_in(self.folder / "cache") as address:
            conn.connect(address)
        return HandoverLink(conn)


@asynccontextmanager
async def _old(folder: Path) -> AsyncIterator[Old]:
    (folder / "cache").mkdir()
    async with serving(folder, FakeScript(steps=STEPS)) as rig, asyncio.TaskGroup() as group:
        requests = StopRequests()
        predecessor = Predecessor(folder / "cache", rig.server, requests)
        attending = group.create_task(predecessor.serve())
        await rig.until((folder / "cache" / "handover").exists)
        assert stat.S_IMODE((folder / "cache" / "handover").stat().st_mode) == 0o600
        yield Old(rig, predecessor, requests, folder)
        attending.cancel()


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Own the cache directory, as the predecessor does until it has ended."""
    fd = os.open(folder / "cache" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


@asynccontextmanager
async def _new(folder: Path, *, takeover: bool = True) -> AsyncIterator[tuple[FeedServer, FakeBackend, asyncio.Event]]:
    """Take over in the background; yield the server, its backend, and what is set when it stands by."""
    backend, stands_by = FakeBackend(FakeScript(steps=STEPS)), asyncio.Event()
    options = ServeOptions(listen=(f"unix://{folder}/feedd.sock",))
    server = FeedServer(backend, options, TallyRecorder(), SystemClock())
    successor = await Successor.of(folder / "cache", "new")
    assert successor is not None
    async with asyncio.TaskGroup() as group:
        preopened = Preopened(backend, OpenLimits(), group.create_task)
        taking = group.create_task(successor.take_over(server, preopened, stands_by.set, takeover=takeover))
        try:
            yield server, backend, stands_by
            await asyncio.wait([taking], timeout=WAIT_S)
            assert taking.done(), "the successor does not own the cache"
        finally:
            taking.cancel()  # the test has failed, or the successor is done
            await asyncio.wait([taking])
            await server.stop()
    assert backend.open_count == 0


async def _consume(stream: Stream, go_on: asyncio.Event | None = None) -> list[int]:
    """Take batches until the stream ends, nearly all of them when ``go_on`` is set; return their steps."""
    released = 0
    with suppress(grpc.aio.AioRpcError):
        while await stream.read():
            fresh = stream.batches[released:]
            released += len(fresh)
            if fresh and stream.error is None and stream.end is None:
                if go_on is not None and released > STEPS // 10:
                    await go_on.wait()
                await stream.send(releases=list(map(release, fresh)), credits=len(fresh))
            if stream.error is not None or stream.end is not None:
                await stream.finish()
    return [batch.cursor.step for batch in stream.batches]


async def _again(rig: Rig, opened: pb.OpenResponse, **changes: object) -> tuple[pb.OpenResponse, grpc.aio.Channel]:
    """Open again at the same address, as a client does that lost its daemon."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.insecure_channel(rig.server.addresses[0], options)
    request = open_request(expect_fingerprint=opened.fingerprint, open_id="other", uneven=opened.uneven, **changes)
    response: pb.OpenResponse = await Rig(rig.server, rig.backend, rig.recorder, channel).feed.Open(
        request, timeout=WAIT_S
    )
    return response, channel


@pytest.mark.parametrize("by_signal", [False, True], ids=["takeover", "sigterm"])
async def test_a_client_goes_on_at_the_successor(short_dir: Path, by_signal: bool) -> None:
    """Its session is open before it comes, the first batches are made where the old stream ends, and none is lost."""
    async with _old(short_dir) as old:
        opened = await old.rig.open()
        arena = await attach(opened.arena)
        stream = await old.rig.stream(opened.session_id, credits=4)
        handed_over = asyncio.Event()  # the epoch does not end before the daemon does
        taking = asyncio.ensure_future(_consume(stream, handed_over))
        await old.rig.until(lambda: old.rig.server.sessions.all[0].machine.stream is not None)
        async with _new(short_dir, takeover=not by_signal) as (server, backend, stands_by):
            with _owned(short_dir):
                await stands_by.wait()
                if by_signal:
                    old.requests.ask("SIGTERM")
                    await old.predecessor.end()
                await old.requests.drain.wait()
                assert old.predecessor.is_over
                handed_over.set()
                await asyncio.wait_for(old.rig.server.drain(2 * WAIT_S), WAIT_S)  # the streams end by themselves
                first = await taking
                assert stream.error is not None
                assert stream.error.kind == "draining"
                again, channel = await _again(old.rig, opened)
                assert again.daemon_id == server.daemon_id
                assert len(backend.specs) == 1, "the client's session was not open yet"
                assert [at.step for at in backend.sessions[0].prepared] == [len(first)]
                second_arena = await attach(again.arena)
                rig = Rig(server, backend, old.rig.recorder, channel)
                resumed = await rig.stream(again.session_id, credits=4, step=len(first))
                second = await _consume(resumed)
                assert first + second == list(range(STEPS))
                second_arena.close()
                await channel.close(None)
                arena.close()


@pytest.mark.parametrize("last", ["hello", "prepared", "takeover", "ready"])
async def test_a_successor_that_dies_leaves_its_predecessor_serving(short_dir: Path, last: str) -> None:
    """Whatever it said last: streams go on to their end, new clients are served, and another successor may come."""
    async with _old(short_dir) as old:
        opened = await old.rig.open()
        arena = await attach(opened.arena)
        stream = await old.rig.stream(opened.session_id, credits=4)
        taking = asyncio.ensure_future(_consume(stream))
        link = old.link()
        await link.send(HandoverMessage("hello"))
        assert [one.owner_kind for one in (await link.receive()).sessions] == ["uid"]
        for kind in ("prepared", "takeover", "ready"):
            if last == "hello":
                break
            await link.send(HandoverMessage(kind))
            if kind != "prepared":
                assert (await link.receive()).kind == {"takeover": "switch", "ready": "publish"}[kind]
            if kind == last:
                break
        if last == "ready":  # it has replaced the sockets, and dies
            (short_dir / "feedd.sock").unlink()
            (short_dir / "feedd.sock.arena").unlink()
        link.close()
        assert await taking == list(range(STEPS))
        again, channel = await _again(old.rig, opened)
        assert again.daemon_id == old.rig.server.daemon_id
        assert not old.requests.drain.is_set()
        assert len(os.listdir(short_dir)) == 3, "a second name of a socket is left"  # noqa: PTH208 - no await inside
        await channel.close(None)
        arena.close()
        async with _new(short_dir):
            await old.requests.drain.wait()


async def test_who_must_end_ends_without_its_successor(short_dir: Path) -> None:
    """After SIGTERM, a daemon whose successor dies drains; without a successor, it does so at once."""
    async with _old(short_dir) as old:
        link = old.link()
        await link.send(HandoverMessage("hello"))
        await link.send(HandoverMessage("prepared"))
        await link.receive()
        await old.rig.until(lambda: old.predecessor._machine.stage.value == "prepared")
        ending = asyncio.ensure_future(old.predecessor.end())
        assert (await link.receive()).kind == "switch"
        link.close()
        await asyncio.wait_for(ending, WAIT_S)
        assert not old.predecessor.is_over
        await asyncio.wait_for(old.predecessor.end(), WAIT_S)


async def _asked(folder: Path, answer: HandoverMessage) -> Successor | None:
    """Return what a successor makes of a predecessor that says ``answer``."""
    (folder / "other").mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        (folder / "other" / "handover").unlink(missing_ok=True)
        listener.bind(str(folder / "other" / "handover"))
        listener.listen()
        listener.settimeout(0.0)
        connecting = asyncio.ensure_future(Successor.of(folder / "other", "new"))
        conn, _ = await asyncio.get_running_loop().sock_accept(listener)
        with conn, suppress(HandoverBroken):
            await HandoverLink(conn).send(answer)
            return await connecting
    return await connecting


async def test_another_version_is_refused_in_both_directions(short_dir: Path) -> None:
    """Both ends say so; the successor then waits as one of old."""
    async with _old(short_dir) as old:
        link = old.link()
        await link.send(HandoverMessage("hello", version=VERSION + 1))
        refused = await link.receive()
        assert refused.kind == "refused"
        assert f"version {VERSION}" in refused.reason
        link.close()
    assert await _asked(short_dir, HandoverMessage("sessions", version=VERSION + 1)) is None
    assert await _asked(short_dir, HandoverMessage("refused")) is None
    assert await Successor.of(short_dir / "nowhere", "new") is None


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", MESSAGE_BYTES_MAX + 1),
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 2) + b"\x81\xa4",
        struct.pack(">I", 0),
        b"\x00\x00",
    ],
)
async def test_nonsense_ends_its_connection_only(short_dir: Path, sent: bytes) -> None:
    """A message that is too long is not read, and one that is none is not believed; the next successor is served."""
    async with _old(short_dir) as old:
        bad = old.link()
        await asyncio.get_running_loop().sock_sendall(bad._conn, sent)
        bad._conn.shutdown(socket.SHUT_WR)
        with pytest.raises(HandoverBroken):
            await bad.receive()
        bad.close()
        good = old.link()
        await good.send(HandoverMessage("hello"))
        assert (await good.receive()).kind == "sessions"
        other = old.link()
        await other.send(HandoverMessage("hello"))
        assert (await other.receive()).kind == "refused", "two successors at a time"
        good.close()
        other.close()


async def test_a_third_daemon_does_not_wait(short_dir: Path) -> None:
    """It would lock the directory before the successor that serves already, and that one would end."""
    async with _old(short_dir) as old:
        link = old.link()
        await link.send(HandoverMessage("hello"))
        assert (await link.receive()).kind == "sessions"
        with pytest.raises(CacheUnavailable, match="another daemon already waits"):
            await Successor.of(short_dir / "cache", "third")
        link.close()
        await old.rig.until(lambda: old.predecessor._machine.stage.value == "alone")
        await old.predecessor.end()
        assert await Successor.of(short_dir / "cache", "fourth") is None, "a daemon that ends alone is waited for"


async def test_a_successor_that_does_not_read_is_given_up(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that must end does so, although its sessions do not fit into the socket of a stopped successor."""
    monkeypatch.setattr("feedd.daemon.handover_messages.SEND_S", 0.05)
    state = ClientState("a", Owner.of_uid(1), bytes(4 << 20), Cursor(0))
    monkeypatch.setattr("feedd.daemon.predecessor.client_states", lambda _: [state])
    async with _old(short_dir) as old:
        link = old.link()
        await link.send(HandoverMessage("hello"))
        await old.rig.until(lambda: old.predecessor._machine.stage.value == "attached")
        await asyncio.wait_for(old.predecessor.end(), WAIT_S)
        link.close()


async def test_a_daemon_without_descriptors_serves_on(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot accept its successor now, and does later."""

    class Full(socket.socket):
        refusals = 1

        def accept(self) -> tuple[socket.socket, object]:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listen = Predecessor._listen
    monkeypatch.setattr(Predecessor, "_listen", lambda self: Full(fileno=listen(self).detach()))
    async with _old(short_dir) as old:
        link = old.link()
        await link.send(HandoverMessage("hello"))
        assert (await link.receive()).kind == "sessions"
        link.close()


async def test_a_length_is_checked_before_its_memory_is_taken() -> None:
    """A message that claims to be too long is refused, although nothing of it has come."""
    here, there = socket.socketpair()
    link = HandoverLink(here)
    there.send(struct.pack(">I", MESSAGE_BYTES_MAX + 1))
    with pytest.raises(HandoverBroken, match=f"at most {MESSAGE_BYTES_MAX} bytes"):
        await asyncio.wait_for(link.receive(), WAIT_S)
    link.close()
    there.close()


async def test_another_users_process_is_no_successor(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns nothing of the sessions."""
    async with _old(short_dir) as old:
        monkeypatch.setattr("feedd.daemon.handover_messages.peer_credentials", lambda _: (1, os.geteuid() + 1))
        link = old.link()
        with suppress(HandoverBroken):
            await link.send(HandoverMessage("hello"))
        with pytest.raises(HandoverBroken):
            await link.receive()
        link.close()
    assert await _asked(short_dir, HandoverMessage("sessions")) is None


async def test_a_session_waits_for_its_owner_and_request_only(short_dir: Path) -> None:
    """Another user, or another request of the same user, does not get it; what nobody comes for is closed."""
    backend, owner = FakeBackend(), Owner.of_uid(1)
    request = open_request(epoch=2)
    async with asyncio.TaskGroup() as group:
        preopened = Preopened(backend, OpenLimits(), group.create_task)
        states = [ClientState(name, owner, request.SerializeToString(), Cursor(2, 5)) for name in ("a", "b")]
        await preopened.open(states, WAIT_S)
        assert preopened.open_count == 2
        assert {spec.owner for spec in backend.specs} == {owner}
        assert await preopened.take(Owner.of_uid(2), request) is None
        assert await preopened.take(owner, open_request(epoch=2, seed=1)) is None
        mine = await preopened.take(owner, open_request(epoch=3, open_id="other"))
        assert mine in backend.sessions
        await preopened.open([], WAIT_S)
        assert (preopened.open_count, backend.open_count) == (0, 1)
        await mine.close()


async def test_a_session_that_cannot_be_opened_in_advance_is_left_to_its_client(short_dir: Path) -> None:
    """The client then opens it itself, and gets the error that it would have had anyway."""
    script = FakeScript()
    script.open_error = NotFound("gone")
    backend = FakeBackend(script)
    async with asyncio.TaskGroup() as group:
        preopened = Preopened(backend, OpenLimits(), group.create_task)
        state = ClientState("a", Owner.of_uid(1), open_request().SerializeToString(), Cursor())
        broken = replace(state, id="b", request=open_request(urls=[]).SerializeToString())
        await preopened.open([state, broken], WAIT_S)
        assert await preopened.take(Owner.of_uid(1), open_request()) is None
        await preopened.close()


def test_sessions_beyond_the_size_of_a_message_are_left_out() -> None:
    """A message is never too long to be read."""
    states = [ClientState(str(n), Owner.of_uid(n), bytes(MESSAGE_BYTES_MAX // 5), Cursor()) for n in range(9)]
    messages = session_messages(states)
    assert [one.id for one in messages] == ["0", "1"]
    assert len(msgspec.msgpack.encode(HandoverMessage("switch", sessions=messages))) < MESSAGE_BYTES_MAX
