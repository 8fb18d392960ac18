"""Memory: limits of control groups, what this process may still take, and the bound on the arenas of all sessions.

A container, a systemd unit or a Slurm job limits a control group that may be anywhere in the tree, in version 1 or 2. A
limit of a group above counts as well, so the lowest limit decides. Limits of CPU time are in the same tree.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from feedd import metrics
from feedd.errors import BadConfig, ResourceExhausted
from feedd.flow.mounts import unescaped
from feedd.owner import Owner
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.protocols import Recorder

_ROOT: Final = Path("/")
_SEARCHED_MAX: Final = 4096
"""Maximum folders to look into for a group whose path is hidden by a namespace."""
_KNOWN_FOR_S: Final = 10.0  # limits are read again after this time; what is in use is read each time
_UNLIMITED: Final = 1 << 60  # version 1 writes a number near 2**63
_LIMIT_FILES: Final = ("memory.max", "memory.high", "memory.limit_in_bytes")
_USAGE_FILES: Final = ("memory.current", "memory.usage_in_bytes")
# Version 1 writes the sums over the groups below with a prefix.
_FILE_PAGES: Final = (("inactive_file", "active_file"), ("total_inactive_file", "total_active_file"))
_OWN_PAGES: Final = ("anon", "total_rss")
HINT = "ask for fewer prefetched batches or a smaller batch size, or raise the arena limit"
_HELD_HINT = f"{HINT}; the memory of a closed dataset counts until its batches are dropped"
_DAEMON = Owner.of_this_process()


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy of control groups, as far as this process sees it.

    Attributes:
        top: path of the group at its top, as ``/proc/self/cgroup`` would show it.
        folder: folder of that group.
        own: path of this process's group.
    """

    top: str
    folder: Path
    own: str


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes that can be taken without waking the kernel's OOM killer, or None if unknown.

    Args:
        root: folder that holds ``proc`` and ``sys``.
    """
    known = [size for size in (_machine_bytes(root / "proc/meminfo"), memory_left_bytes(root)) if size is not None]
    return min(known) if known else None


def _machine_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """Return the lowest memory limit; None: there is no limit.

    Memory that other processes of the same group have taken for themselves is not part of the result. Pages of files
    and shared memory are, because the kernel or their owner may free them.
    """
    limits = [limit - _others_bytes(folder, root) for folder, limit in _limited(root)]
    return max(0, min(limits)) if limits else None


def memory_left_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes that can be taken below all limits; None: there is no limit.

    Pages of files count as left, because the kernel drops them first.
    """
    left = []
    for folder, limit in _limited(root):
        used = next((used for name in _USAGE_FILES if (used := _number(folder / name)) is not None), None)
        if used is not None:
            stat = _stat(folder)
            # Version 1 has both kinds of names; only one of them covers the groups below.
            plain, summed = (sum(stat.get(name, 0) for name in names) for names in _FILE_PAGES)
            left.append(limit - used + (summed or plain))
    return max(0, min(left)) if left else None


def cpu_limit(root: Path = _ROOT) -> float | None:
    """Return the lowest limit of CPU time, in cores; None: there is no limit."""
    found = []
    for folder in _groups("cpu", root):
        words = _text(folder / "cpu.max").split() or [
            _text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[0]) and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def oom_kills(root: Path = _ROOT) -> int:
    """Return how many processes of this process's memory group were killed because the group was out of memory."""
    counts = [0]
    for folder in _groups("memory", root)[:1]:
        for name in ("memory.events", "memory.oom_control"):
            counts += [
                int(words[1])
                for line in _text(folder / name).splitlines()
                if len(words := line.split()) == 2 and words[0] == "oom_kill" and words[1].isdecimal()
            ]
    return max(counts)


def _limited(root: Path) -> list[tuple[Path, int]]:
    """Return each limit of memory with the folder of its group."""
    return _limits(root, int(time.monotonic() / _KNOWN_FOR_S))


