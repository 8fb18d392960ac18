"""Looks up the byte spans of each field for the (shard, ordinal) pairs of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.workers.fixed_width import plain_numbers
from feedd.workers.work import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.shard_index import ShardIndex
    from feedd.values import FieldRecipe


@dataclass(frozen=True, slots=True)
class Spans:
    """The byte spans of one field, one entry per row.

    Attributes:
        start: int64[rows], first byte in the row's shard.
        size: int64[rows], bytes; -1 if the sample lacks the field.
    """

    start: NDArray[np.int64]
    size: NDArray[np.int64]


def gather(
    indexes: Sequence[ShardIndex],
    shard_no: NDArray[np.int32],
    ordinal: NDArray[np.int64],
    recipes: Sequence[FieldRecipe],
) -> tuple[Spans, ...]:
    """Look up the fields of rows ``(indexes[shard_no[i]], ordinal[i])``.

    A recipe's sources are tried in order for each sample; the first source that the sample has is used.

    Args:
        indexes: indexes of the batch's shards.
        shard_no: int32[rows], position in ``indexes``.
        ordinal: int64[rows], sample within the shard.
        recipes: the fields to look up.

    Returns:
        one entry per recipe, in the order of the recipes.
    """
    rows = len(shard_no)
    spans = tuple(Spans(np.zeros(rows, np.int64), np.full(rows, -1, np.int64)) for _ in recipes)
    for number, index in enumerate(indexes):
        here = np.flatnonzero(shard_no == number)
        for recipe, span in zip(recipes, spans, strict=True):
            _look_up(index, here, ordinal[here], recipe, span)
    return spans


def columns_of(indexes: Sequence[ShardIndex], recipes: Sequence[FieldRecipe]) -> tuple[Column, ...] | None:
    """Return the fields as columns, for ``DecodePool.gather``; None: one of them is none in one of the shards.

    Args:
        indexes: indexes of the shards.
        recipes: the fields, all of them plain copies of numbers.
    """
    columns = []
    for recipe in recipes:
        plain = plain_numbers(recipe)
        strides = [_stride(index, recipe) for index in indexes]
        if plain is None or any(stride is None or stride[2] != plain.width_bytes for stride in strides):
            return None
        at, step_bytes, _ = np.array(strides, np.int64).T
        columns.append(Column(recipe, at, step_bytes))
    return tuple(columns)


def _stride(index: ShardIndex, recipe: FieldRecipe) -> tuple[int, int, int] | None:
    """Return where the values of a field lie, if at regular distances; see ``ShardIndex.strides``."""
    for source in recipe.sources if index.strides else ():
        if source in index.fields:
            column = index.fields.index(source)
            if reads_as(index.encoding_of(column), recipe.encoding):
                return index.strides[column]
    return None


def reads_as(stored: str, wanted: str) -> bool:
    """Whether a shard's encoding can be read as another: one may hold single numbers and the other several.

    A RecordIO shard has the encoding ``float32[]`` for labels if any sample has several. Each sample states its count.

    Args:
        stored: the shard's encoding, see ``recipe.encodings``.
        wanted: the encoding that the recipe expects.
    """
    one, many = sorted((stored, wanted), key=len)
    return one == many or (many == f"{one}[]" and not one.endswith("]"))


def _look_up(
    index: ShardIndex, rows: NDArray[np.intp], ordinals: NDArray[np.int64], recipe: FieldRecipe, span: Spans
) -> None:
    for source in recipe.sources:
        if source not in index.fields or not len(rows):
            continue
        column = index.fields.index(source)
        if not reads_as(index.encoding_of(column), recipe.encoding):
            continue  # another type than in the first shard: counts as missing
        start, size = index.cells(column, ordinals)
        found = size >= 0
        if found.all():  # the usual case
            span.size[rows], span.start[rows] = size, start
            return
        span.size[rows[found]], span.start[rows[found]] = size[found], start[found]
        rows, ordinals = rows[~found], ordinals[~found]


@dataclass(frozen=True, slots=True)
class Text:
    """The texts of all rows, as a TEXT field of a batch stores them.

    Attributes:
        blob: UTF-8 texts, back to back.
        offsets: int64[rows + 1], start of each row's text in ``blob``; the last is its length.
    """

    blob: bytes
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64[rows], bytes of each row's text."""
        return np.diff(self.offsets)


def _text(parts: Sequence[bytes]) -> Text:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return Text(b"".join(parts), offsets)


def keys(indexes: Sequence[ShardIndex], shard_no: NDArray[np.int32], ordinal: NDArray[np.int64]) -> Text:
    """Return the ``__key__`` of each row."""
    rows = zip(shard_no.tolist(), ordinal.tolist(), strict=True)
    return _text([indexes[number].key_bytes(position) for number, position in rows])


def shard_urls(urls: Sequence[str], shard_no: NDArray[np.int32]) -> Text:
    """Return the ``__url__`` of each row; ``shard_no`` are indices into ``urls``."""
    encoded = [url.encode("utf-8", "replace") for url in urls]
    return _text([encoded[number] for number in shard_no.tolist()])
