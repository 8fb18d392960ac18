"""Defaults that depend on the machine: shares of its disk and memory."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

CACHE_SHARE = 0.5  # of the file system the cache lies on
ARENA_SHARE = 0.25  # of the memory this process may use
MEMORY_CACHE_SHARE = 0.4  # of that memory, where the cache's directory is memory too
BYPASS_SHARE = 0.1  # of that memory, for shards while the disk cannot be used
WORKERS_SHARE = 0.25  # of that memory, for decode workers
IN_FLIGHT_SHARE = 0.125  # of that memory, for bytes asked for and not yet received
PART_BYTES = 16 * MIB  # of the largest parts
PARTS_MIN, PARTS_MAX = 16, 256
PARTS_PER_GBIT = 1.6  # one connection to S3 brings some 80 MB/s
PARTS_PER_CORE = 2  # where the network card does not say how fast it is, as virtual ones do not
CORES_PER_TRANSFER_THREAD = 8
WORKER_BYTES = 128 * MIB  # a decode worker that decodes images, with room
_MOUNTS = Path("/proc/self/mounts")
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_CGROUPS = Path("/sys/fs/cgroup")
_DEVICES = Path("/dev")
_INTERFACES = Path("/sys/class/net")
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def existing_parent(path: Path) -> Path:
    """Return ``path`` or the nearest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or less where a control group says so."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def is_in_memory(directory: Path) -> bool:
    """Tell whether ``directory`` lies on a file system that takes memory."""
    place = existing_parent(directory).resolve()
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    found = Path("/"), ""
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        mounted = Path(point.encode("utf-8", "surrogateescape").decode("unicode_escape"))  # a space stands as \\040
        if place.is_relative_to(mounted) and len(mounted.parts) >= len(found[0].parts):
            found = mounted, kind
    return found[1] in _MEMORY_FILE_SYSTEMS


def default_cache_bytes(directory: Path) -> int:
    """Return half of the file system ``directory`` lies on, whole GiB where it is that large.

    If the file system is memory: at most a share of the memory that this process may use. A process that runs out of
    memory is killed; it gets no error of a full disk. Never less than the option allows. 1 GiB if the file system
    tells no size.
    """
    try:
        disk = os.statvfs(existing_parent(directory))
    except OSError:
        return GIB  # unreadable: the cache itself will say so when it opens the directory
    if not disk.f_blocks:
        return GIB
    share = max(MIB, int(disk.f_blocks * disk.f_frsize * CACHE_SHARE))
    if is_in_memory(directory):
        share = min(share, int(memory_bytes() * MEMORY_CACHE_SHARE))
    return share - share % GIB if share >= GIB else share


def default_bypass_bytes() -> int:
    """Return 1 GiB, or a tenth of the memory where that is less."""
    return min(GIB, int(memory_bytes() * BYPASS_SHARE))


def default_arena_bytes() -> int:
    """Return a quarter of the memory, whole GiB where it is that large."""
    share = int(memory_bytes() * ARENA_SHARE)
    return share - share % GIB if share >= GIB else share


def usable_cpus() -> frozenset[int]:
    """Return the cores that a process started by this one can be given, whatever this one is held to itself."""
    found: list[frozenset[int]] = []

    def ask() -> None:
        every = range(os.cpu_count() or 1)
        with contextlib.suppress(OSError):  # the kernel takes from it what a control group withholds
            os.sched_setaffinity(0, every)  # of this thread alone, which ends here
        found.append(frozenset(os.sched_getaffinity(0)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def usable_cores() -> int:
    """Return the cores this process may use: by affinity, or less where a control group gives less time."""
    cores = len(os.sched_getaffinity(0))
    for quota, period in _cpu_quotas():
        if quota > 0 and period > 0:
            cores = min(cores, max(1, quota // period))
    return cores


def _cpu_quotas() -> Iterator[tuple[int, int]]:
    """Yield quota and period, in us, of this process's control groups; those without a limit are left out."""
    folders = [_CGROUPS]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::/"):  # version 2; each group above limits it, too
                own = _CGROUPS / line.removeprefix("0::/")
                folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(_CGROUPS)]
    for folder in folders:
        words = _words(folder / "cpu.max")
        if len(words) == 2 and words[0].isdecimal():
            yield int(words[0]), int(words[1])
    first = [_words(_CGROUPS / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if all(words and words[0].isdecimal() for words in first):  # version 1; -1: no limit
        yield int(first[0][0]), int(first[1][0])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def trainer_count() -> int:
    """Return how many trainers to leave a core to: one per NVIDIA GPU, and one where there is none."""
    try:
        names = [path.name for path in _DEVICES.iterdir()]
    except OSError:
        names = []
    return max(1, sum(name.startswith("nvidia") and name.removeprefix("nvidia").isdecimal() for name in names))


def default_workers_max(cpus: Collection[int]) -> int:
    """Return the most decode workers: one per core that no trainer needs, as far as memory goes.

    Args:
        cpus: cores that workers are pinned to, which are theirs; none: all but one core per trainer.
    """
    cores = len(cpus) if cpus else usable_cores() - trainer_count()
    return max(1, min(cores, int(memory_bytes() * WORKERS_SHARE / WORKER_BYTES)))


def default_workers(most: int) -> int:
    """Return the workers to begin with, of ``most``: some on any machine, so that a first batch need not wait."""
    return min(most, 2 + most // 8)


def network_gbits() -> float | None:
    """Return how fast the fastest network card is, in Gbit/s; None: none says, as virtual ones mostly do not."""
    speeds = [0]
    with contextlib.suppress(OSError):
        for interface in _INTERFACES.iterdir():
            words = _words(interface / "speed")
            if (interface / "device").exists() and _words(interface / "operstate") == ["up"] and words:
                speeds += [int(word) for word in words if word.isdecimal()]  # -1: it does not know
    return max(speeds) / 1000 or None


def default_parts_in_flight() -> int:
    """Return the most parts in flight: as many as fill the network card, at 80 MB/s each.

    More are used only as far as they bring more; see ``ConcurrencyLimit``.
    """
    gbits = network_gbits()
    wanted = usable_cores() * PARTS_PER_CORE if gbits is None else int(gbits * PARTS_PER_GBIT)
    return max(PARTS_MIN, min(wanted, PARTS_MAX))


def default_bytes_in_flight(parts_in_flight: int) -> int:
    """Return room for so many of the largest parts, as far as an eighth of the memory goes; never less than 256 MiB."""
    share = int(memory_bytes() * IN_FLIGHT_SHARE)
    return max(PARTS_MIN * PART_BYTES, min(parts_in_flight * PART_BYTES, share - share % PART_BYTES))


def default_transfer_threads() -> int:
    """Return how many threads move bodies into files: two, or one for every eight cores where that is more."""
    cores = usable_cores()
    return max(min(cores, 2), cores // CORES_PER_TRANSFER_THREAD)
