"""LitData's chunks, as they lie when they are not compressed.

A chunk is ``u32 n, u32 offset[n + 1], items``; an item is one u32 size for each of its leaves, then the leaves
[litdata, streaming/{writer,item_loader,serializers}.py]. It does not say what its leaves are: ``index.json`` beside it
does, which comes here as parameters. A leaf is a field by its path in the item: a key of a dict, a number in a list or
tuple, both joined by dots; an item that is one leaf is the field ``data``.

Integers, floats and arrays of one dimension are fields stored as such, text, JSON and encoded images as files, arrays
that carry their shape are read by ``npy``, pixels by ``image``. What LitData pickles comes as ``bytes`` where it is
asked for. A chunk of dicts of plain values only holds Arrow instead (see ``convert.table_converters``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from feedd.errors import Unsupported
from feedd.formats.format_spec import FormatSpec, cut_rows
from feedd.formats.framing import field_names, numbered
from feedd.formats.inline_headers import NUMPY_DTYPES, TORCH_DTYPES
from feedd.formats.rows import RowsReader, first_rows
from feedd.values import ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARROW_END: Final = b"LDARW01\0"
"""How a chunk ends that holds Arrow."""
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
_NESTED_HEAD: Final = 5  # a byte that says what it is, u32 how long
_TAG_JSON, _TAG_NONE = 0, 255
_TAGS_OLD: Final = (ord("["), ord("{"))
_TAGS_NUMBERS: Final = {2: "int64", 3: "float64"}


class _Params(msgspec.Struct):
    """What ``index.json`` says of a chunk.

    Attributes:
        names: of the leaves.
        formats: by which serializer each was written.
        problem: why it cannot be read; empty: it can.
        bare: whether items are their only leaf, without its size, as those for LitData's TokensLoader are.
    """

    names: list[str] = []
    formats: list[str] = []
    problem: str = ""
    bare: bool = False


class LitDataFormat:
    """``protocols.ShardFormat`` of LitData's chunks; stateless.

    Args:
        params: JSON of what ``index.json`` says (see ``_Params``); empty: nothing is known of it.
    """

    def __init__(self, params: str = "") -> None:
        self._params = msgspec.json.decode(params.encode(), type=_Params) if params else None

    @property
    def name(self) -> str:
        """``litdata``."""
        return "litdata"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return where each item's leaves lie; a key is the item's number in the chunk.

        Args:
            data: the whole object, borrowed for the call.
            url: named in errors.

        Raises:
            BadShard: no chunk, or one whose offsets and sizes do not fit together.
            Unsupported: there was no ``index.json`` beside it, or what that says cannot be read here.
        """
        params = self._params
        if params is None:
            hint = "name the folder that holds the chunks and their index.json"
            raise Unsupported("expected an index.json beside the chunk, got none", object=url, hint=hint)
        if params.problem:
            hint = "write the dataset anew, without that"
            raise Unsupported(f"expected plain LitData items, got {params.problem}", object=url, hint=hint)
        return _Reader(data, url).read(params)


class _Reader(RowsReader):
    """One chunk."""

    def read(self, params: _Params) -> ShardIndex:
        """Read offsets and sizes."""
        if bytes(self._data[-len(ARROW_END) :]) == ARROW_END:
            raise Unsupported(
                "expected plain LitData items, got rows in Arrow's format",
                object=self._url,
                hint="write litdata-arrow+ before the URL: such chunks are made tables, once per node",
                stage="decode",
            )
        offsets = self.offsets("a LitData chunk")
        if params.bare:
            starts, sizes = offsets[None, :-1], np.diff(offsets)[None]
        else:
            starts, sizes = self.columns([None] * len(params.names), offsets)
        stored = list(map(_stored, params.formats))
        for column, name in enumerate(stored):
            if name == _NESTED:
                stored[column] = self._nested(starts[column], sizes[column])
            else:
                self._check_sizes(column, name, starts[column], sizes[column])
        names = field_names(params.names, self._url)
        return ShardIndex(names, starts, sizes, *numbered(len(offsets) - 1), stored=tuple(stored))

    def _nested(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> str:
        """Move spans of lists and dicts behind their heads; return how they are stored, as the first one is.

        One byte says what it is: JSON, numbers, or one of LitData's own packings, which come as bytes. Those that are
        not what the first one is are missing.
        """
        raw = np.frombuffer(self._data, np.uint8)
        tags = np.full(len(starts), _TAG_NONE, np.uint8)
        tags[sizes > 0] = raw[starts[sizes > 0]]
        old = np.isin(tags, _TAGS_OLD)  # JSON without a head, as earlier versions wrote it
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
        """Refuse numbers of other sizes: the index.json is not this chunk's."""
        width = {"int64": 8, "float64": 8, "bool": 1}.get(stored)
        if width is not None and (sizes != width).any():
            wrong = int(np.argmax(sizes != width))
            self.fail(int(starts[wrong]), f"{width} bytes of {stored} in leaf {column}", f"{sizes[wrong]} bytes")


def _stored(text: str) -> str:
    """Return how a leaf is stored, as ``recipe.encodings`` has it."""
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
