"""The directory of a channel: which files are there, which are missing, and how new ones get there. Blocking file work.

A file is written in a folder for partial files and renamed when it is whole. So a file with its final name is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from feedd.errors import BadRequest, FeeddError, PermissionDenied, ResourceExhausted, StoreUnavailable
from feedd.file_mode.file_journal import FileJournal, FileRecord, FileStamp
from feedd.file_mode.file_paths import PARTIAL_FOLDER
from feedd.flow.sink_file import SinkFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from feedd.values import ObjectRef

_OF_FILE_SYSTEMS: Final = frozenset({"lost+found"})
_SHOWN_MAX: Final = 3
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Comparison:
    """A directory compared with the objects that it should hold.

    Attributes:
        present: paths of files that hold the current version of their object.
        missing: paths of files to fetch.
        outdated: paths of files that an earlier run put there, and whose objects no longer belong to the node.
        foreign: paths of all other files.
        freed_bytes: bytes of files that will be replaced or removed.
    """

    present: list[str]
    missing: list[str]
    outdated: list[str]
    foreign: list[str]
    freed_bytes: int


class PartialFile:
    """A file that is being written. A context manager: what was not published is removed.

    Args:
        directory: the channel's directory.
        target: the file's path in it.
        size_bytes: length of the file.

    Attributes:
        target: as given.
        temp: where the file is until it is published.
        final: where it is then.
        file: takes the bytes; set by ``create``.
    """

    file: SinkFile

    def __init__(self, directory: Path, target: str, size_bytes: int) -> None:
        self.target = target
        self.temp = directory / PARTIAL_FOLDER / secrets.token_hex(16)
        self.final = directory / target
        self._size_bytes = size_bytes
        self._created = False

    def create(self) -> None:
        """Create the file and allocate its disk space.

        Raises:
            PermissionDenied, ResourceExhausted, StoreUnavailable: the file cannot be made.
        """
        with translated(self.final):
            fd = os.open(self.temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._created = True
            try:
                if self._size_bytes:
                    os.posix_fallocate(fd, 0, self._size_bytes)
                self.file = SinkFile(fd)
            finally:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._created:
            with contextlib.suppress(AttributeError):
                self.file.close()
            with contextlib.suppress(OSError):  # published
                self.temp.unlink()


class ChannelDirectory:
    """A channel's directory: ``open``, ``compare``, ``begin``, ``publish`` for each file, ``finish``.

    Args:
        path: the directory.
        journal: tells which files are whole.
    """

    def __init__(self, path: Path, journal: FileJournal) -> None:
        self.path = path
        self._journal = journal
        self._records: dict[str, FileRecord] = {}
        self._folders: set[str] = set()

    def open(self) -> None:
        """Make the directory, remove what a killed run left, and read the journal.

        Raises:
            PermissionDenied, ResourceExhausted, StoreUnavailable: the directory cannot be written.
        """
        with translated(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if (self.path / PARTIAL_FOLDER).is_symlink():
                (self.path / PARTIAL_FOLDER).unlink()
            shutil.rmtree(self.path / PARTIAL_FOLDER, ignore_errors=True)
            self._records = self._journal.read()

    def compare(self, wanted: Mapping[str, ObjectRef]) -> Comparison:
        """Compare the files with the wanted objects by path.

        Raises:
            PermissionDenied, StoreUnavailable: the directory cannot be read.
        """
        with translated(self.path):
            found = dict(self._files())
        whole = {path: record for path, record in self._records.items() if found.get(path) == record.stamp}
        present = [path for path, ref in wanted.items() if path in whole and whole[path].holds(ref)]
        there = frozenset(present)
        others = [path for path in found if path not in wanted]
        self._records = {path: whole[path] for path in present}
        return Comparison(
            present,
            [path for path in wanted if path not in there],
            [path for path in others if path in whole],
            sorted(path for path in others if path not in whole),
            sum(stamp.size_bytes for path, stamp in found.items() if stamp is not None and path not in there),
        )

    def check_foreign(self, foreign: list[str]) -> None:
        """Refuse files that would be read as data of the channel.

        Raises:
            BadRequest: there are some.
        """
        if foreign:
            more = f" and {len(foreign) - _SHOWN_MAX} more" if len(foreign) > _SHOWN_MAX else ""
            shown = ", ".join(foreign[:_SHOWN_MAX])
            raise BadRequest(
                f"expected only files of the channel in its directory, got also {shown}{more}",
                object=str(self.path),
                hint="remove them, or name another --root: training would read them as data",
                stage="files",
            )

    def check_space(self, needed_bytes: int) -> None:
        """Refuse objects that the file system has no room for.

        Raises:
            ResourceExhausted: there is too little room.
        """
        with translated(self.path):
            space = os.statvfs(self.path)
        free_bytes = space.f_bavail * space.f_frsize
        if needed_bytes > free_bytes:
            raise ResourceExhausted(
                f"expected {needed_bytes} free bytes for the missing files, got {free_bytes}",
                object=str(self.path),
                hint="free some space, name another --root, or use more nodes",
                stage="files",
            )

    @property
    def device(self) -> int:
        """Number of the file system."""
        return self.path.stat().st_dev

    def begin(self, outdated: Iterable[str]) -> None:
        """Remove outdated files, and folders that are empty without them; prepare for new files.

        Raises:
            PermissionDenied, ResourceExhausted, StoreUnavailable: the directory cannot be written.
        """
        folders: set[Path] = set()
        with translated(self.path):
            for path in outdated:
                (self.path / path).unlink(missing_ok=True)
                folders.update(parent for parent in (self.path / path).parents if self.path in parent.parents)
            for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
                with contextlib.suppress(OSError):  # other files are in it
                    folder.rmdir()
            (self.path / PARTIAL_FOLDER).mkdir()
            self._journal.begin()

    def publish(self, partial: PartialFile, ref: ObjectRef) -> None:
        """Give a whole file its final name, and record it.

        Raises:
            PermissionDenied, ResourceExhausted, StoreUnavailable: the file cannot be renamed or recorded.
        """
        with translated(partial.final):
            stamp = FileStamp.of(os.fstat(partial.file.fd))
            folder = partial.target.rpartition("/")[0]
            if folder and folder not in self._folders:
                partial.final.parent.mkdir(parents=True, exist_ok=True)
                self._folders.add(folder)
            partial.temp.replace(partial.final)
            record = self._records[partial.target] = FileRecord(ref.url, ref.etag, stamp)
            self._journal.add(partial.target, record)

    def finish(self, *, whole: bool) -> None:
        """Close the journal. ``whole``: all files are there, so flush them to the disk first.

        Raises:
            PermissionDenied, ResourceExhausted, StoreUnavailable: the disk failed.
        """
        self._journal.close()
        shutil.rmtree(self.path / PARTIAL_FOLDER, ignore_errors=True)
        if whole:
            with translated(self.path):
                self._journal.settle(self._records.items(), self.path)

    def _files(self) -> Iterator[tuple[str, FileStamp | None]]:
        """Yield every path below the directory that is no folder, with the stamp of a regular file."""
        todo = [""]
        while todo:
            above = todo.pop()
            with os.scandir(self.path / above) as entries:
                for entry in entries:
                    path = f"{above}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if above or entry.name not in _OF_FILE_SYSTEMS:
                            todo.append(f"{path}/")
                    else:
                        regular = entry.is_file(follow_symlinks=False)
                        yield path, FileStamp.of(entry.stat(follow_symlinks=False)) if regular else None


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of the operating system on files at ``path``."""
    try:
        yield
    except OSError as error:
        raise _translate(error, path) from error


def _translate(error: OSError, path: Path) -> FeeddError:
    reason = (error.strerror or type(error).__name__).lower()
    kind: type[FeeddError] = StoreUnavailable
    hint = "see the kernel's log, or name another --root"
    if error.errno in _FULL:
        kind, hint = ResourceExhausted, "free some space and run the command again, or name another --root"
    elif error.errno in _DENIED:
        kind, hint = PermissionDenied, "run feedd as a user that may write there, or name another --root"
    elif error.errno in {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY}:
        hint = "a file or folder is in the way: remove it, or name another --root"
    elif error.errno == errno.EXDEV:
        hint = "a channel's directory must lie in one file system"
    return kind(f"the file cannot be written: {reason}", object=str(path), hint=hint, stage="files")
