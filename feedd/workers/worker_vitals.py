"""Facts from the kernel about a worker: its own memory, and how long it waited for a core."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """Return a process's own memory in bytes, without mapped files and arenas; 0 if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    found = text.partition(b"RssAnon:")[2].split(maxsplit=1)
    return int(found[0]) * 1024 if found else 0


def run_and_wait_s(pid: int) -> tuple[float, float]:
    """Return the seconds a process ran, and the seconds it was ready but had no core; (0, 0) if unknown."""
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_bytes().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9
