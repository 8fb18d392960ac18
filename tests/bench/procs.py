"""CPU time and memory of a tree of processes, read from /proc; standard library only, since peers' arms use it too."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    cpu_s: float  # its own and that of the children it has waited for


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except OSError:
            continue  # ended between listing and reading
        fields = text[text.rindex(")") + 2 :].split()
        found[int(entry.name)] = _Process(int(fields[1]), sum(int(value) for value in fields[11:15]) / _TICKS_PER_S)
    return found


def descendants(pid: int) -> list[int]:
    """Living children of ``pid``, and theirs."""
    processes = _processes()
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, process in processes.items() if process.parent == parent]
        found += children
        todo += children
    return found


def tree_cpu_s() -> float:
    """CPU seconds spent so far by this process, its living descendants, and all it has waited for."""
    processes = _processes()
    living = sum(processes[pid].cpu_s for pid in descendants(os.getpid()) if pid in processes)
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    return own + living


def cpu_s_of(pids: Iterable[int]) -> float:
    """CPU seconds spent so far by these processes and the children they have waited for."""
    processes = _processes()
    return sum(processes[pid].cpu_s for pid in pids if pid in processes)


def thread_cpu_s(pid: int) -> float:
    """CPU seconds spent so far by the main thread of a process, which runs a daemon's event loop."""
    return _own_cpu_s(Path(f"/proc/{pid}/task/{pid}/stat"))


def process_cpu_s(pid: int) -> float:
    """CPU seconds spent so far by all threads of a process, without its children."""
    return _own_cpu_s(Path(f"/proc/{pid}/stat"))


def _own_cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def stolen_s() -> float:
    """CPU seconds of all cores that this machine's host took for itself since it started; 0 where it has none."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / _TICKS_PER_S


def memory_of(pids: Iterable[int]) -> tuple[int, int]:
    """Sum of PSS and of anonymous PSS, in bytes. Files on tmpfs count only where they are mapped."""
    total = anonymous = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # ended meanwhile
        for line in lines:
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
            elif line.startswith("Pss_Anon:"):
                anonymous += int(line.split()[1]) * 1024
    return total, anonymous


def resident_beyond_shared_bytes(pids: Iterable[int]) -> int:
    """Sum of resident memory that is no shared memory: files on tmpfs, the cache among them, do not count."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue  # ended meanwhile
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssFile:")))
    return total


@dataclass(slots=True)
class MemoryPeak:
    """The highest values seen."""

    pss_bytes: int = 0
    anonymous_bytes: int = 0
    resident_bytes: int = 0

    def take(self, sample: tuple[int, int]) -> None:
        """Keep what is higher."""
        self.pss_bytes = max(self.pss_bytes, sample[0])
        self.anonymous_bytes = max(self.anonymous_bytes, sample[1])
