"""Every option with its default, bounds and description. Those of the peer cache are in ``peer_settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from feedd.access import STORES_ONLY, AccessRules
from feedd.config.machine_defaults import (
    PARTS_MIN,
    default_arena_bytes,
    default_bypass_bytes,
    default_bytes_in_flight,
    default_cache_bytes,
    default_parts_in_flight,
    default_transfer_threads,
    default_worker_bytes,
    default_workers_max,
    memory_bytes,
)
from feedd.config.peer_settings import PeersConfig
from feedd.config.section import Section
from feedd.config.types import (
    UNIX_PREFIX,
    AbsolutePath,
    Cpus,
    Duration,
    Folder,
    HttpUrl,
    Lanes,
    Listen,
    PartSize,
    Quotas,
    ReadableFile,
    RoleArn,
    Size,
    SocketMode,
    Status,
    UrlRules,
    VariableName,
    Workers,
    check_listen,
    is_unix,
    lane_address,
    split_list,
)
from feedd.units import GIB, MIB, format_size

DEFAULT_CACHE_DIR = Path("/var/cache/feedd")


_SectionT = TypeVar("_SectionT", bound=Section)


def _section(kind: type[_SectionT]) -> _SectionT:
    """Declare a section whose defaults are computed when needed, because some depend on the machine."""
    return Field(default_factory=kind)


class CacheConfig(Section):
    """Shards on local disk."""

    dir: AbsolutePath = Field(DEFAULT_CACHE_DIR, description="directory for shards, best on local NVMe or tmpfs")
    size: Size = Field(
        default_factory=lambda data: default_cache_bytes(data.get("dir", DEFAULT_CACHE_DIR)),
        ge=MIB,
        description="maximum disk space of the cache; default: half of its file system, less if that is in memory",
    )
    free_reserve: Size = Field(GIB, description="space on that file system that feedd never uses")
    bypass: Size = Field(
        default_factory=default_bypass_bytes,
        description="maximum memory for shards while the disk cannot be used; 0: disk errors end epochs",
    )
    decoded: Literal["allowed", "off"] = Field(
        "allowed", description="whether trainers may have decoded images kept in the cache while there is room"
    )
    quotas: Quotas = Field(
        default_factory=dict, description="maximum cache space for objects below a URL; the longest matching URL counts"
    )
    verify: Literal["use", "boot", "off"] = Field(
        "use",
        description="when cached shards are checked against checksums: use (on each use), boot (once a start), off",
    )
    allow_network_fs: bool = Field(
        default=False,
        description="allow dir on NFS, SMB or FUSE (except fuse-overlayfs); a file lost there kills its readers",
    )

    @field_validator("bypass")
    @classmethod
    def _is_there(cls, value: int) -> int:
        if value > memory_bytes():
            raise ValueError(f"expected at most the memory this process may use, {format_size(memory_bytes())}")
        return value


class FetchConfig(Section):
    """Parallel range requests to the store."""

    part_size: PartSize = Field("auto", description="bytes per range request; auto: from object size and measured rate")
    parts_in_flight: int = Field(
        default_factory=default_parts_in_flight,
        ge=1,
        le=4096,
        description="maximum range requests at one time; default: as many as fill the network card, 16 to 256",
    )
    span_size: Size = Field(
        64 * MIB, description="files of tokens and .npy files of twice this size are read in spans of it; 0: whole"
    )
    bytes_in_flight: Size = Field(
        default_factory=lambda data: default_bytes_in_flight(data.get("parts_in_flight", PARTS_MIN)),
        ge=MIB,
        description="maximum bytes requested and not yet received; default: 16MiB for each of parts_in_flight",
    )
    transfer_threads: int = Field(
        default_factory=default_transfer_threads,
        ge=1,
        le=64,
        description="threads that move data from sockets to the cache; default: 2, or one per 8 cores if that is more",
    )
    attempts: int = Field(8, ge=1, le=100, description="how often a request is sent before feedd reports an error")
    retry_deadline: Duration = Field(300.0, gt=0, description="how long a failing request is retried")
    connect_timeout: Duration = Field(5.0, gt=0, le=600, description="maximum wait for a connection")
    read_timeout: Duration = Field(30.0, gt=0, le=3600, description="maximum silence on a connection")
    verify: Literal["off", "length", "checksum"] = Field(
        "checksum", description="check of fetched objects; checksum: the store's own checksum, if there is one"
    )
    hedge_share: float = Field(
        0.05, ge=0, le=1, description="maximum share of bytes requested twice because they are slow; 0: none"
    )


class DecodeConfig(Section):
    """Decode worker processes."""

    cpus: Cpus = Field((), description="cores for the workers, such as 8-15,20; default: the daemon's cores")
    workers: Workers = Field("auto", description="number of worker processes; auto: follows demand")
    workers_max: int = Field(
        default_factory=lambda data: default_workers_max(data.get("cpus", ())),
        ge=1,
        le=1024,
        description="maximum worker processes of auto; default: one per core minus one per trainer, or all of cpus",
    )
    recycle_growth: Size = Field(
        512 * MIB, description="a worker is replaced when its own memory has grown by this much; 0: never"
    )
    memory: Size = Field(
        default_factory=default_worker_bytes,
        ge=256 * MIB,
        description="most memory that a worker takes for one call; for an object, 8 times its size if that is more",
    )
    index_size: Size = Field(
        40 * MIB,
        ge=MIB,
        description="most memory of the index of one shard; 12 times the size of its object if that is more",
    )
    nice: int = Field(0, ge=0, le=19, description="niceness of workers; above 0 the trainer has priority")
    task_deadline: Duration = Field(60.0, gt=0, description="maximum time for one task; then its worker is replaced")
    tokenizers: Folder | None = Field(None, description="folder of the tokenizer.json files that recipes may name")
    sandbox: bool = Field(
        default=True,
        description="decode workers open no sockets, start no programs and read only the cache",
    )
    readable: Annotated[list[Folder], BeforeValidator(split_list)] = Field(
        [], description="folders that installed codecs read, besides their Python installation"
    )
    environment: Annotated[list[VariableName], BeforeValidator(split_list)] = Field(
        [], description="names of variables of the daemon that installed codecs need; workers get few others"
    )


class ArenaConfig(Section):
    """Shared memory for batches."""

    size: Size = Field(
        default_factory=default_arena_bytes,
        ge=MIB,
        description="most memory for batches, of all sessions together; default: a quarter of the memory",
    )
    slots_max: int = Field(64, ge=2, le=1024, description="maximum slots (batches in advance) of one session")


class ShuffleConfig(Section):
    """Defaults of shuffling."""

    window_shards: int = Field(4, ge=1, description="shards whose samples are mixed, if the client names no window")


class SagemakerConfig(Section):
    """The job whose channels clients may name: ``channel://train``."""

    root: Path | None = Field(
        None, description="folder with input/config of the job; default: $SAGEMAKER_BASE_DIR, or else /opt/ml"
    )