@lru_cache(2)
def _limits(root: Path, _period: int) -> list[tuple[Path, int]]:
    found = []
    files = [folder / name for folder in _groups("memory", root) for name in _LIMIT_FILES]
    for path in files:
        limit = _number(path)
        if limit is not None:
            found.append((path.parent, limit))
    # Version 1 names the lowest limit of all groups above, also of those that a container hides.
    for path in [path for path in files if path.name == _LIMIT_FILES[-1] and _is_there(path)][:1]:
        limit = _stat(path.parent).get("hierarchical_memory_limit")
        if limit is not None:
            found.append((path.parent, limit))
    return [(folder, limit) for folder, limit in found if limit < _UNLIMITED]


def _others_bytes(folder: Path, root: Path) -> int:
    """Return the memory that other processes of a group, and of the groups below, have taken for themselves."""
    stat = _stat(folder)
    own_bytes = 0
    for line in _text(root / "proc/self/status").splitlines():
        if line.startswith("RssAnon:"):
            own_bytes = int(line.split()[1]) * 1024
    return max(0, max(stat.get(name, 0) for name in _OWN_PAGES) - own_bytes)


def _groups(controller: str, root: Path) -> list[Path]:
    """Return the folders of this process's groups and of all groups above, own groups first."""
    known = list(_mounts(controller, root))
    folders = [folder for mount in known for folder in _below(mount)] or [mount.folder for mount in known]
    return list(dict.fromkeys(folders)) or [root / "sys/fs/cgroup", root / "sys/fs/cgroup" / controller]


def _mounts(controller: str, root: Path) -> Iterator[_Mount]:
    """Yield the hierarchies that may limit a controller."""
    paths = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if not controllers:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in paths:
            continue
        if kind[0] == "cgroup2" or controller in kind[2].split(","):
            folder = root / unescaped(fields[4]).lstrip("/")
            yield _Mount(unescaped(fields[3]), folder, paths[kind[0]])


def _below(mount: _Mount) -> list[Path]:
    """Return the folder of this process's group and of those above, as far as the mount shows them."""
    top, own = PurePosixPath(mount.top), PurePosixPath(mount.own)
    if ".." not in own.parts and own.is_relative_to(top):
        group = mount.folder / own.relative_to(top)
    elif ".." in top.parts:  # the namespace is younger than the mount, and hides the names between them
        group = _search(mount.folder, top.parts.count("..")) or mount.folder
    else:
        return []
    folders = [group, *group.parents]
    return [folder for folder in folders if folder.is_relative_to(mount.folder) and _is_there(folder)]


def _search(folder: Path, depth: int) -> Path | None:
    """Return the folder at most this far below that holds this process; None: not found within the bound."""
    pid = str(os.getpid())
    levels = (folder.glob("/".join(["*"] * (level + 1)) + "/") for level in range(depth))
    for below in itertools.islice(itertools.chain.from_iterable(levels), _SEARCHED_MAX):
        if pid in _text(below / "cgroup.procs").split():
            return below
    return None


def _stat(folder: Path) -> dict[str, int]:
    lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max": no limit


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:  # also where this user may not look
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


class CountedMap(mmap.mmap):
    """A mapping whose bytes go back to a budget when its last view is collected.

    Attributes:
        owner: whose bytes they are.
        returns: gets size and owner then; None: they do not count.
    """

    owner = _DAEMON
    returns: deque[tuple[int, Owner]] | None = None
    size_bytes = 0

    def __del__(self) -> None:
        # It may run inside any call of this thread, also while the budget's guard is held: it only leaves a note.
        if self.returns is not None:
            self.returns.append((self.size_bytes, self.owner))


