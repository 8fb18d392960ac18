"""Which files of a channel are whole, and of which version each object was. Blocking file work.

A text of JSON lines, outside of the channel's directory. A line is an object that begins a section, or an array for a
file: path, URL, ETag, size, time of the last change in nanoseconds, inode.

Files are renamed into their places without fsync. A power cut can leave a file of the right length without its bytes. A
section therefore names the boot in which its files were written. The empty boot stands for files that were flushed.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from feedd.cache.recovery import boot_id, sync_file_system

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from feedd.values import ObjectRef

_FLUSHED: Final = ""
_FIELD_COUNT: Final = 6


class FileStamp(NamedTuple):
    """What tells a file from its changed or replaced successor."""

    size_bytes: int
    changed_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """Return the stamp of a file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class FileRecord(NamedTuple):
    """A file that was whole: its object's version, and its stamp."""

    url: str
    etag: str
    stamp: FileStamp

    def holds(self, ref: ObjectRef) -> bool:
        """Whether the file held this version of this object."""
        return (self.url, self.etag, self.stamp.size_bytes) == (ref.url, ref.etag, ref.size_bytes)


class FileJournal:
    """The journal of one channel.

    Args:
        path: its file.
        boot: names the kernel's boot; None: the running one.
    """

    def __init__(self, path: Path, boot: str | None = None) -> None:
        self._path = path
        self._boot = boot_id().hex() if boot is None else boot
        self._fd = -1

    def read(self) -> dict[str, FileRecord]:
        """Return the records that can be believed, by path; broken lines are left out."""
        records: dict[str, FileRecord] = {}
        believed = False
        try:
            with self._path.open(encoding="ascii", errors="replace") as lines:
                for line in lines:
                    entry = _parsed(line)
                    if isinstance(entry, str):
                        believed = entry in {_FLUSHED, self._boot}
                    elif entry is not None and believed:
                        records[entry[0]] = entry[1]
        except FileNotFoundError:
            pass
        return records

    def begin(self) -> None:
        """Open the journal for records of this run.

        Raises:
            OSError: it cannot be written.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o644)
        os.write(self._fd, f"\n{_head(self._boot)}\n".encode())  # a torn last line ends here

    def add(self, path: str, record: FileRecord) -> None:
        """Record a file that is whole and has its name.

        Raises:
            OSError: the journal cannot be written.
        """
        os.write(self._fd, f"{_line(path, record)}\n".encode("ascii"))

    def settle(self, records: Iterable[tuple[str, FileRecord]], folder: Path) -> None:
        """Flush the file system of ``folder``, which holds the files, and replace the journal by these records.

        Raises:
            OSError: a disk failed; the journal is unchanged then.
        """
        temp = self._path.with_name(f"{self._path.name}.new")
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_file_system(fd)
            finally:
                os.close(fd)
            with contextlib.suppress(FileNotFoundError):  # of a process that was killed
                temp.unlink()
            with temp.open("x", encoding="ascii") as text:
                text.write(f"{_head(_FLUSHED)}\n")
                text.writelines(f"{_line(path, record)}\n" for path, record in records)
                text.flush()
                os.fsync(text.fileno())
            temp.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                temp.unlink()

    def close(self) -> None:
        """Close the journal; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _head(boot: str) -> str:
    return json.dumps({"boot": boot})


def _line(path: str, record: FileRecord) -> str:
    return json.dumps([path, record.url, record.etag, *record.stamp])


def _parsed(line: str) -> tuple[str, FileRecord] | str | None:
    """Return a path and its record, or the boot of a section; None: the line is broken."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if isinstance(entry, dict):
        return str(entry.get("boot"))
    if not isinstance(entry, list) or len(entry) != _FIELD_COUNT or not all(isinstance(one, int) for one in entry[3:]):
        return None
    path, url, etag, *stamp = entry
    return str(path), FileRecord(str(url), str(etag), FileStamp(*stamp))
