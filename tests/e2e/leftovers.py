"""What a test may leave in shared memory: nothing."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_OURS = ("feedd", "torch_", "psm_", "sem.", "mp-")  # what this package, torch and Python would leave in /dev/shm
_BENCHES = "feedd-bench-"  # directories of benches that run beside the tests


def shared_memory() -> tuple[set[str], int]:
    """Suspicious names in /dev/shm, and how many of our memfds this process and its descendants still hold."""
    memfds = set()
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                if "memfd:feedd" in os.readlink(fd):  # noqa: PTH115 - the link's text is wanted, not its target
                    memfds.add(fd.stat().st_ino)
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if "memfd:feedd" in line:
                    memfds.add(int(line.split()[4]))
        except OSError:
            continue
    names = {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(_OURS)}
    return {name for name in names if not name.startswith(_BENCHES)}, len(memfds)
