"""Applies a recipe's list of transforms to images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from feedd.codecs.transforms import augment, colors, geometry, numbers
from feedd.codecs.transforms.sample_rng import Draws
from feedd.recipe import plugins
from feedd.recipe import transform_params as params
from feedd.recipe.transform_outcomes import Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Step = Callable[[NDArray[Any], Any, Draws], NDArray[Any]]


def _resize(image: NDArray[Any], one: params.Resize, draws: Draws) -> NDArray[Any]:  # noqa: ARG001 - not random
    rows, columns, channels = image.shape
    outcome = one.outcome(Picture(rows, columns, channels, image.dtype.name))
    assert outcome.height is not None
    assert outcome.width is not None
    return geometry.resize(image, outcome.height, outcome.width, one.interpolation)


def _horizontal_flip(image: NDArray[Any], one: params.HorizontalFlip, draws: Draws) -> NDArray[Any]:
    return geometry.mirrored(image) if draws.uniform(0) < one.p else image


def _vertical_flip(image: NDArray[Any], one: params.VerticalFlip, draws: Draws) -> NDArray[Any]:
    return geometry.upside_down(image) if draws.uniform(0) < one.p else image


def _installed(image: NDArray[Any], one: params.Installed, draws: Draws) -> NDArray[Any]:
    return plugins.transform(one.name, one.options)(image, draws.seed)


_STEPS: Final[dict[type[params.Transform], Step]] = {
    params.Resize: _resize,
    params.CenterCrop: lambda image, one, _: geometry.center_crop(image, one),
    params.RandomCrop: geometry.random_crop,
    params.RandomResizedCrop: geometry.random_resized_crop,
    params.Pad: lambda image, one, _: geometry.bordered(image, params.edges(one.padding), one.fill, one.mode),
    params.HorizontalFlip: _horizontal_flip,
    params.VerticalFlip: _vertical_flip,
    params.Grayscale: colors.grayscale,
    params.ColorJitter: colors.color_jitter,
    params.RandAugment: augment.rand_augment,
    params.Normalize: lambda image, one, _: colors.normalize(image, one),
    params.Cast: lambda image, one, _: numbers.cast(image, one.dtype),
    params.ChannelsFirst: lambda image, _one, _: image.transpose(2, 0, 1),
    params.Installed: _installed,
}


class Chain:
    """Applies transforms in order; each draws from its own random stream (see ``sample_rng``)."""

    def __init__(self, transforms: Sequence[params.Transform]) -> None:
        self._steps = [(place, _STEPS[type(one)], one) for place, one in enumerate(transforms)]

    def run(self, image: NDArray[Any], seed: int, start: int = 0) -> NDArray[Any]:
        """Return the transformed image; the first ``start`` transforms are already done.

        Raises:
            ValueError: a transform would make the image too large.
            BadSample: numbers that do not fit a dtype.
        """
        for place, step, one in self._steps[start:]:
            image = step(image, one, Draws(seed, place))
        return image
