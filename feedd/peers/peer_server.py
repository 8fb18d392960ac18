"""Answers other daemons, in a thread of its own: neither the serving nor the fetching loop sends a byte to a peer."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import structlog

from feedd.errors import BadRequest
from feedd.flow.doors import Door, PortLimits
from feedd.metrics import PEER_SENT_BYTES
from feedd.owner import Owner
from feedd.peers.entry_requests import HEAD_BYTES_MAX, parse
from feedd.peers.peer_entries import BRING_S, EntryWish
from feedd.peers.peer_sockets import PlainSocket, TlsSocket

if TYPE_CHECKING:
    import socket
    import ssl

    from feedd.flow.doors import Guest
    from feedd.flow.loop_thread import WorkLoop
    from feedd.peers.entry_requests import EntryRequest
    from feedd.peers.peer_entries import PeerEntries
    from feedd.peers.peer_sockets import PeerSocket
    from feedd.protocols import Recorder
    from feedd.values import ObjectRef, ShardFile

_IDLE_S: Final = 30.0
_HANDSHAKE_S: Final = 5.0
_SEND_S: Final = 60.0
_PINNED_S: Final = 3.0
"""How long an entry stays pinned after a peer last asked for it."""
_QUICK_S: Final = 0.005
"""An entry in the cache is pinned within this time; else the answer is that it is being fetched."""
_SIGN_S: Final = 0.01
_REOPEN_S: Final = 0.1
"""How long a range waits for an entry whose pin has ended: until it is pinned again, not until it is fetched."""
_END: Final = b"\r\n\r\n"
_log = structlog.get_logger(__name__)


class PeerServer:
    """Serves entries to peers.

    Args:
        entries: brings and pins entries; belongs to the loop that entered ``thread``.
        thread: the loop that serves.
        tls: context of the connections; None: plain text.
        recorder: takes the measurements.
        sign_s: how often a waiting peer gets a sign of life.
    """

    def __init__(
        self,
        entries: PeerEntries,
        thread: WorkLoop,
        tls: ssl.SSLContext | None,
        recorder: Recorder,
        sign_s: float = _SIGN_S,
    ) -> None:
        self._entries = entries
        self._thread = thread
        self._tls = tls
        self._recorder = recorder
        self._sign_s = sign_s
        self._open: dict[ObjectRef, _OpenEntry] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; runs on the thread's loop.

        Half of the places are for peers that have shown their certificate or, without TLS, have asked once.
        """
        try:
            with Door("peers", PortLimits.of_process().peers) as door:
                async with asyncio.TaskGroup() as group:
                    while True:
                        group.create_task(self._connected(await door.accept(listener)))
        finally:
            for entry in tuple(self._open.values()):
                self._forget(entry)

    async def _connected(self, guest: Guest) -> None:
        """Serve one connection to its end."""
        plain = PlainSocket(guest.sock)
        try:
            connection: PeerSocket = plain
            if self._tls is not None:
                connection = secured = TlsSocket(plain, self._tls)
                async with asyncio.timeout(_HANDSHAKE_S):
                    await secured.handshake()
                guest.known = True
            await self._converse(connection, guest)
        except (OSError, BadRequest) as error:  # TimeoutError is an OSError
            _log.debug("a peer's connection ended", error=str(error))
        finally:
            plain.close()

    async def _converse(self, connection: PeerSocket, guest: Guest) -> None:
        data = b""
        while True:
            while _END not in data:
                if len(data) > HEAD_BYTES_MAX:
                    raise BadRequest(f"expected a head of at most {HEAD_BYTES_MAX} bytes, got more", stage="peers")
                async with asyncio.timeout(_IDLE_S):
                    more = await connection.receive()
                if not more:
                    return
                data += more
            head, _, data = data.partition(_END)
            request = parse(head + _END)
            guest.known = guest.busy = True
            await self._answer(connection, request)
            guest.busy = False

    async def _answer(self, connection: PeerSocket, request: EntryRequest) -> None:
        ref = request.ref
        if ref is None:
            await connection.send(_head("200 OK"))
            return
        owner = Owner("subject", connection.subject) if connection.subject else Owner("tcp")
        wish = EntryWish(ref, owner)
        if not self._entries.may_read(wish):
            await connection.send(_head("403 Forbidden"))
            return
        entry = self._entry(wish)
        try:
            await asyncio.wait([entry.found], timeout=_QUICK_S)
            if request.wait or request.span is not None:
                await self._wait(connection, entry, BRING_S if request.wait else _REOPEN_S)
            if not entry.found.done():
                await connection.send(_head("202 Accepted" if request.span is None else "404 Not Found"))
            elif entry.fd < 0:
                await connection.send(_head("404 Not Found"))
            elif request.span is None:
                await connection.send(_head("200 OK"))
            else:
                await self._send(connection, entry, request)
        finally:
            entry.user_count -= 1
            self._rest(entry)

    async def _wait(self, connection: PeerSocket, entry: _OpenEntry, limit_s: float) -> None:
        """Wait until it is known whether the entry is here, and meanwhile show that this daemon is alive."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while not entry.found.done() and loop.time() < end_s:
            await connection.send(b"HTTP/1.1 102 Processing" + _END)
            await asyncio.wait([entry.found], timeout=self._sign_s)

    async def _send(self, connection: PeerSocket, entry: _OpenEntry, request: EntryRequest) -> None:
        span, ref = request.span, request.ref
        assert span is not None
        assert ref is not None
        size = span.size_bytes
        head = f'ETag: "{ref.etag}"\r\nContent-Range: bytes {span.start}-{span.end - 1}/{ref.size_bytes}'
        async with asyncio.timeout(_SEND_S):
            await connection.send(_head("206 Partial Content", size, head))
            await connection.send_file(entry.fd, entry.data_at + span.start, size)
        self._recorder.count(PEER_SENT_BYTES, size)

    # ------------------------------------------------------------ entries

    def _entry(self, wish: EntryWish) -> _OpenEntry:
        """Return the entry, which is being brought unless it is here; its user gives it back."""
        entry = self._open.get(wish.ref)
        if entry is None:
            entry = self._open[wish.ref] = _OpenEntry(wish.ref)
            self._thread.report(self._entries.bring, wish, lambda file: self._thread.post(self._brought, entry, file))
        entry.user_count += 1
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        return entry

    def _brought(self, entry: _OpenEntry, file: ShardFile | None) -> None:
        """Open the file of an entry, or note that there is none."""
        if file is not None:
            try:
                entry.fd = os.open(file.path if file.fd < 0 else f"/proc/self/fd/{file.fd}", os.O_RDONLY | os.O_CLOEXEC)
                entry.data_at = file.data_at
            except OSError as error:
                _log.warning("the file of an entry cannot be opened for a peer", object=entry.ref.url, error=str(error))
        if not entry.found.done():
            entry.found.set_result(None)
        self._rest(entry)

    def _rest(self, entry: _OpenEntry) -> None:
        """Release an entry that no peer uses: at once if it is not here, else after a while."""
        if entry.user_count or not entry.found.done() or self._open.get(entry.ref) is not entry or entry.timer:
            return
        if entry.fd < 0:
            self._forget(entry)
        else:
            entry.timer = asyncio.get_running_loop().call_later(_PINNED_S, self._forget, entry)

    def _forget(self, entry: _OpenEntry) -> None:
        self._open.pop(entry.ref, None)
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.fd >= 0:
            os.close(entry.fd)
            entry.fd = -1
        self._thread.report(self._entries.release, entry.ref)


class _OpenEntry:
    """An entry that peers use, or used a moment ago.

    Attributes:
        ref: the entry.
        found: done once it is known whether the entry is here.
        fd: descriptor of its file; -1: it is not here.
        data_at: offset of its first byte in the file.
        user_count: requests that use it now.
        timer: releases it.
    """

    def __init__(self, ref: ObjectRef) -> None:
        self.ref = ref
        self.found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fd = -1
        self.data_at = 0
        self.user_count = 0
        self.timer: asyncio.TimerHandle | None = None


def _head(status: str, size_bytes: int = 0, more: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size_bytes}"]
    return ("\r\n".join([*lines, more] if more else lines)).encode() + _END
