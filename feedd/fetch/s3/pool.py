"""Kept connections to one endpoint, spread over its addresses, or through a proxy.

A proxy opens a tunnel (CONNECT) to an endpoint with TLS. For an endpoint without TLS it gets each request with the
endpoint's URL in its first line.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
import struct
from collections import Counter, OrderedDict
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError

from feedd.errors import BadResponse, ResourceExhausted
from feedd.fetch.once import Once
from feedd.fetch.proxy_rules import proxy_for
from feedd.fetch.s3.bodies import HEAD_BYTES_MAX, Files
from feedd.fetch.s3.connection import Answer, Connection, Patience, StaleConnection
from feedd.fetch.s3.tls import TlsEndpoint, TlsTransport
from feedd.flow.pools import DNS
from feedd.units import MIB
from feedd.values import ReadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.proxy_rules import Proxy
    from feedd.fetch.s3.tls import Trust
    from feedd.range_sink import RangeSink

QUARANTINE_FIRST_S = 1.0
QUARANTINE_MAX_S = 60.0
_SLOW_FACTOR = 4.0  # an answer this many times slower than usual is slow
_STRIKES_MAX = 3  # slow answers in a row: a few late answers of a good address are no reason to leave it
_WEIGHT = 0.1  # weight of one answer in the usual time
_IDLE_S = 4.0  # S3 closes connections that were idle for about five seconds
_RESOLVE_EVERY_S = 10.0  # S3 answers with other addresses every few seconds and wants the load spread over them
_CLOSE_S = 5.0
_CLOSE_TURNS = 16
_PROBE_SHARE = 8  # share of the connect timeout: a probe of a dead address delays a part by no more than this
_SUBJECTS_MAX = 1024
_RTT_AT = 68  # of tcpi_rtt in struct tcp_info, linux/tcp.h
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


@dataclass(slots=True)
class _Health:
    """Health of one address.

    Attributes:
        strikes: slow answers in a row.
        quarantine_s: length of its latest quarantine; 0: not in quarantine.
        probe_at_s: when the next probe is due.
        probing: a probe is running.
    """

    strikes: int = 0
    quarantine_s: float = 0.0
    probe_at_s: float = 0.0
    probing: bool = False


class Addresses:
    """The addresses of one host name.

    Connections are spread over them. An address that is dead, or slow several times in a row, is not used for a second,
    then probed by one request. If the probe fails, the pause doubles, up to a minute, until the address is as fast as
    the others.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Health] = {}
        self._next = 0
        self._usual_s = 0.0  # usual time per MiB

    def __repr__(self) -> str:
        bad = sum(map(self._quarantined, self._known))
        return f"Addresses({len(self._known)} known, {bad} in quarantine)"

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, found: Iterable[str]) -> None:
        """Replace the addresses by a new resolution; addresses not in it are forgotten."""
        self._known = {address: self._known.get(address) or _Health() for address in found}

    def order(self, load: Mapping[str, int], avoid: Collection[str] = ()) -> list[str]:
        """Return all addresses, best first.

        Addresses in quarantine come last, before them those to ``avoid``, then those with more ``load``. Among equals,
        each call starts one address further.
        """
        known = list(self._known)
        at = self._next % max(1, len(known))
        self._next += 1
        in_turn = known[at:] + known[:at]
        return sorted(in_turn, key=lambda one: (self._quarantined(one), one in avoid, load.get(one, 0)))

    def due(self, now_s: float) -> str | None:
        """Return an address to probe because its quarantine is over, or None. No other caller gets it meanwhile."""
        for address, health in self._known.items():
            if health.quarantine_s and health.probe_at_s <= now_s:
                health.probe_at_s, health.probing = now_s + health.quarantine_s, True
                return address
        return None

    def shunned(self, address: str, avoid: Collection[str] = ()) -> bool:
        """Return whether connections to an address must not be used because there are better addresses."""
        if not self._quarantined(address) and address not in avoid:
            return False
        return any(one not in avoid and not self._quarantined(one) for one in self._known)

    def failed(self, address: str, now_s: float) -> None:
        """Record that an address did not answer: refused, timed out, or fell silent."""
        health = self._known.get(address)
        if health is None or (health.quarantine_s and not health.probing):
            return  # of many requests that fail together, only the first says something new
        health.quarantine_s = min(QUARANTINE_MAX_S, 2 * health.quarantine_s or QUARANTINE_FIRST_S)
        health.probe_at_s, health.probing, health.strikes = now_s + health.quarantine_s, False, 0

    def timed(self, address: str, size_bytes: int, duration_s: float, now_s: float, *, whole: bool = True) -> None:
        """Record how long an answer took; a request given up early (not ``whole``) counts only if it was slow."""
        pace_s = duration_s * MIB / max(size_bytes, MIB)
        usual_s = self._usual_s or pace_s
        slow = pace_s > _SLOW_FACTOR * usual_s
        if not slow and not whole:
            return
        self._usual_s = usual_s + _WEIGHT * (min(pace_s, _SLOW_FACTOR * usual_s) - usual_s)
        health = self._known.get(address)
        if health is None:
            return
        if not slow:
            health.strikes, health.quarantine_s, health.probing = 0, 0.0, False
            return
        health.strikes += 1
        if health.probing or health.strikes >= _STRIKES_MAX:
            self.failed(address, now_s)

    def _quarantined(self, address: str) -> bool:
        health = self._known.get(address)
        return health is not None and health.quarantine_s > 0


