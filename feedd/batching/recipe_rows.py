"""The rows of a batch that use one recipe, and the fields that workers still have to decode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from feedd.batching.precomputed_values import fill_up, some
from feedd.recipe.padding import parse_pad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.batching.batch_recipes import Recipe
    from feedd.batching.gather import Spans
    from feedd.batching.precomputed_values import PrecomputedValues
    from feedd.batching.slot_layout import Layout
    from feedd.recipe.padding import Pad
    from feedd.workers.work import FieldWork

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that use one recipe: nearly always all rows.

    Attributes:
        at: int[n], their numbers in the batch; None: all rows, in order.
        spans: where the field of each recipe lies.
        keeps_values: by index of a field, the values that measuring produced.
    """

    recipe: Recipe
    at: NDArray[np.intp] | None
    shard_no: NDArray[np.int32]
    spans: tuple[Spans, ...]
    keeps_values: dict[int, PrecomputedValues] = field(default_factory=dict)

    def of(self, column: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Return these rows of a column of the batch."""
        return column if self.at is None else column[self.at]

    def blank(self, bad: Mapping[int, tuple[str, str]]) -> None:
        """Exclude rows that are known to be bad from decoding, as if they lacked every field."""
        if bad:
            here = np.arange(len(self.shard_no)) if self.at is None else self.at
            known = np.isin(here, list(bad))
            for span in self.spans:
                span.size[known] = -1


@dataclass(frozen=True, slots=True)
class WorkerRows:
    """Fields and rows that workers decode.

    Attributes:
        seeds: uint64[rows].
        at: int[rows], their numbers in the batch; None: all rows, in order.
    """

    fields: tuple[FieldWork, ...]
    seeds: NDArray[np.uint64]
    at: NDArray[np.intp] | None


@dataclass(frozen=True, slots=True)
class Shares:
    """The work that is left for the rows of a part.

    Attributes:
        decoded: fields and rows that workers decode.
        ready: bool[rows]: rows that get their precomputed values; the other rows are decoded entirely.
        done: number of rows that need no decoding.
    """

    decoded: tuple[WorkerRows, ...]
    ready: NDArray[np.bool_]
    done: int = 0


def shares(part: Part, fields: Sequence[FieldWork], seeds: NDArray[np.uint64], *, packed: bool) -> Shares:
    """Divide a part's rows by the fields that are left to decode.

    Args:
        part: the rows.
        fields: all fields, of all rows.
        seeds: uint64[rows].
        packed: the fields are packed together. If a row lacks one, only that field is decoded, to find the reason.
    """
    rows = np.ones(len(seeds), np.bool_)
    found: list[WorkerRows] = []
    if packed and len(fields) > 1:
        for one in fields:
            assert one.shape is not None
            broken = np.flatnonzero(rows & (one.shape[:, 0] < 0))
            rows[broken] = False
            if len(broken):
                found.append(_worker_rows(part, (one,), seeds, broken))
    ready = rows.copy()
    for number, keeps_values in part.keeps_values.items():
        ready &= keeps_values.ready(_length_max(fields[number])) & (part.spans[number].size >= 0)
    left = tuple(one for number, one in enumerate(fields) if number not in part.keeps_values)
    rest = rows & ~ready if part.keeps_values else rows
    if rest.any():
        found.append(_worker_rows(part, tuple(fields), seeds, np.flatnonzero(rest)))
    if part.keeps_values and left and ready.any():
        found.append(_worker_rows(part, left, seeds, np.flatnonzero(ready)))
    done = int(ready.sum()) if part.keeps_values and not left else 0
    return Shares(tuple(found), ready, done)


def _length_max(work: FieldWork) -> int | None:
    """Return the maximum length of a value if longer values are bad samples, else None."""
    pad = parse_pad(work.recipe.pad)
    return work.dims[0] if pad is not None and work.dims and not pad.truncate else None


def _worker_rows(
    part: Part, fields: tuple[FieldWork, ...], seeds: NDArray[np.uint64], rows: NDArray[np.intp]
) -> WorkerRows:
    if len(rows) == len(seeds):
        return WorkerRows(fields, seeds, part.at)
    return WorkerRows(tuple(some(one, rows) for one in fields), seeds[rows], rows if part.at is None else part.at[rows])


def copy_precomputed(
    view: memoryview, layout: Layout, parts: Sequence[Part], divided: Sequence[Shares], pads: Mapping[str, Pad]
) -> None:
    """Copy precomputed values into their rows before workers decode the other rows.

    Args:
        view: the slot.
        layout: the layout of the batch.
        parts: the rows of the batch.
        divided: the work that is left, for each part.
        pads: the padding of padded fields, by name.
    """
    for name in {part.recipe[number].name for part in parts for number in part.keeps_values} & pads.keys():
        fill_up(view, layout.field(name), pads[name])
    for part, one in zip(parts, divided, strict=True):
        for number, keeps_values in part.keeps_values.items():
            place = layout.field(part.recipe[number].name)
            keeps_values.lay(view, place, part.of(place.out_at), one.ready)
