"""The border to gRPC: addresses, channels, and the only place that translates gRPC errors."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from feedd_client import shm
from feedd_client._wire import feedd_pb2 as pb
from feedd_client._wire import feedd_pb2_grpc as stubs
from feedd_client.errors import (
    AccessDenied,
    BadOptionError,
    BadRequestError,
    DaemonError,
    DaemonUnreachable,
    DaemonVersionError,
    DatasetNotFound,
    FeedError,
    ResourceError,
    UnsupportedError,
    from_wire,
)
from feedd_client.waiting import telling_why

if TYPE_CHECKING:
    from collections.abc import Mapping

_log: Final = logging.getLogger("feedd_client")
UDS_PATH_MAX: Final = 100  # the kernel's limit of 108 bytes, less ".arena" and the terminating zero
CONNECT_TIMEOUT_S: Final = 5.0
FULL_HINT: Final = (
    "something holds all connections that the daemon takes: `ss -tnp` and `ss -xp` show who is connected. More open "
    "files (LimitNOFILE, ulimit -n) are more connections"
)
_GREETING_S: Final = 0.3  # until a daemon has greeted a new connection, or closed it
_FRAME_HEAD_BYTES: Final = 9
_SETTINGS: Final = b"\x04"  # type of the frame with which a server of HTTP/2 begins
MESSAGE_LIMIT_BYTES: Final = 64 * 1024 * 1024
ERROR_TRAILER: Final = "feedd-error-bin"
TICKET_HEADER: Final = "feedd-ticket-bin"
ARENA_SUFFIX: Final = ".arena"
MEMORY_HINT: Final = (
    "give the job more memory, or the daemon less: FEEDD_CACHE__SIZE for a cache on tmpfs, FEEDD_ARENA__SIZE, "
    "FEEDD_DECODE__WORKERS_MAX. The kernel's log names what it killed"
)
_REAP_S: Final = 0.2
_LANE_PORTS: Final = 100  # from the TCP port of one lane to that of the next
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
_UNKNOWN_UID: Final = 65534  # how a user outside of this container's user namespace is shown
_NO_ANSWER: Final = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", 30_000),  # detects a host that vanished silently; feedd allows clients to ping
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),  # the daemon is on this node or on the cluster network
    ("grpc.enable_retries", 0),  # the client resumes streams from a cursor, which gRPC cannot know
    ("grpc.use_local_subchannel_pool", 1),  # a new channel must not inherit another channel's back-off
]

started: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""Daemons that this process started and did not kill, by address."""
_BY_STATUS: Final[dict[grpc.StatusCode, type[FeedError]]] = {
    grpc.StatusCode.UNIMPLEMENTED: DaemonVersionError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDenied,
    grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: UnsupportedError,
    grpc.StatusCode.NOT_FOUND: DatasetNotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceError,
    grpc.StatusCode.DATA_LOSS: DaemonError,
}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a daemon.

    Attributes:
        text: the address as the user wrote it.
        target: the address that gRPC dials.
        uds_path: path of the Unix socket; None for TCP.
        tls: whether to dial with TLS (``tls://host:port``).
    """

    text: str
    target: str
    uds_path: str | None = None
    tls: bool = False

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port of a TCP address."""
        host, _, port = self.target.removeprefix("dns:///").rpartition(":")
        return host.strip("[]"), int(port)


def checked_address(text: str | None) -> str | None:
    """Return ``text`` after checking that it is an address; None stays None.

    Raises:
        BadOptionError: the text is not an address.
    """
    if text is not None:
        parse_address(text)
    return text


def parse_address(text: str) -> Address:
    """Return the address for ``unix:///path``, ``host:port`` or ``tls://host:port``.

    Raises:
        BadOptionError: the text has another form.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if len(os.fsencode(path)) > UDS_PATH_MAX:
            raise BadOptionError(
                f"expected a socket path of at most {UDS_PATH_MAX} bytes, got {len(os.fsencode(path))}: {text!r}",
                object="address",
                hint="let the daemon listen at a shorter path, such as unix:///run/feedd/feedd.sock or one below /tmp",
            )
        if path.startswith("/"):
            return Address(text, f"unix:{path}", path)
    else:
        target = text.removeprefix("tls://").removeprefix("tcp://").removeprefix("dns:///")
        host, _, port = target.rpartition(":")
        if host and "/" not in target and port.isdigit() and 0 < int(port) < 65536:
            return Address(text, target, None, text.startswith("tls://"))
    raise BadOptionError(f"expected unix:///path, host:port or tls://host:port, got {text!r}", object="address")


def lane_address(address: Address, daemon: int) -> Address:
    """Return the address of a node's daemon by its number; ``address`` is that of the first."""
    if daemon == 0:
        return address
    if address.uds_path is not None:
        return parse_address(f"unix://{address.uds_path}.lane{daemon}")
    head, _, port = address.text.rpartition(":")
    return parse_address(f"{head}:{int(port) + _LANE_PORTS * daemon}")


def probe(address: Address) -> OSError | None:
    """Return None if something accepts connections at ``address``, else the error.

    Raises:
        AccessDenied: another user listens there, who could send any data.
    """
    try:
        _connected(address).close()
    except OSError as error:
        return error
    return None


def is_full(address: Address) -> bool | None:
    """Return whether a daemon has no place for a new connection: its port accepts the connection and closes it.

    Call this after a call that failed. None: a daemon may be there, and has a place now.

    Raises:
        AccessDenied: another user listens there, who could send any data.
    """
    try:
        conn = _connected(address)
    except BlockingIOError:  # the connections that wait for a place are as many as the kernel takes
        return True
    except OSError:
        return False
    with conn:
        conn.settimeout(_GREETING_S)
        try:
            start = conn.recv(_FRAME_HEAD_BYTES)
        except TimeoutError:
            return None if address.tls else False  # with TLS, the client has the first word
        except OSError:
            return True
    if not start:
        return True
    return None if start[3:4] == _SETTINGS else False


def _connected(address: Address) -> socket.socket:
    """Return a new connection.

    Raises:
        OSError: nothing accepts connections.
        AccessDenied: another user listens there, who could send any data.
    """
    if address.uds_path is None:
        return socket.create_connection(address.host_port, CONNECT_TIMEOUT_S)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        unix.settimeout(CONNECT_TIMEOUT_S)
        unix.connect(address.uds_path)
        _check_listener(unix, address)
    except BaseException:
        unix.close()
        raise
    return unix


def peer_credentials(unix: socket.socket) -> tuple[int, int]:
    """Return (process id, user id) of the process at the other end of a Unix socket."""
    pid, uid, _ = _CREDENTIALS.unpack(unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _check_listener(unix: socket.socket, address: Address) -> None:
    """Refuse a daemon of a user that is neither root, nor this one, nor the owner of the socket's folder."""
    _, uid = peer_credentials(unix)
    folder = Path(address.uds_path or "/").parent
    if uid in {0, os.geteuid(), folder.stat().st_uid, _UNKNOWN_UID}:
        return
    raise AccessDenied(
        f"expected a daemon of root, of user {os.geteuid()} or of the owner of {folder}, got one of user {uid}",
        object=address.text,
        hint="let the daemon listen in a folder that its user owns, such as /run/feedd or /run/user/UID",
        stage="client",
    )


def killed(address: str) -> str:
    """Return what killed the daemon that this process started at an address; empty: no kill is known.

    The kernel closes the connections of a process shortly before its parent can see the end, so this waits a moment.
    """
    child = started.get(address)
    if child is None:
        return ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_S)
    return killed_by(child.returncode)


def killed_by(code: int | None) -> str:
    """Return what killed a process, by its exit code; empty: it was not killed."""
    return "it was killed (SIGKILL), probably because memory ran out" if code == -signal.SIGKILL else ""


def unreachable(address: Address, reason: object) -> DaemonUnreachable:
    """Return the error for a daemon that does not answer."""
    how = killed(address.text)
    if how:
        said = f"expected the daemon that this process started to answer, got {reason}: {how}"
        return DaemonUnreachable(said, object=address.text, hint=MEMORY_HINT)
    hint = "start a daemon with `feedd serve --listen ...`, set FEEDD_ADDRESS, or leave address out: feedd starts one"
    if isinstance(reason, PermissionError):
        hint = "a daemon may run there: give this user access with its security.socket_mode and the socket's group"
    return DaemonUnreachable(f"expected a feedd daemon to answer, got {reason}", object=address.text, hint=hint)


def answers(address: Address, timeout_s: float) -> bool:
    """Return whether a daemon answers a health check on a new connection; any gRPC status of the daemon counts."""
    with _channel(address) as channel:
        check = channel.unary_unary(
            _HEALTH_CHECK, bytes, bytes
        )  # the request is empty, and the content of the answer does not matter
        try:
            check(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            call: Any = error
            return call.code() not in _NO_ANSWER
    return True


class Endpoint:
    """One channel to one daemon, in the process that made it. Do not use it after a fork."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pid = os.getpid()
        _hold_grpc(self.pid)
        self._channel = _channel(address)
        self.stub: Any = stubs.FeedStub(self._channel)  # type: ignore[no-untyped-call]  # generated code has no types
        self.files: Any = stubs.FilesStub(self._channel)  # type: ignore[no-untyped-call]  # generated code has no types
        self._ticket: shm.Ticket | None = None

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """Headers that name this process's user to a daemon on this machine."""
        return ((TICKET_HEADER, self._ticket.value),) if self._ticket is not None and self._ticket.value else ()

    def open(self, request: pb.OpenRequest, timeout_s: float) -> pb.OpenResponse:
        """Call Feed.Open.

        Raises:
            FeedError: the error of the daemon or of the transport.
        """
        self.renew_ticket(timeout_s)
        opened: pb.OpenResponse
        try:
            with telling_why(self.stub, request, self.address.text):
                opened = self.stub.Open(request, timeout=timeout_s, metadata=self.headers)
        except grpc.RpcError as error:
            raise translate(error, self.address) from None
        return opened

    def renew_ticket(self, timeout_s: float) -> None:
        """Get a ticket of the daemon that listens now, because tickets end with their daemon."""
        if self.address.uds_path is not None:
            former, self._ticket = self._ticket, shm.Ticket(f"{self.address.uds_path}{ARENA_SUFFIX}", timeout_s)
            if former is not None:
                former.close()

    def daemon_count(self, timeout_s: float) -> int:
        """Return how many daemons share the node of this one: call Feed.Lanes.

        Raises:
            FeedError: the error of the daemon or of the transport.
        """
        try:
            found: pb.LanesResponse = self.stub.Lanes(pb.LanesRequest(), timeout=timeout_s, metadata=self.headers)
        except grpc.RpcError as error:
            raise translate(error, self.address) from None
        return max(1, found.count)

    def classes(self, session_id: str, field: str, timeout_s: float) -> list[str]:
        """Call Feed.Classes.

        Raises:
            FeedError: the error of the daemon or of the transport.
        """
        request = pb.ClassesRequest(session_id=session_id, field=field)
        try:
            return [
                name
                for part in self.stub.Classes(request, timeout=timeout_s, metadata=self.headers)
                for name in part.names
            ]
        except grpc.RpcError as error:
            raise translate(error, self.address) from None

    def close_session(self, session_id: str, timeout_s: float) -> None:
        """Call Feed.Close. Failures are ignored, because the daemon also notices the end of a session without it."""
        try:
            self.stub.Close(pb.CloseRequest(session_id=session_id), timeout=timeout_s, metadata=self.headers)
        except (grpc.RpcError, ValueError):  # ValueError: the channel is closed already
            return

    def close(self) -> None:
        """Close the channel. Calling it again has no effect."""
        if self.pid == os.getpid():
            self._channel.close()
        if self._ticket is not None:
            self._ticket.close()


def _channel(address: Address) -> grpc.Channel:
    if address.tls:
        return grpc.secure_channel(address.target, _tls_credentials(os.environ), _OPTIONS)
    return grpc.insecure_channel(address.target, _OPTIONS)


@functools.cache
def _hold_grpc(pid: int) -> grpc.Channel:
    """Keep gRPC initialised in process ``pid`` through a channel that is never called, and so never dials.

    When its last channel closes, gRPC shuts down in a separate thread. A fork in the middle of this hangs, or the child
    hangs at its first channel. With grpcio 1.85, five children and then the parent hung within 200 rounds of channel,
    call, close and three forks. With this channel, none of 2,699 rounds hung.
    """
    return grpc.insecure_channel(f"unix:/feedd-holds-grpc-{pid}", _OPTIONS)


def translate(error: grpc.RpcError, address: Address) -> FeedError:
    """Return the error for a failed call: the daemon's own error if it sent one, else an error by gRPC status.

    Raise it ``from None``: gRPC's text would put 30 lines above the message. It is logged at debug level.
    """
    _log.debug("a call to the daemon at %s failed: %s", address.text, error)
    # Every RpcError of a sent call is also a grpc.Call; the typed stubs do not allow this combination.
    call: Any = error if hasattr(error, "trailing_metadata") else None
    if call is None:
        return unreachable(address, error)
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_TRAILER and isinstance(value, bytes):
            return from_message(pb.Error.FromString(value))
    code: grpc.StatusCode = call.code()
    details = str(call.details() or "no details")
    if code in _BY_STATUS:
        return _BY_STATUS[code](details.lower(), object=address.text, stage="daemon")
    if code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN} and "exception" in details.lower():
        return DaemonError(details, object=address.text, hint="see the daemon's log", stage="daemon")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        hint = "if a first shard takes longer, raise open_timeout_s; else see the daemon's log"
        return DaemonUnreachable("expected the daemon to answer in time, got nothing", object=address.text, hint=hint)
    # the remaining statuses mean a lost connection: unavailable, cancelled, stream removed
    return unreachable(address, f"{code.name.lower()}: {details}")


def from_message(said: pb.Error) -> FeedError:
    """Return the error for a feedd.v1.Error message."""
    return from_wire(said.kind, said.message, object=said.object, hint=said.hint, stage=said.stage)


def _tls_credentials(env: Mapping[str, str]) -> grpc.ChannelCredentials:
    def read(name: str) -> bytes | None:
        path = env.get(name)
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise BadOptionError(f"expected a PEM file, got {error}", object=name) from None

    return grpc.ssl_channel_credentials(
        root_certificates=read("FEEDD_TLS_CA"),
        private_key=read("FEEDD_TLS_KEY"),
        certificate_chain=read("FEEDD_TLS_CERT"),
    )