class ArenaBudget:
    """Bound on the bytes of all arenas together. Thread-safe, because arenas are allocated off the event loop.

    A closed arena counts until the last client has unmapped the memory.
    """

    def __init__(self, limit_bytes: int, recorder: Recorder | None = None, *, per_owner_bytes: int = 0) -> None:
        """Start empty.

        Args:
            limit_bytes: upper bound of the reserved bytes.
            per_owner_bytes: upper bound of the bytes reserved for one owner; 0: ``limit_bytes``.
            recorder: has the gauge of arena bytes, which always shows the bytes reserved here.
        """
        self._limit_bytes = limit_bytes
        self._recorder = recorder
        self._per_owner_bytes = per_owner_bytes or limit_bytes
        self._reserved_bytes = 0
        self._by_owner: Counter[Owner] = Counter()
        self._guard = threading.Lock()
        self._collected: deque[tuple[int, Owner]] = deque()

    @property
    def limit_bytes(self) -> int:
        """The upper bound in bytes."""
        return self._limit_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all arenas that the daemon or a client maps."""
        with self._guard:
            self._settle()
        return self._reserved_bytes

    def of(self, owner: Owner) -> OwnerBudget:
        """Return the budget as one owner may use it."""
        return OwnerBudget(self, owner)

    def reserve(self, size_bytes: int, owner: Owner = _DAEMON) -> None:
        """Reserve ``size_bytes`` for an owner; return them with ``release``.

        Raises:
            BadConfig: they can never fit.
            ResourceExhausted: they do not fit now, next to the bytes already reserved.
        """
        most_bytes = min(self._limit_bytes, self._per_owner_bytes)
        if size_bytes > most_bytes:
            raise BadConfig(
                f"expected an arena of at most {format_size(most_bytes)}, got {format_size(size_bytes)}",
                object="arena.size" if most_bytes == self._limit_bytes else "limits.arena_per_owner",
                hint=HINT,
                stage="serve",
            )
        with self._guard:
            self._settle()
            if self._reserved_bytes + size_bytes > self._limit_bytes:
                raise ResourceExhausted(
                    f"expected an arena of at most {format_size(self._limit_bytes - self._reserved_bytes)} "
                    f"(limit {format_size(self._limit_bytes)}, in use {format_size(self._reserved_bytes)}), "
                    f"got {format_size(size_bytes)}",
                    hint=_HELD_HINT,
                    stage="serve",
                )
            if self._by_owner[owner] + size_bytes > self._per_owner_bytes:
                raise ResourceExhausted(
                    f"expected an arena of at most {format_size(self._per_owner_bytes - self._by_owner[owner])} "
                    f"(limit of {owner} {format_size(self._per_owner_bytes)}), got {format_size(size_bytes)}",
                    object="limits.arena_per_owner",
                    hint=_HELD_HINT,
                    stage="serve",
                )
            self._move(size_bytes, owner)

    def release(self, size_bytes: int, owner: Owner = _DAEMON) -> None:
        """Return reserved bytes."""
        with self._guard:
            self._settle()
            self._return(size_bytes, owner)

    def release_with(self, memory: CountedMap, owner: Owner = _DAEMON) -> None:
        """Return the bytes of reserved memory once its last view is collected."""
        memory.owner, memory.size_bytes, memory.returns = owner, len(memory), self._collected

    def _settle(self) -> None:
        """Return the bytes of collected memory."""
        while self._collected:
            self._return(*self._collected.popleft())

    def _return(self, size_bytes: int, owner: Owner) -> None:
        self._move(-size_bytes, owner)
        assert self._by_owner[owner] >= 0, "more arena bytes released than reserved"
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def _move(self, delta_bytes: int, owner: Owner) -> None:
        self._reserved_bytes += delta_bytes
        self._by_owner[owner] += delta_bytes
        if self._recorder is not None:
            self._recorder.move(metrics.SERVE_ARENA_BYTES, delta_bytes)


class OwnerBudget:
    """An ``ArenaBudget`` as one owner may use it."""

    def __init__(self, whole: ArenaBudget, owner: Owner) -> None:
        self._whole = whole
        self.owner = owner

    def reserve(self, size_bytes: int) -> None:
        """Reserve bytes; see ``ArenaBudget.reserve``."""
        self._whole.reserve(size_bytes, self.owner)

    def release(self, size_bytes: int) -> None:
        """Return reserved bytes."""
        self._whole.release(size_bytes, self.owner)

    def release_with(self, memory: CountedMap) -> None:
        """Return the bytes of reserved memory once its last view is collected."""
        self._whole.release_with(memory, self.owner)
