"""Images in batches, as transforms see them: which fields hold them, and how their dimensions are ordered.

Images are uint8 with channels last, as slots hold them, or floating point with channels first, as ``Normalize`` makes
them. A field is a tensor of images of one size, or a list of images of several sizes, as decoders return them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from feedd_client.containers import with_values
from feedd_client.errors import BadOptionError
from feedd_client.values import Ragged

if TYPE_CHECKING:
    import numpy as np

    from feedd_client.transforms import TransformContext

_CHANNELS_MAX: Final = 4
Images: TypeAlias = "torch.Tensor | list[torch.Tensor]"


class ImageTransform:
    """Base class of transforms that change the images of a batch.

    Args:
        fields: names of the image fields; None: every field of images.
    """

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        self._fields = None if fields is None else tuple(fields)

    def __repr__(self) -> str:
        options = [f"{name.lstrip('_')}={value}" for name, value in vars(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(options)})"

    def changed(self, batch: Mapping[str, Any], change: Callable[[Images], Images]) -> Any:  # noqa: ANN401 - a mapping of the same type
        """Return the batch with changed image fields.

        Raises:
            BadOptionError: a named field is missing or holds no images, or no field holds images.
        """
        names = image_fields(batch, self._fields, type(self).__name__)
        values = {name: change(images_of(batch[name])) for name in names}
        return with_values(batch, {**batch, **values})


class RandomImageTransform(ImageTransform):
    """Base class of image transforms with random parameters.

    All image fields of a batch are changed with the same parameters: an image and its mask stay together.
    """

    def __call__(self, batch: Mapping[str, Any], context: TransformContext) -> Any:  # noqa: ANN401 - see above
        """Return the batch with changed image fields; other fields pass through.

        Raises:
            BadOptionError: see ``ImageTransform.changed``.
        """
        names = image_fields(batch, self._fields, type(self).__name__)
        sizes = sizes_of(images_of(batch[names[0]]))
        parameters = self.draw(sizes, context.host_numbers())
        return self.changed(batch, lambda images: self.apply(images, parameters))

    def draw(self, sizes: Sequence[tuple[int, int]], numbers: np.random.Generator) -> Any:  # noqa: ANN401 - each class has its own
        """Return random parameters for images of these heights and widths."""
        raise NotImplementedError

    def apply(self, images: Images, parameters: Any) -> Images:  # noqa: ANN401 - see above
        """Return the images, changed with these parameters."""
        raise NotImplementedError


def image_fields(batch: object, named: Sequence[str] | None, owner: str) -> Sequence[str]:
    """Return the names of the image fields.

    Raises:
        BadOptionError: a named field is missing or holds no images, or no field holds images.
    """
    if not isinstance(batch, Mapping):
        raise BadOptionError(f"expected a mapping of fields, got {type(batch).__name__}", object=owner)
    found = [name for name, value in batch.items() if _holds_images(value)]
    for name in named or ():
        if name not in batch or not _holds_images(batch[name]):
            got = described(batch[name]) if name in batch else f"no such field among {list(batch)}"
            raise BadOptionError(f"expected images, got {got}", object=name)
    if not found:
        raise BadOptionError(
            "expected a field of images, uint8 [batch, height, width, channel] or floating point"
            f" [batch, channel, height, width], got {', '.join(f'{n}: {described(v)}' for n, v in batch.items())}",
            object=owner,
        )
    return found if named is None else named


def images_of(value: Any) -> Images:  # noqa: ANN401 - a field
    """Return a field's images: a tensor, or a list of images of their own sizes."""
    if isinstance(value, Ragged):
        assert value.shapes is not None
        ends, shapes = value.offsets.tolist(), value.shapes.tolist()
        return [value.values[ends[row] : ends[row + 1]].view(shapes[row]) for row in range(len(shapes))]
    return value if isinstance(value, torch.Tensor) else list(value)


def sizes_of(images: Images) -> list[tuple[int, int]]:
    """Return height and width of each image."""
    sizes = [tuple(planes(one).shape[-2:]) for one in images]
    return [(height, width) for height, width in sizes]


def planes(image: torch.Tensor) -> torch.Tensor:
    """Return a view of an image, or of images, with channels first."""
    return image if image.is_floating_point() else image.movedim(-1, -3)


def from_planes(image: torch.Tensor) -> torch.Tensor:
    """Return a view of what ``planes`` returned in the order that its type has in batches."""
    return image if image.is_floating_point() else image.movedim(-3, -1)


def each(images: Images, change: Callable[[torch.Tensor, int], torch.Tensor]) -> list[torch.Tensor]:
    """Return every image changed; ``change`` gets channels first and the image's number."""
    return [from_planes(change(planes(one), number)) for number, one in enumerate(images)]


def one_tensor(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return images of one size as one tensor."""
    return torch.stack(list(images))


def described(value: object) -> str:
    """Return dtype and shape of a tensor, or the type of another value."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _holds_images(value: object) -> bool:
    if isinstance(value, Ragged):
        return value.shapes is not None and value.shapes.shape[1] == 3 and value.values.dtype == torch.uint8
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(one, torch.Tensor) and _is_image(one, 3) for one in value)
    return isinstance(value, torch.Tensor) and _is_image(value, 4)


def _is_image(value: torch.Tensor, dimensions: int) -> bool:
    if value.ndim != dimensions:
        return False
    channels = value.shape[-3] if value.is_floating_point() else value.shape[-1]
    return (value.is_floating_point() or value.dtype == torch.uint8) and channels <= _CHANNELS_MAX
