"""Finds fields that are plain copies: equally many bytes in every sample, copied unchanged or cast. Pure.

Such fields are decoded for all rows of a request at once, so a request may have many rows.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from feedd.recipe.encodings import parse_encoding
from feedd.recipe.low_precision import item_bytes
from feedd.recipe.params import FloatParams, ImageParams, IntParams, TensorParams, TokensParams, params_of
from feedd.recipe.predecoded import PIXELS, prefix_of
from feedd.workers.schedule import equal_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedd.protocols import SampleCodec
    from feedd.values import FieldRecipe
    from feedd.workers.messages import FieldMessage


_LITTLE_ENDIAN: Final = sys.byteorder == "little"
_REQUEST_BYTES: Final = 5 << 20
_REQUEST_ROWS: Final = 1024  # a worker's answer names each bad row, and must fit one packet
_COLUMNS_BYTES: Final = 72 << 10  # a request must fit one packet too, with its other parts
_ROW_BYTES, _FIELD_ROW_BYTES = 8, 28  # bytes per row in a request, and per row of each field


@dataclass(frozen=True, slots=True)
class Plain:
    """A field with equally many numbers in every sample.

    Attributes:
        encoding: dtype in the data, possibly of ``recipe.low_precision``.
        out: dtype in a batch.
        count: numbers per sample.
    """

    encoding: str
    out: str
    count: int

    @property
    def width_bytes(self) -> int:
        """Bytes of a sample in the data."""
        return self.count * item_bytes(self.encoding)

    @property
    def out_bytes(self) -> int:
        """Bytes of a sample in a batch."""
        return self.count * np.dtype(self.out).itemsize


@functools.lru_cache(maxsize=1024)
def plain_numbers(recipe: FieldRecipe) -> Plain | None:
    """Return how to copy a sample of a resolved field; None: the field is not a plain copy.

    Raises:
        BadRecipe: the codec or its parameters are unknown.
    """
    params, stored = params_of(recipe), parse_encoding(recipe.encoding)
    keyed = getattr(params, "key", None) is not None
    if keyed or not _LITTLE_ENDIAN or (stored is not None and (stored.varint or stored.steps)):
        return None
    if isinstance(params, (TensorParams, TokensParams)):
        count = params.count if isinstance(params, TokensParams) else math.prod(params.shape)
        own = "" if stored is None or params.dtype != stored.dtype else stored.low_precision
        return Plain(own or params.dtype, params.dtype, count)
    if isinstance(params, ImageParams) and recipe.encoding == PIXELS:
        return _ready(params)
    if not isinstance(params, (IntParams, FloatParams)) or params.transforms:
        return None
    if stored is not None and stored.dtype != "bool":
        own = stored.low_precision or stored.dtype
        return Plain(own, params.spec("").dtype, 1)  # bool is excluded: a byte that is neither 0 nor 1 is an error
    return None


def _ready(params: ImageParams) -> Plain | None:
    prefix = prefix_of(params)
    if prefix is None or prefix.shape is None or not prefix.whole:
        return None
    return Plain(prefix.dtype, prefix.dtype, math.prod(prefix.shape))


def request_rows(field_count: int) -> int:
    """Return how many rows fit into a request with this many fields."""
    return max(_COLUMNS_BYTES // (_ROW_BYTES + _FIELD_ROW_BYTES * field_count), 1)


def chunk_rows(recipes: Iterable[FieldRecipe], rows: int, total: int) -> int:
    """Return how many rows to send to a worker per message; ``rows`` unless all fields are plain copies.

    Args:
        recipes: recipes of the fields.
        rows: rows per message if rows need decoding.
        total: rows of the batch, which are sent in equal parts.
    """
    row_bytes = field_count = 0
    for recipe in recipes:
        plain = plain_numbers(recipe)
        if plain is None:
            return rows
        row_bytes += plain.out_bytes
        field_count += 1
    most = min(_REQUEST_BYTES // max(row_bytes, 1), _REQUEST_ROWS, request_rows(field_count))
    return max(equal_part(total, max(most, rows)), rows)


LARGE_BYTES: Final = 1 << 20
"""Rows of at least so many bytes are copied here; the calls for smaller rows cost more than their page faults."""


@runtime_checkable
class StoredCodec(Protocol):
    """A codec whose samples may hold their row as it lies in a batch."""

    def stored_at(self, head: memoryview, size_bytes: int, shape: Sequence[int]) -> int | None:
        """Return where in a sample the bytes of its row begin; None: the sample must be decoded.

        Args:
            head: the first bytes of the sample, of which ``npy_header.HEAD_BYTES_MAX`` are enough.
            size_bytes: size of the sample.
            shape: shape of the row.
        """


def has_large_rows(message: FieldMessage, codec: SampleCodec) -> bool:
    """Whether a field may have rows that are copied here, and no padding."""
    large = bool(message.size) and int(np.frombuffer(message.size, np.int64).max()) >= LARGE_BYTES
    return large and isinstance(codec, StoredCodec) and not message.pad