class QuarantineConfig(Section):
    """The file that lists bad samples, for trainers with bad_samples="quarantine"."""

    path: Path = Field(
        Path("quarantine.jsonl"), description="JSON Lines file, one line per bad sample; relative to cache.dir"
    )
    size: Size = Field(
        16 * MIB, ge=64 * 1024, description="maximum bytes of that file; then it becomes <path>.1 and a new file begins"
    )


class TlsConfig(Section):
    """TLS of the TCP listeners."""

    cert: ReadableFile | None = Field(None, description="PEM file with the server's certificate chain")
    key: ReadableFile | None = Field(None, description="PEM file with the server's private key")
    client_ca: ReadableFile | None = Field(None, description="PEM file; clients must show a certificate signed by it")


class SecurityConfig(Section):
    """Access to the daemon."""

    allow_insecure_tcp: bool = Field(default=False, description="listen beyond this machine without TLS")
    allow_anonymous_tcp: bool = Field(
        default=False, description="listen beyond this machine for clients that show no certificate"
    )
    allow_uids: Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(split_list)] = Field(
        [],
        description="ids of users, besides the daemon's user and root, that may connect; none: all that can open it",
    )
    allow_urls: UrlRules | None = Field(
        None,
        description="starts of URLs that clients may read; default: all; if others may connect, all buckets",
    )
    admin_socket: AbsolutePath | None = Field(
        None,
        description="socket for administrators; default: the first Unix socket with .admin, if others may connect",
    )
    socket_mode: SocketMode = Field(
        "0600", description="permission bits of the Unix socket, octal, in quotes; 0660 admits the socket's group"
    )


