"""Reads the arrays of a .npz, a zip of .npy members, as columns. No data is ever unpickled."""

from __future__ import annotations

import math
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.errors import BadSample, BadShard
from feedd.formats.npy_header import NpyHeader, read_npy_head
from feedd.formats.view_file import ViewFile
from feedd.tables.arrays import array_encoding, piece, same_count, step_rows
from feedd.tables.columns import ROWS_ONLY
from feedd.tables.memory import check_memory
from feedd.tables.ranges import DIRECTORY_BYTES, WORTH_BYTES, coalesced, everything, first_of_npz, missing_parts
from feedd.tables.reader import Column, OpenTable, TableReader
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO

    from feedd.protocols import PartialObject, ShardWriter
    from feedd.tables.writer import ColumnEncoding, Piece


_SUFFIX: Final = ".npy"
_HEAD_BYTES: Final = 66 << 10
_MEMBERS_MAX: Final = 4096
_MEMBER_HEAD_BYTES: Final = 2 * _HEAD_BYTES  # with the zip's own header of the member, and as zlib reads it


@dataclass(frozen=True, slots=True)
class _Member:
    info: zipfile.ZipInfo
    header: NpyHeader
    how: ColumnEncoding


class NpzReader(TableReader):
    """``TableReader`` of .npz files. The end of a file lists its arrays."""

    name = "npz"
    what = "a .npz file"

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; if only its rows are requested, return the directory and each array's header."""
        size = held.size_bytes
        if params != ROWS_ONLY or size <= DIRECTORY_BYTES:
            return everything(held)
        if missing := missing_parts(held, first_of_npz(size, params)):
            return missing
        found = heads(held.data, size - DIRECTORY_BYTES)
        return everything(held) if found is None else missing_parts(held, coalesced(found))

    @contextmanager
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> Iterator[OpenTable]:  # noqa: ARG002 - as every reader's
        """Open a file."""
        with zipfile.ZipFile(ViewFile(held.data)) as archive:
            yield _Arrays(archive, url, out)


class _Arrays(OpenTable):
    """The arrays of a file."""

    counts_rows = False

    def __init__(self, archive: zipfile.ZipFile, url: str, out: ShardWriter) -> None:
        self.url, self._archive, self._out = url, archive, out
        self.columns: dict[str, _Member] = {}
        self.others: dict[str, str] = {}
        infos = _arrays(archive)
        if len(infos) > _MEMBERS_MAX:
            raise BadShard(f"expected at most {_MEMBERS_MAX} arrays, got {len(infos)}", object=url, stage="decode")
        for info in infos:
            name, member = info.filename.removesuffix(_SUFFIX), _member(archive, info)
            if member is None:
                self.others[name] = "an array of a type that cannot be a field"
            elif name in self.columns:
                self.others[name] = "a second array of that name"
            else:
                self.columns[name] = member

    def row_count(self, names: Sequence[str]) -> int | None:
        """Return the rows of the wanted arrays, or of all."""
        return same_count({name: self.columns[name].header.shape[0] for name in names or self.columns}, self.url)

    def column(self, name: str) -> Column:
        """Return an array, which is read some rows at a time."""
        member = self.columns[name]
        return Column(member.how, self._pieces(member))

    def _pieces(self, member: _Member) -> Iterator[Piece]:
        with self._archive.open(member.info) as file:
            yield from _pieces(file, member, self._out, self.url)


def _arrays(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [info for info in archive.infolist() if info.filename.endswith(_SUFFIX)]


def heads(data: memoryview, held_from: int) -> list[ByteRange] | None:
    """Return the ranges of all arrays' headers; None: the whole file is needed, or is fetched sooner.

    Args:
        data: the file.
        held_from: the bytes from here on are held.
    """
    try:
        with zipfile.ZipFile(ViewFile(data)) as archive:
            infos = _arrays(archive)
            is_held = archive.start_dir >= held_from
        starts = [info.header_offset for info in infos]  # foreign numbers, perhaps outside of the file
        found = [ByteRange(start, min(len(data), start + _MEMBER_HEAD_BYTES)) for start in starts]
    except Exception:  # noqa: BLE001 - reading the whole file raises lasting errors again
        return None
    if not is_held or len(infos) * WORTH_BYTES > len(data):
        return None
    return found


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member | None:
    """Return a member as a column, or None if it cannot be a field."""
    with archive.open(info) as file:
        try:
            header = read_npy_head(memoryview(file.read(_HEAD_BYTES)))
        except BadSample:  # an array of objects, or of a type that cannot be a field
            return None
    how = array_encoding(header.dtype, header.shape[1:]) if header.shape else None
    return None if how is None else _Member(info, header, how)


def _pieces(file: IO[bytes], member: _Member, out: ShardWriter, url: str) -> Iterator[Piece]:
    header = member.header
    rows, inner = header.shape[0], header.shape[1:]
    row_bytes = header.dtype.itemsize * math.prod(inner)
    if rows * row_bytes > out.limit_bytes:
        raise ValueError(f"{member.info.filename} of {rows * row_bytes} bytes is larger than a shard may be")
    _exactly(file, header.data_at)
    if header.fortran_order and inner:
        check_memory(2 * rows * row_bytes, out, url, f"{member.info.filename}, which is stored column by column")
        columns = np.frombuffer(_exactly(file, rows * row_bytes), header.dtype).reshape(header.shape, order="F")
        yield piece(columns, member.how)
    else:
        step = step_rows(member.how, row_bytes)
        for at in range(0, rows, step):
            count = min(step, rows - at)
            values = np.frombuffer(_exactly(file, count * row_bytes), header.dtype)
            yield piece(values.reshape(count, *inner), member.how)
    if file.read(1):  # also verifies the checksum
        raise ValueError(f"there are bytes after the array {member.info.filename}")


def _exactly(file: IO[bytes], size: int) -> bytes:
    found = file.read(size)
    if len(found) != size:
        raise ValueError(f"an array has only {len(found)} of {size} bytes")
    return found


NPZ_CONVERTER: Final = NpzReader()
