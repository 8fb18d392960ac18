"""MosaicML MDS, version 2: uncompressed shards.

A shard is ``u32 n, u32 offset[n + 1], JSON, samples``. Offsets count from the shard's start; the first is the start of
the samples. A sample is one u32 size for each column of variable size, then the values of all columns. The JSON repeats
the columns of ``index.json``, so a shard can be read alone [mosaicml-streaming,
base/format/mds/{encodings,reader,writer}.py].

Columns of numbers, and arrays with a shape in their encoding, are numeric fields. Text, JSON and encoded images are
read as files. Arrays that carry their shape are read by ``npy``, pixels (``pil``) by ``image``. Lists of images and
pickles are available as ``bytes``; feedd never unpickles.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from feedd.formats.format_spec import FormatSpec, cut_rows
from feedd.formats.framing import field_names
from feedd.formats.outline import Outline, of_head
from feedd.formats.rows import RowsReader, first_rows, rows_start
from feedd.recipe.encodings import parse_encoding
from feedd.recipe.params import DTYPES
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from feedd.protocols import PartialObject
    from feedd.values import ByteRange

_HEADER_BYTES_MAX: Final = 1 << 20
_HEADER_LOOK_BYTES: Final = 64 << 10
_COLUMNS_MAX: Final = 4096
_ARRAY: Final = re.compile(r"ndarray:([a-z0-9]+):([0-9]+(?:,[0-9]+)*)")
_STORED: Final = {
    "int": "int64",
    "str": "text",
    "str_int": "text",
    "str_float": "text",
    "str_decimal": "text",
    "json": "json",
    "jpeg": "image",
    "png": "image",
    "jpeg_array": "images",
    "jpegarray": "images",
    "list[jpeg]": "images",
    "list[png]": "images",
    "list[pil]": "images",
    "pil": "pil",
    "ndarray": "mds",
    "pkl": "pickle",
}


class _Header(msgspec.Struct, forbid_unknown_fields=False):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]


class MdsFormat:
    """``protocols.ShardFormat`` of MDS shards; stateless.

    Args:
        params: columns of ``index.json`` as JSON, to be compared with the shard's own; empty: no comparison.
    """

    def __init__(self, params: str = "") -> None:
        self._expected = msgspec.json.decode(params.encode(), type=_Header) if params else None

    @property
    def name(self) -> str:
        """Name of the format: ``mds``."""
        return "mds"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the samples' columns; a key is the sample's number in the shard.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: not MDS, or its offsets and sizes contradict each other.
        """
        return _Reader(data, url, self._expected).read()

    def outline(self, held: PartialObject, url: str) -> Outline | ByteRange:
        """Return the outline of a shard from its header; see ``OutlinedFormat``."""
        return of_head(held, rows_start, lambda data: _Reader(data, url, self._expected).outline())


class _Reader(RowsReader):
    """Reads the header of one shard, and the columns that it names."""

    def __init__(self, data: memoryview, url: str, told: _Header | None) -> None:
        super().__init__(data, url)
        self._expected = told

    def read(self) -> ShardIndex:
        """Read header and sizes; return the index."""
        offsets = self.offsets("an MDS shard")
        header_at = 8 + 4 * (len(offsets) - 1)
        header = self._header(header_at, int(offsets[0]))
        self._check(header, header_at)
        starts, sizes = self.columns(header.column_sizes, offsets)
        return NumberedIndex(
            field_names(header.column_names, self._url),
            starts,
            sizes,
            len(offsets) - 1,
            encodings=tuple(map(_encoding, header.column_encodings)),
        )

    def outline(self) -> Outline:
        """Read the header; return the outline."""
        offsets = self.offsets("an MDS shard")
        header_at = 8 + 4 * (len(offsets) - 1)
        header = self._header(header_at, int(offsets[0]))
        self._check(header, header_at)
        names, encodings = field_names(header.column_names, self._url), map(_encoding, header.column_encodings)
        return Outline(len(offsets) - 1, tuple(zip(names, encodings, strict=True)))

    def _header(self, start: int, end: int) -> _Header:
        if end - start > _HEADER_BYTES_MAX:
            self.fail(start, f"a header of at most {_HEADER_BYTES_MAX} bytes", f"{end - start}")
        try:
            header = msgspec.json.decode(bytes(self._data[start:end]), type=_Header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.fail(start, "JSON that names columns", str(error))
        names = header.column_names
        if not len(names) == len(header.column_encodings) == len(header.column_sizes) == len(set(names)):
            self.fail(start, "a name, an encoding and a size for each column", f"{names}")
        if len(names) > _COLUMNS_MAX or any(not 0 <= (size or 0) < 1 << 32 for size in header.column_sizes):
            self.fail(start, f"at most {_COLUMNS_MAX} columns of sizes below 4 GiB", f"{len(names)} columns")
        return header

    def _check(self, header: _Header, start: int) -> None:
        """Compare the shard's columns with those of its ``index.json``."""
        told = self._expected
        if told is not None and header != told:
            pairs = [
                f"{name} ({encoding}{f' of {size} bytes' if size else ''})"
                for name, encoding, size in zip(
                    told.column_names, told.column_encodings, told.column_sizes, strict=False
                )
            ]
            got = ", ".join(
                f"{name} ({encoding})"
                for name, encoding in zip(header.column_names, header.column_encodings, strict=True)
            )
            self.fail(start, f"the columns that index.json names, {', '.join(pairs)}", got)


def _encoding(encoding: str) -> str:
    """Return the encoding of a column, see ``recipe.encodings``."""
    array = _ARRAY.fullmatch(encoding)
    if array is not None and array[1] in DTYPES:
        try:
            parse_encoding(stored := f"{array[1]}[{array[2]}]")
        except ValueError:
            return ""  # an array without elements, or with too many: its bytes can still be read
        return stored
    kind, _, dtype = encoding.partition(":")
    if kind == "ndarray" and dtype in DTYPES:
        return f"mds:{dtype}"
    return encoding if encoding in DTYPES else _STORED.get(encoding, "")


def _begins(data: memoryview) -> bool:
    header_at = 8 + 4 * int.from_bytes(data[:4], "little")
    return b'"column_encodings"' in bytes(data[header_at : header_at + _HEADER_LOOK_BYTES])


FORMATS: Final = (
    FormatSpec(
        MdsFormat(),
        (".mds",),
        with_params=MdsFormat,
        begins=_begins,
        sniff_rank=3,
        first_samples=cut_rows(first_rows),
    ),
)