class LimitsConfig(Section):
    """What one owner (a user, or the holder of a certificate) may take of the daemon."""

    sessions: int = Field(1024, ge=1, le=65536, description="maximum open sessions: ranks times DataLoader workers")
    sessions_per_owner: int = Field(
        default_factory=lambda data: data.get("sessions", 1024), ge=1, description="of one owner; default: all"
    )
    warmups_per_owner: int = Field(4, ge=1, le=1024, description="maximum warm-ups of one owner at one time")
    arena_per_owner: Size = Field(
        0, description="maximum memory for the slots of one owner; 0: 3/4, if others may connect"
    )


class OwnerConfig(Section):
    """Settings for one user or certificate."""

    allow_urls: UrlRules | None = Field(
        None, description="starts of URLs that this owner may read, in place of the general"
    )


class DrainConfig(Section):
    """Stopping the daemon."""

    grace: Duration = Field(
        0.0,
        ge=0,
        le=3600,
        description="time for open streams to end by themselves after SIGTERM; 0: they reconnect at once",
    )


class WatchdogConfig(Section):
    """Ends a daemon whose event loop is stuck; a stopped process and a suspended machine do not count."""

    dump_after: Duration = Field(
        10.0, ge=0, le=3600, description="after this much silence the stacks of all threads are logged; 0: never"
    )
    exit_after: Duration = Field(
        60.0, ge=0, le=3600, description="after this much silence the process ends with status 70; 0: never"
    )


class LogConfig(Section):
    """Logs on standard error."""

    format: Literal["auto", "json", "text"] = Field(
        "auto", description="json for machines, text for people; auto: text on a terminal, else json"
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")


class TraceConfig(Section):
    """Traces of batches, exported with OpenTelemetry as the OTEL_* variables say."""

    sample: float = Field(
        0.0, ge=0, le=1, description="share of batches whose way is exported as a trace; 0: none. Needs feedd[otel]"
    )


class S3Config(Section):
    """How feedd reaches one bucket; missing options come from the AWS environment, as in boto3."""

    endpoint_url: HttpUrl | None = Field(None, description="URL of an S3-compatible store")
    region: str | None = Field(None, description="region of the bucket")
    profile: str | None = Field(None, description="profile of the shared AWS configuration")
    role_arn: RoleArn | None = Field(None, description="role to assume for this bucket")
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        "auto", description="where the bucket's name goes in URLs; auto: virtual on AWS, path with endpoint_url"
    )
    anonymous: bool = Field(default=False, description="send unsigned requests, for public buckets")
    requester_pays: bool = Field(default=False, description="agree to pay for requests to this bucket")
    ca_bundle: ReadableFile | None = Field(None, description="PEM file of authorities to trust for this endpoint")
    client_certificate: ReadableFile | None = Field(
        None, description="PEM file with the certificate to show, if the endpoint asks for one"
    )
    client_key: ReadableFile | None = Field(
        None, description="PEM file with the key of client_certificate; default: client_certificate holds it"
    )


