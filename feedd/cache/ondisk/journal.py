"""Which entries a directory holds, in the order of their use, so that a start need not open a million files.

``<directory>/index`` only saves work. A listed file that does not exist is ignored, an unlisted file is examined, and a
listed file is checked at its first use. The list may be stale, torn or missing.

Format: magic[8], version u32, then chunks: payload_bytes u32, crc32c u32 of the payload, payload (msgpack). Entries
published later follow as chunks of one entry. A chunk with a wrong checksum ends the list. Blocking: used in the thread
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
        name: the file's name, 64 hexadecimal digits.
        boot: the boot in its header.
        run: the run in its header.
    """

    name: str
    ref: ObjectRef
    boot: bytes
    run: bytes


class _Chunk(msgspec.Struct, array_like=True):
    """Columns of a chunk; texts are bytes, because names of local files need not be UTF-8."""

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
    """The list of one directory; it only saves work, so its methods never raise."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / INDEX_NAME
        self._fd = -1
        self._good_bytes = 0  # length of the file before the first chunk with a wrong checksum
        self._listed_count = 0

    def read(self) -> dict[str, Record]:
        """Return the listed entries by name; the last published or used entry comes last."""
        records: dict[str, Record] = {}
        with contextlib.suppress(OSError, ValueError, LookupError):
            for chunk, end in _chunks(self._path.read_bytes()):
                fresh, known_count = _records(chunk), len(records)
                records.update((record.name, record) for record in fresh)
                if len(records) < known_count + len(fresh):
                    for record in fresh:  # listed again: the last position counts
                        del records[record.name]
                        records[record.name] = record
                self._listed_count += len(fresh)
                self._good_bytes = end
        return records

    def resume(self, records: Sequence[Record]) -> None:
        """Continue the list that was read, or rewrite it if most of it is not among ``records``."""
        if self._good_bytes and self._listed_count <= 2 * len(records) + _CHUNK_ENTRIES:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.ftruncate(self._fd, self._good_bytes)
                return
        self.start(records)

    def start(self, records: Iterable[Record]) -> None:
        """Write the list anew and keep it open for entries published later."""
        self.close()
        temp = self._path.with_name(f"{INDEX_NAME}.new")
        try:
            fd = os.open(
                temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
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
        """Append one entry."""
        if self._fd < 0:
            return
        try:
            _write(self._fd, _framed([record]))
        except OSError:
            self.close()  # a reader could not read past a torn chunk

    def close(self) -> None:
        """Close the list's file."""
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
    """Yield each chunk with its end offset."""
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
    """Return a chunk's records, built column by column because there may be a million.

    Raises:
        LookupError, ValueError: the columns do not fit together.
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
