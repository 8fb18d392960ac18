"""Takes over from a daemon that serves: opens its sessions in advance, and serves before it has ended.

See ``handover_messages``. Whatever goes wrong before the sockets are replaced, the successor waits until its
predecessor has ended, as one without this protocol does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

import structlog

from feedd.cache.lock import was_owned
from feedd.daemon.handover_messages import (
    VERSION,
    HandoverBroken,
    HandoverLink,
    HandoverMessage,
    socket_in,
)
from feedd.daemon.standby import owner_gone
from feedd.errors import CacheUnavailable
from feedd.flow.pools import CACHE_DISK
from feedd.values import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from feedd.cache.borrowed_cache import BorrowedCache
    from feedd.serve.grpc_server import FeedServer
    from feedd.serve.preopened import ClientState, Preopened

_CONNECT_S: Final = 5.0
_OPEN_S: Final = 60.0  # longest wait for the sessions before the successor says that it stands by
_OPEN_LATE_S: Final = 0.5  # the same for sessions that began since then
_EXPIRY_S: Final = 60.0  # time for clients to come for their sessions
_PREPARE_S: Final = 0.5  # longest wait for first batches; both are less than the predecessor's patience
_log = structlog.get_logger(__name__)


class Successor:
    """The successor's side of a handover, from the first message to the end of the predecessor."""

    def __init__(self, directory: Path, link: HandoverLink, states: Sequence[ClientState]) -> None:
        """Keep a link over which the owner of the cache ``directory`` has sent its sessions."""
        self._directory = directory
        self._link = link
        self._states = states
        self._caches: list[BorrowedCache] = []

    @classmethod
    async def of(cls, directory: Path, daemon_id: str) -> Successor | None:
        """Connect to the daemon that owns a cache directory; None: it cannot hand over, or there is none.

        Raises:
            CacheUnavailable: another successor stands by. Both would wait for one directory, and take it from each
                other.
        """
        link: HandoverLink | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                link = await CACHE_DISK.run(_connected, directory)
                link.check_peer()
                await link.send(HandoverMessage("hello", daemon_id=daemon_id))
                answer = await link.receive()
                if answer.taken:
                    raise _taken(directory)
                states = _sessions_in(answer)
        except (FileNotFoundError, ConnectionRefusedError):
            if await CACHE_DISK.run(was_owned, directory):
                _log.warning("the predecessor knows no handover, or was killed: trainers may wait longer")
            return None
        except CacheUnavailable:
            if link is not None:
                link.close()
            raise
        except (OSError, TimeoutError, HandoverBroken) as error:
            _log.warning("the predecessor does not hand over: trainers will wait longer", error=str(error) or "timeout")
            if link is not None:
                link.close()
            return None
        return cls(directory, link, states)

    def borrow(self, cache: BorrowedCache) -> None:
        """Take the cache that is owned when the predecessor has ended."""
        self._caches.append(cache)

    async def take_over(
        self, server: FeedServer, preopened: Preopened, stand_by: Callable[[], object], *, takeover: bool
    ) -> None:
        """Open the predecessor's sessions, stand by, serve, and own the cache; return when all is done.

        Args:
            server: the server, not started.
            preopened: opens the sessions.
            stand_by: called when the predecessor may be ended.
            takeover: ask the predecessor to end.

        Raises:
            BadConfig: an address cannot be used.
            CacheUnavailable: the cache directory cannot be used.
        """
        server.adopt(preopened)
        try:
            with contextlib.suppress(HandoverBroken):
                await preopened.open(self._states, _OPEN_S)
                _log.info("sessions are open in advance", sessions=preopened.open_count, of=len(self._states))
                await self._link.send(HandoverMessage("prepared"))
            stand_by()
            try:
                await self._switch(server, preopened, takeover=takeover)
            except HandoverBroken as error:
                _log.warning("the predecessor hands nothing over: waiting for its end", error=error.message)
            await owner_gone(self._directory)
            _log.info("takes over from its predecessor")
            if server.state is Lifecycle.STARTING:
                await server.start()
            server.sockets.publish()
            for cache in self._caches:
                await cache.own()
            preopened.expire(_EXPIRY_S)
        finally:
            self._link.close()

    async def _switch(self, server: FeedServer, preopened: Preopened, *, takeover: bool) -> None:
        """Serve in the place of the predecessor, and tell it to end."""
        if takeover:
            await self._link.send(HandoverMessage("takeover"))
        switch = await self._expect("switch")
        await preopened.open(switch.states, _OPEN_LATE_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(preopened.prepare(switch.states, _PREPARE_S))
            if server.listens_in_files:  # a port is free when the predecessor has ended
                await server.start(published=False)
        await self._link.send(HandoverMessage("ready"))
        await self._expect("publish")
        server.sockets.publish(switch.sockets)
        await self._link.send(HandoverMessage("go"))

    async def _expect(self, kind: str) -> HandoverMessage:
        message = await self._link.receive()
        if message.kind != kind:
            raise HandoverBroken(f"expected {kind}, got {message.kind}")
        return message


def _taken(directory: Path) -> CacheUnavailable:
    return CacheUnavailable(
        "another daemon already waits to take over the cache directory",
        object=str(directory),
        hint="wait until that daemon serves, or stop it; then start this one again",
        stage="cache",
    )


def _sessions_in(answer: HandoverMessage) -> list[ClientState]:
    if answer.kind != "sessions" or answer.version != VERSION:
        got = answer.reason or f"{answer.kind} of version {answer.version}"
        raise HandoverBroken(f"expected the sessions of the predecessor, got: {got}")
    return answer.states


def _connected(directory: Path) -> HandoverLink:
    """Connect to the handover socket of a directory. Blocks."""
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        conn.settimeout(_CONNECT_S)
        with socket_in(directory) as address:
            conn.connect(address)
    except BaseException:
        conn.close()
        raise
    return HandoverLink(conn)
