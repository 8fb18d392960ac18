"""Casts of batches: the type of numbers, and the memory order of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from feedd_client.containers import map_tensors, with_values
from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ALMOST_ONE: Final = 1.0 - 1e-3  # as torchvision: only 1.0 itself becomes the greatest integer


class _OfTensors:
    def __init__(self, fields: Sequence[str] | None) -> None:
        self._fields = None if fields is None else tuple(fields)

    def _changed(self, batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401 - the source's batch type
        if self._fields is None:
            return map_tensors(batch, change)
        if not isinstance(batch, Mapping) or not set(self._fields) <= set(batch):
            has = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise BadOptionError(f"expected the fields {list(self._fields)}, got {has}", object="fields")
        return with_values(batch, {**batch, **{name: map_tensors(batch[name], change) for name in self._fields}})


class Cast(_OfTensors):
    """Change the dtype of tensors: of all floating-point tensors, or of the named fields.

    Args:
        dtype: the new dtype.
        scale: scale values between the ranges of both dtypes, as torchvision's ``ToDtype(scale=True)`` does: integers
            from 0 to the greatest become floats from 0 to 1, and the other way round.
        fields: names of fields, of any dtype; None: every floating-point tensor.
    """

    def __init__(self, dtype: torch.dtype, *, scale: bool = False, fields: Sequence[str] | None = None) -> None:
        super().__init__(fields)
        self._dtype = dtype
        self._scale = scale

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401 - the source's batch type
        """Return the batch with changed dtypes.

        Raises:
            BadOptionError: a named field is missing.
        """
        return self._changed(batch, self._cast)

    def __repr__(self) -> str:
        return f"Cast({self._dtype}, scale={self._scale})"

    def _cast(self, values: torch.Tensor) -> torch.Tensor:
        if self._fields is None and not values.is_floating_point():
            return values
        if not self._scale or values.is_floating_point() == self._dtype.is_floating_point:
            return values.to(self._dtype)
        if self._dtype.is_floating_point:
            return values.to(self._dtype).mul_(1.0 / torch.iinfo(values.dtype).max)
        return values.mul(torch.iinfo(self._dtype).max + _ALMOST_ONE).to(self._dtype)


class ToChannelsLast(_OfTensors):
    """Store images ``[batch, channel, height, width]`` with channels last in memory; their shape stays the same.

    Args:
        fields: names of fields; None: every floating-point tensor with four dimensions.
    """

    def __init__(self, *, fields: Sequence[str] | None = None) -> None:
        super().__init__(fields)

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401 - the source's batch type
        """Return the batch with images in this order.

        Raises:
            BadOptionError: a named field is missing.
        """
        return self._changed(batch, pixels_last)

    def __repr__(self) -> str:
        return "ToChannelsLast()"


def pixels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Store the channels of images last in memory; only batches of floating-point images have four dimensions."""
    if tensor.ndim != 4 or not tensor.is_floating_point():
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