class Idle:
    """Idle connections by address: there are many connections and few addresses. The last used of each goes first."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = {}  # the address that got the last connection comes last

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def __iter__(self) -> Iterator[Connection]:
        return chain.from_iterable(list(self._idle.values()))

    @property
    def addresses(self) -> list[str]:
        """The addresses, starting with the one that got the last connection."""
        return list(reversed(self._idle))

    def add(self, connection: Connection) -> None:
        """Keep an idle connection."""
        kept = self._idle.pop(connection.address, [])
        kept.append(connection)
        self._idle[connection.address] = kept

    def take(self, address: str) -> Connection:
        """Remove and return a connection to an address."""
        kept = self._idle[address]
        taken = kept.pop()
        if not kept:
            del self._idle[address]
        return taken

    def take_all(self, address: str) -> list[Connection]:
        """Remove and return all connections to an address."""
        return self._idle.pop(address)

    def discard(self, connection: Connection) -> None:
        """Forget a lost connection; it may have been taken already."""
        kept = self._idle.get(connection.address, [])
        if connection in kept:
            kept.remove(connection)
            if not kept:
                del self._idle[connection.address]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint to connect to.

    Attributes:
        url: scheme and authority, for messages.
        host: name or literal address, without brackets.
        port: TCP port.
        tls: context for TLS; None: plain.
        check: called with each address of the host, before it is used; may raise a FeeddError. None: all may be used.
        patience: how long its answers may be silent; None: as long as the pool's read timeout.
        proxy: carries the connections; it resolves the host then, and no address is checked. None: there is none.
        proxy_tls: context for TLS to the proxy itself; None: plain.
    """

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    check: Callable[[str], object] | None = None
    patience: Patience | None = None
    proxy: Proxy | None = None
    proxy_tls: ssl.SSLContext | None = None

    @property
    def first_hop(self) -> tuple[str, int]:
        """Host and port that connections lead to."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    def through_proxy(self, request: bytes) -> bytes:
        """Return a request as the proxy of an endpoint without TLS gets it."""
        if self.proxy is None or self.tls is not None:
            return request
        verb, _, rest = request.partition(b" ")
        first, _, lines = rest.partition(b"\r\n")
        login = f"Proxy-Authorization: {self.proxy.login}\r\n" if self.proxy.login else ""
        return b"%b %b%b\r\n%b%b" % (verb, self.url.encode(), first, login.encode(), lines)

    def unreachable(self, error: BaseException | str) -> Exception:
        """Return botocore's error for a connection that cannot be opened."""
        if self.proxy is not None:
            return ProxyConnectionError(proxy_url=self.proxy.url, error=error)
        return EndpointConnectionError(endpoint_url=self.url, error=error)


async def endpoint_of(
    url: str, host: str, port: int, trust: Trust, check: Callable[[str], object] | None = None
) -> Endpoint:
    """Return an endpoint with its TLS contexts, and with the proxy that the environment names for it.

    Args:
        url: scheme and authority.
        host: name or literal address, without brackets.
        port: TCP port.
        trust: trusted certificates; read only if there is TLS.
        check: called with each address of the host; see ``Endpoint``.

    Raises:
        BadConfig: the proxy's URL or a file of certificates cannot be used.
    """
    proxy = proxy_for(url)
    tls = await trust.context() if url.startswith("https:") else None
    proxy_tls = await trust.for_proxy().context() if proxy is not None and proxy.scheme == "https" else None
    return Endpoint(url, host, port, tls, check, proxy=proxy, proxy_tls=proxy_tls)


