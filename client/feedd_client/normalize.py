"""Normalize: turns the uint8 images of a slot into normalised floats for a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from feedd_client.containers import with_values
from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd_client.transforms import TransformContext


class Normalize:
    """Turn uint8 images ``[..., height, width, channel]`` into ``(x / 255 - mean) / std``, channels first.

    Unlike torchvision's class of that name, this class divides by 255, moves the channels, and takes a whole batch. The
    result is computed in float32 and rounded once to ``dtype``, the same on every device. In ``DeviceLoader`` it runs
    on the copy stream after the transfer, so images cross the bus as uint8.

    Args:
        mean: mean per channel, for values in [0, 1].
        std: standard deviation per channel, for values in [0, 1].
        dtype: dtype of the result.
        fields: names of the image fields. None selects every uint8 tensor with at least four dimensions and
            ``len(mean)`` channels in the last. Single images (three dimensions) must be named.
        channels_last: keep the pixels' memory order, which is fast for convolutions. The shape is channels first
            in either case.

    Raises:
        BadOptionError: mean and std differ in length, or a std is 0.
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

    def __call__(self, batch: Mapping[str, Any], context: TransformContext | None = None) -> Any:  # noqa: ANN401 - a mapping of the same type
        """Return the batch with its image fields normalised; other fields pass through.

        Raises:
            BadOptionError: a field in ``fields`` is missing or holds no such images, or no field holds such images.
        """
        if not isinstance(batch, Mapping):
            raise BadOptionError(f"expected a mapping of fields, got {type(batch).__name__}", object="Normalize")
        names = (
            [name for name, value in batch.items() if self._fits(value, 4)] if self._fields is None else self._fields
        )
        for name in names:
            if name not in batch or not self._fits(batch[name], 3):
                got = _described(batch[name]) if name in batch else f"no such field among {list(batch)}"
                raise BadOptionError(
                    f"expected uint8 images with {len(self._mean)} channels last, got {got}", object=name
                )
        if not names:
            raise BadOptionError(
                f"expected a field of uint8 images [batch, height, width, {len(self._mean)}],"
                f" got {', '.join(f'{name}: {_described(value)}' for name, value in batch.items())}",
                object="Normalize",
                hint="decode images in fields=, or name single images with Normalize(fields=[...])",
            )
        last = self._channels_last or (context is not None and context.channels_last)
        return with_values(
            batch, {name: self._image(value, last=last) if name in names else value for name, value in batch.items()}
        )

    def __repr__(self) -> str:
        return f"Normalize(mean={self._mean}, std={self._std}, dtype={self._dtype})"

    def _fits(self, value: object, least_dimensions: int) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.uint8
            and value.ndim >= least_dimensions
            and value.shape[-1] == len(self._mean)
        )

    def _image(self, pixels: torch.Tensor, *, last: bool) -> torch.Tensor:
        scale, shift = self._constants_on(pixels.device)
        # x * 1/(255 std) - mean/std. One pass writes the final type in the final order. On a CPU, strided writes
        # cost more than a second pass.
        if last or pixels.device.type != "cpu":
            *outer, height, width, channels = pixels.shape
            shape = (*outer, height, width, channels) if last else (*outer, channels, height, width)
            out = torch.empty(shape, dtype=self._dtype, device=pixels.device)
            torch.addcmul(shift, pixels, scale, out=out if last else out.movedim(-3, -1))
            return out.movedim(-1, -3) if last else out
        return torch.addcmul(shift, pixels.to(torch.float32), scale).to(self._dtype).movedim(-1, -3).contiguous()

    def _constants_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        found = self._constants.get(device)
        if found is None:
            mean = torch.tensor(self._mean, dtype=torch.float64, device="cpu")
            std = torch.tensor(self._std, dtype=torch.float64, device="cpu")
            scale, shift = (1 / (255 * std)).float(), (-mean / std).float()
            found = self._constants[device] = (scale.to(device), shift.to(device))
        return found


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
