"""Readers of SageMaker's FIFOs, which behave as the published ones do."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_READ_BYTES: Final = 64 << 10
_TIMEOUT_S: Final = 60.0


def whole(path: Path, *, wait_s: float = 30.0) -> bytes:
    """Read as PipeModeDataset does: wait until the FIFO exists, block in open, read 64 KiB at a time to the end."""
    deadline = time.monotonic() + wait_s
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)
    with path.open("rb", buffering=0) as fifo:
        return b"".join(iter(lambda: fifo.read(_READ_BYTES), b""))


def first_bytes(path: Path, count: int) -> bytes:
    """Read ``count`` bytes and close the FIFO."""
    with path.open("rb", buffering=0) as fifo:
        found = b""
        while len(found) < count and (piece := fifo.read(count - len(found))):
            found += piece
    return found


def as_mlio(path: Path) -> bytes:
    """Read as ml-io does.

    It opens the FIFO without blocking, three times at most, a second apart. It waits 60 s for data before it reads, and
    again when two reads in a row find none. A third such read is an error.
    """
    for attempt in range(3):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            if attempt == 2:
                raise
            time.sleep(1)
    try:
        _wait(fd)
        found = []
        while piece := _read(fd):
            found.append(piece)
        return b"".join(found)
    finally:
        os.close(fd)


def _read(fd: int) -> bytes:
    for attempt in range(3):
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            if attempt == 0:
                os.sched_yield()
            elif attempt == 1:
                _wait(fd)
            else:
                raise
    raise AssertionError("unreachable")


def _wait(fd: int) -> None:
    ready, _, _ = select.select([fd], [], [], _TIMEOUT_S)
    assert ready, "the FIFO timed out"


_READER = """
import sys
fifo = open(sys.argv[1], "rb", buffering=0)
fifo.read(int(sys.argv[2]))
print("reading", flush=True)
sys.stdin.read()
"""


def killed(path: Path, count: int) -> None:
    """Read up to ``count`` bytes in a process, and kill the process while it has the FIFO open."""
    command = [sys.executable, "-c", _READER, str(path), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.kill()
