"""What counts as silence of a peer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from feedd.clock import SystemClock
from feedd.peers.peer_link import Promise
from feedd.peers.peer_links import PeerLinks
from feedd.peers.peer_options import PeerOptions
from feedd.values import ObjectRef
from tests.fakes.tally import TallyRecorder

TIMEOUT_S = 0.05
LATE_S = 8 * TIMEOUT_S


async def _serve(ended: asyncio.Queue[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a question late; show a peer that waits the whole time that this one is alive."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        for _ in range(40):
            if b"&wait=1" in head:
                writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await asyncio.sleep(LATE_S / 40)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
        ended.put_nowait(None)


async def test_a_peer_that_sends_something_else_is_not_silent() -> None:
    """A question may wait longer than the timeout while other answers of the peer come."""
    ended: asyncio.Queue[None] = asyncio.Queue()
    server = await asyncio.start_server(partial(_serve, ended), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    nobody = cast("Any", None)
    options = PeerOptions("127.0.0.1:0", timeout_s=TIMEOUT_S)
    links = PeerLinks(options, nobody, nobody, None, TallyRecorder(), SystemClock())
    link = links.link(f"{host}:{port}")
    ref = ObjectRef("s3://bucket", "key", 8, "etag")
    waited, asked = await asyncio.gather(link.wait(ref), link.ask(ref))
    assert (waited, asked) == (Promise.HELD, Promise.HELD)
    assert not link.breaker.is_open
    assert await link.ask(ref) is Promise.FAILED, "nothing else comes now"
    await links.close()
    for _ in range(3):
        await ended.get()
    server.close()
    await server.wait_closed()
