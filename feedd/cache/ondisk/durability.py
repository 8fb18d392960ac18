"""Which entries of an earlier run can be trusted after the machine went down. Blocking file work.

Fills are renamed into place without fsync, so a power cut can leave a good header over lost data. Headers therefore
name the boot and the run that wrote them. Within one boot the page cache is the truth. After another boot, only runs
that flushed the file system at their end count. ``<directory>/flushed`` lists those runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from feedd.cache import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.cache.entry_layout import Header

FLUSHED_NAME = "flushed"
_RUN_BYTES = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return 16 bytes that change when the kernel starts; zeros if the boot id cannot be read."""
    try:
        return bytes.fromhex(_BOOT_ID.read_text("ascii").strip().replace("-", ""))[:_RUN_BYTES].ljust(_RUN_BYTES, b"\0")
    except (OSError, ValueError):
        return bytes(_RUN_BYTES)


class RunLedger:
    """The runs whose data is known to be on the disk."""

    def __init__(self, directory: Path, boot: bytes | None = None) -> None:
        self._path = directory / FLUSHED_NAME
        self.boot = boot_id() if boot is None else boot
        self.run = secrets.token_bytes(_RUN_BYTES)
        self._flushed = frozenset(_read(self._path))

    def believes(self, header: Header) -> bool:
        """Whether the data under a good header is known to be what was written."""
        return self.holds(header.boot, header.run)

    def holds(self, boot: bytes, run: bytes) -> bool:
        """Whether the data that ``run`` wrote during ``boot`` is known to be on the disk."""
        return boot == self.boot or run in self._flushed

    def flush(self, seen_runs: Iterable[bytes]) -> None:
        """Flush the file system and list the runs whose entries still exist, this run included.

        Raises:
            CacheUnavailable: the flush failed; the list is unchanged then.
        """
        temp = self._path.with_name(f"{FLUSHED_NAME}.new")
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                sync_file_system(fd)
                os.write(fd, b"".join(run.hex().encode() + b"\n" for run in sorted({*seen_runs, self.run})))
                os.fsync(fd)
            finally:
                os.close(fd)
            temp.rename(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temp.unlink()
            raise os_errors.unavailable(error, self._path) from error


def _read(path: Path) -> list[bytes]:
    try:
        return [bytes.fromhex(line) for line in path.read_text("ascii").split()]
    except (OSError, ValueError):
        return []  # no earlier run is trusted then: more is fetched, nothing wrong is served


def sync_file_system(fd: int) -> None:
    """Write everything that the file system of a descriptor holds in memory to its disk. Blocks.

    Raises:
        OSError: the disk refused it.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # releases the interpreter lock while it waits
    if libc.syncfs(fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
