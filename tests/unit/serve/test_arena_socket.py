from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
import weakref
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.serve.arena_socket import HOLD
from feedd.serve.server_options import ServeHooks, ServeOptions
from feedd.serve.tickets import OWNER_GREETING
from feedd.wire import feedd_pb2 as pb
from tests.budget import PATIENT_S
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import WAIT_S, attach, serving

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.unit.serve.raw_client import Rig

STOP_S = 3.0
HOLDER = """
import mmap, socket, sys
lifeline = socket.socket(socket.AF_UNIX)
lifeline.connect(sys.argv[1])
lifeline.sendall(b"ARENA" + bytes.fromhex(sys.argv[2]))
memory = mmap.mmap(socket.recv_fds(lifeline, 1, 1)[1][0], 4096)
print("mapped", flush=True)
assert lifeline.recv(1) == b""
print("closed", flush=True)
sys.stdin.readline()
"""


async def _say(path: Path, hello: bytes) -> tuple[socket.socket, bytes]:
    """Connect, say something, and return the connection and its first byte (empty: closed)."""
    loop = asyncio.get_running_loop()
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    conn.setblocking(False)
    await loop.sock_connect(conn, str(path))
    await loop.sock_sendall(conn, hello)
    async with asyncio.timeout(PATIENT_S):
        try:
            return conn, await loop.sock_recv(conn, 1)
        except ConnectionResetError:
            return conn, b""


async def test_an_unknown_token_is_refused(short_dir: Path) -> None:
    """A wrong token, or no known greeting, gets a zero byte and the end."""
    async with serving(short_dir) as rig:
        await rig.open()
        for hello in (b"ARENA" + bytes(16), b"HELLO" + bytes(16), b"HOLD!" + b"x" * 16, b"ENTRY" + bytes(16)):
            conn, answer = await _say(short_dir / "feedd.sock.arena", hello)
            assert answer == b"\x00"
            assert await asyncio.get_running_loop().sock_recv(conn, 1) == b""
            conn.close()


async def test_a_client_that_says_nothing_is_dropped(short_dir: Path) -> None:
    """The greeting has a deadline, and half of one is none."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), hello_timeout_s=0.05)
    async with serving(short_dir, None, options) as rig:
        for hello in (b"", b"ARENA"):
            conn, answer = await _say(short_dir / "feedd.sock.arena", hello)
            assert answer == b""
            conn.close()
        await rig.until(lambda: rig.server._arena_socket.connection_count == 0)


async def test_connections_are_bounded(short_dir: Path) -> None:
    """One connection too many is closed at once; those that are there stay."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), arena_connections_max=1)
    async with serving(short_dir, None, options) as rig:
        first, answer = await _say(short_dir / "feedd.sock.arena", OWNER_GREETING)
        assert answer == b"\x01"
        second, answer = await _say(short_dir / "feedd.sock.arena", OWNER_GREETING)
        assert answer == b""
        assert rig.server.sessions.count == 0
        first.close()
        second.close()


