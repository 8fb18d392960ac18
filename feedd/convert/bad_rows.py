"""Rows of a text that are no samples as they should be: their places are kept, and the reason of each."""

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
    """Whether so many rows are bad that it is no damage: the text is another than the recipe takes it for."""
    return bad > max(_BAD_ALWAYS, rows // 2)


def marked(pieces: Iterable[Piece], marks: NDArray[np.uint8] | None, width: int | None) -> Iterator[Piece]:
    """Yield pieces of a column that say of bad rows why they are.

    Args:
        pieces: of all rows.
        marks: uint8[rows], see ``formats.missing_reasons``: what is not ``HAS`` is bad. None: nothing is.
        width: bytes of a value; None: pieces say.
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
            piece = replace(piece, valid=np.where(own == HAS, there, own).astype(np.uint8))  # noqa: PLW2901 - as it is now
        yield piece


def places(bad: NDArray[np.int64], rows: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which of the good rows stands in each place, int64[rows], and which places are bad ones, bool[rows].

    Args:
        bad: places of bad rows, in order.
        rows: good and bad.
    """
    lost = np.zeros(rows, np.bool_)
    lost[bad] = True
    return np.cumsum(~lost) - 1, lost


def told(why: Why, bad: NDArray[np.bool_], marks: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
    """Return marks in which rows are bad for one reason more; one that is bad already stays as it is."""
    if not bad.any():
        return marks
    known = np.full(len(bad), HAS, np.uint8) if marks is None else marks
    return np.where(bad & (known == HAS), HAS + int(why), known).astype(np.uint8)
