"""A client that is nothing but the contract: what it sends and gets is visible to the test."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import grpc

from feedd.clock import SystemClock
from feedd.serve.grpc_server import FeedServer
from feedd.serve.grpc_status import TRAILER
from feedd.serve.server_options import ServeHooks, ServeOptions
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import AdminStub, FeedStub, FilesStub
from tests.fakes.backend import FakeBackend, FakeScript
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path
    from typing import Any

WAIT_S = 10.0
V1 = pb.ProtocolVersion(major=1, minor=0)


def open_request(**changes: Any) -> pb.OpenRequest:
    """Return a valid Open with some fields changed."""
    fields: dict[str, Any] = {
        "version": V1,
        "urls": ["s3://bucket/train/"],
        "recipe": pb.Recipe(batch_size=4),
        "prefetch_batches": 4,
    }
    return pb.OpenRequest(**{**fields, **changes})


def error_of(failure: grpc.aio.AioRpcError) -> pb.Error:
    """Return the error in the trailer."""
    trailer = dict(cast("Iterable[tuple[str, bytes]]", failure.trailing_metadata()))
    return pb.Error.FromString(trailer[TRAILER])


class Arena:
    """The client's side of an arena connection."""

    def __init__(self, info: pb.ArenaInfo) -> None:
        self.conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.conn.settimeout(WAIT_S)
        self.conn.connect(info.socket_path)
        self.conn.sendall(b"ARENA" + info.token)
        answer, fds, _, _ = socket.recv_fds(self.conn, 1, 1)
        assert answer == b"\x01", answer
        self.slot_bytes = info.slot_bytes
        self.map = mmap.mmap(fds[0], info.size_bytes)
        os.close(fds[0])

    def payload(self, batch: pb.Batch) -> bytes:
        """Return the bytes a lease stands for."""
        at = batch.slot * self.slot_bytes
        return self.map[at : at + batch.size_bytes]

    def close(self) -> None:
        """Let go: the lifeline ends."""
        self.conn.close()
        self.map.close()


async def attach(info: pb.ArenaInfo) -> Arena:
    """Fetch the arena without holding the loop: the server runs on it."""
    return await asyncio.to_thread(Arena, info)


@dataclass
class Stream:
    """One Stream call, read message by message."""

    call: Any
    batches: list[pb.Batch] = field(default_factory=list)
    payloads: dict[int, bytes] = field(default_factory=dict)
    end: pb.EndOfEpoch | None = None
    error: pb.Error | None = None
    known_steps: int | None = None
    heartbeats: list[str] = field(default_factory=list)
    notices: list[list[pb.Notice]] = field(default_factory=list)

    async def send(self, **fields: Any) -> None:
        """Send one request."""
        await self.call.write(pb.StreamRequest(**fields))

    async def read(self) -> bool:
        """Take one message in; False at the end of the stream."""
        async with asyncio.timeout(WAIT_S):
            message = await self.call.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            return False
        self.batches.extend(message.batches)
        if message.HasField("chunk"):
            assert message.chunk.offset == len(self.payloads.get(message.chunk.seq, b"")), "a gap between chunks"
            self.payloads[message.chunk.seq] = self.payloads.get(message.chunk.seq, b"") + message.chunk.data
        if message.HasField("end"):
            self.end = message.end
        if message.HasField("error"):
            self.error = message.error
        if message.HasField("known_steps"):
            self.known_steps = message.known_steps
        if message.HasField("heartbeat"):
            self.heartbeats.append(message.heartbeat.waiting_for)
        if message.notices:
            self.notices.append(list(message.notices))
        return True

    async def until(self, count: int) -> list[pb.Batch]:
        """Read until that many batches are here, payloads included."""
        while len(self.batches) < count or any(
            b.inline and len(self.payloads.get(b.seq, b"")) < b.size_bytes for b in self.batches
        ):
            assert await self.read(), f"the stream ended after {len(self.batches)} batches: {self.error}"
        return self.batches

    async def finish(self) -> None:
        """Half-close and read to the end."""
        await self.call.done_writing()
        while await self.read():
            pass

    async def code(self) -> grpc.StatusCode:
        """Return the status the call ended with."""
        async with asyncio.timeout(WAIT_S):
            code: grpc.StatusCode = await self.call.code()
        return code


def release(batch: pb.Batch) -> pb.Release:
    """Return the release of a lease."""
    return pb.Release(slot=batch.slot, generation=batch.generation)


@dataclass
class Rig:
    """A server, its fake backend, and a channel to it."""

    server: FeedServer
    backend: FakeBackend
    recorder: TallyRecorder
    channel: grpc.aio.Channel

    @property
    def feed(self) -> FeedStub:
        """The Feed service."""
        return FeedStub(self.channel)  # type: ignore[no-untyped-call]  # generated

    @property
    def admin(self) -> AdminStub:
        """The Admin service."""
        return AdminStub(self.channel)  # type: ignore[no-untyped-call]  # generated

    @property
    def files(self) -> FilesStub:
        """The Files service."""
        return FilesStub(self.channel)  # type: ignore[no-untyped-call]  # generated

    async def open(self, **changes: Any) -> pb.OpenResponse:
        """Open a session."""
        response: pb.OpenResponse = await self.feed.Open(open_request(**changes), timeout=WAIT_S)
        return response

    async def stream(
        self,
        session_id: str,
        *,
        credits: int = 0,
        step: int = 0,
        epoch: int = 0,
        **start: Any,
    ) -> Stream:
        """Start a stream."""
        stream = Stream(self.feed.Stream())
        await stream.send(
            start=pb.StreamStart(session_id=session_id, next=pb.Cursor(epoch=epoch, step=step), **start),
            credits=credits,
        )
        return stream

    async def until(self, condition: Any) -> None:
        """Wait for something the server does on its own."""
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 -- any condition at all
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    folder: Path,
    script: FakeScript | None = None,
    options: ServeOptions | None = None,
    hooks: ServeHooks | None = None,
) -> AsyncIterator[Rig]:
    """Serve a fake backend on a Unix socket; afterwards every gauge must be at zero and every session closed."""
    recorder = TallyRecorder()
    backend = FakeBackend(script, recorder)
    chosen = options or ServeOptions(listen=(f"unix://{folder}/feedd.sock",))
    async with FeedServer(backend, chosen, recorder, SystemClock(), hooks) as server:
        target = server.addresses[0]
        async with grpc.aio.insecure_channel(target) as channel:
            yield Rig(server, backend, recorder, channel)
    assert backend.open_count == 0
    gauges = ("feedd_serve_sessions", "feedd_serve_leases", "feedd_serve_arena_bytes")
    held = {name: value for (name, _), value in recorder._sums.items() if name in gauges and value}
    assert not held, f"gauges not back at zero: {held}"