class Config(Section):
    """The whole configuration of one daemon."""

    listen: Annotated[list[Listen], BeforeValidator(split_list)] = Field(
        ["unix:///run/feedd/feedd.sock"],
        min_length=1,
        description="addresses for trainers: unix:///path.sock (shared memory) or host:port (batches inline)",
    )
    lanes: Lanes = Field(
        1,
        description="daemons that share this node, its cores, memory and cache; auto: one per 16 cores",
    )
    autotune: bool = Field(
        default=True,
        description=(
            "workers and requests in flight follow demand; false: always decode.workers_max and fetch.parts_in_flight"
        ),
    )
    status: Status = Field("127.0.0.1:7071", description="address of the status page and metrics; off: no page")
    cache: CacheConfig = _section(CacheConfig)
    fetch: FetchConfig = _section(FetchConfig)
    decode: DecodeConfig = _section(DecodeConfig)
    arena: ArenaConfig = _section(ArenaConfig)
    shuffle: ShuffleConfig = _section(ShuffleConfig)
    peers: PeersConfig = _section(PeersConfig)
    sagemaker: SagemakerConfig = _section(SagemakerConfig)
    quarantine: QuarantineConfig = _section(QuarantineConfig)
    tls: TlsConfig = _section(TlsConfig)
    security: SecurityConfig = _section(SecurityConfig)
    limits: LimitsConfig = _section(LimitsConfig)
    drain: DrainConfig = _section(DrainConfig)
    watchdog: WatchdogConfig = _section(WatchdogConfig)
    log: LogConfig = _section(LogConfig)
    trace: TraceConfig = _section(TraceConfig)
    s3: dict[str, S3Config] = Field(default_factory=dict, description='settings per bucket; "*" for all others')
    owners: dict[str, OwnerConfig] = Field(
        default_factory=dict, description="settings per owner: a user id, or the common name of a client's certificate"
    )

    @property
    def shared(self) -> bool:
        """Whether users other than the daemon's own and root may connect."""
        return int(self.security.socket_mode, 8) & 0o077 != 0 or not all(map(is_unix, self.listen))

    @property
    def admin_socket(self) -> Path | None:
        """Path of the socket for administrators; None: the daemon has none."""
        if self.security.admin_socket is not None or not self.shared:
            return self.security.admin_socket  # where only one user may connect, that user administers by any socket
        first = next(filter(is_unix, self.listen), None)
        return None if first is None else Path(first.removeprefix(UNIX_PREFIX) + ".admin")

    @property
    def access_rules(self) -> AccessRules:
        """What each owner may read."""
        by_owner = {name: tuple(one.allow_urls) for name, one in self.owners.items() if one.allow_urls is not None}
        if self.security.allow_urls is not None:
            return AccessRules(tuple(self.security.allow_urls), by_owner)
        return AccessRules(STORES_ONLY if self.shared else None, by_owner)

    @field_validator("listen")
    @classmethod
    def _no_address_twice(cls, value: list[str]) -> list[str]:
        twice = sorted({address for address in value if value.count(address) > 1})
        if twice:
            raise ValueError(f"expected each address once, got {', '.join(twice)} twice")
        return value

    @model_validator(mode="after")
    def _lanes_can_listen(self) -> Self:
        if self.lanes == 1:
            return self
        taken = {} if self.status is None else {self.status: "the status page"}
        for address in self.listen:
            if address.endswith(":0"):
                raise ValueError(f"expected a port to count the lanes' ports from, got {address}")
            check_listen(lane_address(address, self.lanes - 1))
            for lane in range(self.lanes):
                wanted = lane_address(address, lane)
                if wanted in taken:
                    other = taken[wanted]
                    raise ValueError(f"expected an address for lane {lane} of {address}, got {wanted} of {other}")
                taken[wanted] = address
        return self

    @field_validator("s3", mode="before")
    @classmethod
    def _bucket_names(cls, value: Any) -> Any:  # noqa: ANN401 - the user may write any type
        for bucket in value if isinstance(value, dict) else ():
            if not bucket or "/" in bucket or ":" in bucket:
                raise ValueError(f'expected the name of a bucket or "*", got {bucket!r}')
        return value
