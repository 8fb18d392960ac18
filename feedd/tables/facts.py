"""Known results of conversions: learned by the first conversion, kept in the cache's directory.

Each result is a line of JSON, appended as soon as it is known, so that a killed daemon loses none. Only the results
used last are kept in memory. When the file has grown to twice as many lines, it is rewritten with these.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from feedd.conversion import text_of
from feedd.errors import FeeddError
from feedd.fetch.local_store import write_file
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path


_FILE_BYTES_MAX: Final = 256 << 20
_ROWS_MAX: Final = 1 << 18


class ConversionFact(NamedTuple):
    """One object and the shard converted from it.

    Attributes:
        object_bytes: size of the object.
        size_bytes: size of the shard.
        format_name: format that indexes the shard.
    """

    object_bytes: int
    size_bytes: int
    format_name: str


_Key = tuple[str, str, str, int]  # URL, ETag, conversion, and bytes of the object (in ``_by_shard``: of the shard)
_Row = tuple[str, str, str, int, int, str]
_rows = msgspec.json.Decoder(_Row)


class ConversionLog:
    """Results by object and conversion. ``load`` and ``keep`` block; ``keep`` may be called in several threads.

    Args:
        path: the file; a missing or foreign file counts as empty. None: results are kept in memory only.
        rows_max: maximum number of results; those used last are kept.
    """

    def __init__(self, path: Path | None = None, rows_max: int = _ROWS_MAX) -> None:
        self._path = path
        self._rows_max = rows_max
        self._line_count = 0  # lines in the file
        self._writing = threading.Lock()
        self._facts: dict[_Key, ConversionFact] = {}  # by object
        self._by_shard: dict[_Key, ConversionFact] = {}

    def __repr__(self) -> str:
        return f"ConversionLog({len(self._facts)} shards)"

    def known(self, ref: ObjectRef) -> ConversionFact | None:
        """Return the result for an object, given as listed with its conversion."""
        return self._use(_key(ref))

    def origin(self, shard: ObjectRef) -> ConversionFact | None:
        """Return the result that a converted shard came from."""
        return self._by_shard.get(_key(shard))

    def converted(self, ref: ObjectRef) -> ObjectRef | None:
        """Return the ref of the shard converted from an object; None: its size is not known yet."""
        fact = self._use(_key(ref))
        return None if fact is None else ObjectRef(ref.root, ref.key, fact.size_bytes, ref.etag, ref.conversion)

    def note(self, ref: ObjectRef, fact: ConversionFact) -> bool:
        """Record a result; return True if it is new and should be kept in the file."""
        key = _key(ref)
        if self._facts.get(key) == fact:
            return False
        self.forget(ref)
        self._put(key, fact)
        return True

    def forget(self, ref: ObjectRef) -> None:
        """Drop the result of an object, because it turned out to be wrong."""
        if _key(ref) in self._facts:
            self._drop(_key(ref))

    def _use(self, key: _Key) -> ConversionFact | None:
        fact = self._facts.get(key)
        if fact is not None:
            self._facts[key] = self._facts.pop(key)  # moves it to the end, so that it is dropped last
        return fact

    def _put(self, key: _Key, fact: ConversionFact) -> None:
        if key in self._facts:
            self._drop(key)
        self._facts[key] = fact
        self._by_shard[*key[:3], fact.size_bytes] = fact
        if len(self._facts) > self._rows_max:
            self._drop(next(iter(self._facts)))

    def _drop(self, key: _Key) -> None:
        fact = self._facts.pop(key)
        self._by_shard.pop((*key[:3], fact.size_bytes), None)

    def keep(self, ref: ObjectRef, fact: ConversionFact) -> None:
        """Append a result to the file; errors of the directory are ignored."""
        if self._path is None:
            return
        with self._writing, contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                size_bytes = os.fstat(fd).st_size
                torn = size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n"  # a full disk cut a line short
                os.write(fd, (b"\n" if torn else b"") + _line((*_key(ref)[:3], fact.object_bytes), fact))
                size_bytes = os.fstat(fd).st_size
            finally:
                os.close(fd)
            self._line_count += 1
            if self._line_count > 2 * self._rows_max or size_bytes > _FILE_BYTES_MAX:
                self._write(self._path)

    def load(self) -> None:
        """Read the file; rewrite it if half of it is out of date."""
        if self._path is None:
            return
        lines: list[bytes] = []
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _FILE_BYTES_MAX))  # may start inside a line
            lines = file.read().splitlines()
        for line in lines[-2 * self._rows_max :]:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # the last line may be cut short
                url, etag, conversion, *fact = _rows.decode(line)
                self._put(
                    (url, etag, sys.intern(conversion), fact[0]), ConversionFact(*fact)
                )  # many rows share a conversion
        self._line_count = len(lines)
        if len(lines) > 2 * len(self._facts):
            self._write(self._path)

    def _write(self, path: Path) -> None:
        """Write the known results, most recently used last, up to half of the file's limit."""
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


def _line(key: _Key, fact: ConversionFact) -> bytes:
    return msgspec.json.encode((*key[:3], *fact)) + b"\n"


def _key(ref: ObjectRef) -> _Key:
    return ref.url, ref.etag, text_of(ref.conversion), ref.size_bytes
