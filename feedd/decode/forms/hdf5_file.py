"""Datasets of an HDF5 file as columns of a table.

Only what lies in the file itself is read: a file may name other files as the place of its values, or of whole groups,
and those would be this machine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np

from feedd.decode.forms.array_pieces import ViewFile, kept_array, piece, same_count, step_rows
from feedd.decode.forms.columns import chosen, refusing
from feedd.decode.forms.table_writer import Kept, Piece, TableWriter
from feedd.decode.params import DTYPES
from feedd.errors import BadShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.protocols import Out

_OBJECTS_MAX: Final = 16384
_ROW_BYTES: Final = 4096  # what a row of variable length is taken for, to read so many at a time


@dataclass(frozen=True, slots=True)
class _Column:
    """A dataset.

    Attributes:
        text: whether values are strings of variable length.
    """

    dataset: h5py.Dataset
    how: Kept
    text: bool = False


def write(data: memoryview, url: str, params: str, out: Out) -> str:
    """Write the wanted datasets as a table; return the name of its format."""
    with refusing("an HDF5 file", url), h5py.File(ViewFile(data), "r") as file:
        usable: dict[str, _Column] = {}
        others: list[str] = []
        for name, dataset in _datasets(file, url):
            column = _column(dataset)
            if column is None:
                others.append(name)
            else:
                usable[name] = column
        names = chosen(params, usable, others, url)
        for name in names:
            _check_size(usable[name], out.limit_bytes)
        rows = same_count({name: usable[name].dataset.shape[0] for name in names}, url)
        writer = TableWriter(out, rows, url)
        for name in names:
            writer.add(name, usable[name].how, _pieces(usable[name], url))
        return writer.finish()


def _datasets(file: h5py.File, url: str) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the datasets that lie in the file, by their path; each once, by whatever path it is met first."""
    seen: set[tuple[int, int]] = set()
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    while groups:
        prefix, group = groups.pop(0)
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue  # to another file, or to a name that may be anything
            one = group[name]
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
    """Refuse what is larger than any shard may be, before it is read."""
    dataset, width = column.dataset, column.how.width or 0
    if width * dataset.shape[0] > limit_bytes:
        raise ValueError(f"{dataset.name} of {dataset.shape}, more than there is room for")


def _column(dataset: h5py.Dataset) -> _Column | None:
    """Return a dataset that can be a field; None: it is none."""
    if not dataset.shape or dataset.is_virtual or dataset.external:
        return None
    inner = dataset.shape[1:]
    text = h5py.check_string_dtype(dataset.dtype)
    if text is not None and text.length is None:
        return None if inner else _Column(dataset, Kept("text", None), text=True)
    items = h5py.check_vlen_dtype(dataset.dtype)
    if items is not None:
        name = np.dtype(items).newbyteorder("=").name
        return None if inner or name not in DTYPES else _Column(dataset, Kept(f"{name}[]", None, name))
    if dataset.dtype.hasobject:
        return None  # references
    how = kept_array(dataset.dtype, inner)
    return None if how is None else _Column(dataset, how)


def _pieces(column: _Column, url: str) -> Iterator[Piece]:
    dataset, how = column.dataset, column.how
    rows = dataset.shape[0]
    step = step_rows(how, _ROW_BYTES)
    chunk = dataset.chunks[0] if dataset.chunks else 1
    step = max(step // chunk, 1) * chunk if chunk <= 4 * step else step  # each chunk is unpacked once
    for at in range(0, rows, step):
        values = dataset[at : at + step]
        if how.width is None and values.dtype.hasobject:
            yield _variable(values.tolist(), column, url)
        else:
            yield piece(values, how)


def _variable(values: list[Any], column: _Column, url: str) -> Piece:
    """Return values of variable length, which the library hands out one by one."""
    if column.text:
        parts = [one if isinstance(one, bytes) else b"" for one in values]
        if len(parts) != len(values):
            raise BadShard("expected strings", object=url, stage="decode")
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return Piece(np.frombuffer(b"".join(parts), np.uint8), sizes)
    dtype = np.dtype(column.how.dtype).newbyteorder("<")
    arrays = [np.asarray(one, dtype).reshape(-1) for one in values]
    sizes = np.fromiter((one.nbytes for one in arrays), np.int64, len(arrays))
    return Piece(np.concatenate([np.zeros(0, dtype), *arrays]), sizes)
