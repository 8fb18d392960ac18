"""Values that users hold: ragged fields, shuffle options, sources and batches."""

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
    """Shuffle options: shards come in random order, and samples are shuffled inside windows of several shards.

    Attributes:
        window_shards: shards per window; None selects the daemon's default. More shards mix better, and as many shards
            must be in the cache before a batch of the window. With None, the first windows of epoch 0 have 1, 2, 4, ...
            shards, so that the first batch of a run waits for one shard.
        window_bytes: fill each window with as many shards as fit into this many bytes, at least one shard. Use instead
            of ``window_shards``.
        bucket_by: field whose stored size groups similar samples of a window into one step, so that padding wastes
            little. The steps still come in random order.
    """

    window_shards: int | None = None
    window_bytes: int | None = None
    bucket_by: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One of several datasets to mix: ``FeedDataset([Source(...), Source(...)], ...)``.

    Attributes:
        url: a prefix, an object, a list of them, ``manifest+s3://…``, or ``augmented+s3://…``. A format in front
            (``tfrecord+s3://…``) applies to all shards, whatever their names. ``{000..127}``, ``{a,b}`` and ``::``
            make lists, as in WebDataset. ``frozen+s3://bucket/train/`` reads the folder's frozen manifest and lists
            nothing.
        weight: share of the samples, in any scale; or shares by first epoch, ``{0: 0.7, 10: 0.5}``.
        fields: what to decode, and how, if this differs from the other sources. Every source must yield the same names,
            types and shapes. None takes the dataset's fields.
    """

    url: str | Sequence[str]
    weight: float | Mapping[int, float] = 1.0
    fields: Mapping[str, str | Mapping[str, Any]] | None = None


class Ragged:
    """A field with samples of different lengths: all samples back to back, with the offset of each.

    Sample ``i`` is ``values[offsets[i]:offsets[i + 1]]``, reshaped to ``shapes[i]`` if there are shapes.

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
        """Return the memory of one sample: for fields ``"bytes"`` and ``"image:raw"`` this is the encoded file."""
        return self[index].contiguous().cpu().numpy().tobytes()

    def padded(self, value: float = 0, length: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples as one tensor ``[rows, length]``, padded with ``value``, and a bool mask of real values.

        If you know the length in advance, let the daemon pad: ``{"decode": ..., "pad": {...}}``.

        Args:
            value: the padding.
            length: columns of the result; longer samples are cut off. None: the length of the longest sample.

        Raises:
            ValueError: the samples have several dimensions.
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

    def to(self, *args: Any, **kwargs: Any) -> Ragged:  # noqa: ANN401 - the same arguments as Tensor.to
        """Move values, offsets and shapes as ``Tensor.to(device)`` does; a dtype applies to the values only."""
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
    """A batch: a dict of ``Tensor``, ``Ragged`` or list by field, with a one-line repr.

    ``torch.utils.data.default_collate`` refuses a batch: pass ``batch_size=None`` to a ``DataLoader`` over batches.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Batch({', '.join(f'{name}: {_shape_of(value)}' for name, value in self.items())})"

    def copy(self) -> Batch:
        """Return a batch that holds the same values."""
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
        "expected single samples to collate, got batches: FeedDataset already makes batches",
        object="batch_size",
        hint="write DataLoader(dataset, batch_size=None); or FeedDataset(..., batch_size=None), and let DataLoader"
        " batch the single samples",
    )


default_collate_fn_map[Batch] = _refuse_to_collate
register_pytree_node(
    Batch,
    lambda batch: (list(batch.values()), list(batch)),
    lambda values, names: Batch(zip(names, values, strict=True)),
    serialized_type_name="feedd_client.Batch",
)
# The fields of one sample, for batch_size=None; a text or JSON field holds the value itself.
Sample: TypeAlias = "dict[str, Any]"
