"""What became of objects that shards were made of: told by the first making, kept in the cache's directory.

A line of JSON for each, appended as it is learned, so that a daemon that is killed loses none. Those used last are
kept in memory and, where the file has grown to twice as many, there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from feedd.errors import FeeddError
from feedd.fetch.local_store import write_file
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

_FILE_BYTES_MAX: Final = 256 << 20
_ROWS_MAX: Final = 1 << 18


class MadeFact(NamedTuple):
    """One object and what was made of it.

    Attributes:
        object_bytes: length of the object.
        size_bytes: length of the shard.
        format_name: by which it is indexed.
    """

    object_bytes: int
    size_bytes: int
    format_name: str


_Key = tuple[str, str, str, int]  # URL, ETag, form, bytes of the object, or of the shard
_Row = tuple[str, str, str, int, int, str]
_rows = msgspec.json.Decoder(_Row)


class ConversionLog:
    """Facts by object and form. ``load`` and ``keep`` block; ``keep`` may be called in several threads.

    Args:
        path: the file; one that is not there, or is not ours, is nothing known. None: nothing is kept.
        rows_max: most facts, those used last.
    """

    def __init__(self, path: Path | None = None, rows_max: int = _ROWS_MAX) -> None:
        self._path = path
        self._rows_max = rows_max
        self._line_count = 0  # in the file
        self._writing = threading.Lock()
        self._facts: dict[_Key, MadeFact] = {}  # by object
        self._by_shard: dict[_Key, MadeFact] = {}

    def __repr__(self) -> str:
        return f"ConversionLog({len(self._facts)} shards)"

    def known(self, ref: ObjectRef) -> MadeFact | None:
        """Return what is known of an object as listed, with a form."""
        return self._use(_key(ref))

    def origin(self, shard: ObjectRef) -> MadeFact | None:
        """Return what is known of a shard that was made."""
        return self._by_shard.get(_key(shard))

    def made(self, ref: ObjectRef) -> ObjectRef | None:
        """Return the ref of the shard made of an object; None: its size is not known yet."""
        fact = self._use(_key(ref))
        return None if fact is None else ObjectRef(ref.root, ref.key, fact.size_bytes, ref.etag, ref.form)

    def note(self, ref: ObjectRef, fact: MadeFact) -> bool:
        """Take note; True where that is news, to be kept."""
        key = _key(ref)
        if self._facts.get(key) == fact:
            return False
        self.forget(ref)
        self._put(key, fact)
        return True

    def forget(self, ref: ObjectRef) -> None:
        """Drop what turned out to be wrong of an object as listed."""
        if _key(ref) in self._facts:
            self._drop(_key(ref))

    def _use(self, key: _Key) -> MadeFact | None:
        fact = self._facts.get(key)
        if fact is not None:
            self._facts[key] = self._facts.pop(key)  # in use: the last to be dropped
        return fact

    def _put(self, key: _Key, fact: MadeFact) -> None:
        if key in self._facts:
            self._drop(key)
        self._facts[key] = fact
        self._by_shard[*key[:3], fact.size_bytes] = fact
        if len(self._facts) > self._rows_max:
            self._drop(next(iter(self._facts)))

    def _drop(self, key: _Key) -> None:
        fact = self._facts.pop(key)
        self._by_shard.pop((*key[:3], fact.size_bytes), None)

    def keep(self, ref: ObjectRef, fact: MadeFact) -> None:
        """Append to the file; a directory that cannot be written is nobody's trouble."""
        if self._path is None:
            return
        with self._writing, contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                size_bytes = os.fstat(fd).st_size
                torn = size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n"  # by a full disk
                os.write(fd, (b"\n" if torn else b"") + _line((*_key(ref)[:3], fact.object_bytes), fact))
                size_bytes = os.fstat(fd).st_size
            finally:
                os.close(fd)
            self._line_count += 1
            if self._line_count > 2 * self._rows_max or size_bytes > _FILE_BYTES_MAX:
                self._write(self._path)

    def load(self) -> None:
        """Read the file; where half of it is out of date it is written anew."""
        if self._path is None:
            return
        lines: list[bytes] = []
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _FILE_BYTES_MAX))  # may begin with half a line
            lines = file.read().splitlines()
        for line in lines[-2 * self._rows_max :]:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # the last may be half a line
                url, etag, form, *fact = _rows.decode(line)
                self._put((url, etag, sys.intern(form), fact[0]), MadeFact(*fact))  # many shards have one form
        self._line_count = len(lines)
        if len(lines) > 2 * len(self._facts):
            self._write(self._path)

    def _write(self, path: Path) -> None:
        """Write what is known, the last used last, and at most half of what the file may have."""
        rows: list[bytes] = []
        left_bytes = _FILE_BYTES_MAX // 2
        for key, fact in reversed(self._facts.copy().items()):
            rows.append(_line(key, fact))
            left_bytes -= len(rows[-1])
            if left_bytes < 0:
                break
        with contextlib.suppress(FeeddError):
            write_file(str(path), b"".join(reversed(rows)))
            self._line_count = len(rows)


def _line(key: _Key, fact: MadeFact) -> bytes:
    return msgspec.json.encode((*key[:3], *fact)) + b"\n"


def _key(ref: ObjectRef) -> _Key:
    return ref.url, ref.etag, ref.form, ref.size_bytes
