"""Flips, crops and resizes of batches, with the numbers that torchvision's transforms of these names give.

torchvision draws one parameter for a whole batch. These classes draw one for each image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from feedd_client.errors import BadOptionError
from feedd_client.images import (
    Images,
    ImageTransform,
    RandomImageTransform,
    each,
    from_planes,
    one_tensor,
    planes,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

_TRIES: Final = 10  # as torchvision
_HEIGHT, _WIDTH = -2, -1


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class _RandomFlip(RandomImageTransform):
    _dimension: int

    def __init__(self, p: float = 0.5, *, fields: Sequence[str] | None = None) -> None:
        super().__init__(fields)
        if not 0 <= p <= 1:
            raise BadOptionError(f"expected a probability, got {p}", object=type(self).__name__)
        self._p = p

    def draw(self, sizes: Sequence[tuple[int, int]], numbers: np.random.Generator) -> list[bool]:
        """Return for each image whether to flip it."""
        return [bool(one) for one in numbers.random(len(sizes)) < self._p]

    def apply(self, images: Images, parameters: Sequence[bool]) -> Images:
        """Return the images with those flipped for which a parameter is True."""
        if isinstance(images, torch.Tensor):
            chosen = torch.tensor(parameters, device="cpu").to(images.device, non_blocking=True)
            pixels = planes(images)
            return from_planes(torch.where(chosen[:, None, None, None], pixels.flip(self._dimension), pixels))
        return each(images, lambda one, number: one.flip(self._dimension) if parameters[number] else one)


class RandomHorizontalFlip(_RandomFlip):
    """Flip each image left to right with probability ``p``.

    Args:
        p: probability, 0.5 if not given.
        fields: names of the image fields; None: every field of images.
    """

    _dimension = _WIDTH


class RandomVerticalFlip(_RandomFlip):
    """Flip each image upside down with probability ``p``.

    Args:
        p: probability, 0.5 if not given.
        fields: names of the image fields; None: every field of images.
    """

    _dimension = _HEIGHT


class CenterCrop(ImageTransform):
    """Cut the centre out of each image; smaller images are filled with 0. A list of images becomes one tensor.

    Args:
        size: height and width, or one number for both.
        fields: names of the image fields; None: every field of images.
    """

    def __init__(self, size: int | tuple[int, int], *, fields: Sequence[str] | None = None) -> None:
        super().__init__(fields)
        self._size = _pair(size)

    def __call__(self, batch: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a mapping of the same type
        """Return the batch with cropped image fields.

        Raises:
            BadOptionError: a named field is missing or holds no images, or no field holds images.
        """
        return self.changed(batch, self.apply)

    def apply(self, images: Images) -> torch.Tensor:
        """Return the cropped images."""
        if isinstance(images, torch.Tensor):
            return from_planes(_centre(planes(images), self._size))
        return one_tensor(each(images, lambda one, _: _centre(one, self._size)))


class RandomCrop(RandomImageTransform):
    """Cut a random part out of each image. A list of images becomes one tensor.

    Args:
        size: height and width, or one number for both.
        padding: pixels to add on all sides first.
        fill: value of added pixels.
        fields: names of the image fields; None: every field of images.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        padding: int = 0,
        *,
        fill: float = 0,
        fields: Sequence[str] | None = None,
    ) -> None:
        super().__init__(fields)
        self._size = _pair(size)
        self._padding = padding
        self._fill = fill

    def draw(self, sizes: Sequence[tuple[int, int]], numbers: np.random.Generator) -> list[tuple[int, int]]:
        """Return top and left edge of each part, in the padded image.

        Raises:
            BadOptionError: an image is smaller than the part.
        """
        found = []
        for height, width in sizes:
            rooms = [side + 2 * self._padding - own for side, own in zip((height, width), self._size, strict=True)]
            if min(rooms) < 0:
                raise BadOptionError(
                    f"expected images of at least {self._size} with padding, got {(height, width)}", object="RandomCrop"
                )
            found.append((int(numbers.integers(rooms[0] + 1)), int(numbers.integers(rooms[1] + 1))))
        return found

    def apply(self, images: Images, parameters: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Return the parts with these top and left edges."""
        height, width = self._size
        border = [self._padding] * 4
        if isinstance(images, torch.Tensor):
            pixels = functional.pad(planes(images), border, value=self._fill) if self._padding else planes(images)
            return _gathered(pixels, torch.tensor(parameters, device="cpu"), self._size)

        def part(one: torch.Tensor, number: int) -> torch.Tensor:
            top, left = parameters[number]
            padded = functional.pad(one, border, value=self._fill) if self._padding else one
            return padded[..., top : top + height, left : left + width]

        return one_tensor(each(images, part))


class Resize(ImageTransform):
    """Resize images bilinearly with antialiasing.

    Args:
        size: height and width; or one number for the shorter side, which keeps the ratio.
        fields: names of the image fields; None: every field of images.
    """

    def __init__(self, size: int | tuple[int, int], *, fields: Sequence[str] | None = None) -> None:
        super().__init__(fields)
        self._size = size

    def __call__(self, batch: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a mapping of the same type
        """Return the batch with resized image fields.

        Raises:
            BadOptionError: a named field is missing or holds no images, or no field holds images.
        """
        return self.changed(batch, self.apply)

    def apply(self, images: Images) -> Images:
        """Return the resized images."""
        if isinstance(images, torch.Tensor):
            return from_planes(_resized(planes(images), self._wanted(sizes_of(images[:1])[0])))
        wanted = [self._wanted(size) for size in sizes_of(images)]
        return each(images, lambda one, number: _resized(one, wanted[number]))

    def _wanted(self, size: tuple[int, int]) -> tuple[int, int]:
        if not isinstance(self._size, int):
            return self._size
        height, width = size
        longer = int(self._size * max(height, width) / min(height, width))
        return (longer, self._size) if width <= height else (self._size, longer)


class RandomResizedCrop(RandomImageTransform):
    """Cut a random part of random size and ratio out of each image, and resize it. The images become one tensor.

    Each image takes several small operations. Where the daemon decodes the images, let it crop them, too:
    ``"image:224x224:random"``. This class is for images that were decoded on the GPU.

    Args:
        size: height and width of the result, or one number for both.
        scale: least and greatest area of the part, as shares of the image.
        ratio: least and greatest ratio of width to height of the part.
        fields: names of the image fields; None: every field of images.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        *,
        fields: Sequence[str] | None = None,
    ) -> None:
        super().__init__(fields)
        self._size = _pair(size)
        self._scale = scale
        self._ratio = ratio

    def draw(self, sizes: Sequence[tuple[int, int]], numbers: np.random.Generator) -> list[Box]:
        """Return the part of each image."""
        return [self._box(height, width, numbers) for height, width in sizes]

    def apply(self, images: Images, parameters: Sequence[Box]) -> torch.Tensor:
        """Return these parts, resized."""

        def part(one: torch.Tensor, number: int) -> torch.Tensor:
            box = parameters[number]
            rows, columns = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
            return _resized(one[..., rows, columns], self._size)

        return one_tensor(each(images, part))

    def _box(self, height: int, width: int, numbers: np.random.Generator) -> Box:
        for _ in range(_TRIES):
            area = height * width * numbers.uniform(*self._scale)
            ratio = math.exp(numbers.uniform(math.log(self._ratio[0]), math.log(self._ratio[1])))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top, left = numbers.integers(height - high + 1), numbers.integers(width - wide + 1)
                return Box(int(top), int(left), high, wide)
        given = width / height
        wide = round(height * self._ratio[1]) if given > self._ratio[1] else width
        high = round(width / self._ratio[0]) if given < self._ratio[0] else height
        return Box((height - high) // 2, (width - wide) // 2, high, wide)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _centre(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = size
    down, right = (max(own - side, 0) for own, side in zip(size, pixels.shape[-2:], strict=True))
    if down or right:
        pixels = functional.pad(pixels, [right // 2, (right + 1) // 2, down // 2, (down + 1) // 2])
    top, left = round((pixels.shape[-2] - height) / 2), round((pixels.shape[-1] - width) / 2)
    return pixels[..., top : top + height, left : left + width]


def _gathered(pixels: torch.Tensor, corners: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return one part of each image, in the order of its type; one gather, whatever the corners are."""
    there = corners.to(pixels.device, non_blocking=True)
    rows = there[:, :1] + torch.arange(size[0], device=pixels.device)
    columns = there[:, 1:] + torch.arange(size[1], device=pixels.device)
    number = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    found = pixels.movedim(-3, -1)[number, rows[:, :, None], columns[:, None, :]]
    if not pixels.is_floating_point():
        return found
    order = torch.channels_last if pixels.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    return found.movedim(-1, -3).contiguous(memory_format=order)


def _resized(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    if tuple(pixels.shape[-2:]) == tuple(size):
        return pixels
    several = pixels if pixels.ndim == 4 else pixels[None]
    made = functional.interpolate(several.float(), size, mode="bilinear", align_corners=False, antialias=True)
    made = (made if pixels.is_floating_point() else made.round_()).to(pixels.dtype)
    return made if pixels.ndim == 4 else made[0]
