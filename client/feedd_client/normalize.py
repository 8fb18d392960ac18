"""Normalize: uint8 images as they lie in a slot, to what a network eats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Normalize:
    """Turn uint8 images ``[..., height, width, channel]`` into ``(x / 255 - mean) / std``, channels first.

    Computed in float32 and rounded once to ``dtype``, the same on every device. Runs on the copy stream in
    ``DeviceLoader``, after the transfer: bytes cross the bus as uint8.

    Args:
        mean: per channel, of values in [0, 1].
        std: per channel.
        dtype: of the result.
        fields: names of the image fields; None takes every uint8 tensor whose last of three or more dimensions
            has as many channels as ``mean``.
        channels_last: keep the memory order of the pixels (fast for convolutions); the shape is channels first
            either way.

    Raises:
        BadOptionError: mean and std of different length, or a std of 0.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
        *,
        fields: Sequence[str] | None = None,
        channels_last: bool = False,
    ) -> None:
        if len(mean) != len(std) or not mean or any(value == 0 for value in std):
            raise BadOptionError(
                f"expected mean and std of one length, std without zeros, got {mean!r} and {std!r}", object="Normalize"
            )
        self._mean = tuple(float(value) for value in mean)
        self._std = tuple(float(value) for value in std)
        self._dtype = dtype
        self._fields = None if fields is None else tuple(fields)
        self._channels_last = channels_last
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with its image fields normalised; other fields pass through.

        Raises:
            BadOptionError: a field named in ``fields`` is missing or holds no such images.
        """
        return {name: self._image(value) if self._applies(name, value) else value for name, value in batch.items()}

    def __repr__(self) -> str:
        return f"Normalize(mean={self._mean}, std={self._std}, dtype={self._dtype})"

    def _applies(self, name: str, value: object) -> bool:
        fits = (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.uint8
            and value.ndim >= 3
            and value.shape[-1] == len(self._mean)
        )
        if self._fields is None:
            return fits
        if name in self._fields and not fits:
            got = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise BadOptionError(f"expected uint8 images with {len(self._mean)} channels last, got {got}", object=name)
        return name in self._fields

    def _image(self, pixels: torch.Tensor) -> torch.Tensor:
        scale, shift = self._constants_on(pixels.device)
        # x * 1/(255 std) - mean/std in one pass, in the memory order the pixels have
        floats = torch.addcmul(shift, pixels.to(torch.float32), scale).to(self._dtype)
        first = floats.movedim(-1, -3)
        return first if self._channels_last else first.contiguous()

    def _constants_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        found = self._constants.get(device)
        if found is None:
            mean = torch.tensor(self._mean, dtype=torch.float64)
            std = torch.tensor(self._std, dtype=torch.float64)
            scale, shift = (1 / (255 * std)).float(), (-mean / std).float()
            found = self._constants[device] = (scale.to(device), shift.to(device))
        return found
