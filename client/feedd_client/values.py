"""What users hold: ragged fields, the shuffle choice, the shape of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import default_collate_fn_map

from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How samples are shuffled: shards in random order, then samples inside windows of some shards.

    Attributes:
        window_shards: shards per window; None takes the daemon's default. More mixes better and
            needs as many shards in the cache before the first batch.
        window_bytes: as many shards per window as fit into so many bytes, at least one; instead of ``window_shards``.
        bucket_by: field whose stored size decides which samples of a window come together in a step: similar ones, so
            that padding them wastes little. Steps come in random order all the same.
    """

    window_shards: int | None = None
    window_bytes: int | None = None
    bucket_by: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One of several datasets that are mixed: ``FeedDataset([Source(...), Source(...)], ...)``.

    Attributes:
        url: prefix, object, list of them, or ``manifest+s3://…``; a format before it (``tfrecord+s3://…``) is that of
            all shards, whatever their names. ``{000..127}``, ``{a,b}`` and ``::`` are lists, as in WebDataset.
        weight: its share of the samples, in any scale; or the share from certain epochs on, ``{0: 0.7, 10: 0.5}``.
        fields: what to decode and how, where it differs from the other sources'; every source must come out with the
            same names, types and shapes. None takes the dataset's.
    """

    url: str | Sequence[str]
    weight: float | Mapping[int, float] = 1.0
    fields: Mapping[str, str | Mapping[str, Any]] | None = None


class Ragged:
    """A field whose samples differ in length: all samples back to back, and where each begins.

    Sample ``i`` is ``values[offsets[i]:offsets[i + 1]]``, reshaped to ``shapes[i]`` where there are shapes.

    Attributes:
        values: 1-D tensor of all elements.
        offsets: int64 ``[rows + 1]``, in elements.
        shapes: int64 ``[rows, ndim]`` for samples of more than one dimension, else None.
    """

    __slots__ = ("offsets", "shapes", "values")

    def __init__(self, values: torch.Tensor, offsets: torch.Tensor, shapes: torch.Tensor | None = None) -> None:
        self.values = values
        self.offsets = offsets
        self.shapes = shapes

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    def __getitem__(self, index: int) -> torch.Tensor:
        rows = len(self)
        if not -rows <= index < rows:
            raise IndexError(f"expected a row in [0, {rows}), got {index}")
        row = index % rows
        start, end = self.offsets[row : row + 2].tolist()
        sample = self.values[start:end]
        return sample if self.shapes is None else sample.view(self.shapes[row].tolist())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged(rows={len(self)}, dtype={self.values.dtype}, elements={self.values.numel()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Ragged, (self.values, self.offsets, self.shapes))

    def bytes(self, index: int) -> bytes:
        """Return one sample's raw memory: the encoded file for fields ``"bytes"`` and ``"image:raw"``."""
        return self[index].contiguous().cpu().numpy().tobytes()

    def padded(self, value: float = 0, length: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples as one tensor ``[rows, length]``, filled up with ``value``, and which values are their own.

        Where the length is known before, let the daemon do it: ``{"decode": ..., "pad": {...}}``.

        Args:
            value: fills up.
            length: longer samples are cut off; None: that of the longest.

        Raises:
            ValueError: samples have several dimensions.
        """
        if self.shapes is not None:
            raise ValueError("expected samples of one dimension, got several: pad them in the recipe")
        sizes = self.offsets.diff()
        width = (int(sizes.max()) if len(self) else 0) if length is None else length
        mask = torch.arange(width, device=sizes.device) < sizes[:, None]
        values = self.values[: int(self.offsets[-1])]
        if length is not None:
            place = torch.arange(values.shape[0], device=sizes.device) - self.offsets[:-1].repeat_interleave(sizes)
            values = values[place < width]
        block = torch.full(mask.shape, value, dtype=values.dtype, device=values.device)
        block[mask] = values
        return block, mask

    def to(self, *args: Any, **kwargs: Any) -> Ragged:  # noqa: ANN401 - Tensor.to's own, whatever they are
        """Move values, offsets and shapes as ``Tensor.to(device)`` would; a dtype applies to values only."""
        values = self.values.to(*args, **kwargs)
        later = bool(kwargs.get("non_blocking", False))
        shapes = None if self.shapes is None else self.shapes.to(values.device, non_blocking=later)
        return Ragged(values, self.offsets.to(values.device, non_blocking=later), shapes)

    def clone(self) -> Ragged:
        """Return a private copy."""
        return Ragged(self.values.clone(), self.offsets.clone(), None if self.shapes is None else self.shapes.clone())

    def pin_memory(self) -> Ragged:
        """Return a copy in pinned memory; ``DataLoader(pin_memory=True)`` calls this."""
        return Ragged(
            self.values.pin_memory(),
            self.offsets.pin_memory(),
            None if self.shapes is None else self.shapes.pin_memory(),
        )


class Batch(dict[str, Any]):
    """A batch: a dict of ``Tensor``, ``Ragged`` or list by field, with a repr of one line.

    ``torch.utils.data.default_collate`` refuses it: a ``DataLoader`` over batches wants ``batch_size=None``.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Batch({', '.join(f'{name}: {_shape_of(value)}' for name, value in self.items())})"

    def copy(self) -> Batch:
        """Return a batch of the same values."""
        return Batch(self)


def _shape_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{place}"
    if isinstance(value, Ragged):
        return f"Ragged[{len(value)}] of {str(value.values.dtype).removeprefix('torch.')}"
    if isinstance(value, list):
        return f"list[{len(value)}]"
    return type(value).__name__


def _refuse_to_collate(_: object, **_options: object) -> None:
    raise BadOptionError(
        "expected single samples to collate, got batches: FeedDataset makes the batches itself",
        object="batch_size",
        hint="write DataLoader(dataset, batch_size=None); or FeedDataset(..., batch_size=None) for a DataLoader that"
        " makes batches of single samples",
    )


default_collate_fn_map[Batch] = _refuse_to_collate
register_pytree_node(
    Batch,
    lambda batch: (list(batch.values()), list(batch)),
    lambda values, names: Batch(zip(names, values, strict=True)),
    serialized_type_name="feedd_client.Batch",
)
# batch_size=None: the same fields for one sample; text and JSON fields are then the value itself.
Sample: TypeAlias = "dict[str, Any]"
