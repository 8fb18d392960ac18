"""MosaicML MDS, version 2, as its shards lie when they are not compressed.

A shard is ``u32 n, u32 offset[n + 1], JSON, samples``; offsets count from the shard's start, the first is where the
samples begin. A sample is one u32 size for each column of variable size, then the values of all columns. The JSON
repeats what ``index.json`` says of columns, so a shard stands for itself [mosaicml-streaming,
base/format/mds/{encodings,reader,writer}.py].

Columns of numbers, and arrays whose shape the encoding tells, are fields stored as such; text, JSON and encoded images
as files. Pickles are not fields: nothing is ever unpickled. What has an encoding of MosaicML's own (``pil``, arrays
that carry their shape, lists) comes as ``bytes``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.decode.formats.framing import ShardReader, field_names, numbered
from feedd.decode.params import DTYPES
from feedd.values import ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER_BYTES_MAX: Final = 1 << 20
_COLUMNS_MAX: Final = 4096
_ARRAY: Final = re.compile(r"ndarray:([a-z0-9]+):([0-9]+(?:,[0-9]+)*)")
_STORED: Final = {"int": "int64", "str": "text", "json": "json", "jpeg": "image", "png": "image"}
_UNSAFE: Final = "pkl"


class _Header(msgspec.Struct, forbid_unknown_fields=False):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]


class MdsFormat:
    """``protocols.ShardFormat`` of MDS shards; stateless."""

    @property
    def name(self) -> str:
        """``mds``."""
        return "mds"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return where each sample's columns lie; a key is the sample's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: named in errors.

        Raises:
            BadShard: no MDS, or one whose offsets and sizes do not fit together.
        """
        return _Reader(data, url).read()


class _Reader(ShardReader):
    """The columns of one shard, all samples at a time."""

    def read(self) -> ShardIndex:
        """Read header and sizes."""
        offsets = self._offsets()
        header = self._header(8 + 4 * (len(offsets) - 1), int(offsets[0]))
        starts, sizes = self._columns(header, offsets)
        kept = [number for number, encoding in enumerate(header.column_encodings) if encoding != _UNSAFE]
        return ShardIndex(
            field_names([header.column_names[number] for number in kept], self._url),
            starts[kept],
            sizes[kept],
            *numbered(len(offsets) - 1),
            stored=tuple(_stored(header.column_encodings[number]) for number in kept),
        )

    def _offsets(self) -> NDArray[np.int64]:
        """Return where samples begin, and where the last one ends."""
        total = len(self._data)
        count = int.from_bytes(self._data[:4], "little")
        if total < 8 or 8 + 4 * count > total:
            self.fail(0, "an MDS shard's number of samples and their offsets", f"{count} samples in {total} bytes")
        offsets = np.frombuffer(self._data, "<u4", count + 1, 4).astype(np.int64)
        if (np.diff(offsets) < 0).any() or offsets[-1] != total or offsets[0] < 8 + 4 * count:
            self.fail(4, f"ascending offsets up to {total}", f"{offsets[0]} to {offsets[-1]}")
        return offsets

    def _header(self, start: int, end: int) -> _Header:
        if end - start > _HEADER_BYTES_MAX:
            self.fail(start, f"a header of at most {_HEADER_BYTES_MAX} bytes", f"{end - start}")
        try:
            header = msgspec.json.decode(bytes(self._data[start:end]), type=_Header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.fail(start, "JSON that names columns", str(error))
        names = header.column_names
        if not len(names) == len(header.column_encodings) == len(header.column_sizes) == len(set(names)):
            self.fail(start, "a name, an encoding and a size of each column", f"{names}")
        if len(names) > _COLUMNS_MAX or any(not 0 <= (size or 0) < 1 << 32 for size in header.column_sizes):
            self.fail(start, f"at most {_COLUMNS_MAX} columns of sizes below 4 GiB", f"{len(names)} columns")
        return header

    def _columns(self, header: _Header, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and size of each column of each sample."""
        columns, samples = len(header.column_names), len(offsets) - 1
        self.check_cells(columns, samples)
        sizes = np.empty((columns, samples), np.int64)
        variable = [number for number, size in enumerate(header.column_sizes) if not size]
        begins, ends = offsets[:-1], offsets[1:]
        heads = 4 * len(variable)
        if samples and (ends - begins).min(initial=heads) < heads:
            worst = int(np.argmin(ends - begins))
            self.fail(int(begins[worst]), f"{heads} bytes of sizes", f"a sample of {ends[worst] - begins[worst]} bytes")
        raw = np.frombuffer(self._data, np.uint8)
        for place, number in enumerate(variable):
            at = begins + 4 * place
            sizes[number] = sum(raw[at + byte].astype(np.int64) << 8 * byte for byte in range(4))
        for number, size in enumerate(header.column_sizes):
            if size:
                sizes[number] = size
        starts = begins + heads + np.cumsum(sizes, axis=0) - sizes
        wrong = np.flatnonzero(begins + heads + sizes.sum(axis=0) != ends)
        if len(wrong):
            first = int(wrong[0])
            says = heads + int(sizes[:, first].sum())
            self.fail(int(begins[first]), f"a sample of {ends[first] - begins[first]} bytes", f"sizes that make {says}")
        return starts, sizes


def _stored(encoding: str) -> str:
    """Return how a column is stored, as ``decode.stored`` has it."""
    array = _ARRAY.fullmatch(encoding)
    if array is not None and array[1] in DTYPES:
        return f"{array[1]}[{array[2]}]"
    return encoding if encoding in DTYPES else _STORED.get(encoding, "")
