"""Messages between a daemon and the successor that stands by, over the Unix socket ``handover`` in the cache directory.

A message is its length (4 bytes) and a map in msgpack. Both ends must belong to one user, or to root. A message that is
longer than ``MESSAGE_BYTES_MAX`` or not of this form ends the connection.

====================  =======================================================================================
successor             predecessor
====================  =======================================================================================
``hello``             ``sessions``, or ``refused`` if it speaks another version or has a successor already
``prepared``
``takeover``: begin   (or SIGTERM makes it begin)
..                    ``switch``: sessions, and the positions at which their streams pause
``ready``             ``publish``: the successor may replace the sockets, because the predecessor will end
``go``                ends
====================  =======================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from feedd.errors import FeeddError
from feedd.owner import Owner
from feedd.serve.arena_socket import peer_credentials
from feedd.serve.preopened import ClientState
from feedd.units import MIB
from feedd.values import Cursor

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
    from pathlib import Path

VERSION: Final = 1
"""Version of the messages. Bump it when a daemon of another version would misunderstand a message."""
MESSAGE_BYTES_MAX: Final = 16 * MIB
SOCKET_NAME: Final = "handover"
SEND_S: Final = 1.0
"""Longest time in which the other end must read a message. A predecessor ends within three seconds of SIGTERM."""
_LENGTH: Final = struct.Struct(">I")

Kind = Literal["hello", "sessions", "refused", "prepared", "takeover", "switch", "ready", "publish", "go"]


class SessionMessage(msgspec.Struct, frozen=True):
    """One session, as ``ClientState``."""

    id: str
    owner_kind: Literal["uid", "subject", "tcp"]
    owner_name: str
    request: bytes
    epoch: int = 0
    step: int = 0
    anchors: tuple[tuple[int, int], ...] = ()


class HandoverMessage(msgspec.Struct, frozen=True):
    """Any message.

    Attributes:
        kind: what it says; a kind that is unknown ends the connection.
        version: version of the sender.
        daemon_id: id of the sender.
        sessions: with ``sessions`` and ``switch``.
        sockets: inodes of the sockets that the successor may replace, with ``switch``.
        reason: why, with ``refused``.
        taken: with ``refused``: another successor stands by or takes over.
    """

    kind: Kind
    version: int = VERSION
    daemon_id: str = ""
    sessions: tuple[SessionMessage, ...] = ()
    sockets: tuple[int, ...] = ()
    reason: str = ""
    taken: bool = False

    @property
    def states(self) -> list[ClientState]:
        """The sessions."""
        return [
            ClientState(
                one.id,
                Owner(one.owner_kind, one.owner_name),
                one.request,
                Cursor(one.epoch, one.step, one.anchors),
            )
            for one in self.sessions
        ]


class HandoverBroken(FeeddError):
    """The other end of a handover is gone, or sent something that is no message."""


def session_messages(states: Sequence[ClientState]) -> tuple[SessionMessage, ...]:
    """Return the messages of sessions, as many as fit into one message; the clients of others open them as always."""
    messages = []
    left_bytes = MESSAGE_BYTES_MAX // 2
    for state in states:
        at = state.next
        left_bytes -= len(state.request) + 64 * (2 + len(at.anchors))
        if left_bytes >= 0:
            about = state.id, state.owner.kind, state.owner.name, state.request
            messages.append(SessionMessage(*about, at.epoch, at.step, at.anchors))
    return tuple(messages)


_decoder = msgspec.msgpack.Decoder(HandoverMessage)
_encoder = msgspec.msgpack.Encoder()


class HandoverLink:
    """One end of a connection between two daemons."""

    def __init__(self, conn: socket.socket) -> None:
        """Take over a connected socket."""
        conn.settimeout(0.0)
        self._conn = conn

    def check_peer(self) -> None:
        """Refuse a process of another user.

        Raises:
            HandoverBroken: it is neither of this process's user nor of root.
        """
        _, uid = peer_credentials(self._conn)
        if uid not in {0, os.geteuid()}:
            raise HandoverBroken(f"expected a daemon of user {os.geteuid()} or of root, got one of user {uid}")

    async def send(self, message: HandoverMessage) -> None:
        """Send a message.

        Raises:
            HandoverBroken: the other end is gone, or does not read.
        """
        payload = _encoder.encode(message)
        try:
            async with asyncio.timeout(SEND_S):
                await asyncio.get_running_loop().sock_sendall(self._conn, _LENGTH.pack(len(payload)) + payload)
        except TimeoutError as error:
            raise HandoverBroken("the other daemon does not read") from error
        except OSError as error:
            raise HandoverBroken(f"the other daemon is gone: {error}") from error

    async def receive(self) -> HandoverMessage:
        """Return the next message.

        Raises:
            HandoverBroken: the other end is gone, or sent something else.
        """
        (size_bytes,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        if size_bytes > MESSAGE_BYTES_MAX:
            raise HandoverBroken(f"expected a message of at most {MESSAGE_BYTES_MAX} bytes, got {size_bytes}")
        try:
            return _decoder.decode(await self._read(size_bytes))
        except msgspec.DecodeError as error:
            raise HandoverBroken(f"expected a message of a handover, got something else: {error}") from error

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._conn.close()

    async def _read(self, size_bytes: int) -> bytes:
        data = bytearray()
        loop = asyncio.get_running_loop()
        try:
            while len(data) < size_bytes:
                part = await loop.sock_recv(self._conn, min(size_bytes - len(data), MIB))
                if not part:
                    raise HandoverBroken("the other daemon is gone")
                data += part
        except OSError as error:
            raise HandoverBroken(f"the other daemon is gone: {error}") from error
        return bytes(data)


@contextlib.contextmanager
def socket_in(directory: Path) -> Iterator[str]:
    """Yield the address of the handover socket in a directory.

    The address goes through a descriptor, because the path of a directory may be too long for a socket.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
