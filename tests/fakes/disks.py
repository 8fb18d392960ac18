"""Disks that misbehave: small ones, and faults put under the system calls of one directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def small_tmpfs(target: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs, or skip the test where that is not permitted."""
    target.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("needs root, to mount a small tmpfs")
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small tmpfs: {done.stderr.strip()}")
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
            self.go.wait(PATIENT_S)

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
            name = Path(f"/proc/self/fd/{fd}").readlink().name
            if self.read_errno and not entry_layout.is_temp_name(name):  # what was just written is in memory still
                raise OSError(self.read_errno, os.strerror(self.read_errno))
            return read(fd, buffers, offset)

        with patch.context() as patched:
            patched.setattr(os, "posix_fallocate", bad_allocate)
            patched.setattr(os, "preadv", bad_read)
            yield self


_LATE_S = 10.0


@dataclass
class HeldWrites:
    """Writes to files below one folder do not end after ``hang``, until ``recover``, as on a disk that hangs.

    Attributes:
        overdue: a write was held until the fake lost its patience: somebody waited for it who should have gone on.
    """

    folder: Path
    overdue: bool = False
    _stuck: threading.Event = field(default_factory=threading.Event)
    _go: threading.Event = field(default_factory=threading.Event)

    def hang(self) -> None:
        """Hold all writes from here on."""
        self._go.clear()

    def recover(self) -> None:
        """Let them end."""
        self._go.set()

    def holds_a_write(self) -> bool:
        """Whether one is held, or was."""
        return self._stuck.is_set()

    def _hold(self, fd: int) -> None:
        if not self._go.is_set() and str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(str(self.folder)):
            self._stuck.set()
            if not self._go.wait(_LATE_S):
                self.overdue = True

    @contextlib.contextmanager
    def under(self, patch: pytest.MonkeyPatch) -> Iterator[HeldWrites]:
        """Put it under the process, and let go of everything in the end."""
        self.recover()
        splice, pwrite, pwritev = os.splice, os.pwrite, os.pwritev

        def held_splice(src: int, dst: int, count: int, **how: int) -> int:
            if "offset_dst" in how:
                self._hold(dst)
            return splice(src, dst, count, **how)

        def held_pwrite(fd: int, data: bytes, at: int) -> int:
            self._hold(fd)
            return pwrite(fd, data, at)

        def held_pwritev(fd: int, data: Sequence[bytes], at: int) -> int:
            self._hold(fd)
            return pwritev(fd, data, at)

        with patch.context() as patched:
            patched.setattr(os, "splice", held_splice)
            patched.setattr(os, "pwrite", held_pwrite)
            patched.setattr(os, "pwritev", held_pwritev)
            try:
                yield self
            finally:
                self.recover()


_FREEZE, _THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW of linux/fs.h


class FrozenDisk:
    """A real file system, ext4 on a loop device, that the kernel lets nobody write to: writers wait in the kernel.

    Attributes:
        folder: where it is mounted.
        overdue: it was thawed because the test's patience was at its end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.overdue = False
        self._top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._timer: threading.Timer | None = None

    def hang(self, at_most_s: float = _LATE_S) -> None:
        """Freeze it, for no longer than that."""
        fcntl.ioctl(self._top, _FREEZE, 0)
        self._timer = threading.Timer(at_most_s, self._late)
        self._timer.start()

    def recover(self) -> None:
        """Thaw it."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            timer.join()
        if not self.overdue and timer is not None:
            fcntl.ioctl(self._top, _THAW, 0)

    def holds_a_write(self) -> bool:
        """Whether a thread of this process waits in the kernel."""
        stats = [path.read_text() for path in Path("/proc/self/task").glob("*/stat")]
        return any(stat.rpartition(")")[2].split()[0] == "D" for stat in stats)

    def close(self) -> None:
        """Thaw it, and let go of it."""
        self.recover()
        os.close(self._top)

    def _late(self) -> None:
        self.overdue = True
        fcntl.ioctl(self._top, _THAW, 0)


@contextlib.contextmanager
def frozen_disk(folder: Path, size_bytes: int = 64 << 20) -> Iterator[FrozenDisk]:
    """Make and mount one, or skip the test where that is not permitted."""
    tools = [shutil.which(name) for name in ("mkfs.ext4", "mount", "umount")]
    if os.geteuid() != 0 or not all(tools):
        pytest.skip("needs root, mkfs.ext4 and mount, for a file system that can be frozen")
    image, target = folder / "image", folder / "mounted"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, capture_output=True)
    done = subprocess.run(
        ["mount", "-t", "ext4", "-o", "loop", str(image), str(target)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount a loop device: {done.stderr.strip()}")
    try:
        with contextlib.closing(FrozenDisk(target)) as disk:
            yield disk
    finally:
        subprocess.run(["umount", str(target)], check=True)
