"""``feedd check``: shows the effective configuration, checks the machine, and reads from a URL. It changes nothing."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import resource
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from feedd.cache.cache import RETRY_S
from feedd.cache.inspection import disk_bytes
from feedd.cache.lock import DirectoryLock, check_private
from feedd.cache.os_errors import is_full, may_pass, unavailable
from feedd.cache.recovery import limit_bytes
from feedd.cli.flags import (
    CacheDirFlag,
    CacheSizeFlag,
    ConfigFlag,
    Flags,
    LanesFlag,
    ListenFlag,
    LogFlag,
    LogLevelFlag,
    SetFlag,
    StatusFlag,
    WorkersFlag,
)
from feedd.cli.report import EXIT_FAILED, print_table
from feedd.cli.running import run_async
from feedd.config import Effective, render
from feedd.config.machine_defaults import default_workers, existing_parent, memory_bytes, network_gbits, usable_cores
from feedd.config.option_list import ANY_BUCKET
from feedd.config.types import UNIX_PREFIX, lane_address
from feedd.daemon.wiring import cache_options
from feedd.errors import BadRequest, CacheUnavailable, FeeddError, NotFound, PermissionDenied, Unsupported
from feedd.fetch.limits import PartSize
from feedd.flow import mounts
from feedd.flow.sink_file import memory_file
from feedd.lanes.lane import Lane
from feedd.observe.logs import redact_text
from feedd.units import MIB, format_duration, format_size, parse_host_port
from feedd.workers import sandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from feedd.catalog.urls import Location
    from feedd.config import Config
    from feedd.fetch.fetch_options import SourceOptions
    from feedd.protocols import ObjectStore
    from feedd.values import ObjectRef

_MOUNTS = Path("/proc/self/mountinfo")
_MODES = ("always", "within_size")
NOFILE_WANTED = 4096  # connections, cache files and arenas of a busy node, with some reserve
_T = TypeVar("_T")
_LISTING_S = 20.0
_PAGE = 1000
_SPELLING = "compare the spelling with aws s3 ls; a prefix of a folder ends in a slash"
_READ_BYTES_MAX = MIB


class Verdict(enum.Enum):
    """The answer to one question."""

    FINE = "ok"
    NOTE = "note"  # the daemon can serve, but the user should know this
    DEGRADED = "degraded"  # the daemon serves, but not as configured
    CANNOT = "cannot serve"
    FAILED = "failed"  # of reading data


@dataclass(frozen=True, slots=True)
class Finding:
    """One question with its answer.

    Attributes:
        detail: what was found.
        hint: what to do; empty if nothing needs to be done.
    """

    question: str
    verdict: Verdict
    detail: str
    hint: str = ""


_STYLES = {
    Verdict.FINE: "green",
    Verdict.NOTE: "yellow",
    Verdict.DEGRADED: "bold yellow",
    Verdict.CANNOT: "red",
    Verdict.FAILED: "red",
}
_FATAL = {Verdict.CANNOT, Verdict.FAILED}


def check(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Also read from this prefix or object.", show_default=False)
    ] = None,
    config: ConfigFlag = None,
    listen: ListenFlag = None,
    cache_dir: CacheDirFlag = None,
    cache_size: CacheSizeFlag = None,
    status: StatusFlag = None,
    workers: WorkersFlag = None,
    lanes: LanesFlag = None,
    log: LogFlag = None,
    log_level: LogLevelFlag = None,
    set_: SetFlag = None,
) -> None:
    """Show the effective configuration, where each value came from, and whether this machine can serve it.

    With a URL, also check whether this machine can read it: credentials, endpoint, region, a listing, a ranged GET and
    checksums. Exits with 2 if the configuration is wrong, and with 1 if the machine cannot serve it or cannot read the
    URL. On a degraded machine the daemon still works, so the exit status is 0.
    """
    flags = Flags(config, listen, cache_dir, cache_size, status, workers, log, log_level, set_, lanes)
    effective = flags.load()
    _show_configuration(effective)
    findings = [*examine(effective.config), *credentials(effective.config)]
    _show_findings("This machine", findings)
    if url is not None:
        data = examine_url(effective.config, url)
        _show_findings(url, data)
        findings += data
    if any(finding.verdict in _FATAL for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _show_configuration(effective: Effective) -> None:
    rows = []
    for name, value in render(effective.config).items():
        origin = effective.origins[name]
        rows.append([Text(cell, "dim" if origin == "default" else "") for cell in (name, value, origin)])
    print_table("Effective configuration", ("|option", "value", "from"), rows)


def _show_findings(title: str, findings: list[Finding]) -> None:
    rows = [
        (one.question, Text(one.verdict.value, _STYLES[one.verdict]), f"{one.detail}\n{one.hint}".rstrip("\n"))
        for one in findings
    ]
    print_table(title, ("question", "|answer", "found"), rows)


def examine(config: Config) -> list[Finding]:
    """Answer every question, in the order of the daemon's start."""
    return [*_cache(config), *_listen(config), *_process(config), _sandbox(config)]


