"""Bad rows of text objects: they keep their places, with the reason of each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.formats.missing_reasons import HAS, Why

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from feedd.convert.table_writer import Piece

_BAD_ALWAYS: Final = 16


def are_most(bad: int, rows: int) -> bool:
    """Whether so many rows are bad that the object is not damaged but has another format than the recipe expects."""
    return bad > max(_BAD_ALWAYS, rows // 2)


def marked(pieces: Iterable[Piece], marks: NDArray[np.uint8] | None, width: int | None) -> Iterator[Piece]:
    """Yield the pieces of a column with the reasons of bad rows.

    Args:
        pieces: pieces of all rows.
        marks: uint8[rows], see ``formats.missing_reasons``: rows that are not ``HAS`` are bad. None: no row is bad.
        width: bytes of a value; None: each piece has sizes.
    """
    at = 0
    for piece in pieces:
        if marks is None:
            yield piece
            continue
        count = len(piece.sizes) if piece.sizes is not None else piece.values.nbytes // (width or 1)
        own = marks[at : at + count]
        at += count
        if not (own == HAS).all():
            there = np.uint8(HAS) if piece.valid is None else (piece.valid == HAS).astype(np.uint8)
            piece = replace(piece, valid=np.where(own == HAS, there, own).astype(np.uint8))  # noqa: PLW2901 - as marked
        yield piece


def row_positions(bad: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of the good row for each place, int64[rows], and which places are bad, bool[rows].

    Args:
        bad: places of bad rows, in order.
        rows: number of rows, good and bad.
    """
    lost = np.zeros(rows, np.bool_)
    lost[bad] = True
    return np.cumsum(~lost) - 1, lost


def with_reason(why: Why, bad: NDArray[np.bool_], marks: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
    """Return marks with one more reason for bad rows; a row that is already bad keeps its reason."""
    if not bad.any():
        return marks
    known = np.full(len(bad), HAS, np.uint8) if marks is None else marks
    return np.where(bad & (known == HAS), HAS + int(why), known).astype(np.uint8)
