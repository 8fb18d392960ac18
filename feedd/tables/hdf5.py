"""Reads the datasets of an HDF5 file as columns.

Only data in the file itself is read. A file may refer to other files for values or whole groups, and these would be
files of this machine. If such data is requested, or is all there is, the error says so.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np

from feedd.errors import BadShard, Unsupported
from feedd.formats.view_file import ViewFile
from feedd.recipe.params import DTYPES
from feedd.tables.arrays import PIECE_BYTES, array_encoding, piece, same_count, step_rows
from feedd.tables.columns import unread, wanted_by
from feedd.tables.memory import check_memory, memory_left
from feedd.tables.reader import Column, OpenTable, TableReader
from feedd.tables.writer import ColumnEncoding, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd.protocols import PartialObject, ShardWriter


_OBJECTS_MAX: Final = 16384
_ROWS_FIRST: Final = 64  # rows of variable length to read first; later steps follow from the sizes before
_ROW_BYTES_LEAST: Final = 64  # overhead of a row
_GROWTH_MAX: Final = 4
_SHOWN: Final = 10
_ROWS_MAX: Final = 64 << 10
_CACHE_SLOTS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Column:
    """A dataset that can be a column.

    Attributes:
        text: whether values are strings of variable length.
    """

    dataset: h5py.Dataset
    how: ColumnEncoding
    text: bool = False


class Hdf5Reader(TableReader):
    """``TableReader`` of HDF5 files."""

    name = "hdf5"
    what = "an HDF5 file"

    @contextmanager
    def open(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> Iterator[OpenTable]:
        """Open a file."""
        with h5py.File(ViewFile(held.data), "r") as file:
            yield _Datasets(file, url, params, out)


class _Datasets(OpenTable):
    """The datasets of a file.

    Args:
        file: the file.
        url: named in errors.
        params: parameters of the conversion.
        out: see ``TableReader.open``.
    """

    counts_rows = False

    def __init__(self, file: h5py.File, url: str, params: str, out: ShardWriter) -> None:
        self.url, self._out = url, out
        self.columns: dict[str, _Column] = {}
        self.others: dict[str, str] = {}
        self._elsewhere: dict[str, str] = {}
        for name, dataset in _datasets(file, url, self._elsewhere):
            column = _column(dataset)
            if column is not None:
                self.columns[name] = column
                continue
            self.others[name] = f"{dataset.dtype} of shape {dataset.shape}"
            if dataset.is_virtual or dataset.external:
                self._elsewhere[name] = "a virtual dataset" if dataset.is_virtual else "whose values are in other files"
        _check_in_file(params, self.columns, self._elsewhere, url)

    def left_out(self, params: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return also the datasets whose values are in other files."""
        return {**unread(params, self._elsewhere), **super().left_out(params, names)}

    def row_count(self, names: Sequence[str]) -> int | None:
        """Return the rows of the wanted datasets, or of all."""
        for name in names:
            _check_size(self.columns[name], self._out.limit_bytes)
        return same_count({name: self.columns[name].dataset.shape[0] for name in names or self.columns}, self.url)

    def column(self, name: str) -> Column:
        """Return a dataset, which is read some rows at a time."""
        column = self.columns[name]
        return Column(column.how, _pieces(column, self._out, self.url))


def _check_in_file(params: str, usable: Mapping[str, _Column], elsewhere: Mapping[str, str], url: str) -> None:
    """Check that requested datasets are not in other files.

    Raises:
        Unsupported: a requested dataset is, or all datasets are.
    """
    here, lost = {name.lower() for name in usable}, {name.lower(): name for name in elsewhere}
    asked = [[lost[name] for name in names if name in lost] for names in wanted_by(params) if here.isdisjoint(names)]
    got = next((names for names in asked if names), [] if params or usable else list(elsewhere))
    if got:
        raise Unsupported(
            "these datasets do not have their values in the file itself: "
            + ", ".join(f"{name}, {elsewhere[name]}" for name in got[:_SHOWN]),
            object=url,
            hint="write their values into the file, as file.create_dataset(name, data=other[...]) does",
            stage="decode",
        )


