"""Every option, with its default, its bounds and what it does. The one place where an option is defined."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from feedd.config.machine_defaults import (
    PARTS_MIN,
    default_arena_bytes,
    default_bypass_bytes,
    default_bytes_in_flight,
    default_cache_bytes,
    default_parts_in_flight,
    default_transfer_threads,
    default_workers_max,
    memory_bytes,
)
from feedd.config.types import (
    AbsolutePath,
    Cpus,
    Duration,
    Folder,
    HttpUrl,
    Listen,
    PartSize,
    Quotas,
    ReadableFile,
    RoleArn,
    Size,
    SocketMode,
    Status,
    Workers,
    split_list,
)
from feedd.units import GIB, MIB, format_size

DEFAULT_CACHE_DIR = Path("/var/cache/feedd")


class Section(BaseModel):
    """Base of all sections: frozen, and no name that is not an option."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


_SectionT = TypeVar("_SectionT", bound=Section)


def _section(kind: type[_SectionT]) -> _SectionT:
    """Declare a section whose defaults are made when needed, because some depend on the machine."""
    return Field(default_factory=kind)


class CacheConfig(Section):
    """Shards on local disk."""

    dir: AbsolutePath = Field(DEFAULT_CACHE_DIR, description="directory for shards, best on local NVMe or tmpfs")
    size: Size = Field(
        default_factory=lambda data: default_cache_bytes(data.get("dir", DEFAULT_CACHE_DIR)),
        ge=MIB,
        description="most disk the cache may hold; left out: half of the file system it lies on",
    )
    free_reserve: Size = Field(GIB, description="space on that file system that is never touched")
    memory: Size = Field(0, description="memory for shards above the disk; 0: none")
    bypass: Size = Field(
        default_factory=default_bypass_bytes,
        description="most memory for shards while the disk cannot be used, taken only then; 0: its errors end epochs",
    )
    decoded: Literal["allowed", "off"] = Field(
        "allowed", description="whether trainers that ask for it have images kept decoded, as far as there is room"
    )
    quotas: Quotas = Field(
        default_factory=dict, description="most of the cache that objects below a URL may take, longest match first"
    )
    verify: Literal["use", "boot", "off"] = Field(
        "use",
        description="when shards are held against their checksums: whenever they go into use, once a start, never",
    )
    allow_network_fs: bool = Field(
        default=False,
        description="whether dir may lie on NFS, SMB or FUSE (not fuse-overlayfs): a file lost there kills its readers",
    )

    @field_validator("memory", "bypass")
    @classmethod
    def _is_there(cls, value: int) -> int:
        if value > memory_bytes():
            raise ValueError(f"expected at most the memory this process may use, {format_size(memory_bytes())}")
        return value


class FetchConfig(Section):
    """Parallel range requests to the store."""

    part_size: PartSize = Field("auto", description="bytes of one range request; auto: by object and measured rate")
    parts_in_flight: int = Field(
        default_factory=default_parts_in_flight,
        ge=1,
        le=4096,
        description="most range requests at one time; left out: what fills the network card, 16 to 256",
    )
    bytes_in_flight: Size = Field(
        default_factory=lambda data: default_bytes_in_flight(data.get("parts_in_flight", PARTS_MIN)),
        ge=MIB,
        description="most bytes asked for and not yet received; left out: 16MiB for each of parts_in_flight",
    )
    transfer_threads: int = Field(
        default_factory=default_transfer_threads,
        ge=1,
        le=64,
        description="threads that bring bodies from sockets to the cache; left out: 2, or a thread for 8 cores",
    )
    attempts: int = Field(8, ge=1, le=100, description="how often one request is sent before it is an error")
    retry_deadline: Duration = Field(300.0, gt=0, description="how long a failing request is tried again")
    connect_timeout: Duration = Field(5.0, gt=0, le=600, description="longest wait for a connection")
    read_timeout: Duration = Field(30.0, gt=0, le=3600, description="longest silence on a connection")
    transport: Literal["auto", "direct", "aiobotocore"] = Field(
        "auto", description="how objects are received; direct: straight into the cache; auto: direct but for proxies"
    )
    verify: Literal["off", "length", "checksum"] = Field(
        "checksum", description="what fetched objects are held against; checksum: the store's own, where it has one"
    )
    hedge_share: float = Field(
        0.05, ge=0, le=1, description="most bytes asked for twice because they are slow, as a share of all; 0: none"
    )


class DecodeConfig(Section):
    """Decode worker processes."""

    cpus: Cpus = Field((), description="cores the workers keep to, such as 8-15,20; left out: those of the daemon")
    workers: Workers = Field("auto", description="worker processes; auto: as many as demand asks for")
    workers_max: int = Field(
        default_factory=lambda data: default_workers_max(data.get("cpus", ())),
        ge=1,
        le=1024,
        description="most worker processes of auto; left out: a core each, less one per trainer, or all of cpus",
    )
    recycle_growth: Size = Field(
        512 * MIB, description="memory of its own by which a worker may grow before another takes its place; 0: any"
    )
    nice: int = Field(0, ge=0, le=19, description="niceness of workers; above 0 the trainer goes first")
    task_deadline: Duration = Field(60.0, gt=0, description="longest time for one task before its worker is replaced")
    tokenizers: Folder | None = Field(None, description="folder of tokenizer.json files that recipes may name")


