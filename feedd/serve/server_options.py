"""Options of the server, and its callbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedd.units import MIB
from feedd.wire.feed_messages import OpenLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from feedd.errors import FeeddError
    from feedd.owner import Owner
    from feedd.serve.files_service import ObjectFiles
    from feedd.warming import Amount, WarmProgress, WarmSpec

    Tell = Callable[[WarmProgress, FeeddError | None], None]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for TCP listeners.

    Attributes:
        cert_path: the server's certificate chain.
        key_path: the server's private key.
        client_ca_path: if set, clients must show a certificate signed by this CA.
    """

    cert_path: Path
    key_path: Path
    client_ca_path: Path | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of serving.

    Attributes:
        listen: ``unix:///path`` or ``host:port``; port 0 takes a free port.
        tls: files for TCP listeners; None: plain text.
        allow_insecure_tcp: allow TCP listeners beyond loopback without TLS.
        allow_anonymous_tcp: allow TCP listeners beyond loopback whose clients show no certificate.
        socket_mode: permission bits of the Unix sockets.
        allow_uids: users, besides the daemon's own and root, that may use the Unix sockets; none: all that can open
            them.
        admin_socket: path of the socket for administrators; None: there is none.
        session_grace_s: how long a session without stream and lifeline is kept.
        open_timeout_s: bound on one Open, which may fetch a shard.
        close_timeout_s: bound on waiting for cancelled productions to end.
        linger_s: how long to wait for the client's last releases after an error.
        sessions_max: upper bound of open sessions; also bounds concurrent calls.
        sessions_per_owner: upper bound of open sessions of one owner.
        warmups_per_owner: upper bound of running warm-ups of one owner.
        silent_streams_per_owner: upper bound of an owner's Stream calls whose first message has not come.
        first_message_s: bound on the wait for the first message of a Stream call.
        request_s: bound on the wait for the request of another call. A request may have 16 MiB.
        receive_bytes_max: largest request message.
        chunk_size_bytes: payload of one inline chunk.
        arena_connections_max: upper bound of lifelines.
        grpc_connections_max: upper bound of connections to all addresses together.
        admin_connections_max: upper bound of connections to the admin socket.
        hello_timeout_s: bound on the 21 bytes at the start of a lifeline.
        look_s: time between two looks at the files of the Unix sockets, which are made again if they were removed.
        daemon_id: changes at each start; empty: a random id.
        lane_count: daemons that share this node; see ``feedd.lanes``.
        open_limits: limits of an Open request.
    """

    listen: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    allow_insecure_tcp: bool = False
    allow_anonymous_tcp: bool = False
    socket_mode: int = 0o600
    allow_uids: tuple[int, ...] = ()
    admin_socket: Path | None = None
    session_grace_s: float = 60.0
    open_timeout_s: float = 300.0
    close_timeout_s: float = 30.0
    linger_s: float = 1.0
    sessions_max: int = 1024
    sessions_per_owner: int = 1024
    warmups_per_owner: int = 4
    silent_streams_per_owner: int = 64
    first_message_s: float = 5.0
    request_s: float = 10.0
    receive_bytes_max: int = 16 * MIB
    chunk_size_bytes: int = MIB
    arena_connections_max: int = 4096
    grpc_connections_max: int = 4096
    admin_connections_max: int = 64
    hello_timeout_s: float = 5.0
    look_s: float = 10.0
    daemon_id: str = ""
    lane_count: int = 1
    open_limits: OpenLimits = field(default_factory=OpenLimits)

    @property
    def one_user(self) -> bool:
        """Whether only the daemon's own user and root can open its Unix sockets."""
        return not self.socket_mode & 0o077


@dataclass(frozen=True, slots=True)
class StatSample:
    """One value of one metric, for Admin.Stats."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One cached object, for Admin.CacheList."""

    url: str
    etag: str
    size_bytes: int
    pins: int
    conversion: str = ""


@dataclass(frozen=True, slots=True)
class CacheState:
    """The current state of the cache, for Admin.Stats; sizes are disk bytes.

    Attributes:
        directory: absolute path.
        limit_bytes: upper limit of the cache.
        free_reserve_bytes: free space of the file system that the cache leaves alone.
        committed_bytes: bytes of whole objects.
        reserved_bytes: bytes reserved by running fills.
    """

    directory: str
    limit_bytes: int
    free_reserve_bytes: int
    committed_bytes: int
    reserved_bytes: int
    entry_count: int
    pin_count: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """A recent warning or error of the daemon, for Admin.Observe; without secrets."""

    text: str
    level: str
    age_s: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class BadSampleRow:
    """A sample that could not be decoded, for Admin.Observe.

    Attributes:
        number: its number since the daemon's start.
        owner: whose session needed it.
        url: its shard.
        outcome: "dropped", "replaced" or "error".
    """

    number: int
    owner: Owner
    url: str
    key: str
    field: str
    reason: str
    epoch: int
    age_s: float
    outcome: str


@dataclass(frozen=True, slots=True)
class FolderRow:
    """Cached objects below one URL, for Admin.Observe; an empty URL stands for all others."""

    url: str
    entry_count: int
    size_bytes: int
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class ServeHooks:
    """Callbacks of the daemon; each may be None.

    Attributes:
        samples: returns the current value of every metric.
        cache_entries: returns the committed entries of the cache.
        cache_state: returns the current state of the cache.
        cache_remove: called with a pattern; returns the removed amount and the amount still in use.
        warm: fetches an assignment into the cache and calls back after every change; cancelled with its client.
        drain: called with grace_s when an admin requests it; must return at once.
        on_holders: called with the number of ``HOLD!`` connections whenever it changes.
        log: returns recent warnings and errors, the oldest first.
        bad_samples: returns recent bad samples, the oldest first.
        cache_folders: returns what the cache holds by folder, the largest first; not always of this moment.
        files: objects as files.
    """

    samples: Callable[[], Iterable[StatSample]] | None = None
    cache_entries: Callable[[], Iterable[CacheRow]] | None = None
    cache_state: Callable[[], CacheState] | None = None
    cache_remove: Callable[[str], Awaitable[tuple[Amount, Amount]]] | None = None
    warm: Callable[[WarmSpec, Tell], Awaitable[object]] | None = None
    drain: Callable[[float], None] | None = None
    on_holders: Callable[[int], None] | None = None
    log: Callable[[], Iterable[LogLine]] | None = None
    bad_samples: Callable[[], Iterable[BadSampleRow]] | None = None
    cache_folders: Callable[[], Awaitable[Sequence[FolderRow]]] | None = None
    files: ObjectFiles | None = None