async def test_one_user_leaves_room_for_others(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several users can connect, one has three quarters of the connections at most."""
    uids = iter([1, 1, 1, 1, 2])
    monkeypatch.setattr("feedd.serve.arena_socket.peer_credentials", lambda _conn: (1, next(uids)))
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), socket_mode=0o666, arena_connections_max=5)
    async with serving(short_dir, None, options) as rig:
        said = [await _say(short_dir / "feedd.sock.arena", OWNER_GREETING) for _ in range(5)]
        assert [answer for _, answer in said] == [b"\x01"] * 3 + [b"\x00", b"\x01"]
        for conn, _ in said:
            conn.close()
        await rig.until(lambda: not rig.server._arena_socket.connection_count)
        assert not rig.server._arena_socket._by_uid


async def test_an_error_ends_its_own_connection_only(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with one client, the daemon goes on serving the others."""
    async with serving(short_dir) as rig:
        with monkeypatch.context() as broken:
            broken.setattr("feedd.serve.arena_socket.peer_credentials", lambda _conn: 1 / 0)
            conn, answer = await _say(short_dir / "feedd.sock.arena", OWNER_GREETING)
            assert answer == b""
            conn.close()
        conn, answer = await _say(short_dir / "feedd.sock.arena", OWNER_GREETING)
        assert answer == b"\x01"
        conn.close()
        await rig.until(lambda: rig.server._arena_socket.connection_count == 0)


async def test_other_users_are_refused(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where users are listed, others get neither memory nor a ticket, even if they can open the socket."""
    monkeypatch.setattr("feedd.serve.arena_socket.peer_credentials", lambda _conn: (1, 4711))
    for allowed, expected in (((), b"\x01"), ((4711,), b"\x01"), ((4712,), b"\x00")):
        options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), allow_uids=allowed)
        async with serving(short_dir, None, options):
            conn, answer = await _say(short_dir / "feedd.sock.arena", OWNER_GREETING)
            assert answer == expected
            conn.close()


async def test_only_a_daemon_that_ends_with_its_users_is_held(short_dir: Path) -> None:
    """Elsewhere such connections would have no end and no use."""
    async with serving(short_dir):
        conn, answer = await _say(short_dir / "feedd.sock.arena", HOLD)
        assert answer == b"\x00"
        conn.close()


async def test_holders_are_counted(short_dir: Path) -> None:
    """Each change of the number of HOLD connections is told, down to zero."""
    heard: list[int] = []
    async with serving(short_dir, hooks=ServeHooks(on_holders=heard.append)) as rig:
        conns = [(await _say(short_dir / "feedd.sock.arena", HOLD))[0] for _ in range(2)]
        assert rig.server.holder_count == 2
        for conn in conns:
            conn.close()
        await rig.until(lambda: rig.server.holder_count == 0)
    assert heard == [1, 2, 1, 0]


async def test_the_end_of_the_lifeline_ends_the_session(short_dir: Path) -> None:
    """Without a stream, the session closes as soon as its client's process is gone."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        assert rig.server.sessions.count == 1
        arena.close()
        await rig.until(lambda: rig.server.sessions.count == 0)
        assert rig.backend.sessions[0].close_count == 1


async def test_two_lifelines_of_one_session(short_dir: Path) -> None:
    """Slots are reclaimed when the last of a session's lifelines ends, not before."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        first, second = await attach(opened.arena), await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=1)
        await stream.until(1)
        await stream.finish()
        first.close()
        await rig.until(lambda: rig.server._arena_socket.connection_count == 1)
        assert rig.recorder.total(metrics.SERVE_LEASES) == 1
        second.close()
        await rig.until(lambda: rig.server.sessions.count == 0)
        assert rig.recorder.total(metrics.SERVE_RECLAIMED) == 1


async def test_a_lifeline_that_ends_under_a_stream_of_leases(short_dir: Path) -> None:
    """The stream is ended in-band: nobody could release what it hands out."""
    async with serving(short_dir, FakeScript(gates={1: asyncio.Event()})) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=2)
        await stream.until(1)
        arena.close()
        while stream.error is None:
            assert await stream.read()
        assert stream.error.kind == "bad-request"
        await stream.finish()
        await rig.until(lambda: rig.server.sessions.count == 0)


async def test_close_ends_the_lifeline(short_dir: Path) -> None:
    """A client sees the end of its session on the arena connection, and its mapping stays readable."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
        arena.conn.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(arena.conn, 1) == b""
        assert arena.map[0] == 0
        arena.close()


async def test_a_lent_descriptor_is_a_copy(short_dir: Path) -> None:
    """The client's descriptor is the session's memory, and lives on without the session."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await asyncio.to_thread(conn.connect, opened.arena.socket_path)
        conn.sendall(b"ARENA" + opened.arena.token)
        _, fds, _, _ = await asyncio.to_thread(socket.recv_fds, conn, 1, 1)
        assert os.fstat(fds[0]).st_ino == os.fstat(rig.backend.sessions[0].arena.fd).st_ino
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
        assert os.fstat(fds[0]).st_size == opened.arena.size_bytes
        os.close(fds[0])
        conn.close()


def _counted(rig: Rig) -> tuple[int, float]:
    """Return the arena bytes that the budget counts, and those that the gauge shows."""
    return rig.backend.budget.reserved_bytes, rig.recorder.total(metrics.SERVE_ARENA_BYTES)


async def test_an_arena_counts_until_its_last_client_lets_go(short_dir: Path) -> None:
    """Budget and gauge keep the memory of a closed session as long as any client maps it, and no longer."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        size_bytes = opened.arena.size_bytes
        first, second = await attach(opened.arena), await attach(opened.arena)
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
        assert rig.server.sessions.count == 0
        await asyncio.sleep(0.1)
        assert _counted(rig) == (size_bytes, size_bytes)
        first.close()
        await rig.until(lambda: rig.server._arena_socket.connection_count == 1)
        assert _counted(rig) == (size_bytes, size_bytes)
        second.close()
        await rig.until(lambda: rig.server._arena_socket.connection_count == 0)
        assert _counted(rig) == (0, 0)


async def test_an_arena_that_no_client_maps_counts_until_the_session_ends(short_dir: Path) -> None:
    """A client that lets go first, or never mapped the arena, leaves the memory to its session."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        size_bytes = opened.arena.size_bytes
        assert _counted(rig) == (size_bytes, size_bytes)
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
        assert _counted(rig) == (0, 0)
        arena = await attach((await rig.open()).arena)
        arena.close()
        await rig.until(lambda: rig.server.sessions.count == 0)
        assert _counted(rig) == (0, 0)


async def test_a_killed_client_of_a_closed_session_frees_its_memory(short_dir: Path) -> None:
    """The kernel ends the connection of a process that is killed, and the daemon counts the arena no longer."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        trainer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", HOLDER, opened.arena.socket_path, opened.arena.token.hex()), stdin=PIPE, stdout=PIPE
        )
        try:
            assert trainer.stdout is not None
            async with asyncio.timeout(WAIT_S):
                assert await trainer.stdout.readline() == b"mapped\n"
                await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
                assert await trainer.stdout.readline() == b"closed\n"
            assert _counted(rig) == (opened.arena.size_bytes, opened.arena.size_bytes)
        finally:
            trainer.kill()
            await trainer.communicate()
        await rig.until(lambda: _counted(rig) == (0, 0))


async def test_a_client_that_holds_memory_keeps_nothing_else(short_dir: Path) -> None:
    """Of a session that has closed, the daemon keeps the count of bytes alone, however long a client maps the arena."""
    async with serving(short_dir) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        hosted = weakref.ref(rig.server.sessions.find(opened.session_id))
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
        gc.collect()
        assert hosted() is None
        assert _counted(rig) == (opened.arena.size_bytes, opened.arena.size_bytes)
        arena.close()
        await rig.until(lambda: _counted(rig) == (0, 0))


async def test_stop_does_not_wait_for_clients_that_hold_memory(short_dir: Path) -> None:
    """A server that stops abandons the memory that clients still map; what they hold stays readable."""
    async with serving(short_dir) as rig:
        closed, opened = await rig.open(), await rig.open()
        arenas = [await attach(closed.arena), await attach(opened.arena)]
        await rig.feed.Close(pb.CloseRequest(session_id=closed.session_id))
        started_s = time.monotonic()
        await rig.server.stop()
        assert time.monotonic() - started_s < STOP_S
        assert _counted(rig) == (0, 0)
    for arena in arenas:
        assert arena.map[0] == 0
        arena.close()