class ArenaConfig(Section):
    """Shared memory that batches are handed over in."""

    size: Size = Field(
        default_factory=default_arena_bytes,
        ge=MIB,
        description="most memory for all sessions' slots; left out: a quarter of the memory",
    )
    slots_max: int = Field(64, ge=2, le=1024, description="most slots (batches ahead) one session is granted")


class ShuffleConfig(Section):
    """Defaults of shuffling."""

    window_shards: int = Field(4, ge=1, description="shards whose samples are mixed, where the client names no window")


class QuarantineConfig(Section):
    """The file that names bad samples, for those who ask for that."""

    path: Path = Field(
        Path("quarantine.jsonl"), description="JSON lines, one per bad sample; relative: to the cache's directory"
    )
    size: Size = Field(
        16 * MIB, ge=64 * 1024, description="most bytes of that file; then it becomes <path>.1 and a new one begins"
    )


class TlsConfig(Section):
    """TLS of the TCP listeners."""

    cert: ReadableFile | None = Field(None, description="PEM file with the server's certificate chain")
    key: ReadableFile | None = Field(None, description="PEM file with the server's private key")
    client_ca: ReadableFile | None = Field(None, description="PEM file; clients must show a certificate it signed")


class SecurityConfig(Section):
    """Who may connect."""

    allow_insecure_tcp: bool = Field(default=False, description="listen beyond this machine without TLS")
    allow_uids: Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(split_list)] = Field(
        [], description="ids of users, besides the daemon's own and root, that may map a session's shared memory"
    )
    socket_mode: SocketMode = Field(
        "0600", description="permission bits of the Unix socket, octal; 0660 lets its group in"
    )


class DrainConfig(Section):
    """Stopping."""

    grace: Duration = Field(
        0.0,
        ge=0,
        le=3600,
        description="time open streams get to end by themselves after SIGTERM; 0: they reconnect at once",
    )


class WatchdogConfig(Section):
    """Ending a daemon whose event loop is stuck; a stopped process and a suspended machine do not count."""

    dump_after: Duration = Field(
        10.0, ge=0, le=3600, description="after so long a silence all stacks go to the log; 0: never"
    )
    exit_after: Duration = Field(
        60.0, ge=0, le=3600, description="after so long a silence the process ends with status 70; 0: never"
    )


class LogConfig(Section):
    """Logs, on standard error."""

    format: Literal["auto", "json", "text"] = Field(
        "auto", description="json for machines, text for people; auto: text on a terminal, else json"
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level shown")


class S3Config(Section):
    """How one bucket is reached; what is left out comes from the AWS environment, as in boto3."""

    endpoint_url: HttpUrl | None = Field(None, description="URL of an S3-compatible store")
    region: str | None = Field(None, description="region of the bucket")
    profile: str | None = Field(None, description="profile of the shared AWS configuration")
    role_arn: RoleArn | None = Field(None, description="role to assume for this bucket")
    addressing_style: Literal["auto", "path", "virtual"] = Field("auto", description="where the bucket's name goes")
    anonymous: bool = Field(default=False, description="send unsigned requests, for public buckets")
    requester_pays: bool = Field(default=False, description="agree to pay for requests to this bucket")
    ca_bundle: ReadableFile | None = Field(None, description="PEM file of authorities to trust for this endpoint")


class Config(Section):
    """The whole configuration of one daemon."""

    listen: Annotated[list[Listen], BeforeValidator(split_list)] = Field(
        ["unix:///run/feedd/feedd.sock"],
        min_length=1,
        description="addresses for trainers: unix:///path.sock (shared memory) or host:port (batches inline)",
    )
    status: Status = Field("127.0.0.1:7071", description="address of the status page and metrics; off: none")
    cache: CacheConfig = _section(CacheConfig)
    fetch: FetchConfig = _section(FetchConfig)
    decode: DecodeConfig = _section(DecodeConfig)
    arena: ArenaConfig = _section(ArenaConfig)
    shuffle: ShuffleConfig = _section(ShuffleConfig)
    quarantine: QuarantineConfig = _section(QuarantineConfig)
    tls: TlsConfig = _section(TlsConfig)
    security: SecurityConfig = _section(SecurityConfig)
    drain: DrainConfig = _section(DrainConfig)
    watchdog: WatchdogConfig = _section(WatchdogConfig)
    log: LogConfig = _section(LogConfig)
    s3: dict[str, S3Config] = Field(default_factory=dict, description='settings per bucket; "*" for all others')

    @field_validator("listen")
    @classmethod
    def _no_address_twice(cls, value: list[str]) -> list[str]:
        twice = sorted({address for address in value if value.count(address) > 1})
        if twice:
            raise ValueError(f"expected each address once, got {', '.join(twice)} twice")
        return value

    @field_validator("s3", mode="before")
    @classmethod
    def _bucket_names(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the user wrote
        for bucket in value if isinstance(value, dict) else ():
            if not bucket or "/" in bucket or ":" in bucket:
                raise ValueError(f'expected the name of a bucket or "*", got {bucket!r}')
        return value
