"""Disks that misbehave: small ones, and faults put under the system calls of one directory."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def small_tmpfs(target: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs, or skip the test where that is not permitted."""
    target.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("mounting a small tmpfs needs root")
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs is not permitted here: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


@dataclass
class BadDisk:
    """Faults under a directory; memory is not touched.

    Attributes:
        write_errno: allocations fail with this; 0: they do not.
        read_errno: reads of entries fail with this; 0: they do not.
        refusals: how many allocations were refused.
        stuck: set when an allocation or a probe hangs.
        go: clear it to let allocations and probes hang until it is set.
    """

    write_errno: int = 0
    read_errno: int = 0
    refusals: int = 0
    stuck: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def probe(self) -> None:
        """Fail or hang as the disk does."""
        self._hang()
        code = self.write_errno or self.read_errno
        if code and code not in {errno.ENOSPC, errno.EDQUOT}:
            raise OSError(code, os.strerror(code))

    def _hang(self) -> None:
        if not self.go.is_set():
            self.stuck.set()
            self.go.wait(20)

    @contextlib.contextmanager
    def under(self, patch: pytest.MonkeyPatch) -> Iterator[BadDisk]:
        """Put it under the process."""
        allocate, read = os.posix_fallocate, os.preadv
        self.go.set()

        def bad_allocate(fd: int, offset: int, length: int) -> None:
            if not str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/memfd:"):
                self._hang()
                if self.write_errno:
                    self.refusals += 1
                    raise OSError(self.write_errno, os.strerror(self.write_errno))
            allocate(fd, offset, length)

        def bad_read(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            if self.read_errno:
                raise OSError(self.read_errno, os.strerror(self.read_errno))
            return read(fd, buffers, offset)

        with patch.context() as patched:
            patched.setattr(os, "posix_fallocate", bad_allocate)
            patched.setattr(os, "preadv", bad_read)
            yield self
