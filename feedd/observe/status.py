"""The status endpoint: Prometheus metrics, health, and the page for people."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog
from aiohttp import web

from feedd import metrics
from feedd.errors import BadConfig
from feedd.flow.doors import Door, PortLimits
from feedd.flow.pools import DNS
from feedd.units import is_loopback, parse_host_port
from feedd.values import Lifecycle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from feedd.observe.page_access import PageAccess
    from feedd.observe.recorder import PrometheusRecorder

KEEPALIVE_S = 15.0
SHUTDOWN_S = 1.0
_UNIX_PREFIX = "unix://"
_BACKLOG = 128
_log = structlog.get_logger(__name__)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class View(Protocol):
    """The page for people, and what it loads."""

    async def __call__(self, request: web.Request, name: str, /, *, trusted: bool) -> web.StreamResponse:
        """Answer a request for ``name``, which is empty for the page itself.

        Raises:
            web.HTTPNotFound: there is nothing of that name.
        """


@dataclass(frozen=True, slots=True)
class StatusSource:
    """The data of the status endpoint, which changes nothing.

    Attributes:
        state: returns the daemon's present state.
        started_s: ``time.monotonic()`` at the daemon's start.
        view: answers all other requests.
    """

    recorder: PrometheusRecorder
    state: Callable[[], Lifecycle]
    version: str
    daemon_id: str
    started_s: float
    view: View

    def uptime_s(self) -> float:
        """Seconds since the daemon started."""
        return time.monotonic() - self.started_s


class Pages(Protocol):
    """Request handlers of the status endpoint."""

    async def metrics(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``metrics``."""

    async def healthz(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``healthz``."""

    @property
    def view(self) -> View:
        """Answers everything else."""


class _Handlers:
    """Request handlers of a daemon."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self.view = source.view

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._source.recorder.exposition(), headers={"Content-Type": METRICS_TYPE})

    async def healthz(self, _request: web.Request) -> web.Response:
        state, total = self._source.state(), self._source.recorder.total
        workers = int(total(metrics.DECODE_WORKERS))
        # All workers died and none can be started. Decoding would wait, so no new client should come here.
        able = workers > 0 or not total(metrics.DECODE_WANTED)
        body = {
            "state": state.value,
            "workers": workers,
            "upgraded_meanwhile": bool(total(metrics.DECODE_OUTDATED)),  # new workers are refused until a restart
            "version": self._source.version,
            "daemon_id": self._source.daemon_id,
            "uptime_s": round(self._source.uptime_s(), 3),
            "sessions": int(total(metrics.SERVE_SESSIONS)),
        }
        return web.json_response(body, status=200 if state in {Lifecycle.STANDBY, Lifecycle.READY} and able else 503)


def _translate(error: OSError, address: str) -> BadConfig:
    reasons = {
        errno.EADDRINUSE: ("the port is taken", "another feedd may be running; choose another with --status, or off"),
        errno.EADDRNOTAVAIL: ("this machine does not have that address", "use 127.0.0.1 or 0.0.0.0"),
        errno.EACCES: ("the port needs privileges", "choose one above 1023"),
    }
    number = error.errno if error.errno is not None else 0
    what, hint = reasons.get(number, (error.strerror or str(error), ""))
    return BadConfig(f"cannot listen for status on {address}: {what}", object="status", hint=hint, stage="observe")


def is_local(peer: object) -> bool:
    """Return whether a connection comes from this machine: over loopback, or through a Unix socket.

    Args:
        peer: the address of its other end, as the transport tells it.
    """
    return is_loopback(str(peer[0]).removeprefix("::ffff:")) if isinstance(peer, tuple) else peer is not None


def _routed(pages: Pages, access: PageAccess, door: Door) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        trusted, name = access.split(request.path)
        if trusted and not is_local(request.transport and request.transport.get_extra_info("peername")):
            raise web.HTTPNotFound  # the token would have travelled over the network as text
        if name is None and trusted:
            raise web.HTTPPermanentRedirect(f"{access.token}/")  # relative, for proxies that add a path before ours
        if name == "metrics":
            return await pages.metrics(request)
        if name == "healthz":
            return await pages.healthz(request)
        if name is None:
            raise web.HTTPNotFound
        return await pages.view(request, name, trusted=trusted)

    async def handle(request: web.Request) -> web.StreamResponse:
        sock = request.get_extra_info("socket")
        guest = None if sock is None else door.guest(sock.fileno())
        if guest is None:
            return await answer(request)
        guest.busy = True
        try:
            return await answer(request)
        finally:
            guest.busy = False

    return handle


@asynccontextmanager
async def open_status(address: str, source: StatusSource, access: PageAccess) -> AsyncIterator[str]:
    """Serve the pages, ``metrics`` and ``healthz`` until the exit; yields the bound address (port 0: a free port).

    Args:
        address: ``host:port``, or ``unix:///path`` for the supervisor of a node with lanes.
        source: what the pages show.
        access: who may see what.

    Raises:
        BadConfig: the address cannot be listened on.
    """
    async with serve_pages(address, _Handlers(source), access) as bound:
        yield bound


@asynccontextmanager
async def serve_pages(address: str, pages: Pages, access: PageAccess) -> AsyncIterator[str]:
    """Serve pages until the exit; address and errors as in ``open_status``."""
    limit = PortLimits.of_process().status
    with ExitStack() as stack, Door("status", limit, strangers_max=limit) as door:
        listeners = await _listening(address, stack)
        app = web.Application(client_max_size=1024)
        app.router.add_get("/{path:.*}", _routed(pages, access, door))
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        assert runner.server is not None
        try:
            async with asyncio.TaskGroup() as group:
                accepting = [group.create_task(_accept(door, one, runner.server)) for one in listeners]
                try:
                    yield address if address.startswith(_UNIX_PREFIX) else _bound(listeners[0])
                finally:
                    for one in accepting:
                        one.cancel()
        finally:
            await runner.cleanup()


async def _accept(door: Door, listener: socket.socket, server: web.Server) -> None:
    """Hand connections to the server, which closes them; never returns."""
    while True:
        guest = await door.accept(listener)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(server, guest.sock)
        except OSError as error:
            _log.debug("a connection to the status page ended", error=str(error))
            guest.sock.close()


async def _listening(address: str, stack: ExitStack) -> list[socket.socket]:
    """Return listening, non-blocking sockets, which ``stack`` closes: one for each address of the host's name.

    Raises:
        BadConfig: the address cannot be listened on.
    """
    path = address.removeprefix(_UNIX_PREFIX)
    try:
        if path != address:
            _unlink_stale(Path(path))
            return [_listener(socket.AF_UNIX, path, stack)]
        host, port = parse_host_port(address)
        infos = await DNS.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return [_listener(family, where, stack) for family, where in dict.fromkeys((one[0], one[4]) for one in infos)]
    except OSError as error:
        raise _translate(error, address) from error


def _unlink_stale(path: Path) -> None:
    """Remove the socket of a daemon that was killed."""
    if path.is_socket():
        path.unlink()


def _listener(family: int, where: object, stack: ExitStack) -> socket.socket:
    listener = stack.enter_context(socket.socket(family))
    listener.setblocking(False)  # noqa: FBT003 - the standard library's
    if family != socket.AF_UNIX:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(where)  # type: ignore[arg-type]  # as getaddrinfo returns it
    listener.listen(_BACKLOG)
    return listener


def _bound(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
