"""Kept connections to one endpoint, spread over its addresses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

from feedd.source.once import Once
from feedd.source.s3.direct.addresses import Addresses
from feedd.source.s3.direct.connection import Connection, StaleConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.source.options import SourceOptions
    from feedd.source.s3.direct.answer import Answer

_IDLE_S = 4.0  # S3 closes connections that were idle for about five seconds
_RESOLVE_EVERY_S = 10.0  # S3 answers with other addresses every few seconds, and wants load spread over them
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect.

    Attributes:
        url: scheme and authority, for messages.
        host: name or literal address, without brackets.
        port: TCP port.
        tls: context to wrap connections in; None: plain.
    """

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None


class ConnectionPool:
    """Lends connections, the last used first, to at most ``parts_in_flight`` requests at a time."""

    def __init__(self, endpoint: Endpoint, limits: SourceOptions) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._permits = asyncio.Semaphore(limits.parts_in_flight)
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._addresses = Addresses()
        self._resolution: Once[float] = Once(self._resolve)
        self._closed = False

    def __repr__(self) -> str:
        return f"ConnectionPool({self._endpoint.url}, {len(self._idle)} of {len(self._all)} idle)"

    async def request(self, request: bytes, target: memoryview, judge: Callable[[Answer], object]) -> Answer:
        """Exchange ``request`` for an answer on some connection; see ``Connection.exchange``.

        Raises:
            EndpointConnectionError, ConnectTimeoutError: botocore's, where no address could be connected to.
        """
        async with self._permits:
            while True:
                connection = self._idle.pop() if self._idle else await self._open()
                connection.unpark()
                if not connection.reusable:
                    continue
                try:
                    answer = await connection.exchange(request, target, judge)
                except StaleConnection:
                    continue  # each time round there is one idle connection less, and new ones are not stale
                if connection.reusable and not self._closed:
                    self._idle.append(connection)
                    connection.park(_IDLE_S)
                else:
                    connection.drop()
                return answer

    async def aclose(self) -> None:
        """Drop all connections and wait until their sockets are closed; idempotent."""
        self._closed = True
        lost = [connection.lost for connection in self._all]
        for connection in list(self._all):
            connection.drop()
        if lost:
            await asyncio.wait(lost, timeout=_CLOSE_S)

    async def _open(self) -> Connection:
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                connection = await self._connect()
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=self._endpoint.url, error="timed out") from error
        if connection.lost.done():  # before we came to note it
            raise EndpointConnectionError(endpoint_url=self._endpoint.url, error="closed at once")
        self._all.add(connection)
        return connection

    async def _connect(self) -> Connection:
        await self._resolved()
        order = self._addresses.order()
        last: OSError | None = None
        for address in order:
            try:
                # one that does not answer leaves time for another
                async with asyncio.timeout(self._limits.connect_timeout_s / min(2, len(order))):
                    connection = await self._connect_to(address)
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:  # TimeoutError is one
                self._addresses.failed(address)
                last = error
            else:
                self._addresses.worked(address)
                return connection
        raise EndpointConnectionError(endpoint_url=self._endpoint.url, error=last) from last

    async def _connect_to(self, address: str) -> Connection:
        endpoint = self._endpoint
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._limits.read_timeout_s, self._forget),
            address,
            endpoint.port,
            ssl=endpoint.tls,
            server_hostname=endpoint.host if endpoint.tls else None,
        )
        return connection

    def _forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def _resolved(self) -> None:
        resolved_at_s = await self._resolution.get()
        if asyncio.get_running_loop().time() - resolved_at_s > _RESOLVE_EVERY_S:
            self._resolution = Once(self._resolve)
            await self._resolution.get()

    async def _resolve(self) -> float:
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        try:
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            if not self._addresses.order():
                raise EndpointConnectionError(endpoint_url=endpoint.url, error=error) from error
        else:
            self._addresses.learn(str(where[0]) for *_, where in found)
        return loop.time()
