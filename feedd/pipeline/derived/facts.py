"""What became of objects that shards were made of: told by the first making, kept in the cache's directory.

A line of JSON for each, appended as it is learned, so that a daemon that is killed loses none.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from feedd.errors import FeeddError
from feedd.source.local import write_file
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

_FILE_BYTES_MAX: Final = 256 << 20
_ROWS_MAX: Final = 1_000_000  # the last learned ones


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


class MadeFacts:
    """Facts by object and form. ``load`` and ``keep`` block.

    Args:
        path: the file; one that is not there, or is not ours, is nothing known. None: nothing is kept.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._facts: dict[_Key, MadeFact] = {}  # by object
        self._by_shard: dict[_Key, MadeFact] = {}

    def __repr__(self) -> str:
        return f"MadeFacts({len(self._facts)} shards)"

    def known(self, ref: ObjectRef) -> MadeFact | None:
        """Return what is known of an object as listed, with a form."""
        return self._facts.get(_key(ref))

    def origin(self, shard: ObjectRef) -> MadeFact | None:
        """Return what is known of a shard that was made."""
        return self._by_shard.get(_key(shard))

    def made(self, ref: ObjectRef) -> ObjectRef | None:
        """Return the ref of the shard made of an object; None: its size is not known yet."""
        fact = self._facts.get(_key(ref))
        return None if fact is None else ObjectRef(ref.root, ref.key, fact.size_bytes, ref.etag, ref.form)

    def note(self, ref: ObjectRef, fact: MadeFact) -> bool:
        """Take note; True where that is news, to be kept."""
        key = _key(ref)
        if self._facts.get(key) == fact:
            return False
        self.forget(ref)
        self._put(key, fact)
        if len(self._facts) > _ROWS_MAX:
            self._drop(next(iter(self._facts)))
        return True

    def forget(self, ref: ObjectRef) -> None:
        """Drop what turned out to be wrong of an object as listed."""
        if _key(ref) in self._facts:
            self._drop(_key(ref))

    def _put(self, key: _Key, fact: MadeFact) -> None:
        self._facts[key] = fact
        self._by_shard[*key[:3], fact.size_bytes] = fact

    def _drop(self, key: _Key) -> None:
        fact = self._facts.pop(key)
        self._by_shard.pop((*key[:3], fact.size_bytes), None)

    def keep(self, ref: ObjectRef, fact: MadeFact) -> None:
        """Append to the file; a directory that cannot be written is nobody's trouble."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    os.write(fd, msgspec.json.encode((*_key(ref)[:3], *fact)) + b"\n")
                finally:
                    os.close(fd)

    def load(self) -> None:
        """Read the file; where half of it is out of date it is written anew."""
        if self._path is None:
            return
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            if self._path.stat().st_size <= _FILE_BYTES_MAX:
                lines = self._path.read_bytes().splitlines()
        for line in lines[-_ROWS_MAX:]:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # the last may be half a line
                url, etag, form, *fact = _rows.decode(line)
                self._put((url, etag, form, fact[0]), MadeFact(*fact))
        if len(lines) > 2 * len(self._facts):
            with contextlib.suppress(FeeddError):
                rows = [msgspec.json.encode((*key[:3], *fact)) for key, fact in self._facts.items()]
                write_file(str(self._path), b"\n".join([*rows, b""]))


def _key(ref: ObjectRef) -> _Key:
    return ref.url, ref.etag, ref.form, ref.size_bytes
