"""A connection whose maker went away just as its handshake was done."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.s3.connection import Connection
from feedd.fetch.s3.pool import ConnectionPool, Endpoint
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_connect_given_up_at_its_last_step_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled in the turn in which TLS is established, with a server too busy to say farewell: closed."""
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=str(authority.ca_path))
    busy, made = threading.Event(), Connection.connection_made
    with S3Server(cert=authority.issue("store")) as server:
        endpoint = Endpoint(server.url, "127.0.0.1", int(server.url.rsplit(":", 1)[1]), context)
        pool = ConnectionPool(endpoint, SourceOptions())
        socks: list[Any] = []  # the loop's own kind of socket

        def connected(self: Connection, transport: asyncio.BaseTransport) -> None:
            made(self, transport)
            socks.append(transport.get_extra_info("socket"))
            assert server._loop is not None
            server._loop.call_soon_threadsafe(busy.wait, 10)
            asking.cancel()

        monkeypatch.setattr(Connection, "connection_made", connected)
        request = b"GET /bucket/key HTTP/1.1\r\nHost: x\r\n\r\n"
        asking = asyncio.create_task(pool.request(request, into(bytearray(10)), lambda _: None))
        with pytest.raises(asyncio.CancelledError):
            await asking
        await pool.aclose()
        (sock,) = socks
        try:
            assert sock.fileno() < 0
        finally:
            busy.set()
