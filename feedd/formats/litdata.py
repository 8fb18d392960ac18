"""LitData's uncompressed chunks.

A chunk is ``u32 n, u32 offset[n + 1], items``. An item is one u32 size for each of its leaves, then the leaves
[litdata, streaming/{writer,item_loader,serializers}.py]. The types of the leaves are not in the chunk but in the
``index.json`` beside it, which comes here as parameters. A leaf is a field named by its path in the item: a key of a
dict, or an index in a list or tuple, joined by dots. An item that is a single leaf is the field ``data``.

Integers, floats and one-dimensional arrays are numeric fields. Text, JSON and encoded images are read as files. Arrays
that carry their shape are read by ``npy``, pixels by ``image``. Pickled leaves are available as ``bytes``. Chunks of
plain dicts hold Arrow instead (see ``tables.arrow``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.errors import Unsupported
from feedd.formats.format_spec import FormatSpec, cut_rows
from feedd.formats.framing import field_names
from feedd.formats.inline_headers import NUMPY_DTYPES, TORCH_DTYPES
from feedd.formats.outline import Outline, of_head
from feedd.formats.rows import RowsReader, first_rows, rows_start
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.protocols import PartialObject
    from feedd.values import ByteRange

ARROW_END: Final = b"LDARW01\0"
"""Last bytes of a chunk that holds Arrow."""
_STORED: Final = {
    "int": "int64",
    "float": "float64",
    "bool": "bool",
    "str": "text",
    "text": "text",
    "json": "nested",
    "jpeg": "image",
    "image": "image",
    "pil": "pil",
    "numpy": "litdata:numpy",
    "tensor": "litdata:tensor",
    "pickle": "pickle",
}
_NO_HEADER: Final = {"no_header_numpy": NUMPY_DTYPES, "no_header_tensor": TORCH_DTYPES}
_NESTED: Final = "nested"
_NESTED_HEAD: Final = 5  # one byte for the kind, u32 for the size
_TAG_JSON, _TAG_NONE = 0, 255
_TAGS_OLD: Final = (ord("["), ord("{"))
_TAGS_NUMBERS: Final = {2: "int64", 3: "float64"}


class _Params(msgspec.Struct):
    """Facts about a chunk from ``index.json``.

    Attributes:
        names: names of the leaves.
        formats: serializer of each leaf.
        problem: why the chunk cannot be read; empty: it can.
        bare: whether an item is a single leaf without its size, as for LitData's TokensLoader.
    """

    names: list[str] = []
    formats: list[str] = []
    problem: str = ""
    bare: bool = False


class LitDataFormat:
    """``protocols.ShardFormat`` of LitData's chunks; stateless.

    Args:
        params: facts from ``index.json`` as JSON (see ``_Params``); empty: there was no ``index.json``.
    """

    def __init__(self, params: str = "") -> None:
        self._params = msgspec.json.decode(params.encode(), type=_Params) if params else None

    @property
    def name(self) -> str:
        """Name of the format: ``litdata``."""
        return "litdata"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the items' leaves; a key is the item's number in the chunk.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: not a chunk, or its offsets and sizes contradict each other.
            Unsupported: ``index.json`` is missing, or names a serializer that feedd does not read.
        """
        return _Reader(data, url).read(self._checked_params(url))

    def outline(self, held: PartialObject, url: str) -> Outline | ByteRange:
        """Return the outline of a chunk from its offsets; see ``OutlinedFormat``."""
        params = self._checked_params(url)
        return of_head(held, rows_start, lambda data: _Reader(data, url).outline(params))

    def _checked_params(self, url: str) -> _Params:
        params = self._params
        if params is None:
            hint = "specify the folder that holds the chunks and their index.json"
            raise Unsupported("expected an index.json beside the chunk, got none", object=url, hint=hint)
        if params.problem:
            hint = "write the dataset again without such items"
            raise Unsupported(f"expected plain LitData items, got {params.problem}", object=url, hint=hint)
        return params


class _Reader(RowsReader):
    """Reads one chunk."""

    def read(self, params: _Params) -> ShardIndex:
        """Read offsets and sizes; return the index."""
        if bytes(self._data[-len(ARROW_END) :]) == ARROW_END:
            raise Unsupported(
                "expected plain LitData items, got rows in Arrow's format",
                object=self._url,
                hint="write litdata-arrow+ before the URL: feedd then converts such chunks to tables, once per node",
                stage="decode",
            )
        offsets = self.offsets("a LitData chunk")
        if params.bare:
            starts, sizes = offsets[None, :-1], np.diff(offsets)[None]
        else:
            starts, sizes = self.columns([None] * len(params.names), offsets)
        stored = list(map(_encoding, params.formats))
        for column, name in enumerate(stored):
            if name == _NESTED:
                stored[column] = self._nested(starts[column], sizes[column])
            else:
                self._check_sizes(column, name, starts[column], sizes[column])
        names = field_names(params.names, self._url)
        return NumberedIndex(names, starts, sizes, len(offsets) - 1, encodings=tuple(stored))

    def outline(self, params: _Params) -> Outline:
        """Read the offsets; return the outline, in which lists and dicts have no encoding."""
        rows = len(self.offsets("a LitData chunk")) - 1
        stored = ["" if name == _NESTED else name for name in map(_encoding, params.formats)]
        return Outline(rows, tuple(zip(field_names(params.names, self._url), stored, strict=True)))

    def _nested(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> str:
        """Skip the headers of lists and dicts; return their encoding, which the first item determines.

        The first byte names the kind: JSON, numbers, or one of LitData's own packings, which are read as bytes. Items
        of another kind than the first count as missing.
        """
        raw = np.frombuffer(self._data, np.uint8)
        tags = np.full(len(starts), _TAG_NONE, np.uint8)
        tags[sizes > 0] = raw[starts[sizes > 0]]
        old = np.isin(tags, _TAGS_OLD)  # JSON without a header, as earlier versions wrote it
        headed = sizes >= _NESTED_HEAD
        first = int(tags[0]) if len(tags) else _TAG_JSON
        if first == _TAG_JSON or first in _TAGS_OLD:
            kind, moved = "json", headed & (tags == _TAG_JSON)
        elif first in _TAGS_NUMBERS:
            kind, moved = f"{_TAGS_NUMBERS[first]}[]", headed & (tags == first)
            old[:] = False
        else:
            return ""
        starts[moved] += _NESTED_HEAD
        sizes[moved] -= _NESTED_HEAD
        sizes[~(moved | old)] = -1
        return kind

    def _check_sizes(self, column: int, stored: str, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Refuse numbers of another size, because ``index.json`` then belongs to another chunk."""
        width = {"int64": 8, "float64": 8, "bool": 1}.get(stored)
        if width is not None and (sizes != width).any():
            wrong = int(np.argmax(sizes != width))
            self.fail(int(starts[wrong]), f"{width} bytes of {stored} in leaf {column}", f"{sizes[wrong]} bytes")


def _encoding(text: str) -> str:
    """Return the encoding of a leaf, see ``recipe.encodings``."""
    kind, _, argument = text.partition(":")
    if kind in _NO_HEADER:
        dtype = _NO_HEADER[kind].get(int(argument)) if argument.isdecimal() else None
        return f"{dtype}[]" if dtype is not None else ""
    return _STORED.get(kind, "")


FORMATS: Final = (
    FormatSpec(
        LitDataFormat(),
        file_names=r"chunk-\d+-\d+\.bin",
        with_params=LitDataFormat,
        first_samples=cut_rows(first_rows),
    ),
)
