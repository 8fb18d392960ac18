"""The gRPC server's life: start, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from feedd.errors import BadConfig, BadRequest
from feedd.flow.tasks import within
from feedd.owner import Owner
from feedd.serve import admin_service, files_service
from feedd.serve import feed_service as feed
from feedd.serve.admin_service import AdminService, Daemon
from feedd.serve.arena_socket import ArenaSocket
from feedd.serve.callers import Caller, Callers
from feedd.serve.certificates import CertificateFiles
from feedd.serve.feed_service import FeedService
from feedd.serve.files_service import FilesService
from feedd.serve.grpc_status import abort
from feedd.serve.listen import (
    TcpAddress,
    UnixAddress,
    check_tcp_free,
    directory_lock,
    listen_unix,
    parse_address,
    socket_umask,
)
from feedd.serve.server_options import ServeHooks
from feedd.serve.session_registry import Sessions
from feedd.serve.socket_files import SocketFiles
from feedd.serve.tickets import Tickets
from feedd.values import Lifecycle

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Self

    from feedd.protocols import Clock, FeedBackend, Recorder
    from feedd.serve.server_options import ServeOptions
    from feedd.wire import feedd_pb2 as pb

_RPC_GRACE_S = 1.0
_ADMIN_MODE = 0o600  # root and the daemon's own user
_log = structlog.get_logger(__name__)
_Health = health_pb2.HealthCheckResponse
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class _Checks(health.aio.HealthServicer):  # type: ignore[name-defined,misc]  # the stubs lack it
    """Answers health checks. Watch calls have no end and no owner, so they could take the place of all other calls."""

    async def Watch(  # noqa: N802 - gRPC's name
        self, _request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Refuse the call."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "expected Check, got Watch: ask again from time to time")


class _Requests(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Ends calls whose request does not come. A connection with a call is not idle, so it would keep its place."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 - gRPC's
        """Return the handler of a call, which reads the request itself; streams have a deadline of their own."""
        handler = await continuation(details)
        if handler is None or handler.request_streaming:
            return handler

        async def answer_once(_requests: Any, context: _Context) -> Any:  # noqa: ANN401 - any message
            request = await self._request(context)
            return None if request is _EOF else await handler.unary_unary(request, context)

        async def answer_stream(_requests: Any, context: _Context) -> None:  # noqa: ANN401 - any message
            request = await self._request(context)
            if request is _EOF:
                return
            answers = handler.unary_stream(request, context)
            if not inspect.isasyncgen(answers):
                await answers
                return
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    await context.write(answer)

        codec = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(answer_stream, *codec)
        return grpc.stream_unary_rpc_method_handler(answer_once, *codec)

    async def _request(self, context: _Context) -> Any:  # noqa: ANN401 - any message
        message = f"expected the request of a call within {self._wait_s:g} s, got none"
        try:
            async with within(self._wait_s, lambda: BadRequest(message, stage="serve")):
                return await context.read()
        except BadRequest as error:
            await abort(context, error)


def _grpc_options(options: ServeOptions, connections_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),  # of each address
        ("grpc.so_reuseport", 0),  # a second daemon on this port must fail, not share the port
        ("grpc.max_receive_message_length", options.receive_bytes_max),
        ("grpc.max_send_message_length", options.receive_bytes_max + 2 * options.chunk_size_bytes),
        ("grpc.keepalive_time_ms", 30_000),  # detects peers that vanished silently
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),  # clients may ping at any rate: a paused trainer is not abuse
        ("grpc.server_handshake_timeout_ms", 5_000),  # a connection that never speaks HTTP/2 holds a descriptor
        # A connection without calls as well: an open waits for its place. Clients connect again by themselves.
        ("grpc.max_connection_idle_ms", 5_000),
    ]


class FeedServer:
    """Serves one backend. Use it as a context manager, or call start, drain and stop from one task.

    Attributes:
        daemon_id: changes at each start.
        addresses: addresses in use, ports resolved; filled by start.
        sessions: the open sessions.
        sockets: the files of the Unix sockets.
    """

    def __init__(
        self,
        backend: FeedBackend,
        options: ServeOptions,
        recorder: Recorder,
        clock: Clock,
        hooks: ServeHooks | None = None,
    ) -> None:
        """Store the dependencies; nothing is opened before ``start``.

        Args:
            backend: opens and produces; the caller closes it.
            options: where and how to listen, bounds, deadlines.
            recorder: takes the measurements.
            clock: the clock.
            hooks: callbacks of the daemon.
        """
        self._options = options
        self._clock = clock
        self._state = Lifecycle.STARTING
        self._stack = AsyncExitStack()
        self._tasks = asyncio.TaskGroup()
        self._listeners: list[socket.socket] = []
        self.sockets = SocketFiles()
        self.daemon_id = options.daemon_id or secrets.token_hex(8)
        self.addresses: list[str] = []
        hooks = hooks or ServeHooks()
        self.sessions = Sessions(options, recorder, clock, self._spawn)
        tickets = Tickets()
        admin_path = str(options.admin_socket or "")
        callers = Callers(tickets, one_user=options.one_user, admin_socket=admin_path)
        admins = Callers(tickets, one_user=True, admin_socket=admin_path, administers=True)
        about = Daemon(self.daemon_id, clock, lambda: self._state, clock.monotonic_s(), options.lane_count)
        self._feed = FeedService(backend, self.sessions, options, self.daemon_id, callers, self._spawn)
        self._client_admin = AdminService(self.sessions, hooks, about, callers)
        self._full_admin = AdminService(self.sessions, hooks, about, admins)
        self._files = FilesService(hooks.files, self.sessions, callers)
        self._arena_socket = ArenaSocket(self.sessions, tickets, options, hooks.on_holders)
        self._health = _Checks()
        self._grpc: grpc.aio.Server | None = None
        self._admin_grpc: grpc.aio.Server | None = None
        self._later: list[grpc.aio.Server] = []  # at sockets that replace removed ones
        self._looking: asyncio.TimerHandle | None = None
        self._unreplaced = ""  # why removed sockets were not replaced at the last look

    @property
    def state(self) -> Lifecycle:
        """The server's state."""
        return self._state

    @property
    def holder_count(self) -> int:
        """Number of open HOLD connections."""
        return self._arena_socket.holder_count

    async def observation(self) -> pb.ObserveResponse:
        """Return one look at the daemon, as an administrator gets it."""
        return await self._full_admin.observation(Caller(Owner.of_this_process(), administers=True))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    # ------------------------------------------------------------------ start

    async def start(self) -> None:
        """Listen and become ready.

        Raises:
            BadConfig: an address cannot be used, or would be open to other machines without TLS.
        """
        addresses = [parse_address(text) for text in self._options.listen]
        if not addresses:
            raise BadConfig("expected at least one address to listen on, got none", object="listen", stage="serve")
        for address in addresses:
            self._check_exposure(address)
        try:
            await self._stack.enter_async_context(self._tasks)
            self._grpc = server = self._make_server()
            for address in addresses:
                await self._listen(server, address)
            await server.start()
        except BaseException:
            await self.stop()
            raise
        if self._options.admin_socket is not None:
            await self._listen_for_admins(self._options.admin_socket)
        if self._listeners:
            serving = self._spawn(self._arena_socket.serve(self._listeners))
            self._stack.callback(serving.cancel)
        self._state = Lifecycle.READY
        self._look_later()
        await self._set_health(_Health.SERVING)
        _log.info("serving", addresses=self.addresses, daemon_id=self.daemon_id)

    def _check_exposure(self, address: UnixAddress | TcpAddress) -> None:
        if isinstance(address, UnixAddress) or address.is_loopback or self._options.allow_insecure_tcp:
            return
        tls = self._options.tls
        if tls is None:
            raise BadConfig(
                f"{address} can be reached from other machines and needs TLS",
                object=str(address),
                hint="configure a certificate, listen on 127.0.0.1 or a Unix socket, or allow insecure TCP explicitly",
                stage="serve",
            )
        if tls.client_ca_path is None and not self._options.allow_anonymous_tcp:
            raise BadConfig(
                f"{address} can be reached from other machines and needs client certificates",
                object=str(address),
                hint="configure tls.client_ca, or set security.allow_anonymous_tcp = true",
                stage="serve",
            )

    def _make_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=_grpc_options(
                self._options, max(1, self._options.grpc_connections_max // len(self._options.listen))
            ),
            maximum_concurrent_rpcs=4 * self._options.sessions_max,
            interceptors=(_Requests(self._options.request_s),),
        )
        server.add_generic_rpc_handlers((self._feed.handler(), self._files.handler(), self._client_admin.handler()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (
            feed.SERVICE,
            files_service.SERVICE,
            admin_service.SERVICE,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        )
        if self._options.one_user and all(
            address.startswith("unix:") for address in self._options.listen
        ):  # its calls have no end and no owner
            reflection.enable_server_reflection(names, server)
        return server

    async def _listen_for_admins(self, path: Path) -> None:
        """Serve administrators at a socket of their own, so that the file's permissions decide who is one."""
        server = self._make_admin_server()
        async with directory_lock(path.parent, self._clock):
            self._bind_unix(server, path, _ADMIN_MODE)
            self.sockets.publish()
        await server.start()
        self._admin_grpc = server
        _log.info("serving administrators", socket=str(path))

    def _make_admin_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=_grpc_options(self._options, self._options.admin_connections_max),
            interceptors=(_Requests(self._options.request_s),),
        )
        server.add_generic_rpc_handlers((self._full_admin.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (admin_service.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        return server

    async def _listen(self, server: grpc.aio.Server, address: UnixAddress | TcpAddress) -> None:
        if isinstance(address, UnixAddress):
            async with directory_lock(address.path.parent, self._clock):
                self._listen_unix(server, address)
                self.sockets.publish()
            return
        if address.port:
            check_tcp_free(address)
        tls = self._options.tls
        try:
            if tls is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), CertificateFiles(tls).credentials())
        except RuntimeError as error:
            raise BadConfig(f"cannot listen on {address}: {error}", object=str(address), stage="serve") from error
        self.addresses.append(str(TcpAddress(address.host, port)))

    def _listen_unix(self, server: grpc.aio.Server, address: UnixAddress) -> None:
        self._listen_for_arenas(address.arena_path)
        self._bind_unix(server, address.path, self._options.socket_mode)
        self._feed.arena_path = self._feed.arena_path or address.arena_path
        self.addresses.append(str(address))

    def _listen_for_arenas(self, path: Path) -> Path:
        private = self.sockets.private_path(path)
        try:
            self._listeners.append(listen_unix(private, self._options.socket_mode))
            self.sockets.add(private, path)
        except OSError as error:
            raise BadConfig(f"cannot listen on {path}: {error}", object=str(path), stage="serve") from error
        return private

    def _bind_unix(self, server: grpc.aio.Server, path: Path, mode: int) -> Path:
        private = self.sockets.private_path(path)
        try:
            with socket_umask(mode):
                server.add_insecure_port(f"unix:{private}")
            private.chmod(mode)
            self.sockets.add(private, path)
        except (OSError, RuntimeError) as error:
            raise BadConfig(f"cannot listen on {path}: {error}", object=str(path), stage="serve") from error
        return private

    # ------------------------------------------------------------------ sockets that others remove

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._options.look_s, self._look)

    def _look(self) -> None:
        """Replace sockets whose files were removed, for example by a cleaner of temporary folders."""
        gone = self.sockets.look() if self._state is Lifecycle.READY else []
        if gone:
            self._spawn(self._listen_again(gone)).add_done_callback(lambda _: self._look_later())
        else:
            self._look_later()

    async def _listen_again(self, gone: list[Path]) -> None:
        """Bind new sockets at paths without a file. Connected clients stay connected to the former sockets."""
        for path in gone:
            try:
                await self._replace(path)
            except (BadConfig, OSError) as error:
                if str(error) != self._unreplaced:
                    _log.warning("a removed socket cannot be made again yet", socket=str(path), error=str(error))
                self._unreplaced = str(error)
            else:
                _log.warning("a socket was removed: it is made again", socket=str(path))
                self._unreplaced = ""

    async def _replace(self, path: Path) -> None:
        """Bind a new socket at a path and serve it.

        Raises:
            BadConfig: another daemon took the path, or it cannot be used.
            OSError: the folder cannot be made.
        """
        self.sockets.make_folder(path)
        server = None
        async with directory_lock(path.parent, self._clock):
            if path in {one.arena_path for one in self._unix_addresses}:
                private = self._listen_for_arenas(path)
            elif path == self._options.admin_socket:
                server = self._make_admin_server()
                private = self._bind_unix(server, path, _ADMIN_MODE)
            else:
                server = self._make_server()
                private = self._bind_unix(server, path, self._options.socket_mode)
            try:
                self.sockets.publish()
            except BaseException:
                self.sockets.drop(private)
                if server is None:
                    self._listeners.pop().close()
                else:
                    await server.start()  # gRPC releases bound addresses only if a started server is stopped
                    await server.stop(None)
                raise
        if server is None:
            serving = self._spawn(self._arena_socket.serve(self._listeners[-1:]))
            self._stack.callback(serving.cancel)
        else:
            await server.start()
            self._later.append(server)

    @property
    def _unix_addresses(self) -> list[UnixAddress]:
        parsed = map(parse_address, self._options.listen)
        return [address for address in parsed if isinstance(address, UnixAddress)]

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        for service in ("", feed.SERVICE, admin_service.SERVICE):
            await self._health.set(service, status)

    # ------------------------------------------------------------------ drain, stop

    async def drain(self, grace_s: float) -> None:
        """Refuse new sessions, let streams continue for ``grace_s``, then end them and close all sessions."""
        if self._state is Lifecycle.READY:
            self._state = Lifecycle.DRAINING
            await self._set_health(_Health.NOT_SERVING)
        self.sessions.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.sessions.wait_idle()
        for hosted in self.sessions.all:
            hosted.carry_out(hosted.machine.drain())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self._options.linger_s):
                await self.sessions.wait_idle()
        closing = [self._spawn(self.sessions.close(hosted)) for hosted in self.sessions.all]
        if closing:
            await asyncio.wait(closing)  # they continue if this call is cancelled, so that no session stays half closed

    async def stop(self) -> None:
        """Drain without grace if that was not done, then close everything; idempotent."""
        if self._state is Lifecycle.STOPPED:
            return
        if self._looking is not None:
            self._looking.cancel()
        try:
            if self._admin_grpc is not None:
                await self._admin_grpc.stop(_RPC_GRACE_S)
            if self._grpc is not None:
                await self.drain(0.0)
                if self._state is Lifecycle.STARTING:
                    await self._grpc.start()  # gRPC releases bound addresses only if a started server is stopped
                await self._health.enter_graceful_shutdown()
                for server in (self._grpc, *self._later):
                    await server.stop(_RPC_GRACE_S)
        finally:
            self._state = Lifecycle.STOPPED
            await self._stack.aclose()
            for listener in self._listeners:
                listener.close()
            self.sockets.remove()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
