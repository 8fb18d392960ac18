"""Which entries a directory holds, in the order of their use, so that a start need not open a million files.

``<directory>/index`` only saves work: it is never believed about a file that is not there, a file it does not know is
examined, and what it says of a file is checked at that file's first use. It may be stale, torn or gone.

Format: magic[8], version u32, then chunks: payload_bytes u32, crc32c u32 of the payload, payload (msgpack). Entries
published later follow as chunks of one; a chunk that does not check out ends the list. Blocking: used in the thread
for changes.
"""

from __future__ import annotations

import contextlib
import os
import struct
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from awscrt.checksums import crc32c

from feedd.cache import entry_layout
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

INDEX_NAME: Final = "index"
_HEAD: Final = struct.pack("<8sI", b"feeddidx", 1)
_FRAME: Final = struct.Struct("<II")
_NAME_BYTES: Final = 32
_CHUNK_ENTRIES: Final = 4096


class Record(NamedTuple):
    """One entry.

    Attributes:
        name: its file's name, 64 hexadecimal digits.
        boot: as in its header.
        run: as in its header.
    """

    name: str
    ref: ObjectRef
    boot: bytes
    run: bytes


class _Chunk(msgspec.Struct, array_like=True):
    """Columns; texts as bytes, for names of local files need not be UTF-8."""

    runs: list[tuple[bytes, bytes]]
    roots: list[bytes]
    names: bytes
    keys: list[bytes]
    etags: list[bytes]
    sizes: list[int]
    run_at: list[int]
    root_at: list[int]


_decoder = msgspec.msgpack.Decoder(_Chunk)


class Journal:
    """The list of one directory; never fails, for it only saves work."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / INDEX_NAME
        self._fd = -1
        self._good_bytes = 0  # of the file: those before the first chunk that does not check out
        self._listed_count = 0

    def read(self) -> dict[str, Record]:
        """Return what is listed, by name, last published or used last."""
        records: dict[str, Record] = {}
        with contextlib.suppress(OSError, ValueError, LookupError):
            for chunk, end in _chunks(self._path.read_bytes()):
                fresh, known_count = _records(chunk), len(records)
                records.update((record.name, record) for record in fresh)
                if len(records) < known_count + len(fresh):
                    for record in fresh:  # listed again: its last place counts
                        del records[record.name]
                        records[record.name] = record
                self._listed_count += len(fresh)
                self._good_bytes = end
        return records

    def resume(self, records: Sequence[Record]) -> None:
        """Go on with the list that was read, or write it anew where much of it is not among ``records``."""
        if self._good_bytes and self._listed_count <= 2 * len(records) + _CHUNK_ENTRIES:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.ftruncate(self._fd, self._good_bytes)
                return
        self.start(records)

    def start(self, records: Iterable[Record]) -> None:
        """Write the list anew and keep it open for what is published later."""
        self.close()
        temp = self._path.with_name(f"{INDEX_NAME}.new")
        try:
            fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._forget()
            return
        try:
            _write(fd, _HEAD)
            for chunk in _in_chunks(records):
                _write(fd, _framed(chunk))
            temp.rename(self._path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                temp.unlink()
            self._forget()
        else:
            self._fd = fd

    def add(self, record: Record) -> None:
        """List one entry more."""
        if self._fd < 0:
            return
        try:
            _write(self._fd, _framed([record]))
        except OSError:
            self.close()  # what follows a torn chunk could not be read

    def close(self) -> None:
        """Stop listing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _chunks(data: bytes) -> Iterator[tuple[_Chunk, int]]:
    """Yield chunks, each with where it ends."""
    if not data.startswith(_HEAD):
        return
    view, at = memoryview(data), len(_HEAD)
    while at + _FRAME.size <= len(view):
        size, crc = _FRAME.unpack_from(view, at)
        payload = view[at + _FRAME.size : at + _FRAME.size + size]
        if len(payload) != size or crc32c(payload) != crc:
            return
        at += _FRAME.size + size
        yield _decoder.decode(payload), at


def _records(chunk: _Chunk) -> list[Record]:
    """Return a chunk's rows, made column by column: there may be a million.

    Raises:
        LookupError, ValueError: columns that do not fit together.
    """
    digits, width = chunk.names.hex(), 2 * _NAME_BYTES
    names = [digits[at : at + width] for at in range(0, len(digits), width)]
    columns = (chunk.keys, chunk.etags, chunk.sizes, chunk.run_at, chunk.root_at)
    if any(len(column) != len(names) for column in columns):
        raise ValueError(f"expected columns of {len(names)} rows, got {[len(column) for column in columns]}")
    roots = map(_texts(chunk.roots).__getitem__, chunk.root_at)
    make = entry_layout.ref_of if any(b"\0" in etag for etag in chunk.etags) else ObjectRef
    refs = map(make, roots, _texts(chunk.keys), chunk.sizes, _texts(chunk.etags))
    runs = [chunk.runs[at] for at in chunk.run_at]
    return list(map(Record, names, refs, map(itemgetter(0), runs), map(itemgetter(1), runs)))


def _in_chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == _CHUNK_ENTRIES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _framed(records: list[Record]) -> bytes:
    runs = list(dict.fromkeys((record.boot, record.run) for record in records))
    roots = list(dict.fromkeys(record.ref.root for record in records))
    run_at = {run: index for index, run in enumerate(runs)}
    root_at = {root: index for index, root in enumerate(roots)}
    chunk = _Chunk(
        runs,
        [_coded(root) for root in roots],
        bytes.fromhex("".join(record.name for record in records)),
        [_coded(record.ref.key) for record in records],
        [_coded(entry_layout.version_of(record.ref)) for record in records],
        [record.ref.size_bytes for record in records],
        [run_at[record.boot, record.run] for record in records],
        [root_at[record.ref.root] for record in records],
    )
    payload = msgspec.msgpack.encode(chunk)
    return _FRAME.pack(len(payload), crc32c(payload)) + payload


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _texts(coded: Sequence[bytes]) -> list[str]:
    try:
        return list(map(bytes.decode, coded))
    except UnicodeDecodeError:
        return [text.decode("utf-8", "surrogatepass") for text in coded]


def record_of(ref: ObjectRef, boot: bytes, run: bytes) -> Record:
    """Return an entry's record."""
    return Record(entry_layout.name_of(ref), ref, boot, run)
