"""The rows of a batch that one recipe is for, and what of them is left for workers to decode."""

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
    from feedd.batching.gather import Gathered
    from feedd.batching.precomputed_values import PrecomputedValues
    from feedd.batching.slot_layout import Layout
    from feedd.recipe.padding import Pad
    from feedd.workers.work import FieldWork

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one recipe is for: nearly always all.

    Attributes:
        at: int[n], their numbers in the batch; None: all of them, in order.
        keeps_values: by field, values that came along when they were measured.
    """

    recipe: Recipe
    at: NDArray[np.intp] | None
    shard_no: NDArray[np.int32]
    gathered: Gathered
    keeps_values: dict[int, PrecomputedValues] = field(default_factory=dict)

    def of(self, column: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Return a batch's column for these rows."""
        return column if self.at is None else column[self.at]

    def blank(self, bad: Mapping[int, tuple[str, str]]) -> None:
        """Have nothing decoded of the rows that are known to be bad: as if they lacked every field."""
        if bad:
            here = np.arange(len(self.shard_no)) if self.at is None else self.at
            known = np.isin(here, list(bad))
            for span in self.gathered.spans:
                span.size[known] = -1


@dataclass(frozen=True, slots=True)
class Share:
    """Fields and rows that workers decode.

    Attributes:
        seeds: uint64[rows].
        at: int[rows], their numbers in the batch; None: all of them, in order.
    """

    fields: tuple[FieldWork, ...]
    seeds: NDArray[np.uint64]
    at: NDArray[np.intp] | None


@dataclass(frozen=True, slots=True)
class Shares:
    """What is to be done for the rows of a part.

    Attributes:
        decoded: by workers.
        ready: bool[rows]: those whose kept values are laid into them; the others are decoded as a whole.
        done: rows of which nothing is left to decode.
    """

    decoded: tuple[Share, ...]
    ready: NDArray[np.bool_]
    done: int = 0


def shares(part: Part, fields: Sequence[FieldWork], seeds: NDArray[np.uint64], *, packed: bool) -> Shares:
    """Divide a part's rows by what is left to decode of them.

    Args:
        part: the rows.
        fields: all of them, of all rows.
        seeds: uint64[rows].
        packed: fields share places: of a row one of whose fields has none, only that is looked at, to say why.
    """
    rows = np.ones(len(seeds), np.bool_)
    found: list[Share] = []
    if packed and len(fields) > 1:
        for one in fields:
            assert one.shape is not None
            broken = np.flatnonzero(rows & (one.shape[:, 0] < 0))
            rows[broken] = False
            if len(broken):
                found.append(_share(part, (one,), seeds, broken))
    ready = rows.copy()
    for number, keeps_values in part.keeps_values.items():
        ready &= keeps_values.ready(_room(fields[number])) & (part.gathered.spans[number].size >= 0)
    left = tuple(one for number, one in enumerate(fields) if number not in part.keeps_values)
    rest = rows & ~ready if part.keeps_values else rows
    if rest.any():
        found.append(_share(part, tuple(fields), seeds, np.flatnonzero(rest)))
    if part.keeps_values and left and ready.any():
        found.append(_share(part, left, seeds, np.flatnonzero(ready)))
    done = int(ready.sum()) if part.keeps_values and not left else 0
    return Shares(tuple(found), ready, done)


def _room(work: FieldWork) -> int | None:
    """Return how long a value may be, where longer ones are bad samples."""
    pad = parse_pad(work.recipe.pad)
    return work.dims[0] if pad is not None and work.dims and not pad.truncate else None


def _share(part: Part, fields: tuple[FieldWork, ...], seeds: NDArray[np.uint64], rows: NDArray[np.intp]) -> Share:
    if len(rows) == len(seeds):
        return Share(fields, seeds, part.at)
    return Share(tuple(some(one, rows) for one in fields), seeds[rows], rows if part.at is None else part.at[rows])


def lay_kept(
    view: memoryview, layout: Layout, parts: Sequence[Part], divided: Sequence[Shares], pads: Mapping[str, Pad]
) -> None:
    """Lay values that came along when they were measured into their rows; before others are decoded beside them.

    Args:
        view: the slot.
        layout: of the batch.
        parts: its rows.
        divided: of each part, what is left to decode and what is not.
        pads: of fields that are padded, by their names.
    """
    for name in {part.recipe[number].name for part in parts for number in part.keeps_values} & pads.keys():
        fill_up(view, layout.place(name), pads[name])
    for part, one in zip(parts, divided, strict=True):
        for number, keeps_values in part.keeps_values.items():
            place = layout.place(part.recipe[number].name)
            keeps_values.lay(view, place, part.of(place.out_at), one.ready)
