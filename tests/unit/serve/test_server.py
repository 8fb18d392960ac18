from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from feedd.clock import SystemClock
from feedd.errors import BadConfig
from feedd.serve.grpc_server import FeedServer
from feedd.serve.server_options import ServeOptions, TlsFiles
from feedd.values import Lifecycle
from feedd.wire.feedd_pb2_grpc import FeedStub
from tests.fakes.backend import FakeBackend, FakeScript
from tests.fakes.fetchers import until
from tests.fakes.tally import TallyRecorder
from tests.unit.serve.certs import Authority
from tests.unit.serve.raw_client import WAIT_S, attach, error_of, open_request, serving


def _server(*listen: str, **changes: object) -> FeedServer:
    options = ServeOptions(listen=listen, **changes)  # type: ignore[arg-type]  # each test names fields of its own
    return FeedServer(FakeBackend(), options, TallyRecorder(), SystemClock())


async def _health(channel: grpc.aio.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
    return int(answer.status)


async def test_states_and_health_follow_each_other(short_dir: Path) -> None:
    """Starting, ready and serving, draining and not serving, stopped; never backwards."""
    server = _server(f"unix://{short_dir}/f.sock")
    states = [server.state]
    await server.start()
    states.append(server.state)
    async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
        for service in ("", "feedd.v1.Feed", "feedd.v1.Admin"):
            assert await _health(channel, service) == health_pb2.HealthCheckResponse.SERVING
        await server.drain(0.0)
        states.append(server.state)
        assert await _health(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING
    await server.stop()
    await server.stop()
    assert [*states, server.state] == [state for state in Lifecycle if state is not Lifecycle.STANDBY]


async def test_sockets_have_their_mode_and_are_gone_after_stop(short_dir: Path) -> None:
    """Both sockets are the owner's alone while the daemon lives, and no file is left after it."""
    folder = short_dir / "made" / "below"
    async with _server(f"unix://{folder}/f.sock"):
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["f.sock", "f.sock.arena"]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert not list(folder.iterdir())


async def test_reflection_names_the_services(short_dir: Path) -> None:
    """A generic client can ask what there is."""
    async with serving(short_dir) as rig:
        stub = reflection_pb2_grpc.ServerReflectionStub(rig.channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert {"feedd.v1.Feed", "feedd.v1.Admin", "grpc.health.v1.Health"} <= names
        call.cancel()


async def test_health_is_asked_not_watched(short_dir: Path) -> None:
    """Calls without an end and without an owner would take the place of others."""
    async with serving(short_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            _ = [one async for one in health_pb2_grpc.HealthStub(rig.channel).Watch(health_pb2.HealthCheckRequest())]
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "method",
    ["feedd.v1.Feed/Lanes", "feedd.v1.Feed/Classes", "feedd.v1.Admin/CacheList", "grpc.health.v1.Health/Check"],
)
async def test_a_call_without_a_request_is_ended(short_dir: Path, method: str) -> None:
    """A call whose request does not come ends, because its connection would keep its place for ever."""
    options = ServeOptions(listen=(f"unix://{short_dir}/f.sock",), request_s=0.05)
    async with serving(short_dir, options=options) as rig:
        call = rig.channel.stream_unary(f"/{method}")()  # type: ignore[call-arg]  # the stubs know no defaults
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call, WAIT_S)
        assert error_of(caught.value).message == "expected the request of a call within 0.05 s, got none"
        assert await _health(rig.channel, "") == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_is_for_one_user(short_dir: Path) -> None:
    """Where others can connect, also by TCP, the list of calls is left out."""
    unix = f"unix://{short_dir}/feedd.sock"
    for options in (ServeOptions(listen=(unix,), socket_mode=0o660), ServeOptions(listen=(unix, "127.0.0.1:0"))):
        async with serving(short_dir, None, options) as rig:
            call = reflection_pb2_grpc.ServerReflectionStub(rig.channel).ServerReflectionInfo()
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_second_daemon_on_the_same_socket(short_dir: Path) -> None:
    """It is refused with the pid of the first, which goes on undisturbed."""
    async with serving(short_dir) as rig:
        with pytest.raises(BadConfig, match=f"in use by pid {os.getpid()}"):
            await _server(f"unix://{short_dir}/feedd.sock").start()
        assert (await rig.open()).slot_count == 4


async def test_sockets_of_a_dead_daemon_are_replaced(short_dir: Path) -> None:
    """What a killed daemon left does not keep its successor from starting."""
    for name in ("feedd.sock", "feedd.sock.arena"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(short_dir / name))
    async with serving(short_dir) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        arena.close()


async def test_a_port_in_use_is_bad_configuration() -> None:
    """The address is named, and nothing stays open."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        server = _server(address)
        with pytest.raises(BadConfig, match=address):
            await server.start()
        assert server.state is Lifecycle.STOPPED


async def test_two_daemons_do_not_share_a_port() -> None:
    """A second server on a served port fails instead of taking half of the calls."""
    async with _server("127.0.0.1:0") as first:
        with pytest.raises(BadConfig, match="in use"):
            await _server(first.addresses[0]).start()


async def test_a_failed_start_takes_nothing_with_it(short_dir: Path) -> None:
    """With one bad address of two, the good one's sockets are gone again."""
    (short_dir / "plain").write_text("")
    server = _server(f"unix://{short_dir}/f.sock", f"unix://{short_dir}/plain")
    with pytest.raises(BadConfig, match="plain"):
        await server.start()
    assert [entry.name for entry in os.scandir(short_dir)] == ["plain"]


async def test_no_address_is_bad_configuration() -> None:
    """A server that listens nowhere is a mistake."""
    with pytest.raises(BadConfig, match="at least one address"):
        await _server().start()


async def test_tcp_beyond_loopback_needs_tls_or_consent() -> None:
    """Plain text to other machines is refused unless explicitly allowed."""
    with pytest.raises(BadConfig, match=r"0\.0\.0\.0:0 can be reached from other machines and needs TLS"):
        await _server("0.0.0.0:0").start()
    async with _server("0.0.0.0:0", allow_insecure_tcp=True) as server:
        assert server.state is Lifecycle.READY


async def test_tcp_is_served_inline_and_has_no_arena() -> None:
    """Without a Unix socket, Open offers no arena and batches come in chunks."""
    options = ServeOptions(listen=("127.0.0.1:0",))
    async with serving(Path("/nonexistent"), FakeScript(steps=2), options) as rig:
        opened = await rig.open()
        assert not opened.HasField("arena")
        stream = await rig.stream(opened.session_id, credits=3)
        await stream.finish()
        assert [b.inline for b in stream.batches] == [True, True]


async def test_a_session_is_its_owners_at_every_listener(short_dir: Path) -> None:
    """What a TCP client opened is unknown to a user of the Unix socket, who is another owner."""
    options = ServeOptions(listen=("127.0.0.1:0", f"unix://{short_dir}/f.sock"))
    async with serving(short_dir, FakeScript(steps=1), options) as rig:
        opened = await rig.open()
        assert opened.arena.socket_path == f"{short_dir}/f.sock.arena"
        arena = await attach(opened.arena)
        async with grpc.aio.insecure_channel(rig.server.addresses[1]) as other:
            rig.channel = other
            stream = await rig.stream(opened.session_id, credits=1)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.finish()
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert (await rig.open()).session_id != opened.session_id
        arena.close()


async def test_tls_with_client_certificates(tmp_path: Path) -> None:
    """With a client CA, only clients it signed get through; the data is the same."""
    authority = Authority(tmp_path)
    cert_path, key_path = authority.issue("server")
    tls = TlsFiles(cert_path, key_path, authority.ca_path)
    async with _server("127.0.0.1:0", tls=tls) as server:
        root = authority.ca_path.read_bytes()
        client_cert, client_key = (path.read_bytes() for path in authority.issue("client"))
        good = grpc.ssl_channel_credentials(root, client_key, client_cert)
        async with grpc.aio.secure_channel(server.addresses[0], good) as channel:
            stub = FeedStub(channel)  # type: ignore[no-untyped-call]  # generated
            opened = await stub.Open(open_request(), timeout=WAIT_S)
            assert opened.slot_count == 4
        async with grpc.aio.secure_channel(server.addresses[0], grpc.ssl_channel_credentials(root)) as channel:
            stub = FeedStub(channel)  # type: ignore[no-untyped-call]  # generated
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stub.Open(open_request(), timeout=WAIT_S)
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_tls_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The missing file is said, and nothing stays open."""
    tls = TlsFiles(tmp_path / "none.pem", tmp_path / "none.key")
    with pytest.raises(BadConfig, match=r"none\.pem"):
        await _server("127.0.0.1:0", tls=tls).start()


async def test_drain_lets_streams_finish_within_the_grace(short_dir: Path) -> None:
    """While draining, new sessions and streams are refused, and a stream that ends in time ends normally."""
    script = FakeScript(steps=2, gates={1: asyncio.Event()})
    async with serving(short_dir, script) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, credits=3, inline_only=True)
        await stream.until(1)
        draining = asyncio.ensure_future(rig.server.drain(WAIT_S))
        await rig.until(lambda: rig.server.state is Lifecycle.DRAINING)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open()
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error_of(failure.value).kind == "draining"
        refused = await rig.stream(opened.session_id)
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE
        assert not draining.done()
        script.gates[1].set()
        await stream.finish()
        assert stream.end is not None
        await draining
        assert rig.server.sessions.count == 0


async def test_a_session_that_opens_too_late_is_closed_again(short_dir: Path) -> None:
    """An Open that ends after the daemon began to drain is refused, and what it had opened is closed."""
    script = FakeScript(open_gate=asyncio.Event())
    async with serving(short_dir, script) as rig:
        opening = asyncio.ensure_future(rig.open())
        await rig.until(lambda: len(rig.backend.specs) == 1)
        await rig.server.drain(0.0)
        assert script.open_gate is not None
        script.open_gate.set()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await opening
        assert error_of(failure.value).kind == "draining"
        assert [session.close_count for session in rig.backend.sessions] == [1]
        assert rig.server.sessions.count == 0


async def test_drain_ends_streams_in_band_after_the_grace(short_dir: Path) -> None:
    """A stream that goes on is told, its productions are cancelled, its leases taken back."""
    script = FakeScript(gates={1: asyncio.Event()})
    async with serving(short_dir, script) as rig:
        opened = await rig.open()
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=3)
        await stream.until(1)
        draining = asyncio.ensure_future(rig.server.drain(0.0))
        while stream.error is None:
            assert await stream.read()
        assert stream.error.kind == "draining"
        assert stream.error.retryable
        await stream.finish()
        await draining
        assert rig.backend.sessions[0].close_count == 1
        arena.close()


async def test_a_drain_cut_short_is_finished_by_stop(short_dir: Path) -> None:
    """Whoever loses patience with a drain, at any point of it, still gets everything closed by stop."""
    for turns in range(0, 40, 4):
        script = FakeScript(gates={1: asyncio.Event()})
        async with serving(short_dir, script) as rig:
            opened = await rig.open()
            stream = await rig.stream(opened.session_id, credits=2, inline_only=True)
            await stream.until(1)
            draining = asyncio.ensure_future(rig.server.drain(0.0 if turns % 8 else WAIT_S))
            for _ in range(turns):
                await asyncio.sleep(0)
            draining.cancel()
            await asyncio.wait([draining])
            stream.call.cancel()


async def test_stop_under_full_load_leaves_nothing(short_dir: Path) -> None:
    """Stopping with streams, leases, productions and lifelines under way ends them all."""
    script = FakeScript(steps=10_000, gates={40: asyncio.Event()})
    options = ServeOptions(listen=(f"unix://{short_dir}/f.sock",), linger_s=0.05)
    arenas = []
    async with serving(short_dir, script, options) as rig:
        for index in range(4):
            opened = await rig.open(prefetch_batches=8)
            arenas.append(await attach(opened.arena))
            stream = await rig.stream(opened.session_id, credits=8, step=38, inline_only=index % 2 == 0)
            await stream.until(2)
        assert rig.server.sessions.count == 4
    for arena in arenas:
        arena.close()


@pytest.mark.parametrize("lost", ["f.sock", "f.sock.arena", "f.sock.admin", "folder"])
async def test_a_removed_socket_comes_back(short_dir: Path, lost: str) -> None:
    """Sockets and folders that somebody removes are made again with their modes, and serve new clients."""
    folder = short_dir / "made" / "below"
    admin = folder / "f.sock.admin"
    async with _server(f"unix://{folder}/f.sock", socket_mode=0o660, admin_socket=admin, look_s=0.05) as server:
        (short_dir / "made").chmod(0o700)
        paths = [folder, *folder.iterdir()]
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
        async with grpc.aio.insecure_channel(server.addresses[0]) as connected:
            assert await _health(connected, "") == health_pb2.HealthCheckResponse.SERVING
            for _ in range(2):
                if lost == "folder":
                    shutil.rmtree(short_dir / "made")
                else:
                    (folder / lost).unlink()
                await until(lambda: all(path.exists() for path in paths))
                assert {path: stat.S_IMODE(path.stat().st_mode) for path in paths} == modes
            assert await _health(connected, "") == health_pb2.HealthCheckResponse.SERVING, "still connected"
        for path in (folder / "f.sock", admin):
            async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
                assert await _health(channel, "") == health_pb2.HealthCheckResponse.SERVING
        with socket.socket(socket.AF_UNIX) as arena:
            arena.connect(str(folder / "f.sock.arena"))
    assert not list(folder.iterdir())


async def test_a_socket_that_another_daemon_took_is_left_alone(short_dir: Path) -> None:
    """Where another daemon has bound a removed socket's path meanwhile, that daemon keeps it."""
    path = short_dir / "f.sock"
    async with _server(f"unix://{path}", look_s=0.05) as server:
        with socket.socket(socket.AF_UNIX) as other:
            path.unlink()
            other.bind(str(path))
            other.listen()
            inode = path.stat().st_ino
            (short_dir / "f.sock.arena").unlink()
            await until(lambda: server._unreplaced)
            assert path.stat().st_ino == inode
            with pytest.raises(BadConfig, match="in use"):
                await server._replace(path)
            assert path.stat().st_ino == inode
            assert not (short_dir / "f.sock.arena").exists(), "half of a pair would mislead clients"
    assert path.stat().st_ino == inode


async def test_a_folder_of_another_user_gets_no_socket(short_dir: Path) -> None:
    """Where a socket's folder was replaced by a folder of another user, no socket is bound there."""
    folder = short_dir / "mine"
    async with _server(f"unix://{folder}/f.sock") as server:
        owner, mode = server.sockets._folders[folder]
        server.sockets._folders[folder] = owner + 1, mode
        with pytest.raises(BadConfig, match="expected the folder"):
            await server._replace(folder / "f.sock")
