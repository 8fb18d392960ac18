"""MixUp and CutMix, with the numbers that torchvision's transforms of these names give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from feedd_client.containers import with_values
from feedd_client.errors import BadOptionError
from feedd_client.images import described, image_fields, planes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from feedd_client.geometry import Box
    from feedd_client.transforms import TransformContext


class _Mixing:
    def __init__(
        self, label: str, alpha: float = 1.0, *, classes: int | None = None, fields: Sequence[str] | None = None
    ) -> None:
        if alpha <= 0:
            raise BadOptionError(f"expected a number above 0, got {alpha}", object="alpha")
        self._label = label
        self._alpha = alpha
        self._classes = classes
        self._fields = None if fields is None else tuple(fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._label!r}, alpha={self._alpha}, classes={self._classes})"

    def _images(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        names = [name for name in image_fields(batch, self._fields, type(self).__name__) if name != self._label]
        found = {name: batch[name] for name in names}
        for name, images in found.items():
            if not isinstance(images, torch.Tensor) or not images.is_floating_point():
                raise BadOptionError(
                    f"expected floating-point images of one size, got {described(images)}",
                    object=name,
                    hint=f"put Normalize in front of {type(self).__name__}",
                )
        return found

    def _labels(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the labels as rows of class probabilities.

        Raises:
            BadOptionError: they are missing, or are numbers and ``classes`` is not given.
        """
        found = batch.get(self._label)
        if not isinstance(found, torch.Tensor) or found.ndim not in {1, 2}:
            got = described(found) if self._label in batch else f"no such field among {list(batch)}"
            raise BadOptionError(f"expected labels [batch] or [batch, class], got {got}", object=self._label)
        if found.ndim == 1:
            if self._classes is None:
                raise BadOptionError(
                    "expected a number of classes for labels that are numbers, got None", object="classes"
                )
            found = functional.one_hot(found.long(), self._classes)
        return found if found.is_floating_point() else found.float()


class MixUp(_Mixing):
    """Blend each image and label with its neighbour in the batch; put it behind ``Normalize``.

    Labels become float rows of class probabilities, which ``cross_entropy`` takes.

    Args:
        label: name of the label field.
        alpha: parameter of the Beta distribution of the share.
        classes: number of classes; None: the labels are rows of probabilities already.
        fields: names of the image fields; None: every field of images.
    """

    def __call__(self, batch: Mapping[str, Any], context: TransformContext) -> Any:  # noqa: ANN401 - a mapping of the same type
        """Return the batch with mixed images and labels.

        Raises:
            BadOptionError: a field is missing or is of another type.
        """
        return self.apply(batch, self.draw(context.host_numbers()))

    def draw(self, numbers: np.random.Generator) -> float:
        """Return the share of each image itself."""
        return float(numbers.beta(self._alpha, self._alpha))

    def apply(self, batch: Mapping[str, Any], share: float) -> Any:  # noqa: ANN401 - see above
        """Return the batch, mixed with this share."""
        mixed = {name: _blended(images, share) for name, images in self._images(batch).items()}
        return with_values(batch, {**batch, **mixed, self._label: _blended(self._labels(batch), share)})


class CutMix(_Mixing):
    """Put a part of each image's neighbour into the image; put it behind ``Normalize``.

    Labels become float rows of class probabilities, weighted by area.

    Args:
        label: name of the label field.
        alpha: parameter of the Beta distribution of the share.
        classes: number of classes; None: the labels are rows of probabilities already.
        fields: names of the image fields; None: every field of images.
    """

    def __call__(self, batch: Mapping[str, Any], context: TransformContext) -> Any:  # noqa: ANN401 - see above
        """Return the batch with mixed images and labels.

        Raises:
            BadOptionError: a field is missing or is of another type.
        """
        height, width = next(iter(self._images(batch).values())).shape[-2:]
        return self.apply(batch, self.draw((height, width), context.host_numbers()))

    def draw(self, size: tuple[int, int], numbers: np.random.Generator) -> Box:
        """Return the part that comes from the neighbour, for images of this height and width."""
        from feedd_client.geometry import Box  # noqa: PLC0415 - geometry is large

        height, width = size
        half = 0.5 * math.sqrt(1.0 - float(numbers.beta(self._alpha, self._alpha)))
        column, row = int(numbers.integers(width)), int(numbers.integers(height))
        top, left = max(row - int(half * height), 0), max(column - int(half * width), 0)
        bottom, right = min(row + int(half * height), height), min(column + int(half * width), width)
        return Box(top, left, bottom - top, right - left)

    def apply(self, batch: Mapping[str, Any], box: Box) -> Any:  # noqa: ANN401 - see above
        """Return the batch with this part of each image taken from its neighbour."""
        rows, columns = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
        mixed = {}
        share = 1.0
        for name, images in self._images(batch).items():
            mixed[name] = images.clone()
            mixed[name][..., rows, columns] = images.roll(1, 0)[..., rows, columns]
            height, width = planes(images).shape[-2:]
            share = 1.0 - box.height * box.width / (height * width)
        return with_values(batch, {**batch, **mixed, self._label: _blended(self._labels(batch), share)})


def _blended(values: torch.Tensor, share: float) -> torch.Tensor:
    return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))