class TunnelRefused(ConnectionError):
    """A proxy opens no tunnel.

    Attributes:
        status: status of its answer.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the proxy answered CONNECT with status {status}")
        self.status = status


class ProxyTunnel(asyncio.BufferedProtocol):
    """Asks a proxy for a tunnel; then the transport belongs to the protocol above. ``opened`` is done then.

    Args:
        endpoint: where the tunnel leads.
        above: is connected once the proxy has agreed.
    """

    def __init__(self, endpoint: Endpoint, above: TlsTransport) -> None:
        assert endpoint.proxy is not None, "a tunnel leads through a proxy"
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        place = f"{host}:{endpoint.port}"
        login = f"Proxy-Authorization: {endpoint.proxy.login}\r\n" if endpoint.proxy.login else ""
        self._request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n".encode()
        self._above = above
        self._memory = memoryview(bytearray(HEAD_BYTES_MAX))
        self._filled = 0
        self._transport: Any = None  # of whichever loop: uvloop's are no asyncio.Transport
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected to the proxy."""
        self._transport = transport
        self._transport.write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a head is small
        """Transport: return the buffer for the next bytes."""
        return self._memory[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Transport: read the proxy's answer."""
        self._filled += nbytes
        head = bytes(self._memory[: self._filled])
        end = head.find(b"\r\n\r\n") + 4
        if end < 4:
            if self._filled == HEAD_BYTES_MAX:
                self._fail(BadResponse("expected a short answer to CONNECT, got a longer one", stage="source"))
            return
        answer = Answer()
        try:
            answer.feed(head[:end])
        except BadResponse as error:
            self._fail(error)
            return
        answer.drop_parser()
        if not 200 <= answer.status < 300:
            self._fail(TunnelRefused(answer.status))
        elif end < self._filled:  # a TLS server waits for the client
            self._fail(BadResponse("expected an empty answer to CONNECT, got more bytes", stage="source"))
        elif not self.opened.done():  # the waiting task may have been cancelled
            self._transport.set_protocol(self._above)
            self._above.connection_made(self._transport)
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport: lost before the proxy agreed."""
        self._fail(exc or ConnectionResetError("the proxy closed the connection"))

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # retrieved, so that asyncio logs nothing if the waiting task was cancelled
        self.abort()


class ConnectionPool:
    """Lends connections, the last used first, to at most ``connections_max`` concurrent requests.

    A retry, or a hedge of a slow request, goes to another address if there is one. If the process has no descriptor
    left, idle connections are closed, or a used one is awaited. ``connections`` has all that are open.
    """

    def __init__(self, endpoint: Endpoint, limits: SourceOptions, files: Files | None = None) -> None:
        self._endpoint = endpoint
        self._files = files or Files(None)
        self._limits = limits
        self._patience = endpoint.patience or Patience(lambda: limits.read_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._permits = asyncio.Semaphore(limits.connections_max)
        self._idle = Idle()
        self.connections: set[Connection] = set()
        self._load: Counter[str] = Counter()
        self._sent_to: OrderedDict[Hashable, str] = OrderedDict()  # last address of each unanswered request
        self._given_back = asyncio.Event()
        self._addresses = Addresses()
        self._resolution: Once[float] = Once(self._resolve)
        self._closing: set[socket.socket] = set()  # sockets of handshakes that were broken off
        self._tls = None if endpoint.tls is None else TlsEndpoint(endpoint.tls, endpoint.host)
        self._proxy_tls = None if endpoint.proxy_tls is None else TlsEndpoint(endpoint.proxy_tls, endpoint.first_hop[0])
        self._closed = False

    def __repr__(self) -> str:
        return f"ConnectionPool({self._endpoint.url}, {len(self._idle)} of {len(self.connections)} idle)"

    async def request(
        self,
        request: bytes,
        sink: RangeSink,
        judge: Callable[[Answer], object],
        *,
        progress: ReadProgress | None = None,
        subject: Hashable = None,
    ) -> Answer:
        """Send ``request`` on some connection and return the answer; see ``Connection.exchange``.

        Requests with the same ``subject`` want the same bytes.

        Raises:
            EndpointConnectionError, ConnectTimeoutError: botocore's, if no address could be connected to.
            ProxyConnectionError: the same, of a proxy, or if the proxy opens no tunnel.
            ResourceExhausted: no descriptor became free in time.
        """
        progress = progress or ReadProgress()
        request = self._endpoint.through_proxy(request)
        async with self._permits:
            last = self._sent_to.get(subject)
            avoid = () if last is None else (last,)
            while True:
                connection = await self._take(avoid)
                connection.unpark()
                if not connection.reusable:
                    continue
                try:
                    answer = await self._exchange(connection, request, sink, judge, progress, subject)
                except StaleConnection:
                    continue  # each round uses up an idle connection, and new connections are not stale
                if answer.status < 300:
                    self._sent_to.pop(subject, None)
                if self._endpoint.proxy is not None:
                    answer.address = ""  # the proxy's own address says nothing about the endpoint
                return answer

    async def aclose(self) -> None:
        """Close all connections and wait until their sockets are closed; idempotent."""
        self._closed = True
        await self._drop(list(self.connections))
        for _ in range(_CLOSE_TURNS):  # a broken-off handshake has no connection that could report its end
            if any(sock.fileno() >= 0 for sock in self._closing):
                await asyncio.sleep(0)

    async def _exchange(
        self,
        connection: Connection,
        request: bytes,
        sink: RangeSink,
        judge: Callable[[Answer], object],
        progress: ReadProgress,
        subject: Hashable,
    ) -> Answer:
        address, loop = connection.address, self._loop
        self._note(subject, address)
        self._load[address] += 1
        progress.round_trip_s = connection.round_trip_s
        sent_s = loop.time()
        try:
            answer = await connection.exchange(request, sink, judge, progress)
        except TimeoutError:
            self._addresses.failed(address, loop.time())
            raise
        except asyncio.CancelledError:
            now_s = loop.time()
            self._addresses.timed(address, sink.size_bytes, now_s - sent_s, now_s, whole=False)
            raise
        else:
            now_s = loop.time()
            if answer.status < 300:
                self._addresses.timed(address, sink.size_bytes, now_s - sent_s, now_s)
            self._take_back(connection)
            return answer
        finally:
            self._load[address] -= 1
            if not self._load[address]:
                del self._load[address]  # addresses come and go
            self._given_back.set()

    def _note(self, subject: Hashable, address: str) -> None:
        if subject is not None:
            self._sent_to[subject] = address
            if len(self._sent_to) > _SUBJECTS_MAX:
                self._sent_to.popitem(last=False)

    def _take_back(self, connection: Connection) -> None:
        if connection.reusable and not self._closed and not self._addresses.shunned(connection.address):
            self._idle.add(connection)
            connection.park(_IDLE_S)
        else:
            connection.drop()

    def _idle_one(self, avoid: Collection[str]) -> Connection | None:
        """Take an idle connection to the address with the least load; the last used one if there are several."""
        fit = []
        for address in self._idle.addresses:
            if self._addresses.shunned(address):
                for connection in self._idle.take_all(address):
                    connection.drop()
            elif not self._addresses.shunned(address, avoid):
                fit.append(address)
        return self._idle.take(min(fit, key=self._load.__getitem__)) if fit else None

    async def _take(self, avoid: Collection[str]) -> Connection:
        due = self._addresses.due(self._loop.time())
        idle = self._idle_one(avoid) if due is None else None
        if idle is not None:
            return idle
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                return await self._open(avoid, due)
        except TimeoutError as error:
            if self._endpoint.proxy is not None:
                raise self._endpoint.unreachable(TimeoutError("timed out")) from error
            raise ConnectTimeoutError(endpoint_url=self._endpoint.url, error="timed out") from error

    async def _open(self, avoid: Collection[str], due: str | None) -> Connection:
        while True:
            # The idle connections lead to addresses that must be avoided.
            if len(self.connections) >= self._limits.connections_max:
                await self._drop(list(islice(self._idle, 1)))
            try:
                connection = await self._connect(avoid, due)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                await self._free_a_descriptor(error)
                idle = self._idle_one(())
                if idle is not None:
                    return idle
                continue
            if self._closed:
                await self._drop([connection])
                raise self._endpoint.unreachable("the pool is closed")
            if connection.lost.done():  # lost before it was registered
                raise self._endpoint.unreachable("closed at once")
            self.connections.add(connection)
            return connection

    async def _free_a_descriptor(self, error: OSError) -> None:
        """Close idle connections, or wait until a used one is returned."""
        if self._idle:
            await self._drop(list(self._idle))
        elif self.connections:
            self._given_back.clear()
            await self._given_back.wait()
        else:
            message = f"no descriptor is free for a connection: {error.strerror}"
            hint = "raise the limit of open files (ulimit -n)"
            raise ResourceExhausted(message, object=self._endpoint.url, hint=hint, stage="source") from error

    async def _drop(self, connections: Collection[Connection]) -> None:
        for connection in connections:
            connection.drop()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=_CLOSE_S)

    async def _connect(self, avoid: Collection[str], due: str | None) -> Connection:
        await self._resolved()
        order = self._addresses.order(self._load, avoid)
        # an address that does not answer leaves time for another
        limit_s = self._limits.connect_timeout_s / min(2, len(order) or 1)
        tries = [(address, limit_s) for address in order]
        if due is not None:
            tries.insert(0, (due, self._limits.connect_timeout_s / _PROBE_SHARE))
        last: OSError | None = None
        for address, within_s in tries:
            try:
                async with asyncio.timeout(within_s):
                    return await self._connect_to(address)
            except ssl.SSLCertVerificationError:
                raise
            except TunnelRefused as error:  # the proxy answered, at whichever address
                raise self._endpoint.unreachable(error) from error
            except OSError as error:  # TimeoutError is one
                if error.errno in _NO_DESCRIPTOR:
                    raise
                self._addresses.failed(address, self._loop.time())
                last = error
        raise self._endpoint.unreachable(last or OSError("it has no address")) from last

    async def _connect_to(self, address: str) -> Connection:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            sock.setblocking(False)  # noqa: FBT003 - the standard library's
            await self._loop.sock_connect(sock, (address, self._endpoint.first_hop[1]))
        except BaseException:
            sock.close()
            raise
        # After a broken-off handshake, the transport closes the socket a turn of the loop or two later.
        self._closing.add(sock)
        connection = Connection(self._patience, self._forget, address, self._files)
        connection.round_trip_s = round_trip_s(sock)
        layers = self._layers(connection)
        try:
            await self._loop.create_connection(lambda: layers[0][0] if layers else connection, sock=sock)
            for _, ready in layers:
                await ready
        except BaseException:
            connection.drop()
            for layer, _ in layers:
                layer.abort()  # until the last layer is ready, the connection has no transport
            raise
        finally:
            self._closing = {one for one in self._closing if one.fileno() >= 0}
        self._closing.discard(sock)  # the connection owns the socket from here on
        return connection

    def _layers(self, connection: Connection) -> list[tuple[TlsTransport | ProxyTunnel, asyncio.Future[None]]]:
        """Return what stands between the socket and a connection, lowest first, each with the future of its start."""
        if self._tls is None:
            if self._proxy_tls is None:
                return []
            to_proxy = TlsTransport(self._proxy_tls, connection)
            return [(to_proxy, to_proxy.shaken)]
        tls = TlsTransport(self._tls, connection)
        layers: list[tuple[TlsTransport | ProxyTunnel, asyncio.Future[None]]] = [(tls, tls.shaken)]
        if self._endpoint.proxy is None:
            return layers
        tunnel = ProxyTunnel(self._endpoint, tls)
        layers.insert(0, (tunnel, tunnel.opened))
        if self._proxy_tls is not None:
            to_proxy = TlsTransport(self._proxy_tls, tunnel)
            layers.insert(0, (to_proxy, to_proxy.shaken))
        return layers

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._idle.discard(connection)
        self._given_back.set()

    async def _resolved(self) -> None:
        resolved_at_s = await self._resolution.get()
        if self._loop.time() - resolved_at_s > _RESOLVE_EVERY_S:
            self._resolution = Once(self._resolve)
            await self._resolution.get()

    async def _resolve(self) -> float:
        """Resolve the host; if there is no answer, the last good addresses stay in use."""
        loop, endpoint = self._loop, self._endpoint
        within_s = self._limits.connect_timeout_s / 4 if self._addresses else None  # None: the caller's limit
        try:
            async with asyncio.timeout(within_s):
                found = await _addresses_of(endpoint)
        except OSError as error:
            if not self._addresses:
                raise endpoint.unreachable(error) from error
        else:
            self._addresses.learn(found)
        return loop.time()


def round_trip_s(sock: socket.socket) -> float | None:
    """Return the round trip of a TCP connection as the kernel measured it; None: the kernel does not tell."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    except OSError:
        return None
    if len(info) < _RTT_AT + 4:
        return None
    microseconds: int = struct.unpack_from("=I", info, _RTT_AT)[0]
    return microseconds / 1e6


async def _addresses_of(endpoint: Endpoint) -> list[str]:
    """Return the addresses of an endpoint's host, or of its proxy.

    Raises:
        OSError: the host has none, or the resolver does not answer.
        FeeddError: one of them may not be used.
    """
    host, port = endpoint.first_hop
    try:
        found = [str(ipaddress.ip_address(host))]
    except ValueError:
        rows = await DNS.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = [str(where[0]) for *_, where in rows]
    if endpoint.check is not None and endpoint.proxy is None:
        for address in found:
            endpoint.check(address)
    return found
