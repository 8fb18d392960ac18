"""Defaults that depend on the machine: shares of its disk and memory."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.flow.memory import cpu_limit, memory_limit_bytes
from feedd.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Collection

CACHE_SHARE = 0.5  # of the file system that holds the cache
ARENA_SHARE = 0.25  # of the memory this process may use
MEMORY_CACHE_SHARE = 0.4  # of that memory, if the cache's directory is in memory too
BYPASS_SHARE = 0.1  # of that memory, for shards while the disk cannot be used
WORKERS_SHARE = 0.25  # of that memory, for decode workers
IN_FLIGHT_SHARE = 0.125  # of that memory, for bytes requested and not yet received
PART_BYTES = 16 * MIB  # size of the largest parts
PARTS_MIN, PARTS_MAX = 16, 256
PARTS_PER_GBIT = 1.6  # one connection to S3 carries about 80 MB/s
PARTS_PER_CORE = 2  # if the network card does not report its speed; virtual cards do not
CORES_PER_TRANSFER_THREAD = 8
WORKER_BYTES = 128 * MIB  # memory of a worker that decodes images, with some reserve
_MOUNTS = Path("/proc/self/mounts")
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_ROOT = Path("/")
_DEVICES = Path("/dev")
_INTERFACES = Path("/sys/class/net")


def existing_parent(path: Path) -> Path:
    """Return ``path`` or the nearest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or what its control groups leave if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes(_ROOT)
    return total if limit is None else min(total, limit)


def is_in_memory(directory: Path) -> bool:
    """Return whether ``directory`` is on a file system that is kept in memory (tmpfs or ramfs)."""
    place = existing_parent(directory).resolve()
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    found = Path("/"), ""
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        mounted = Path(point.encode("utf-8", "surrogateescape").decode("unicode_escape"))  # a space is written \\040
        if place.is_relative_to(mounted) and len(mounted.parts) >= len(found[0].parts):
            found = mounted, kind
    return found[1] in _MEMORY_FILE_SYSTEMS


def default_cache_bytes(directory: Path) -> int:
    """Return half of the size of ``directory``'s file system, in whole GiB if that is at least 1 GiB.

    On a file system in memory the result is at most a share of the memory that this process may use. A process that
    runs out of memory is killed, and gets no error of a full disk. The result is at least the option's minimum. It is
    1 GiB if the file system reports no size.
    """
    try:
        disk = os.statvfs(existing_parent(directory))
    except OSError:
        return GIB  # unreadable: the cache reports it when it opens the directory
    if not disk.f_blocks:
        return GIB
    share = max(MIB, int(disk.f_blocks * disk.f_frsize * CACHE_SHARE))
    if is_in_memory(directory):
        share = min(share, int(memory_bytes() * MEMORY_CACHE_SHARE))
    return share - share % GIB if share >= GIB else share


def default_bypass_bytes() -> int:
    """Return 1 GiB, or a tenth of the memory if that is less."""
    return min(GIB, int(memory_bytes() * BYPASS_SHARE))


def default_arena_bytes() -> int:
    """Return a quarter of the memory, in whole GiB if that is at least 1 GiB."""
    share = int(memory_bytes() * ARENA_SHARE)
    return share - share % GIB if share >= GIB else share


def usable_cpus() -> frozenset[int]:
    """Return the cores that a child process may use, even if this process is pinned to fewer."""
    found: list[frozenset[int]] = []

    def ask() -> None:
        every = range(os.cpu_count() or 1)
        with contextlib.suppress(OSError):  # the kernel ignores cores that a control group withholds
            os.sched_setaffinity(0, every)  # applies only to this thread, which ends here
        found.append(frozenset(os.sched_getaffinity(0)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def usable_cores() -> int:
    """Return the number of cores this process may use: by affinity, or fewer if a control group limits CPU time."""
    cores = len(os.sched_getaffinity(0))
    limit = cpu_limit(_ROOT)
    return cores if limit is None else min(cores, max(1, int(limit)))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def trainer_count() -> int:
    """Return the number of trainers to leave a core for: one per NVIDIA GPU, and one without GPUs."""
    return max(1, gpu_count())


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs."""
    try:
        names = [path.name for path in _DEVICES.iterdir()]
    except OSError:
        names = []
    return sum(name.startswith("nvidia") and name.removeprefix("nvidia").isdecimal() for name in names)


def default_workers_max(cpus: Collection[int]) -> int:
    """Return the maximum number of decode workers: one per core that no trainer needs, limited by memory.

    Args:
        cpus: cores that workers are pinned to; all of them belong to workers. Empty: all but one core per trainer.
    """
    cores = len(cpus) if cpus else usable_cores() - trainer_count()
    return max(1, min(cores, int(memory_bytes() * WORKERS_SHARE / WORKER_BYTES)))


def default_worker_bytes() -> int:
    """Return 2 GiB, or a quarter of the memory if that is less; at least 512 MiB."""
    return max(512 * MIB, min(2 * GIB, int(memory_bytes() * WORKERS_SHARE)))


def default_workers(most: int) -> int:
    """Return the number of workers to start with: two or more if ``most`` allows, so a first batch need not wait."""
    return min(most, 2 + most // 8)


def network_gbits() -> float | None:
    """Return the speed of the fastest network card in Gbit/s; None if no card reports it (most virtual ones do not)."""
    speeds = [0]
    with contextlib.suppress(OSError):
        for interface in _INTERFACES.iterdir():
            words = _words(interface / "speed")
            if (interface / "device").exists() and _words(interface / "operstate") == ["up"] and words:
                speeds += [int(word) for word in words if word.isdecimal()]  # -1: unknown speed
    return max(speeds) / 1000 or None


def default_parts_in_flight() -> int:
    """Return the maximum number of parts in flight: as many as fill the network card, at 80 MB/s each.

    The daemon uses this many only while more parts raise the throughput; see ``ConcurrencyLimit``.
    """
    gbits = network_gbits()
    wanted = usable_cores() * PARTS_PER_CORE if gbits is None else int(gbits * PARTS_PER_GBIT)
    return max(PARTS_MIN, min(wanted, PARTS_MAX))


def default_bytes_in_flight(parts_in_flight: int) -> int:
    """Return bytes for this many of the largest parts: at most an eighth of the memory, at least 256 MiB."""
    share = int(memory_bytes() * IN_FLIGHT_SHARE)
    return max(PARTS_MIN * PART_BYTES, min(parts_in_flight * PART_BYTES, share - share % PART_BYTES))


def default_transfer_threads() -> int:
    """Return the number of threads that move bodies into files: two, or one per eight cores if that is more."""
    cores = usable_cores()
    return max(min(cores, 2), cores // CORES_PER_TRANSFER_THREAD)
