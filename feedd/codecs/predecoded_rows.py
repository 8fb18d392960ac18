"""The ``image`` codec for predecoded rows (see ``recipe.predecoded``): does the rest of the recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from feedd.codecs.transforms import geometry
from feedd.codecs.transforms.chain import Chain
from feedd.codecs.transforms.crop import flipped
from feedd.errors import BadSample
from feedd.recipe.installed_transforms import installed_outcome
from feedd.recipe.params import SAMPLE_BYTES_MAX
from feedd.recipe.predecoded import HEAD, original_of
from feedd.recipe.transform_outcomes import Picture
from feedd.recipe.transform_params import ChannelsFirst, Installed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec
    from feedd.recipe.params import ImageParams
    from feedd.recipe.predecoded import Prefix
    from feedd.values import TensorSpec


class PredecodedRowsCodec:
    """Codec of predecoded rows, and of samples that were kept encoded.

    Args:
        params: parameters of the whole recipe.
        prefix: the part of the recipe that was done in advance.
        inner: decodes samples that were kept encoded.
    """

    def __init__(self, params: ImageParams, prefix: Prefix, inner: SampleCodec) -> None:
        self._params, self._prefix, self._inner = params, prefix, inner
        self._flips = "flip" in params.augment
        self._chain = Chain(params.transforms)

    def spec(self, name: str) -> TensorSpec:
        """Return the same spec as for encoded samples."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the shape of the result.

        Raises:
            BadSample: neither a row nor an image, or too large after a transform.
        """
        original = original_of(data, self._prefix.width_bytes)
        if original is not None:
            return self._inner.measure(original)
        row = self._row(data)
        first = self._comes_first()
        channels, height, width = row.shape if first else (row.shape[2], *row.shape[:2])
        picture = Picture(height, width, channels, self._prefix.dtype, first)
        try:
            for one in self._params.transforms[self._prefix.done :]:
                picture = installed_outcome(one, picture) if isinstance(one, Installed) else one.outcome(picture)
        except ValueError as error:
            raise BadSample(f"{error}, got an image {height}x{width}") from error
        assert picture.shape is not None
        return picture.shape

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:
        """Do the rest of the recipe and write the result into ``out``.

        Raises:
            BadSample: as ``measure``, or the shape differs from ``out``; for an encoded sample, as its codec.
        """
        original = original_of(data, self._prefix.width_bytes)
        if original is not None:
            self._inner.decode(original, out, seed)
            return
        image: NDArray[Any] = self._row(data)
        if not self._prefix.whole:
            image = self._finished(image.copy(), seed)  # transforms may write, and others read these rows too
        if image.shape != out.shape or image.dtype != out.dtype:
            got = f"{image.dtype} {list(image.shape)}"
            raise BadSample(f"expected an image of {out.dtype} {list(out.shape)}, got {got}")
        out[...] = image

    def _finished(self, image: NDArray[Any], seed: int) -> NDArray[Any]:
        height, width = image.shape[:2]
        try:
            if self._flips and flipped(seed):
                image = geometry.mirrored(image)
            return self._chain.run(image, seed, self._prefix.done)
        except (ValueError, cv2.error) as error:
            raise BadSample(f"expected an image that the transforms accept, got {height}x{width}: {error}") from error

    def _row(self, data: memoryview) -> NDArray[Any]:
        shape, at = self._prefix.shape, 0
        if shape is None:
            if len(data) < HEAD.size:
                raise BadSample(f"expected the shape of an image, got {len(data)} bytes")
            _, *sides = HEAD.unpack_from(data)
            shape, at = tuple(sides), HEAD.size
        expected = int(np.dtype(self._prefix.dtype).itemsize)
        for side in shape:
            expected *= side
        if not 0 < expected <= SAMPLE_BYTES_MAX or len(data) - at != expected:
            raise BadSample(f"expected {expected} bytes for an image of {list(shape)}, got {len(data) - at}")
        little_endian = np.frombuffer(data, np.dtype(self._prefix.dtype).newbyteorder("<"), offset=at)
        return little_endian.reshape(shape)

    def _comes_first(self) -> bool:
        """Whether rows have their channels first."""
        return any(isinstance(one, ChannelsFirst) for one in self._prefix.params.transforms)
