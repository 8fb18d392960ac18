"""TLS over TCP: whose certificate it is, and files that are rotated under a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from feedd.clock import SystemClock
from feedd.errors import BadConfig
from feedd.serve.grpc_server import FeedServer
from feedd.serve.server_options import ServeOptions, TlsFiles
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import AdminStub, FeedStub
from tests.fakes.backend import FakeBackend
from tests.fakes.tally import TallyRecorder
from tests.unit.serve.certs import Authority
from tests.unit.serve.raw_client import WAIT_S, open_request

if TYPE_CHECKING:
    from pathlib import Path


def _authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder)


def _server(tls: TlsFiles | None, listen: str = "127.0.0.1:0", **changes: bool) -> FeedServer:
    options = ServeOptions(listen=(listen,), tls=tls, **changes)  # type: ignore[arg-type]  # flags only
    return FeedServer(FakeBackend(), options, TallyRecorder(), SystemClock())


def _credentials(root: Path, client: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
    cert, key = (None, None) if client is None else (path.read_bytes() for path in client)
    return grpc.ssl_channel_credentials(root.read_bytes(), key, cert)


async def _open(address: str, root: Path, client: tuple[Path, Path] | None = None) -> pb.OpenResponse:
    credentials = _credentials(root, client)
    async with grpc.aio.secure_channel(
        address, credentials, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        stub = FeedStub(channel)  # type: ignore[no-untyped-call]  # generated
        opened: pb.OpenResponse = await stub.Open(open_request(), timeout=WAIT_S)
        return opened


async def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    """Clients that trust only the new authority connect as soon as the files are there; broken files change nothing."""
    old, new = _authority(tmp_path / "old"), _authority(tmp_path / "new")
    cert, key = old.issue("server")
    async with _server(TlsFiles(cert, key)) as server:
        (address,) = server.addresses
        await _open(address, old.ca_path)
        with pytest.raises(grpc.aio.AioRpcError):
            await _open(address, new.ca_path)
        key.write_text("half a key")
        await _open(address, old.ca_path)
        fresh_cert, fresh_key = new.issue("server")
        key.write_bytes(fresh_key.read_bytes())
        await _open(address, old.ca_path)  # the key fits no certificate yet
        cert.write_bytes(fresh_cert.read_bytes())
        await _open(address, new.ca_path)


async def test_new_client_authorities_count_as_well(tmp_path: Path) -> None:
    """A bundle that gains an authority admits its clients."""
    servers, first, second = (_authority(tmp_path / name) for name in ("servers", "first", "second"))
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(first.ca_path.read_bytes())
    async with _server(TlsFiles(*servers.issue("server"), bundle)) as server:
        (address,) = server.addresses
        await _open(address, servers.ca_path, first.issue("a"))
        with pytest.raises(grpc.aio.AioRpcError):
            await _open(address, servers.ca_path, second.issue("b"))
        bundle.write_bytes(first.ca_path.read_bytes() + second.ca_path.read_bytes())
        await _open(address, servers.ca_path, second.issue("b"))
        await _open(address, servers.ca_path, first.issue("a"))


async def test_a_certificate_is_an_owner(tmp_path: Path) -> None:
    """Each sees and ends its own sessions only."""
    authority = _authority(tmp_path / "ca")
    async with _server(TlsFiles(*authority.issue("server"), authority.ca_path)) as server:
        (address,) = server.addresses
        ours, theirs = authority.issue("trainer-a"), authority.issue("trainer-b")
        opened = await _open(address, authority.ca_path, ours)
        for client, seen in ((ours, 1), (theirs, 0)):
            async with grpc.aio.secure_channel(address, _credentials(authority.ca_path, client)) as channel:
                admin = AdminStub(channel)  # type: ignore[no-untyped-call]  # generated
                found = (await admin.Sessions(pb.SessionsRequest())).sessions
                assert [one.owner for one in found] == ["subject trainer-a"] * seen
                ending = admin.EndSession(pb.EndSessionRequest(id=opened.session_id[:8]))
                if seen:
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await ending
                assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert server.sessions.count <= 1


async def test_beyond_loopback_clients_show_certificates(tmp_path: Path) -> None:
    """TLS alone admits everybody who can reach the port: that must be said aloud."""
    authority = _authority(tmp_path / "ca")
    files = authority.issue("server")
    with pytest.raises(BadConfig, match="needs client certificates"):
        await _server(TlsFiles(*files), "0.0.0.0:0").start()
    with pytest.raises(BadConfig, match="needs TLS"):
        await _server(None, "0.0.0.0:0").start()
    for tls, changes in (
        (TlsFiles(*files, authority.ca_path), {}),
        (TlsFiles(*files), {"allow_anonymous_tcp": True}),
        (None, {"allow_insecure_tcp": True}),
    ):
        async with _server(tls, "0.0.0.0:0", **changes):
            pass
