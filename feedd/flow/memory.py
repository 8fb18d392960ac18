"""Memory: what this process may still take, and the bound on the arenas of all sessions, with each owner's part."""

from __future__ import annotations

import mmap
import threading
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

from feedd import metrics
from feedd.errors import BadConfig, ResourceExhausted
from feedd.flow.control_groups import memory_left_bytes
from feedd.owner import Owner
from feedd.units import format_size

if TYPE_CHECKING:
    from feedd.protocols import Recorder

_ROOT = Path("/")
HINT = "ask for fewer prefetched batches or a smaller batch size, or raise the arena limit"
_HELD_HINT = f"{HINT}; the memory of a closed dataset counts until its batches are dropped"
_DAEMON = Owner.of_this_process()


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