def _datasets(file: h5py.File, url: str, elsewhere: dict[str, str]) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the datasets in the file, with their paths; each once, with the first path found.

    Links to other objects are added to ``elsewhere``.

    Bytes of a name that are not UTF-8 are spelled as Python does: a backslash, x, two digits.
    """
    seen: set[tuple[int, int]] = set()
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    while groups:
        prefix, group = groups.pop(0)
        for link in group:
            raw = link if isinstance(link, bytes) else link.encode()
            name = raw.decode("utf-8", "backslashreplace")
            if group.id.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
                if len(elsewhere) < _OBJECTS_MAX:  # a soft or external link
                    elsewhere[prefix + name] = "a link by name"
                continue
            one = group[link]
            info = h5py.h5o.get_info(one.id)
            place = (info.fileno, info.addr)
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > _OBJECTS_MAX:
                raise BadShard(f"expected at most {_OBJECTS_MAX} datasets and groups", object=url, stage="decode")
            if isinstance(one, h5py.Group):
                groups.append((f"{prefix}{name}/", one))
            elif isinstance(one, h5py.Dataset):
                yield prefix + name, one


def _check_size(column: _Column, limit_bytes: int) -> None:
    """Refuse a dataset that exceeds the limit of a shard, before it is read."""
    dataset, width = column.dataset, column.how.width or 0
    if width * dataset.shape[0] > limit_bytes:
        raise ValueError(f"dataset {dataset.name} of {dataset.shape} is larger than a shard may be")


def _column(dataset: h5py.Dataset) -> _Column | None:
    """Return a dataset as a column, or None if it cannot be a field."""
    if not dataset.shape or dataset.is_virtual or dataset.external:
        return None
    inner = dataset.shape[1:]
    text = h5py.check_string_dtype(dataset.dtype)
    if text is not None and text.length is None:
        return None if inner else _Column(dataset, ColumnEncoding("text", None), text=True)
    items = h5py.check_vlen_dtype(dataset.dtype)
    if items is not None:
        name = np.dtype(items).newbyteorder("=").name
        return None if inner or name not in DTYPES else _Column(dataset, ColumnEncoding(f"{name}[]", None, name))
    if dataset.dtype.hasobject:
        return None  # references
    how = array_encoding(dataset.dtype, inner)
    return None if how is None else _Column(dataset, how)


def _pieces(column: _Column, out: ShardWriter, url: str) -> Iterator[Piece]:
    """Yield a dataset, some rows at a time."""
    if column.how.width is None and column.dataset.dtype.hasobject:
        yield from _of_any_length(column, out, url)
    else:
        yield from _of_one_length(column, out, url)


def _of_one_length(column: _Column, out: ShardWriter, url: str) -> Iterator[Piece]:
    dataset, how = column.dataset, column.how
    rows, row_bytes = dataset.shape[0], dataset.dtype.itemsize * math.prod(dataset.shape[1:])
    step = step_rows(how, max(row_bytes, _ROW_BYTES_LEAST))
    if dataset.chunks:
        high = dataset.chunks[0]
        if high <= 4 * step:
            step = max(step // high, 1) * high
        elif dataset.id.get_create_plist().get_nfilters():
            dataset = _with_cache(dataset, out, url)
    for at in range(0, rows, step):
        yield piece(dataset[at : at + step], how)


def _with_cache(dataset: h5py.Dataset, out: ShardWriter, url: str) -> h5py.Dataset:
    """Return the dataset with a cache for all chunks of the same rows, so that each chunk is decompressed once."""
    shape, chunks = dataset.shape, dataset.chunks
    count = math.prod(-(-side // part) for side, part in zip(shape[1:], chunks[1:], strict=True))
    size = (count + 1) * math.prod(chunks) * dataset.dtype.itemsize
    check_memory(size, out, url, f"chunks of {chunks} of {dataset.name}")
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(min(101 * count + 521, _CACHE_SLOTS_MAX), size, 1.0)
    name = dataset.name if isinstance(dataset.name, bytes) else dataset.name.encode()
    return h5py.Dataset(h5py.h5d.open(dataset.file.id, name, access))


def _of_any_length(column: _Column, out: ShardWriter, url: str) -> Iterator[Piece]:
    """Yield values of variable length, which h5py returns one by one."""
    dataset = column.dataset
    at, step = 0, _ROWS_FIRST
    while at < dataset.shape[0]:
        found = _variable(dataset[at : at + step].tolist(), column, url)
        yield found
        at += step
        memory_bytes = min(PIECE_BYTES, memory_left(out) // 2)
        fitting = memory_bytes * step // max(1, found.values.nbytes)
        step = max(1, min(fitting, step * _GROWTH_MAX, _ROWS_MAX))


def _variable(values: list[Any], column: _Column, url: str) -> Piece:
    if column.text:
        wrong = next((one for one in values if not isinstance(one, bytes)), None)
        if wrong is not None:
            got = type(wrong).__name__
            message = f"expected strings in {column.dataset.name!r}, got {got}"
            raise BadShard(message, object=url, stage="decode")
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        return Piece(np.frombuffer(b"".join(values), np.uint8), sizes)
    dtype = np.dtype(column.how.dtype).newbyteorder("<")
    arrays = [np.asarray(one, dtype).reshape(-1) for one in values]
    sizes = np.fromiter((one.nbytes for one in arrays), np.int64, len(arrays))
    return Piece(np.concatenate([np.zeros(0, dtype), *arrays]), sizes)


HDF5_CONVERTER: Final = Hdf5Reader()
