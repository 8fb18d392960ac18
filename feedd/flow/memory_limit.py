"""How much memory this process may still take: the machine's, or its control group's if that is less."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def _machine_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_bytes(cgroup: Path) -> int | None:
    """Return the bytes left under the group's limit; file pages count as left, because the kernel drops them first."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return None
    reclaimable = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
    return max(0, int(limit) - used + reclaimable)


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that can be taken without waking the kernel's OOM killer, or None if unknown.

    Args:
        meminfo: file in the format of ``/proc/meminfo``.
        cgroup: directory of this process's version 2 control group.
    """
    known = [size for size in (_machine_bytes(meminfo), _cgroup_bytes(cgroup)) if size is not None]
    return min(known) if known else None