def lacks_huge_pages(directory: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether ``directory`` is on a tmpfs without huge pages.

    Raises:
        OSError: the directory or the table of mounts cannot be read.
    """
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, filesystem = line.partition(" - ")
        if mount.split(" ")[2:3] == [wanted]:
            kind, _, options = filesystem.split(" ", 2)
            found = re.search(r"(?:^|,)huge=(\w+)", options)
            return kind == "tmpfs" and (found is None or found[1] not in _MODES)
    return False


def _write_error(directory: Path) -> OSError | None:
    """Return the error of creating a file in ``directory``; None if it works."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error


def _without_disk(config: Config, error: CacheUnavailable) -> tuple[Verdict, str]:
    """Return the verdict on a cache directory that cannot be used now, and what the daemon does until it can."""
    if not config.cache.bypass or not may_pass(error):
        return Verdict.CANNOT, ""
    return Verdict.DEGRADED, (
        f"; the daemon would keep shards in {format_size(config.cache.bypass)} of memory, "
        f"and try the directory again every {format_duration(RETRY_S)}"
    )


def _cache(config: Config) -> Iterator[Finding]:
    directory = config.cache.dir
    found = existing_parent(directory)
    refused = _write_error(found)
    if refused is not None and not is_full(refused):
        error = unavailable(refused, found)
        error.__cause__ = refused
        verdict, meanwhile = _without_disk(config, error)
        detail = f"{found}: {refused.strerror or refused}{meanwhile}"
        yield Finding("cache directory", verdict, detail, error.hint)
        return
    made = "" if found == directory else f" ({directory} will be created)"
    yield Finding("cache directory", Verdict.FINE, f"{found} is writable{made}")
    if found == directory:
        with contextlib.suppress(OSError):
            try:
                check_private(directory)
            except CacheUnavailable as error:
                yield Finding("cache directory", Verdict.CANNOT, error.message, error.hint)
    yield _file_system(directory, allowed=config.cache.allow_network_fs)
    for lane in range(config.lanes):
        yield from _owner(Lane(lane, config.lanes).cache_dir(directory), "" if not lane else f" of lane {lane}")
    disk = os.statvfs(found)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    wanted, reserve = config.cache.size, config.cache.free_reserve
    room = f"{format_size(free)} free of {format_size(total)}, cache.size {format_size(wanted)}"
    full = _full(config, found)
    if full is not None:
        verdict, meanwhile = _without_disk(config, full)
        detail = f"{room}: no space is left after cache.free_reserve {format_size(reserve)}{meanwhile}"
        yield Finding("cache space", verdict, detail, "free some space, or lower cache.free_reserve")
    elif wanted + reserve > total:
        hint = "the disk is the limit; lower cache.size to the space that the cache may really use"
        yield Finding("cache space", Verdict.NOTE, f"{room} and cache.free_reserve {format_size(reserve)}", hint)
    else:
        yield Finding("cache space", Verdict.FINE, room)
    with contextlib.suppress(OSError):
        if lacks_huge_pages(found):
            hint = "mount -o remount,huge=within_size on it halves the cost of filling the cache"
            yield Finding("cache pages", Verdict.NOTE, f"{found} is in memory, in pages of 4 KiB", hint)


def _full(config: Config, found: Path) -> CacheUnavailable | None:
    """Return the daemon's error if the disk has no room for the cache; existing entries of the cache count as room."""
    options = replace(cache_options(config), directory=found)
    try:
        limit_bytes(options, disk_bytes(config.cache.dir))
    except CacheUnavailable as error:
        return error
    return None


def _file_system(directory: Path, *, allowed: bool) -> Finding:
    kind = mounts.kind_of(directory)
    match mounts.judge(kind):
        case mounts.FileSystem.NETWORK:
            verdict = Verdict.NOTE if allowed else Verdict.CANNOT
            return Finding("cache file system", verdict, f"{kind}: {mounts.WHY}", mounts.HINT)
        case mounts.FileSystem.LOCAL:
            return Finding("cache file system", Verdict.FINE, f"{kind} is local")
        case mounts.FileSystem.UNKNOWN:
            hint = "check that it is a local disk"
            return Finding("cache file system", Verdict.NOTE, f"{kind or 'of unknown type'}", hint)


def _owner(directory: Path, whose: str) -> Iterator[Finding]:
    """Report whether another daemon uses a directory; nothing if no daemon ever has."""
    if not (directory / "lock").exists():
        return
    question = f"cache owner{whose}"
    try:
        with DirectoryLock(directory):
            yield Finding(question, Verdict.FINE, "no other daemon owns the directory")
    except CacheUnavailable as error:
        yield Finding(question, Verdict.CANNOT, error.message, error.hint)


def _listen(config: Config) -> Iterator[Finding]:
    for address in (lane_address(address, lane) for lane in range(config.lanes) for address in config.listen):
        path = address.removeprefix(UNIX_PREFIX)
        if path != address:
            yield _socket_directory(Path(path))
        else:
            yield _port("listen", address)
    if config.status is not None:
        yield _port("status", config.status)


def _socket_directory(path: Path) -> Finding:
    found = existing_parent(path.parent)
    refused = _write_error(found)
    if refused is not None:
        hint = "systemd's RuntimeDirectory=feedd creates it; else pass another --listen"
        return Finding(f"socket {path}", Verdict.CANNOT, f"{found}: {refused.strerror or refused}", hint)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return Finding(f"socket {path}", Verdict.FINE, f"{found} is writable")
    return Finding(
        f"socket {path}", Verdict.CANNOT, "another daemon answers there", "stop that daemon, or pass another --listen"
    )


def _port(what: str, address: str) -> Finding:
    host, port = parse_host_port(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        hint = f"stop the process that listens there, or pass another --{what}"
        return Finding(f"{what} {address}", Verdict.CANNOT, "the port is taken" if taken else str(error), hint)
    return Finding(f"{what} {address}", Verdict.FINE, "the address is free")


def _process(config: Config) -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= NOFILE_WANTED
    hint = "" if enough else "set LimitNOFILE= in systemd, or ulimit -n in a shell"
    verdict = Verdict.FINE if enough else Verdict.NOTE
    yield Finding("open files", verdict, f"hard limit {hard}, {NOFILE_WANTED} wanted", hint)
    yield _memfd()
    yield _fetch(config)
    yield _workers(config)
    memory, arena = memory_bytes(), config.arena.size
    detail = f"arena.size {format_size(arena)} of {format_size(memory)}"
    if arena > memory:
        yield Finding("memory", Verdict.CANNOT, detail, "lower arena.size")
    elif arena > memory // 2:
        yield Finding("memory", Verdict.NOTE, detail, "that is more than half: the trainer needs memory too")
    else:
        yield Finding("memory", Verdict.FINE, detail)


def _fetch(config: Config) -> Finding:
    """Report the bounds of fetching, and how many parts they allow together."""
    fetch = config.fetch
    sizes = PartSize(0 if fetch.part_size == "auto" else fetch.part_size, fetch.parts_in_flight, fetch.bytes_in_flight)
    in_flight = min(fetch.parts_in_flight, fetch.bytes_in_flight // sizes.aim_bytes)
    gbits = network_gbits()
    detail = (
        f"up to {fetch.parts_in_flight} parts in {format_size(fetch.bytes_in_flight)}: "
        f"{in_flight} of {format_size(sizes.aim_bytes)} at the start; {fetch.transfer_threads} transfer threads, "
        f"{usable_cores()} cores, network card {'of unknown speed' if gbits is None else f'of {gbits:g} Gbit/s'}"
    )
    if in_flight < fetch.parts_in_flight:
        hint = "raise fetch.bytes_in_flight, or leave it out, so that all parts can be in flight"
        return Finding("fetch", Verdict.NOTE, detail, hint)
    return Finding("fetch", Verdict.FINE, detail)


def _workers(config: Config) -> Finding:
    """Report how many decode workers ``auto`` allows."""
    decode = config.decode
    if decode.workers == "auto":
        least, most = default_workers(decode.workers_max), decode.workers_max
        return Finding("decode workers", Verdict.FINE, f"auto: {least} at the start, at most {most}")
    return Finding("decode workers", Verdict.FINE, f"always {decode.workers}")


def _memfd() -> Finding:
    try:
        fd = memory_file("feedd-check")
    except Unsupported as error:
        return Finding("shared memory", Verdict.CANNOT, error.message, error.hint)
    except OSError as error:
        return Finding("shared memory", Verdict.CANNOT, f"memfd_create: {error.strerror}", "raise ulimit -n")
    with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, MIB)
        except OSError as error:
            return Finding("shared memory", Verdict.CANNOT, f"memfd of 1MiB: {error.strerror}", "no memory is left")
    return Finding("shared memory", Verdict.FINE, "memfd works")


def _sandbox(config: Config) -> Finding:
    """Return which of the kernel's measures decode workers run under."""
    if not config.decode.sandbox:
        hint = "set decode.sandbox = true; decode.readable names folders that installed codecs need"
        return Finding("worker sandbox", Verdict.NOTE, "switched off: a decoder's bug has the daemon's rights", hint)
    here = sandbox.supported()
    lacking = [name for name, there in (("seccomp", here.seccomp), ("Landlock", here.landlock)) if not there]
    if lacking:
        detail = f"this kernel lacks {' and '.join(lacking)}, so decode workers run without"
        return Finding("worker sandbox", Verdict.NOTE, detail, "Linux 5.13 and newer have both, if they are enabled")
    return Finding("worker sandbox", Verdict.FINE, "seccomp and Landlock hold decode workers")


def credentials(config: Config) -> Iterator[Finding]:
    """Look for credentials once per configured bucket, and once for all other buckets."""
    # The SDK takes most of a second to import, and other commands do not need it.
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above
    from feedd.fetch.s3.credentials import find_credentials  # noqa: PLC0415 - see above

    options = source_options(config)
    for bucket in sorted({ANY_BUCKET, *options.s3}):
        question = "S3 credentials" if bucket == ANY_BUCKET else f"S3 credentials {bucket}"
        try:
            yield Finding(question, Verdict.FINE, f"found by {find_credentials(options.for_bucket(bucket))}")
        except PermissionDenied as error:
            yield Finding(question, Verdict.NOTE, error.message, error.hint)


@dataclass(slots=True)
class _Steps:
    """The findings so far. A failed step adds its finding, and steps that need its result are skipped.

    Attributes:
        findings: one per step.
        object_url: URL of the first object that an augmented manifest names, to be checked next; empty: there is none.
    """

    findings: list[Finding]
    object_url: str = ""

    def ok(self, question: str, detail: str) -> None:
        self.findings.append(Finding(question, Verdict.FINE, detail))

    def note(self, question: str, detail: str, hint: str) -> None:
        self.findings.append(Finding(question, Verdict.NOTE, detail, hint))

    def failed(self, question: str, error: FeeddError) -> None:
        self.findings.append(Finding(question, Verdict.FAILED, redact_text(error.message), error.hint))


def examine_url(config: Config, url: str) -> list[Finding]:
    """Return findings on credentials, address, listing, a ranged GET and checksums of a prefix or an object.

    Of an augmented manifest, the lines are read, and the first object that they name is checked too. Each request is
    sent once, because the daemon's retries would only delay the answer.

    Raises:
        BadRequest: the URL is malformed.
        Unsupported: the URL is valid but not supported.
    """
    # The SDK takes most of a second to import, which other commands do not need.
    from feedd.catalog.braces import expand, split  # noqa: PLC0415 - see above
    from feedd.catalog.urls import parse_url  # noqa: PLC0415 - see above
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above

    location = parse_url(expand(split(url)[0])[0])  # the first URL of a list
    options = replace(source_options(config), listing_deadline_s=_LISTING_S)
    steps = _Steps([])
    run_async(_examine(location, options, steps))
    return steps.findings


async def _examine(location: Location, options: SourceOptions, steps: _Steps) -> None:
    from feedd.catalog.urls import parse_url  # noqa: PLC0415 - see examine_url

    await _examine_store(location, options, steps)
    if steps.object_url:
        first = replace(parse_url(steps.object_url), manifest=True)  # one object, as a manifest is: no listing
        await _examine_store(first, options, steps)


async def _examine_store(location: Location, options: SourceOptions, steps: _Steps) -> None:
    from feedd.access import FILE_ROOT  # noqa: PLC0415 - see examine_url
    from feedd.catalog.bucket_stores import is_s3  # noqa: PLC0415 - see examine_url

    if location.root == FILE_ROOT:
        await _local(location, steps)
    elif is_s3(location.root):
        await _bucket(location, options, steps)
    else:
        await _other(location, options, steps)


async def _other(location: Location, options: SourceOptions, steps: _Steps) -> None:
    """Check a web server, a dataset on the Hub, or a store of obstore or of a plug-in."""
    from feedd.catalog.other_stores import open_store  # noqa: PLC0415 - see examine_url

    try:
        store = open_store(location.root, options)
    except FeeddError as error:
        steps.failed("store", error)
        return
    try:
        await _read(store, location, steps)
    finally:
        await store.close()


async def _local(location: Location, steps: _Steps) -> None:
    from feedd.fetch.local_store import LocalStore  # noqa: PLC0415 - see examine_url

    store = LocalStore(1)
    try:
        await _read(store, location, steps)
    finally:
        await store.close()


async def _bucket(location: Location, options: SourceOptions, steps: _Steps) -> None:
    from feedd.fetch.s3.store import S3Store  # noqa: PLC0415 - see examine_url

    if not (await _credentials(location, options, steps) and await _address(location, options, steps)):
        return
    store = S3Store(location.bucket, options)
    try:
        await _read(store, location, steps)
    finally:
        await store.close()
    region = store.clients.facts.region.name
    if region:
        hint = f'set region = "{region}" under [s3."{location.bucket}"] to save a redirect at each start'
        steps.note("bucket region", f"the bucket is in {region}, not in the configured region", hint)


async def _credentials(location: Location, options: SourceOptions, steps: _Steps) -> bool:
    """Report the provider of the credentials, never the credentials themselves."""
    from feedd.fetch.s3.credentials import find_credentials  # noqa: PLC0415 - see examine_url
    from feedd.flow.pools import LOCAL_FILES  # noqa: PLC0415 - see examine_url

    s3 = options.for_bucket(location.bucket)
    try:
        found = await LOCAL_FILES.run(find_credentials, s3)
    except FeeddError as error:
        steps.failed("credentials", error)
        return False
    role = f", and with them the role {s3.role_arn}" if s3.role_arn else ""
    steps.ok("credentials", f"found by {found}{role}")
    return True


async def _address(location: Location, options: SourceOptions, steps: _Steps) -> bool:
    """Report the endpoint and region of requests, as the SDK derives them from configuration and environment."""
    from feedd.fetch.s3.store import S3Store  # noqa: PLC0415 - see examine_url

    store = S3Store(location.bucket, options)  # another one: nothing is sent, so nothing is answered

    async def ask(client: object) -> tuple[str, str]:
        meta = client.meta  # type: ignore[attr-defined]  # botocore builds its clients at run time
        return str(meta.endpoint_url), str(meta.region_name or "")

    try:
        deadline_s = options.connect_timeout_s + options.read_timeout_s
        endpoint, region = await store.clients.call(ask, store.request_context("list", location.key), deadline_s)
    except FeeddError as error:
        steps.failed("endpoint and region", error)
        return False
    finally:
        await store.close()
    steps.ok("endpoint", redact_text(endpoint))
    steps.ok("region", region or "none: the endpoint needs none")
    return True


async def _read(store: ObjectStore, location: Location, steps: _Steps) -> None:
    """List the first page, read the first object's first bytes, and report its checksum."""
    from feedd.access import FILE_ROOT  # noqa: PLC0415 - see examine_url
    from feedd.flow.range_sinks import MemorySink  # noqa: PLC0415 - see examine_url
    from feedd.values import ByteRange  # noqa: PLC0415 - see examine_url

    ref = await _first(store, location, steps)
    if ref is None:
        return
    size_bytes = min(ref.size_bytes, _READ_BYTES_MAX)
    sink = MemorySink(memoryview(bytearray(size_bytes)))
    is_local = location.root == FILE_ROOT
    question = "read" if is_local else "ranged GET"
    try:
        _, took_ms = await _timed(store.read_into(ref, ByteRange(0, size_bytes), sink))
    except FeeddError as error:
        steps.failed(question, error)
        return
    steps.ok(question, f"{format_size(size_bytes)} of {ref.url} in {took_ms:.0f} ms")
    if not is_local:
        await _checksum(store, ref, steps)
    if location.augmented:
        await _lines(store, ref, location, steps)


async def _lines(store: ObjectStore, ref: ObjectRef, location: Location, steps: _Steps) -> None:
    """Report the lines of an augmented manifest, and find the first object that they name."""
    from feedd.access import FILE_ROOT  # noqa: PLC0415 - see examine_url
    from feedd.catalog.augmented_manifest import parse_lines  # noqa: PLC0415 - see examine_url
    from feedd.catalog.manifest import MANIFEST_BYTES_MAX  # noqa: PLC0415 - see examine_url
    from feedd.flow.range_sinks import MemorySink  # noqa: PLC0415 - see examine_url
    from feedd.values import ByteRange  # noqa: PLC0415 - see examine_url

    if ref.size_bytes > MANIFEST_BYTES_MAX:
        message = f"expected a manifest of at most {MANIFEST_BYTES_MAX} bytes, got {ref.size_bytes}"
        steps.failed("lines", BadRequest(message, object=location.url))
        return
    data = memoryview(bytearray(ref.size_bytes))
    try:
        await store.read_into(ref, ByteRange(0, ref.size_bytes), MemorySink(data))
        found = parse_lines(data, location.url)
    except FeeddError as error:
        steps.failed("lines", error)
        return
    attributes = ", ".join(one.name for one in (*found.lines.references, *found.lines.values))
    detail = f"{len(found.lines)} samples with {attributes}, {len(found.names)} objects"
    if found.bad_count:
        hint = "such lines are bad samples: see bad_samples="
        steps.note("lines", f"{detail}, and {found.bad_count} lines that are no JSON objects", hint)
    else:
        steps.ok("lines", detail)
    first = next(iter(found.names), None)
    if first is not None:
        steps.object_url = f"{first[0]}{'' if first[0] == FILE_ROOT else '/'}{first[1]}"


async def _checksum(store: ObjectStore, ref: ObjectRef, steps: _Steps) -> None:
    """Report the ETag and the checksum that the store has for the object."""
    from feedd.catalog.bucket_stores import is_s3  # noqa: PLC0415 - see examine_url

    parts = ref.etag.rpartition("-")[2]
    kind = f"an upload in {parts} parts" if "-" in ref.etag and parts.isdigit() else "one upload"
    steps.ok("ETag", f"{ref.etag}, of {kind}" if is_s3(ref.root) else ref.etag)
    try:
        kept = await store.checksum(ref)
    except FeeddError as error:
        steps.failed("checksum", error)
        return
    if kept is None:
        upload = "upload with a checksum (aws s3 cp --checksum-algorithm CRC64NVME), so that feedd can verify the bytes"
        hint = upload if is_s3(ref.root) else "feedd pack writes a manifest with the SHA-256 of each shard"
        steps.note("checksum", "the store has none: answers are checked by length and ETag only", hint)
    else:
        of = f"of {len(kept.part_sizes)} parts" if kept.part_sizes else "of the whole object"
        steps.ok("checksum", f"{kept.algorithm}, {of}")


async def _first(store: ObjectStore, location: Location, steps: _Steps) -> ObjectRef | None:
    """Return the first non-empty object of a listing's first page, or the object itself."""
    if location.manifest:
        return await _itself(store, location, steps)
    try:
        page, took_ms = await _timed(_page(store, location.key))
    except FeeddError as error:
        steps.failed("listing", error)
        return None if location.key.endswith("/") or not location.key else await _itself(store, location, steps)
    if not page:
        steps.failed("listing", NotFound(f"no object's URL begins with {location.url}", hint=_SPELLING))
        return None
    more = " or more" if len(page) >= _PAGE else ""
    steps.ok("listing", f"{len(page)}{more} objects on the first page, in {took_ms:.0f} ms")
    return next((ref for ref in page if ref.size_bytes), page[0])


async def _itself(store: ObjectStore, location: Location, steps: _Steps) -> ObjectRef | None:
    """Return the object that the URL names, because credentials without list permission may still read it."""
    try:
        ref, took_ms = await _timed(store.head(location.key))
    except FeeddError as error:
        steps.failed("HEAD", error)
        return None
    steps.ok("HEAD", f"{format_size(ref.size_bytes)} in {took_ms:.0f} ms")
    return ref


async def _page(store: ObjectStore, prefix: str) -> list[ObjectRef]:
    from feedd.fetch.pages import closing_pages  # noqa: PLC0415 - see examine_url

    async with closing_pages(store.list(prefix)) as pages:
        return await anext(aiter(pages), [])


async def _timed(work: Awaitable[_T]) -> tuple[_T, float]:
    begin_s = time.perf_counter()
    found = await work
    return found, (time.perf_counter() - begin_s) * 1e3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: feedd check --config /etc/feedd/feedd.toml s3://bucket/train/")(check)
