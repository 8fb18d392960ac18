"""The ``image`` codec with all options: orientation, grey, alpha, 16 bits, transforms.

If a recipe starts by cutting and resizing a part, a JPEG is decoded at the smallest scale that still has every pixel
the result needs. Otherwise it is decoded at full size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np

from feedd.codecs import jpeg, pixels
from feedd.codecs.image_header import header_of, is_jpeg, orientation_of
from feedd.codecs.transforms import geometry
from feedd.codecs.transforms.chain import Chain
from feedd.codecs.transforms.crop import Box, centred, flipped, random_resized, shrunk
from feedd.codecs.transforms.sample_rng import Draws
from feedd.errors import BadSample
from feedd.recipe.transform_outcomes import Picture
from feedd.recipe.transform_params import RandomResizedCrop, Resize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.codecs.image_header import Header
    from feedd.recipe.params import ImageParams
    from feedd.recipe.transform_params import Interpolation
    from feedd.values import TensorSpec


class _Source(NamedTuple):
    """A sample's header: height and width as stored, orientation tag, channels in the recipe's mode."""

    height: int
    width: int
    tag: int
    channels: int
    header: Header | None  # None: a JPEG
    colours: str


class _Part(NamedTuple):
    """The part to cut from the oriented image, and the size to resize it to."""

    box: Box
    height: int
    width: int
    how: Interpolation


class PictureCodec:
    """Codec of ``image`` with ``orient``, ``mode``, ``dtype`` or ``transforms``."""

    def __init__(self, params: ImageParams) -> None:
        self._params = params
        first = params.transforms[0] if params.transforms else None
        # Decoding itself can do the recipe's first transform.
        self._first = first if params.size is None and isinstance(first, (Resize, RandomResizedCrop)) else None
        self._chain = Chain(params.transforms)

    def spec(self, name: str) -> TensorSpec:
        """DENSE if all images have the same shape after decoding, else RAGGED with 3 dimensions."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the shape of the result, from the header.

        Raises:
            BadSample: not an image, or too large before or after a transform.
        """
        source = self._source(data)
        params = self._params
        height, width = params.size or geometry.oriented_size(source.height, source.width, source.tag)
        shape = self._outcome(Picture(height, width, source.channels, params.dtype)).shape
        assert shape is not None
        return shape

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:
        """Decode and transform into ``out``.

        Raises:
            BadSample: corrupt, not an image, too large, or its shape differs from ``out``.
        """
        source = self._source(data)
        height, width = geometry.oriented_size(source.height, source.width, source.tag)
        part = self._part(height, width, source.channels, seed)
        image = self._decoded(data, source, part)
        if part is not None and self._params.size is not None and "flip" in self._params.augment and flipped(seed):
            image = geometry.mirrored(image)
        try:
            image = self._chain.run(image, seed, 0 if self._first is None else 1)
        except (ValueError, cv2.error) as error:
            raise BadSample(f"expected an image that the transforms accept, got {height}x{width}: {error}") from error
        if image.shape != out.shape or image.dtype != out.dtype:
            got = f"{image.dtype} {list(image.shape)}"
            raise BadSample(f"expected an image of {out.dtype} {list(out.shape)}, got {got}")
        out[...] = image

    def _outcome(self, picture: Picture) -> Picture:
        try:
            return self._params.outcome(picture)
        except ValueError as error:
            raise BadSample(f"{error}, got an image {picture.height}x{picture.width}") from error

    def _source(self, data: memoryview) -> _Source:
        tag = orientation_of(data) if self._params.orient else 1
        header, colours = None, ""
        if is_jpeg(data):
            height, width, colours = jpeg.header(data)
            own = 1 if colours == "Gray" else 3
        else:
            header = header_of(data)
            height, width, own = header.height, header.width, header.channels
        mode = self._params.mode
        if mode == "unchanged" and own not in {1, 3, 4}:
            raise BadSample(f"expected 1, 3 or 4 channels, got {own}")
        return _Source(height, width, tag, {"rgb": 3, "gray": 1}.get(mode, own), header, colours)

    def _part(self, height: int, width: int, channels: int, seed: int) -> _Part | None:
        size = self._params.size
        if size is not None:
            if "random_resized_crop" in self._params.augment:
                return _Part(random_resized(height, width, seed), *size, "auto")
            return _Part(centred(height, width, size[1] / size[0]), *size, "auto")
        if self._first is None:
            return None
        box = geometry.box_of(self._first, height, width, Draws(seed, 0))
        try:
            result = self._first.outcome(Picture(height, width, channels, self._params.dtype))
        except ValueError as error:
            raise BadSample(f"{error}, got an image {height}x{width}") from error
        assert box is not None
        assert result.height is not None
        assert result.width is not None
        return _Part(box, result.height, result.width, self._first.interpolation)

    def _decoded(self, data: memoryview, source: _Source, part: _Part | None) -> NDArray[Any]:
        scale = 1
        if source.header is None:
            if part is not None and source.colours not in jpeg.INK:
                scale = jpeg.scale_for(part.box, part.height, part.width)
            # Fast decoding may change values by a step, as in ``image``. That is allowed only if the image is resized.
            image = self._jpeg(data, source, scale, fast=part is not None)
        else:
            image = self._plain(data, source.header, source.channels)
        if part is None:
            return geometry.oriented(image, source.tag)
        # Cut before orienting, because at a scale the edges are exact only in stored coordinates.
        box = geometry.encoded_box(
            part.box, *geometry.oriented_size(source.height, source.width, source.tag), source.tag
        )
        box = box if scale == 1 else shrunk(box, scale, *image.shape[:2])
        image = geometry.oriented(image[box.top : box.top + box.height, box.left : box.left + box.width], source.tag)
        return geometry.resize(image, part.height, part.width, part.how)

    def _jpeg(self, data: memoryview, source: _Source, scale: int, *, fast: bool) -> NDArray[Any]:
        if source.colours in jpeg.INK:
            image: NDArray[Any] = jpeg.cmyk_to_rgb(data)
            if source.channels == 1:
                image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]
        else:
            grey = source.channels == 1
            image = jpeg.decode_scaled(data, source.height, source.width, scale, grey=grey, fast=fast)
        if self._params.dtype == "uint16":
            image = image.astype(np.uint16) * np.uint16(257)
        return image

    def _plain(self, data: memoryview, header: Header, channels: int) -> NDArray[Any]:
        deep = self._params.dtype == "uint16"
        grey = channels == 1
        image = pixels.decode(data, header, 1 if grey and header.channels == 1 else max(channels, 3), deep=deep)
        if grey:
            return image if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[:, :, None]
        return cv2.cvtColor(image, cv2.COLOR_BGRA2RGBA if channels == 4 else cv2.COLOR_BGR2RGB)
