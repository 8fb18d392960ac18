"""Checks whether this machine can serve the configuration: one finding per question. Changes nothing."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import resource
import socket
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache.cache import RETRY_S
from feedd.cache.inspection import disk_bytes
from feedd.cache.lock import DirectoryLock, check_private
from feedd.cache.os_errors import is_full, may_pass, unavailable
from feedd.cache.recovery import limit_bytes
from feedd.cli.hugepages import lacks_huge_pages
from feedd.config.machine_defaults import default_workers, existing_parent, memory_bytes, network_gbits, usable_cores
from feedd.config.types import UNIX_PREFIX, lane_address
from feedd.daemon.wiring import cache_options
from feedd.errors import CacheUnavailable, Unsupported
from feedd.fetch.part_sizes import PartSize
from feedd.flow import mounts
from feedd.flow.sink_file import memory_file
from feedd.lanes.lane import Lane
from feedd.units import MIB, format_duration, format_size, parse_host_port
from feedd.workers import sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.config import Config

NOFILE_WANTED = 4096  # connections, cache files and arenas of a busy node, with some reserve


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


def examine(config: Config) -> list[Finding]:
    """Answer every question, in the order of the daemon's start."""
    return [*_cache(config), *_listen(config), *_process(config), _sandbox(config)]


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
